"""While units of all kinds are searched for, a block stands in the search with the map that it may leave."""

from __future__ import annotations

import pytest
import torch
from cases.engine import build, divergence_without, samples_of

from prunerecover.calibration.calibrator import Calibrator
from prunerecover.calibration.candidates import Candidate
from prunerecover.depth.family.calibrated_sets import CalibratedSets
from prunerecover.model.evaluation import evaluating
from prunerecover.plan.units import Unit
from prunerecover.sites.find import find_units

KINDS = ("block", "attention", "mlp", "activation")
NAMES = ("timm", "gpt2")


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest) -> tuple[str, Calibrator]:
    model = build(request.param)
    with evaluating(model):
        return request.param, Calibrator(model, samples_of(request.param), find_units(model, kinds=KINDS), "calibrated")


def with_a_map(calibrator: Calibrator) -> tuple[Unit, Candidate]:
    """A block that leaves a map alone, and the map."""
    choices = calibrator.score(find_units(calibrator.model, kinds=KINDS)).values()
    return next((choice.unit, choice.candidate) for choice in choices if choice.candidate.leaves == "map")


def test_a_block_alone_leaves_what_it_leaves_at_the_end(case: tuple[str, Calibrator]) -> None:
    name, calibrator = case
    with evaluating(calibrator.model):
        block, found = with_a_map(calibrator)
        (choice,) = calibrator.choose([block])
        bare = calibrator.bare(block)
    assert bare is not None
    assert choice.candidate.leaves == "map"
    torch.testing.assert_close(choice.candidate.values, found.values)
    assert divergence_without(name, [(block, found)]) < divergence_without(name, [(block, bare)])


def test_blocks_alone_leave_nothing_where_nothing_else_is_fitted(case: tuple[str, Calibrator]) -> None:
    _, calibrator = case
    with evaluating(calibrator.model):
        found = calibrator.score(find_units(calibrator.model, kinds=["block"]))
    assert {choice.candidate.leaves for choice in found.values()} == {"zero"}


@pytest.mark.slow
def test_sets_are_judged_with_the_map(case: tuple[str, Calibrator]) -> None:
    """Besides a unit that leaves the map alone, in either order."""
    name, calibrator = case
    with evaluating(calibrator.model):
        block, found = with_a_map(calibrator)
        far = [u for u in find_units(calibrator.model, kinds=["attention"]) if not u.name.startswith(f"{block.name}.")][
            -1
        ]
        sets = CalibratedSets(calibrator)
        sets.scores((), [(unit,) for unit in find_units(calibrator.model, kinds=KINDS)])
        other = sets._alone[far.name]
        (after,), (before,) = sets.scores((block,), [(far,)]), sets.scores((far,), [(block,)])
        raced = CalibratedSets(calibrator)
        raced.scores((), [(unit,) for unit in find_units(calibrator.model, kinds=KINDS)])
        assert raced.races([(block,)])
        (in_race,) = raced.race((far,), [(block,)], lambda _, divergence: (divergence,))
    expected = divergence_without(name, [(far, other), (block, found)])
    assert after == before == in_race
    assert after == pytest.approx(expected, rel=0.02), "maps are kept in half precision while units are searched for"


@pytest.mark.parametrize("kind", ["block", "mlp", "activation"])
def test_no_map_where_what_it_is_folded_into_goes(case: tuple[str, Calibrator], kind: str) -> None:
    name, calibrator = case
    with evaluating(calibrator.model):
        block, found = with_a_map(calibrator)
        assert found.fold is not None
        before = calibrator.layout.block_of(found.fold.into)
        (unit,) = (
            u for u in find_units(calibrator.model, kinds=[kind]) if calibrator.layout.block_of(u.name) == before
        )
        sets = CalibratedSets(calibrator)
        sets.scores((), [(unit,) for unit in find_units(calibrator.model, kinds=KINDS)])
        gone, bare = sets._alone[unit.name], calibrator.bare(block)
        assert bare is not None
        kept = kind == "activation" and gone.leaves != "affine"
        (after,), (first,) = sets.scores((block,), [(unit,)]), sets.scores((unit,), [(block,)])
    expected = divergence_without(name, [(unit, gone), (block, sets._alone[block.name] if kept else bare)])
    assert after == pytest.approx(first, rel=1e-5)
    assert after == pytest.approx(expected, rel=0.02)
