"""Walks fit variants behind those before, and scores are those of the whole network."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from cases.planning.networks import images, vit
from cases.planning.planners import vit_planner
from torch import nn

from prunerecover.library.edits import Fit
from prunerecover.library.library import features_left
from prunerecover.library.tuning import tuned
from prunerecover.library.variants import DENSE
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.planner import Planner
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits

pytestmark = pytest.mark.slow


def test_scores_from_prefixes_are_those_of_the_whole_network() -> None:
    planner = vit_planner()
    session, library = planner.session, planner.library
    inputs = torch.cat([batch.args[0] for batch in session.samples.held_out])
    for site, own in library.scored.items():
        for one in (one for one in own.values() if one.variant.scored and one.variant.name != DENSE):
            network = copy.deepcopy(session.model).eval()
            apply_edits(network, *library.maker.edits({site: (one.variant, library.fit(site, one.variant.name))}))
            with torch.no_grad():
                dense, pruned = (model(inputs).log_softmax(-1) for model in (session.model.eval(), network))
            whole = nn.functional.kl_div(pruned, dense, log_target=True, reduction="batchmean").item()
            assert one.divergence == pytest.approx(whole, rel=1e-3, abs=1e-6), (site, one.variant.name)


def test_a_walk_on_nothing_finds_what_the_library_fitted_alone() -> None:
    planner = vit_planner()
    library = planner.library
    with planner.session.evaluating():
        found, moments = library.walks.walk({})
    assert not found
    assert set(moments) == {(number, number) for number in range(len(library.stations))}
    station = library.stations[1]
    one = next(one for one in library.scored[station.site].values() if one.variant.removed)
    again = library.fit_of(station.site, station, one.variant, moments[1, 1])
    for name, value in library.fit(station.site, one.variant.name).modules[station.reader].items():
        torch.testing.assert_close(again.modules[station.reader][name], value)


def test_units_that_write_nothing_go_for_free() -> None:
    """Half of the neurons are zero: the sizes without them leave the output as it is, near the ridge."""
    model = vit(depth=2)
    with torch.no_grad():
        for block in model.blocks:  # type: ignore[union-attr]
            block.mlp.fc2.weight[:, ::2] = 0  # type: ignore[union-attr]
    planner = Planner(Session(model, images(6)), "macs", PruningConfig(kinds=("mlp", "neuron")))
    with planner.session.evaluating():
        scored = planner.library.scored["blocks.0.mlp"]
    size = planner.library.sites["blocks.0.mlp"].groups[0].size
    some = [one for one in scored.values() if one.variant.scored]
    halves = [one for one in some if 0 < sum(map(len, one.variant.removed.values())) <= size // 2]
    assert halves
    assert max(one.divergence for one in halves) < 1e-3 * scored["constant"].divergence


def test_features_that_stay_are_those_of_units_that_stay() -> None:
    planner = vit_planner()
    site = planner.library.sites["blocks.1.attn"]
    variant = next(variant for variant in site.variants if variant.name == "1 of 2 heads")
    (gone,) = variant.removed.values()
    kept = 1 - gone[0]
    assert features_left(planner.session.model, site.groups, variant).tolist() == list(range(8 * kept, 8 * kept + 8))


def swin_planner(*kinds: str, samples: int = 8) -> Planner:
    from timm.models.swin_transformer import SwinTransformer

    shape: dict[str, Any] = {"img_size": 32, "patch_size": 4, "window_size": 4, "num_classes": 4}
    torch.manual_seed(0)
    model = SwinTransformer(**shape, embed_dim=8, depths=(1, 1), num_heads=(1, 2)).eval()
    batches = [(torch.randn(samples, 3, 32, 32), torch.arange(samples) % 4) for _ in range(2)]
    return Planner(Session(model, batches), "macs", PruningConfig(kinds=kinds))


def test_branches_known_from_the_graph_leave_fits_from_the_graph_beside_tuned_linears() -> None:
    planner = swin_planner("attention", "mlp", "neuron", samples=32)
    with planner.session.evaluating():
        library = planner.library
        attention = library.sites["layers.0.blocks.0.attn"]
        leaves = {v.name: library.fit(attention.name, v.name) for v in attention.variants if v.leaves}
        names = {"layers.0.blocks.0.attn": "zero", "layers.1.blocks.0.mlp": "constant"}
        narrowed = library.sites["layers.0.blocks.0.mlp"].variants[1].name
        chosen, _ = library.walks.walk(library.chosen({**names, "layers.0.blocks.0.mlp": narrowed}))
        found = tuned(planner.session, library.maker, chosen)
        before, after = (library.scorers.alone.divergence(one) for one in (chosen, found))
    assert all((fit.stand_in is None) == (name == "zero") for name, fit in leaves.items())
    assert not any(fit.replacement for fit in leaves.values())
    assert after <= before
    assert found["layers.1.blocks.0.mlp"][1].stand_in is not None


def test_stages_of_other_lengths_have_weights_of_their_own() -> None:
    planner = swin_planner("mlp", "neuron")
    with planner.session.evaluating():
        rows = [weights.of(0).shape for weights in planner.library.walks.weights]
    assert rows == [(6, 64), (6, 16)]


def test_networks_that_do_not_run_are_scored_infinite() -> None:
    planner = vit_planner()
    site = planner.library.sites["blocks.0.mlp"]
    narrow = next(variant for variant in site.variants if variant.removed)
    wrong = Fit({"blocks.0.mlp.fc2": {"weight": torch.zeros(3, 3)}})
    with planner.session.evaluating():
        assert planner.library.scorers.alone.divergence({site.name: (narrow, wrong)}) == math.inf
        assert planner.library.scorers.alone.divergence({}) == pytest.approx(0, abs=1e-6), "the twin is as it was"
