"""Routers over the omission sets of SmolLM2-135M: trained with each loss over each choice of sets, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.runner.rows import Figure, Scores
from prunerecover.language.questions import Question
from prunerecover.recipes.tasks.route_picker import held_out, train_router
from prunerecover.routing.comparison import compare_routes
from prunerecover.routing.router import PrefixRouter

LOSSES = ("soft_cross_entropy", "cross_entropy", "mse")
SEEDS = (0, 1, 2)
EVERY = "all"
METRICS = ("accuracy", "log-likelihood per token")


@dataclass(frozen=True)
class Learnt:
    """Training data of routers.

    Attributes:
        questions: Questions outside the search of sets and the results.
        features: Router's features of the prompts, `(Q, F)`.
        likelihoods: Log-likelihood per token of the right answer under each set, `(Q, sets)`.
    """

    questions: Sequence[Question]
    features: Tensor
    likelihoods: Tensor


@dataclass(frozen=True)
class Asked:
    """Questions of the results, with the answers of every set.

    Attributes:
        features: Router's features of the prompts, `(Q, F)`.
        right: Whether each set answers right, with the sets of `rivals` last, `(Q, sets)`.
        likely: Log-likelihood per token of the right answer, `(Q, sets)`.
    """

    features: Tensor
    right: Tensor
    likely: Tensor

    def metrics(self) -> dict[str, Scores]:
        """Return the scores by metric."""
        return dict(zip(METRICS, (self.right.double().numpy(), self.likely.double().numpy()), strict=True))


def routed(
    router_of: Callable[[int], PrefixRouter], names: Sequence[str], learnt: Learnt, part: Asked, best: int
) -> Iterator[dict[str, Any]]:
    """Train routers, and yield the results.

    Args:
        router_of: Maker of an untrained router for a number of sets.
        names: Names of the sets: the task and the loss of each search.
        learnt: Training data of routers.
        part: Questions of the results.
        best: Number of the best static set.
    """
    for choice, loss, seed, shuffled in _each_router(names):
        columns = chosen_sets(names, choice, best)
        router = _trained(router_of, learnt, columns, columns.index(best), loss, seed, shuffled)
        with torch.no_grad():
            picked = [columns[i] for i in router(part.features).argmax(1).tolist()]
        method = loss + (", shuffled" if shuffled else "")
        for metric, scores in part.metrics().items():
            every = torch.from_numpy(scores[:, : len(names)])
            found = compare_routes(every, picked, names, static=best, metric=metric)
            values = {name: getattr(found, name).value for name in ("static", "routed", "oracle")}
            gain = Figure.within(found.gain, len(picked))
            about = {"method": method, "sets": choice, "seed": seed, "metric": metric, "gain": gain, **values}
            yield {**about, "gap_closed": found.gap_closed, "picked": found.picked}


def chosen_sets(names: Sequence[str], choice: str, best: int) -> list[int]:
    """Return the numbers of all sets, or of a loss's sets and the best static one."""
    return [n for n, name in enumerate(names) if choice == EVERY or n == best or name.endswith(f"/{choice}")]


def _each_router(names: Sequence[str]) -> Iterator[tuple[str, str, int, bool]]:
    """Yield sets, loss and seed of each router, and a flag for shuffled labels, only over all sets."""
    searched = sorted({name.rpartition("/")[2] for name in names if "/" in name})
    for choice in (EVERY, *searched):
        for loss, seed in product(LOSSES, SEEDS):
            yield choice, loss, seed, False
            if choice == EVERY:
                yield choice, loss, seed, True


def _trained(
    router_of: Callable[[int], PrefixRouter],
    learnt: Learnt,
    columns: Sequence[int],
    static: int,
    loss: str,
    seed: int,
    shuffled: bool,
) -> PrefixRouter:
    """Return a router over some of the sets."""
    torch.manual_seed(seed)
    router = router_of(len(columns))
    labels = learnt.likelihoods[:, list(columns)]
    labels = labels[torch.randperm(len(labels))] if shuffled else labels
    how: dict[str, Any] = {"loss": loss, "seed": seed, "static": static, "enable_progress_bar": False}
    train_router(router, learnt.features, labels, held_out(learnt.questions, seed=seed), **how)
    return router
