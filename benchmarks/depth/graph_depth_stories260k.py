"""The joint search against all sets there are: pairs and triples of the 20 attentions and layers of stories260K.

A case is a set of calibration stories and a goal: any two or three units, or a number of each kind. Every set is judged
by the divergence that the search minimises, with its layers removed in order of execution.

Layer forwards are compared with a naive loop, which makes the same choices and runs the whole network once for every
set of units in a round or an exchange (twice for the empty set).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.data.real import data_root
from benchmarks.runner.page import Table, told
from benchmarks.runner.rows import CHECKPOINTS, Figure, Row
from prunerecover.cost.statistics import paired_difference, wilson_interval
from prunerecover.depth.arguments import DepthConfig
from prunerecover.depth.graph_planner import GraphPlanner
from prunerecover.depth.layers.variants import Variants
from prunerecover.depth.search.goals import Counted, Goal, free
from prunerecover.depth.search.joint import JointSearch, State, Step
from prunerecover.depth.search.objectives import OutputDivergence
from prunerecover.display.markdown import table
from prunerecover.model.evaluation import evaluating, ordinary_arithmetic
from prunerecover.plan.units import Unit
from prunerecover.session.session import Session

MODEL = "stories260K"
SEEDS, STORIES, LENGTH, SAME = tuple(range(10)), 8, 128, 1e-6
KINDS = ("attention", "layer")
Sets = dict[frozenset[str], float]
GOALS: dict[str, dict[str, int]] = {
    "any 2": {},
    "2 layers": {"layer": 2},
    "2 attentions": {"attention": 2},
    "1 attention, 1 layer": {"attention": 1, "layer": 1},
    "any 3": {},
    "3 layers": {"layer": 3},
    "3 attentions": {"attention": 3},
    "1 attention, 2 layers": {"attention": 1, "layer": 2},
    "2 attentions, 1 layer": {"attention": 2, "layer": 1},
}


@dataclass(frozen=True)
class AnyUnits:
    """Goal of a number of units of any kind."""

    units: Sequence[Unit]
    n: int

    @property
    def total(self) -> int:
        """How many."""
        return self.n

    def units_to_score(self) -> Sequence[Unit]:
        """Return all units."""
        return self.units

    def open(self, chosen: Sequence[Unit]) -> list[Unit]:
        """Return the remaining units."""
        return free(self.units, chosen)

    def fits(self, chosen: Sequence[Unit], move: Sequence[Unit]) -> bool:
        """Whether a move stays within the number."""
        return len(chosen) + len(move) <= self.n

    def price(self, units: Sequence[Unit]) -> float:
        """All units count the same."""
        return len(units) / self.n

    def describe_missing(self, chosen: Sequence[Unit]) -> str:
        """Return how many are left to take."""
        return f"{self.n - len(chosen)} units"

    def reached(self, chosen: Sequence[Unit]) -> float:
        """Return the chosen part of the number."""
        return len(chosen) / self.n


@dataclass
class Watched(JointSearch):
    """Joint search with a record of the sets that a naive loop would run."""

    sets: set[frozenset[str]] = field(default_factory=set)

    def _open(self, state: State) -> Iterator[Step]:
        for step in super()._open(state):
            self.sets.add(step.names)
            yield step


NAMES = [{"seed": seed, "method": goal} for seed in SEEDS for goal in GOALS]


@lru_cache(maxsize=1)
def planner_of(seed: int) -> GraphPlanner:
    """Return a planner with the calibration stories of a seed."""
    config = DepthConfig(kinds=KINDS, search="joint")
    return GraphPlanner(Session(network(), [{"input_ids": stories(seed)}]), KINDS, config)


def network() -> nn.Module:
    """Load the model."""
    from transformers import AutoModelForCausalLM

    model: nn.Module = AutoModelForCausalLM.from_pretrained(data_root() / "models" / MODEL)
    return model.eval()


def stories(seed: int) -> Tensor:
    """Return the first tokens of training stories, drawn with a seed, `(STORIES, LENGTH)`."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(data_root() / "models" / MODEL)
    lines = (data_root() / "data" / "tinystories" / "train.jsonl").read_text().splitlines()
    order = torch.randperm(len(lines), generator=torch.Generator().manual_seed(seed)).tolist()
    ids = (tokenizer(json.loads(lines[i])["text"])["input_ids"][:LENGTH] for i in order)
    return torch.tensor([found for found in ids if len(found) == LENGTH][:STORIES])


def all_sets(planner: GraphPlanner, seed: int) -> Sets:
    """Return the divergence of all pairs and triples, from an earlier run if possible."""
    path = CHECKPOINTS / "graph_depth" / f"stories260k-{seed}.json"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        found = exhaustive(planner)
        path.write_text(json.dumps([[sorted(names), value] for names, value in found.items()]))
    return {frozenset(names): value for names, value in json.loads(path.read_text())}


def exhaustive(planner: GraphPlanner) -> Sets:
    """Return the divergence of all pairs and triples."""
    variants = Variants(planner.removals, OutputDivergence(planner.samples))
    found: Sets = {}
    for i, first in enumerate(planner.units):  # sets that begin alike have what comes before the next unit in common
        moves = [move for n in (1, 2) for move in combinations(planner.units[i + 1 :], n)]
        for move, value in zip(moves, variants.scores((first,), moves), strict=True):
            if math.isfinite(value):
                found[frozenset(unit.name for unit in (first, *move))] = value
    return found


def measure(seed: int, method: str) -> dict[str, Any]:
    """Search for a goal, and compare with all sets that meet it."""
    planner, counts = planner_of(seed), GOALS[method]
    with ordinary_arithmetic(), evaluating(planner.model):
        size = sum(counts.values()) or int(method.removeprefix("any "))
        wanted: Goal = Counted(planner.units, counts) if counts else AnyUnits(planner.units, size)
        able = sets_of(planner, all_sets(planner, seed), counts, size)
        variants = Variants(planner.removals, OutputDivergence(planner.samples))
        search = Watched(variants, wanted)
        chosen = frozenset(unit.name for unit in search.run())
        forwards = variants.runner.layers_run
        alone = variants.scores((), [(unit,) for unit in planner.units])
    layers = len(planner.removals.graph.of_kind("layer")) * len(planner.samples.all_samples)
    score = {unit.name: value for unit, value in zip(planner.units, alone, strict=True)}
    best = min(able, key=lambda names: able[names])
    once = min(able, key=lambda names: sum(score[name] for name in names))
    values = {
        EQUAL: float(able[chosen] <= able[best] + SAME),  # several sets may be the same network
        ONCE_EQUAL: float(able[once] <= able[best] + SAME),
        "regret": able[chosen] - able[best],
        "regret, ranked once": able[once] - able[best],
        "share of layer forwards": forwards / ((len(search.sets) + 1) * layers),
    }
    notes = {"sets": len(able), "optimum": able[best], "removed": sorted(chosen), "best": sorted(best)}
    return {**{name: Figure(value) for name, value in values.items()}, **notes}


def sets_of(planner: GraphPlanner, known: Sets, counts: dict[str, int], size: int) -> Sets:
    """Return the sets of a size with the given number of units of each kind."""
    kinds = {unit.name: unit.kind for unit in planner.units}
    return {
        names: value
        for names, value in known.items()
        if len(names) == size
        and all(sum(kinds[name] == kind for name in names) == count for kind, count in counts.items())
    }


def goals_table(rows: Sequence[Row]) -> str:
    """Render a line per goal, and over all of two units, of three, and all."""
    pairs = [goal for goal in GOALS if goal == "any 2" or sum(GOALS[goal].values()) == 2]
    several = {"all pairs": pairs, "all triples": [goal for goal in GOALS if goal not in pairs], "all": list(GOALS)}
    lines = []
    for name, goals in ({goal: [goal] for goal in GOALS} | several).items():
        own = [row for row in rows if row.method in goals]
        values = {metric: [row.figures[metric].value for row in own] for metric in METRICS}
        equal = [told(wilson_interval(int(sum(values[m])), len(own)), 0, 100) for m in METRICS[:2]]
        rest = [told(paired_difference(np.zeros(len(own)), values[m]), 3) for m in METRICS[2:]]
        lines.append((name, len(own), *equal, *rest))
    return ABOUT + "\n\n" + table(("goal", "cases", *METRICS), lines)


EQUAL, ONCE_EQUAL = "best set found, %", "ranked once, %"
METRICS = (EQUAL, ONCE_EQUAL, "regret", "regret, ranked once", "share of layer forwards")
ABOUT = (
    f"{len(SEEDS)} draws of {STORIES} training stories of {LENGTH} tokens. The joint search's set is the best of all "
    "sets that meet the goal (or the same network as the best) in so many cases; regret is its divergence minus the "
    "best set's, the mean over cases. Ranked once: the units whose divergences alone sum to least. Layer forwards "
    "of the search as a share of a naive loop's, which makes the same choices and runs the whole network for every "
    "set that it considers."
)
TABLES = [
    Table(
        (),
        title="Against exhaustive search: stories260K",
        by=("subject",),
        where=lambda row: row["subject"] == "stories260k",
        text=goals_table,
    )
]
