"""Scores of choices: on the held-out samples, and on further samples in parts."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.planning.networks import images, vit

from prunerecover.divergence.registry import output_divergence
from prunerecover.library.edits import Chosen, Fit
from prunerecover.library.variants import Variant
from prunerecover.model.batches import as_inputs
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.planner import Planner
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits

FURTHER = [torch.randn(n, 3, 16, 16, generator=torch.Generator().manual_seed(n)) for n in (3, 5, 8, 4)]


def planned(further: bool) -> tuple[Planner, Chosen]:
    taken = list(map(as_inputs, FURTHER)) if further else []
    session = Session(vit(depth=2), images(4, 8), further=lambda n: taken)
    planner = Planner(session, "macs", PruningConfig(kinds=("mlp",)))
    site = planner.unscored.sites["blocks.1.mlp"]
    return planner, {site.name: (Variant("zero", leaves="zero"), Fit())}


def by_hand(planner: Planner, chosen: Chosen, batches: list[torch.Tensor]) -> float:
    dense = planner.session.model
    pruned = copy.deepcopy(dense)
    apply_edits(pruned, *planner.unscored.maker.edits(chosen))
    x = torch.cat(batches)
    with torch.no_grad():
        return float(output_divergence(dense(x), pruned.eval()(x)))


def test_choices_are_judged_on_all_held_out_samples() -> None:
    planner, chosen = planned(True)
    with planner.session.evaluating():
        held_out = [batch.args[0] for batch in planner.session.samples.held_out]
        found = planner.unscored.scorers.divergence(chosen)
        assert found == pytest.approx(by_hand(planner, chosen, held_out + FURTHER), rel=1e-5)


def test_each_round_scores_on_another_part_with_the_outputs_of_its_base() -> None:
    planner, chosen = planned(True)
    scorers = planner.unscored.scorers
    x = torch.cat(FURTHER)
    parts = [[x[:8]], [x[8:]]]  # of 8 samples, as many as are held out, whatever the batches; the rest joins the last
    with planner.session.evaluating():
        for turn in range(3):
            near = scorers.near(chosen, turn)
            assert near.divergence(chosen) == pytest.approx(by_hand(planner, chosen, parts[turn % 2]), rel=1e-5)
            assert near.divergence({}) == pytest.approx(0, abs=1e-6)
            assert scorers.alone.divergence(chosen) == pytest.approx(
                by_hand(planner, chosen, [batch.args[0] for batch in planner.session.samples.held_out]), rel=1e-5
            )


def test_other_values_of_a_refitted_layer_are_seen_behind_a_base() -> None:
    planner, _ = planned(True)
    site = planner.unscored.sites["blocks.0.mlp"]
    reader = "blocks.0.mlp.fc2"
    weight = planner.session.model.get_submodule(reader).get_parameter("weight").detach()
    base, other = ({site.name: (Variant("as it was"), Fit({reader: {"weight": weight * by}}))} for by in (0.5, 2.0))
    with planner.session.evaluating():
        near = planner.unscored.scorers.near(base, 0)
        assert near.divergence(other) == pytest.approx(by_hand(planner, other, [torch.cat(FURTHER)[:8]]), rel=1e-5)
        assert near.divergence(other) != near.divergence(base)


def test_without_further_samples_there_is_one_part() -> None:
    planner, chosen = planned(False)
    scorers = planner.unscored.scorers
    with planner.session.evaluating():
        assert scorers.near(chosen, 1) is scorers.alone
        assert scorers.divergence(chosen) == scorers.alone.divergence(chosen)
