"""Samples of a session: the first decide, and further samples are read when asked for."""

from __future__ import annotations

import pytest
import torch
from cases.planning.networks import images, vit

from prunerecover.session.session import Session


def test_the_first_samples_decide_and_the_rest_are_further() -> None:
    batches = images(5, 8)
    session = Session(vit(), batches)
    assert session.samples.n_samples == 40
    first = session.on_first(20)
    assert (first.samples.n_samples, session.samples.n_samples) == (24, 40)
    found = first.further(12)
    assert [one.n_samples for one in found] == [8, 4]
    assert torch.equal(found[0].args[0], batches[3][0])
    assert sum(one.n_samples for one in first.further(100)) == 16


@pytest.mark.parametrize("most", [16, 1000])
def test_without_more_than_the_first_there_are_no_further_samples(most: int) -> None:
    session = Session(vit(), images(2, 8))
    assert session.on_first(most) is session
    assert session.further(5) == []


def test_samples_are_drawn_again_for_more_alone() -> None:
    asked: list[int] = []

    def draw(samples: int) -> list[torch.Tensor]:
        asked.append(samples)
        return [torch.randn(samples, *images(1)[0][0].shape[1:])]

    session = Session(vit(), images(1), further=draw)
    first, fewer, more = (session.further(n)[0].args[0] for n in (6, 4, 9))
    assert asked == [6, 9]
    assert torch.equal(first[:4], fewer)
    assert len(more) == 9


def test_further_samples_are_those_of_a_function() -> None:
    asked: list[int] = []
    session = Session(vit(), images(1), further=lambda n: asked.append(n) or images(3))
    assert sum(one.n_samples for one in session.further(20)) == 20
    assert asked == [20]
