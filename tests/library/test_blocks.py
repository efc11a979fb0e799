"""Removed blocks leave a refit of the layer before them, towards the stream behind them."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from cases.engine import batches_of, build
from cases.models.decoders import DECODERS
from cases.planning.networks import images, vit
from torch import Tensor, nn

from prunerecover.divergence.measure import mean_divergence
from prunerecover.library.blocks import Blocks
from prunerecover.library.edits import Fit
from prunerecover.library.variants import DENSE
from prunerecover.model.batches import call, predictions_of
from prunerecover.model.paths import get_module
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.planner import Planner
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits

ALL = ("block", "attention", "mlp")
CHAIN = Blocks({"b": (1, 3), "c": (3, 5), "e": (7, 9)})


@cache
def planner(name: str = "", kinds: tuple[str, ...] = ALL) -> Planner:
    """Return a planner with a scored library, of a tiny ViT with three blocks or of another tiny model."""
    if name == "granite":
        model, batches = DECODERS[name].build(), batches_of("llama", n=32)
    else:
        model, batches = (build(name), batches_of(name, n=32)) if name else (vit(init_values=0.5), images(6))
    found = Planner(Session(model, batches), "macs", PruningConfig(kinds=kinds))  # type: ignore[arg-type]
    with found.session.evaluating():
        assert found.library.scored
    return found


@torch.no_grad()
def stream_behind(network: nn.Module, path: str, x: Tensor) -> Tensor:
    """Return the output of a block."""
    seen: list[Tensor] = []
    handle = get_module(network, path).register_forward_hook(lambda _, __, output: seen.append(output))
    network.eval()(x)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize(
    ("gone", "aims"),
    [((), (0, 1, 3, 5)), (("b",), (0, 3, 3, 5)), (("b", "c"), (0, 5, 5, 5)), (("c",), (0, 1, 5, 5))],
)
def test_the_stream_behind_a_run_of_blocks_is_wanted(gone: tuple[str, ...], aims: tuple[int, ...]) -> None:
    assert tuple(CHAIN.aim(station, gone) for station in (0, 1, 3, 5)) == aims


def test_every_block_more_or_less_is_ready() -> None:
    assert set(CHAIN.aims(1, ["b"])) == {3, 1, 5}
    assert set(CHAIN.aims(1, [])) == {1, 3}
    assert CHAIN.aims(9, []) == (9,)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [ALL, ("block",)])
def test_blocks_are_found_between_stations(kinds: tuple[str, ...]) -> None:
    library = planner(kinds=kinds).library
    ends = {b: [library.stations[n].reader for n in around] for b, around in library.blocks.around.items()}
    assert ends == {f"blocks.{n}": [f"blocks.{n - 1}.mlp.fc2", f"blocks.{n}.mlp.fc2"] for n in (1, 2)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "llama", "gpt2", "bert", "opt_post_norm"])
def test_a_block_alone_diverges_less_with_the_refit_and_is_scored_as_a_whole_network(name: str) -> None:
    own = planner(name)
    library, session = own.library, own.session
    block = list(library.blocks.around)[0]
    one = library.scored[block]["zero"]
    with session.evaluating(), torch.no_grad():
        bare = library.scorers.alone.divergence({block: (one.variant, Fit())})
        network = copy.deepcopy(session.model)
        edits, tensors = library.maker.edits({block: (one.variant, library.fit(block, "zero"))}, in_place=False)
        apply_edits(network, edits, tensors)
        held_out = session.samples.held_out
        dense, pruned = ([predictions_of(call(m, batch)) for batch in held_out] for m in (session.model, network))
    assert one.divergence < bare
    assert one.divergence == pytest.approx(mean_divergence(held_out, dense, pruned), rel=1e-3, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("gone", [("blocks.1",), ("blocks.1", "blocks.2")])
def test_the_refit_is_nearly_least_squares_towards_the_stream_behind(gone: tuple[str, ...]) -> None:
    own = planner()
    library, model = own.library, own.session.model
    with own.session.evaluating(), torch.no_grad():
        found, _ = library.walks.walk(library.chosen(dict.fromkeys(gone, "zero")))
        assert [set(found[block][1].modules) for block in gone] == [{"blocks.0.mlp.fc2"}, set()][: len(gone)]
        network = copy.deepcopy(model)
        apply_edits(network, *library.maker.edits(found))
        x = torch.cat([batch.args[0] for batch in own.session.samples.fit])
        wanted = stream_behind(model, gone[-1], x)
        before, after = ((stream_behind(m, "blocks.0", x) - wanted).square().mean() for m in (model, network))
        features, rest = _read_and_rest(model, x)
        rows = torch.cat([features, torch.ones(len(features), 1)], 1)
        aim = (wanted.flatten(0, 1) - rest) / get_module(model, "blocks.0.ls2").gamma
        lost = (rows @ torch.linalg.lstsq(rows, aim).solution - aim) * get_module(model, "blocks.0.ls2").gamma
    assert lost.square().mean() <= after < before
    assert after < lost.square().mean() + 0.3 * (before - lost.square().mean())


def _read_and_rest(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows that the first block's last linear reads, and the stream before that is added."""
    seen: dict[str, Tensor] = {}
    fc2, scaled = get_module(model, "blocks.0.mlp.fc2"), get_module(model, "blocks.0.ls2")
    handles = (
        fc2.register_forward_pre_hook(lambda _, args: seen.update(read=args[0].flatten(0, 1))),
        scaled.register_forward_hook(lambda _, __, output: seen.update(added=output)),
    )
    total = stream_behind(model, "blocks.0", x)
    for handle in handles:
        handle.remove()
    return seen["read"], (total - seen["added"]).flatten(0, 1)


@pytest.mark.slow
def test_a_replaced_branch_before_a_block_leads_behind_the_block() -> None:
    own = planner()
    library, names = own.library, {"blocks.0.mlp": "affine", "blocks.1": "zero"}
    with own.session.evaluating():
        found, _ = library.walks.walk(library.chosen(names))
        alone, _ = library.walks.walk(library.chosen({"blocks.0.mlp": "affine"}))
    assert not found["blocks.1"][1].modules
    assert not torch.equal(
        found["blocks.0.mlp"][1].replacement["weight"], alone["blocks.0.mlp"][1].replacement["weight"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "site", "name"),
    [
        ({}, "blocks.1", "zero"),
        ({"blocks.1": "zero"}, "blocks.2", "zero"),
        ({"blocks.1": "zero"}, "blocks.1", DENSE),
        ({"blocks.1": "zero"}, "blocks.0.mlp", "affine"),
        ({"blocks.0.mlp": "affine", "blocks.1": "zero"}, "blocks.0.mlp", DENSE),
        ({"blocks.0.mlp": "affine", "blocks.1": "zero"}, "blocks.1", DENSE),
    ],
)
def test_one_change_is_fitted_as_a_walk_would(before: dict[str, str], site: str, name: str) -> None:
    plans = planner()
    library = plans.library
    with plans.session.evaluating():
        start, moments = library.walks.walk(library.chosen(before))
        changed = library.changed(start, site, name, moments)
        walked, _ = library.walks.walk(library.chosen({**before, site: name}))
    assert {own: variant.name for own, (variant, _) in changed.items()} == {
        own: variant.name for own, (variant, _) in walked.items()
    }
    for own, (_, fit) in changed.items():
        for path, values in walked[own][1].modules.items():
            torch.testing.assert_close(fit.modules[path], values)
        torch.testing.assert_close(fit.replacement, walked[own][1].replacement)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "granite"])
def test_replacements_stand_where_no_layer_scale_is_left_and_before_numbers_of_the_code(name: str) -> None:
    own = planner(name)
    library = own.library
    site = next(site for site in library.sites.values() if site.kind == "mlp")
    variant, fit = site.variant("affine"), library.fit(site.name, "affine")
    wrong = [Fit(replacement={key: factor * value for key, value in fit.replacement.items()}) for factor in (0.5, 2.0)]
    with own.session.evaluating():
        best, *worse = [library.scorers.alone.divergence({site.name: (variant, one)}) for one in (fit, *wrong)]
    assert best < min(worse)


@pytest.mark.slow
def test_a_narrowed_site_before_a_removed_block_is_scored_with_one_fit_of_its_linear() -> None:
    plans = planner(kinds=("block", "mlp", "neuron"))
    library, site = plans.library, "blocks.0.mlp"
    narrowed = next(variant.name for variant in library.sites[site].variants if variant.removed)
    with plans.session.evaluating():
        start, moments = library.walks.walk(library.chosen({"blocks.1": "zero"}))
        changed = library.changed(start, site, narrowed, moments)
        assert not changed["blocks.1"][1].modules
        assert library.scorers.alone.divergence(changed) < float("inf")
