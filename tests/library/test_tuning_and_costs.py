"""Tuning is never worse on held-out samples; shares of variants are those of networks that are really narrowed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_llama
from cases.planning.networks import images, left, vit
from cases.planning.planners import vit_planner
from cases.planning.plans import chosen
from cases.width.plan_width import Joined
from torch import Tensor

from prunerecover.calibration import learning, steps
from prunerecover.library import library
from prunerecover.library.costs import VariantCosts
from prunerecover.library.edits import Fit
from prunerecover.library.tuning import tuned
from prunerecover.library.variants import DENSE, LibrarySite
from prunerecover.plan.edits import Edit, Narrow
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.planner import Planner
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits

pytestmark = pytest.mark.slow


def test_tuned_choices_are_no_worse_on_held_out_samples() -> None:
    planner = vit_planner()
    library = planner.library
    narrow = next(v.name for v in library.sites["blocks.0.mlp"].variants if len(v.removed) == 1)
    state = chosen(planner, {"blocks.0.mlp": narrow, "blocks.1.attn": "affine"})
    with planner.session.evaluating():
        found = tuned(planner.session, library.maker, state.chosen)
        assert library.scorers.divergence(found) <= state.divergence


def test_the_tokens_of_a_few_texts_are_enough_to_tune_on() -> None:
    model, generator = tiny_llama(), torch.Generator().manual_seed(0)
    texts = [torch.randint(0, 30, (12, 64), generator=generator) for _ in range(2)]
    planner = Planner(Session.with_dense_reference(model, texts), "params", PruningConfig(kinds=("attention", "mlp")))
    state = chosen(planner, {"model.layers.0.mlp": "affine", "model.layers.1.self_attn": "affine"})
    assert sum(batch.n_samples for batch in planner.session.samples.fit) < steps.FEWEST_SAMPLES
    tuned_choice, _ = planner.finished(state)
    assert planner.library.scorers.divergence(tuned_choice) < 0.99 * state.divergence


def test_a_search_fits_on_some_samples_and_its_choice_is_fitted_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "tuned_on_output", lambda *_, **__: (0.0, []))
    names, fits = {"blocks.0.mlp": "affine", "blocks.1.attn": "affine"}, list[Tensor]()
    for most in (library.SEARCHED, 256):
        monkeypatch.setattr(library, "SEARCHED", most)
        planner = Planner(Session(vit(depth=2), images(16, 16)), "macs", PruningConfig(kinds=("attention", "mlp")))
        state = chosen(planner, names)
        found, divergence = planner.finished(state)
        assert divergence == planner.library.scorers.divergence(found)
        fits += [own[site][1].replacement["bias"] for own in (state.chosen, found) for site in names]
    searched, finished, whole = fits[:2], fits[2:4], fits[4:6]
    assert not any(map(torch.equal, searched, whole))
    assert all(map(torch.equal, finished, whole))


def test_further_samples_are_taken_until_there_are_outputs_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a classifier one output a sample, of a language model one a token."""
    monkeypatch.setattr(steps, "WANTED_OUTPUTS", 100)
    monkeypatch.setattr(steps, "FEWEST_SAMPLES", 1)
    seen: dict[str, int] = {}
    texts = [torch.randint(0, 30, (16, 16), generator=torch.Generator().manual_seed(n)) for n in range(2)]
    for name, model, batches in (("vit", vit(depth=2), images(20)), ("llama", tiny_llama(), texts)):
        session = Session.with_dense_reference(model, batches).on_first(16)
        planner = Planner(session, "params", PruningConfig(kinds=("attention", "mlp")))
        site = next(iter(planner.unscored.sites))
        with session.evaluating():
            chosen = planner.unscored.walks.walk({site: (planner.unscored.sites[site].variant("affine"), Fit())})[0]

        def taken(network: object, learnt: object, taken: steps.Steps, *_: object, **__: object) -> Any:
            seen[name] = sum(batch.n_samples for batch in taken.batches)  # noqa: B023  (called at once)
            return 0.0, []

        monkeypatch.setattr(learning, "tuned_on_output", taken)
        planner.finished(SimpleNamespace(chosen=chosen, divergence=1.0))  # type: ignore[arg-type]
    assert seen == {"vit": 100, "llama": 12}


def test_a_rate_that_is_too_large_gives_way_to_a_smaller_one(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(Session(vit(depth=2), images(24, 32)), "macs", PruningConfig())
    library, session, found = planner.library, planner.session, dict[tuple[float, ...], float]()
    state = chosen(planner, {"blocks.0.mlp": "16 of 64 neurons", "blocks.1.attn": "affine"})
    with session.evaluating():
        for rates in ((1e6,), (1e6, 3e-3), (3e-3,)):
            monkeypatch.setattr(learning, "RATES", rates)
            choice = tuned(session, library.maker, state.chosen)
            found[rates] = library.scorers.divergence(choice)
    assert found[1e6,] == pytest.approx(state.divergence)
    assert found[1e6, 3e-3] == found[3e-3,] < 0.95 * state.divergence


def test_counted_shares_are_those_of_narrowed_copies() -> None:
    planner = vit_planner()
    shares = planner.costs.shares("macs")
    for site in planner.library.sites.values():
        for variant in site.variants:
            network = copy.deepcopy(planner.session.model)
            edits, _ = planner.library.maker.edits({site.name: (variant, Fit())} if variant.name != DENSE else {})
            apply_edits(network, edits)
            assert shares[site.name][variant.name] == pytest.approx(1 - left(planner.session.model, network), abs=1e-6)


def test_heads_head_dimensions_and_whole_units_are_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal MACs take unequal time: softmax depends on the number of heads, and not on their size."""
    planner = Planner(Session(vit(embed_dim=64, num_heads=4), images(2)), "macs", PruningConfig())
    library, session, macs = planner.library, planner.session, planner.costs.shares("macs")
    rates = {("head",): 2.0, ("head_dim",): 0.5, ("head", "head_dim"): 1.0, (): 1.5}

    def way(site: LibrarySite, name: str) -> tuple[str, ...]:
        return tuple(group.kind for group in site.groups if group.name in site.variant(name).removed)

    def rough(edits: Sequence[Edit]) -> float:
        kinds = {group.name: group.kind for site in library.sites.values() for group in site.groups}
        narrowed = {kinds[edit.unit] for edit in edits if isinstance(edit, Narrow) and edit.unit in kinds}
        return rates.get(tuple(sorted(narrowed)), 1.5) * session.cost("macs").removed_share(edits)

    monkeypatch.setattr(planner.costs, "rough_share", rough)
    attentions = {name: site for name, site in library.sites.items() if site.kind == "attention"}
    for name, site in attentions.items():
        for variant, share in planner.costs.shares("latency")[name].items():
            if variant != DENSE:
                assert share == pytest.approx(rates[way(site, variant)] * macs[name][variant], rel=0.05), variant


def test_sites_whose_outputs_one_layer_reads_are_timed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places of the second group in the layer move as the first group is narrowed."""
    planner = Planner(Session(Joined(), images(2)), "latency", PruningConfig())
    costs, seen = VariantCosts(planner.session, planner.unscored.maker), list[set[str]]()

    def rough(edits: Sequence[Edit]) -> float:
        seen.append({edit.unit for edit in edits if isinstance(edit, Narrow)})
        return planner.session.cost("macs").removed_share(edits)

    monkeypatch.setattr(costs, "rough_share", rough)
    shares = costs.shares("latency")
    assert {"first", "second"} <= seen[0]
    assert all(max(shares[site].values()) > 0 for site in ("first", "second"))


def test_all_units_of_a_list_are_timed_together_and_shared_edits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(Session(vit(depth=3), images(2)), "latency", PruningConfig(kinds=("block",)))
    costs, seen = VariantCosts(planner.session, planner.unscored.maker), list[list[Edit]]()

    def rough(edits: Sequence[Edit]) -> float:
        seen.append([*edits])
        return 0.9

    monkeypatch.setattr(costs, "rough_share", rough)
    shares = costs.shares("latency")
    assert [max(own.values()) for own in shares.values()] == pytest.approx([0.3] * 3)
    assert all(edits.count(edit) == 1 for edits in seen for edit in edits)
