"""The picture of a plan has a cell for every unit, with its name and the plan's edit."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from cases.depth.architectures import ARCHITECTURES
from cases.support.drawn import cells, explained, is_whole

from prunerecover import Plan, find_units, plan_depth
from prunerecover.display.style import LIGHT
from prunerecover.plan.depth_panel import GONE, LOOKS
from prunerecover.plan.edit_parts import StandIn
from prunerecover.plan.edits import Bypass, Narrow, Remove, Replace
from prunerecover.plan.evidence import DepthEvidence

PARTS = {"attention": ".attn", "activation": ".mlp.act", "mlp": ".mlp", "block": ""}
PLAN = Plan(
    edits=(
        Remove(unit="blocks.1.attn", kind="attention"),
        Replace(unit="blocks.2.mlp.act", kind="activation", leaves="slope_bias"),
    ),
    evidence={"importance": {"blocks.0.attn": 4.0, "blocks.1.attn": 1.0, "blocks.3.attn": 2.0}},
)


def layers(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "layer")


def yolo() -> dict[str, str]:
    """YOLOv8n's: C2f blocks with bottlenecks inside, and the SPPF."""
    depths = {2: 1, 4: 2, 6: 2, 8: 1, 12: 1, 15: 1, 18: 1, 21: 1}
    inner = {i: [f"m.{j}.{cv}" for j in range(n) for cv in ("cv1", "cv2")] for i, n in depths.items()} | {9: []}
    return layers(*(f"model.{i}.{part}.conv" for i in sorted(inner) for part in ("cv1", *inner[i], "cv2")))


def transformer(prefix: str, blocks: int, *kinds: str) -> dict[str, str]:
    return {f"{prefix}.{i}{PARTS[kind]}": kind for i in range(blocks) for kind in kinds}


def units_of(kinds: dict[str, str]) -> list[Any]:
    return [SimpleNamespace(name=name, kind=kind) for name, kind in kinds.items()]


def sequence_to_sequence() -> dict[str, str]:
    parts = {"encoder": ("SelfAttention", "MLP"), "decoder": ("SelfAttention", "CrossAttention", "MLP")}
    names = [f"{end}.block.{i}.layer.{j}.{p}" for end in parts for i in range(3) for j, p in enumerate(parts[end])]
    return {name: "mlp" if name.endswith("MLP") else "attention" for name in names}


NETWORKS = {
    "transformer": transformer("blocks", 12, "attention", "mlp", "activation", "block"),
    "80 blocks": transformer("model.layers", 80, "attention", "mlp", "block"),
    "encoder and decoder": sequence_to_sequence(),
    "yolo": yolo(),
    "no numbers": layers(*(f"Mixed_{i}{letter}.branch{j}.conv" for i in (5, 6) for letter in "bcde" for j in "123456")),
    "branches without names": {"embed": "layer", "fc1+fc2": "mlp", "fc1": "layer", "fc2": "layer", "fc3": "layer"},
    "layers and branches": transformer("blocks", 4, "attention", "mlp")
    | layers(*(f"blocks.{i}.mlp.fc{j}" for i in range(4) for j in (1, 2)), "stem", "neck.0"),
}


@pytest.mark.parametrize(("network", "seed"), zip(NETWORKS, itertools.cycle(range(2))))
def test_every_unit_has_a_cell_that_its_labels_name_and_that_says_whether_it_goes(network: str, seed: int) -> None:
    kinds, draw = NETWORKS[network], random.Random(seed)
    gone = draw.sample(list(kinds), 1 + 2 * seed)
    edits = tuple(Bypass(unit=name, kind=kinds[name], modules={name: StandIn()}) for name in gone)  # type: ignore[arg-type]
    figure = Plan(edits=edits, evidence={"units": kinds, "importance": dict.fromkeys(kinds, 1.0)}).plot()
    inside = {name for name in kinds if any(name.startswith(f"{unit}.") for unit in gone)} - set(gone)
    expected = (
        dict.fromkeys(kinds, LIGHT) | dict.fromkeys(gone, LOOKS["identity"].color) | dict.fromkeys(inside, "none")
    )
    assert cells(figure, kinds) == expected
    went, there = (Counter(kinds[name] for name in names) for names in (gone, kinds))
    heading = figure.get_suptitle().replace("\n", " ").removeprefix("Removed: ")
    assert sorted(heading.split(", ")) == sorted(f"{kind} {n} of {there[kind]}" for kind, n in went.items())
    assert figure.get_figwidth() < 20
    assert seed or is_whole(figure)


def test_a_planned_network_is_drawn_whole() -> None:
    model, batch = ARCHITECTURES["detector"]()
    plan = plan_depth(model, remove={"layer": 2}, batches=[batch], importance="magnitude")
    kinds = {unit.name: str(unit.kind) for unit in find_units(model, batch, ("layer",))}
    drawn = cells(plan.plot(), kinds)
    assert {unit for unit, colour in drawn.items() if colour != LIGHT} == set(plan.removed["layer"])


def test_plan_colours_exactly_what_was_removed() -> None:
    kinds = transformer("blocks", 4, "activation", "attention")
    figure = PLAN.plot(units=units_of(kinds), importance={})
    expected = dict.fromkeys(kinds, LIGHT)
    expected |= {"blocks.1.attn": LOOKS["zero"].color, "blocks.2.mlp.act": LOOKS["slope_bias"].color}
    assert cells(figure, kinds) == expected
    assert figure.get_suptitle() == "Removed: attention 1 of 4, activation 1 of 4"
    assert [text.get_text() for text in figure.axes[0].texts] == ["0", "ax+b"]
    assert explained(figure) == ["kept", "removed, leaves zero", "removed, leaves slope and bias"]


def test_what_went_with_its_block_is_an_outline_under_the_dense_models_number() -> None:
    plan = Plan(edits=(Remove(unit="blocks.1", kind="block"), Remove(unit="blocks.1", kind="block")))
    kinds = transformer("blocks", 4, "attention", "mlp", "block")
    figure = plan.plot(units=units_of(kinds))
    found = cells(figure, kinds)
    taken = LOOKS["nothing"].color
    assert [found[f"blocks.{i}"] for i in range(4)] == [LIGHT, taken, taken, LIGHT]
    assert [found[f"blocks.{i}.attn"] for i in range(4)] == [LIGHT, "none", "none", LIGHT]
    assert GONE in explained(figure)


def test_a_second_plan_names_units_by_the_dense_models_numbers() -> None:
    """After block 1 of 4 has gone, the second plan's block 1 is the dense model's block 2."""
    first, second = (
        Plan(
            edits=(Remove(unit="blocks.1", kind="block"),),
            evidence={"units": transformer("blocks", n, "block"), "importance": {"blocks.1": value}},
        )
        for n, value in ((4, 1.0), (3, 2.0))
    )
    both = first + second
    assert DepthEvidence.of(both.evidence).units == transformer("blocks", 4, "block")
    assert both.evidence["importance"] == {"blocks.1": 1.0, "blocks.2": 2.0}
    found = cells(both.plot(), transformer("blocks", 4, "block"))
    assert [found[f"blocks.{i}"] for i in (0, 3)] == [LIGHT, LIGHT]
    assert [found[f"blocks.{i}"] for i in (1, 2)] == [LOOKS["nothing"].color] * 2


def test_widths_that_follow_a_layer_are_not_counted_as_chosen() -> None:
    def narrow(kept: int, serves: str = "") -> Narrow:
        return Narrow(unit="conv", kind="channel", of=32, keep=tuple(range(kept)), group=(), serves=serves)

    layer = Bypass(unit="next", kind="layer", modules={"next": StandIn()})
    followed = Plan(edits=(narrow(20, serves="next"), layer), evidence={"units": {"next": "layer"}})
    headings = [part.get_suptitle() for part in followed.plot().subfigs]
    assert headings == ["Removed: layer 1 of 1", "Widths that follow the layers: channel 12 of 32"]
    other_half = Plan(edits=(narrow(20, serves="next"), narrow(30), layer), evidence={"units": {"next": "layer"}})
    assert [(group.kept, group.size, group.followed) for group in other_half.kept_groups] == [(50, 64, 12)]
    heading = other_half.plot().subfigs[1].get_suptitle()
    assert heading == "Removed: channel 2 of 64\nWidths that follow the layers: channel 12 of 64"


def test_unknown_units_are_refused() -> None:
    with pytest.raises(ValueError, match=r"among the 1 units of the dense model, but got \['blocks.1.attn'\]"):
        PLAN.plot(units=units_of(transformer("blocks", 1, "attention")))
    with pytest.raises(ValueError, match="but got no unit at all"):
        Plan().plot()
