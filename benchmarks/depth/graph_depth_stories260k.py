"""The joint search against all sets there are: pairs and triples of the 20 attentions and layers of stories260K.

A case is a set of calibration stories and a goal: any two or three units, or so many of each kind. Every set is judged
by the divergence that the search itself minimises, with its layers taken out in order of execution.

Layer forwards are compared with those of a naive loop, which makes the same choices and runs the whole network once for
every set of units that a round or an exchange considers (twice for none).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.data.real import data_root
from benchmarks.depth.graph_depth_rows import PLANS, Row, add, rows_so_far
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
ALONE = {"ci_low": None, "ci_high": None, "n": 1}  # a case is one sample; intervals over all cases are on the page
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


METRICS = (
    "equals the optimum",
    "ranked once equals the optimum",
    "regret in divergence",
    "regret in divergence, ranked once",
    "share of layer forwards",
)


HEAD = ("goal", "cases", "best set found", "ranked once", "regret", "regret, ranked once", "layer forwards")


@dataclass(frozen=True)
class AnyUnits:
    """So many units, whatever their kinds."""

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
        """Return the units that are left."""
        return free(self.units, chosen)

    def fits(self, chosen: Sequence[Unit], move: Sequence[Unit]) -> bool:
        """Whether they are not more than are wanted."""
        return len(chosen) + len(move) <= self.n

    def price(self, units: Sequence[Unit]) -> float:
        """All units count the same."""
        return len(units) / self.n

    def describe_missing(self, chosen: Sequence[Unit]) -> str:
        """Return how many are left to take."""
        return f"{self.n - len(chosen)} units"

    def reached(self, chosen: Sequence[Unit]) -> float:
        """Return the part of the units that is chosen."""
        return len(chosen) / self.n


@dataclass
class Watched(JointSearch):
    """A joint search that notes the sets a naive loop would run."""

    sets: set[frozenset[str]] = field(default_factory=set)

    def _open(self, state: State) -> Iterator[Step]:
        for step in super()._open(state):
            self.sets.add(step.names)
            yield step


def run(methods: tuple[str, ...] = ()) -> None:
    """Make the rows that are missing: a case per seed and goal."""
    for seed in SEEDS:
        missing = [goal for goal in GOALS if not rows_so_far(model=MODEL, unit=goal, seed=seed)]
        if missing:
            planner = planner_of(seed)
            with ordinary_arithmetic(), evaluating(planner.model):
                known = all_sets(planner, seed)
                for goal in missing:
                    for row in case(planner, goal, seed, known):
                        add(row)


def wanted() -> list[Row]:
    """Return what each row that this benchmark wants is about."""
    return [{"unit": goal, "seed": seed} for seed in SEEDS for goal in GOALS]


def planner_of(seed: int) -> GraphPlanner:
    """Return what has the units and the calibration stories of a seed."""
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


def all_sets(planner: GraphPlanner, seed: int) -> dict[frozenset[str], float]:
    """Return the divergence of all pairs and triples, as an earlier run left it if there was one."""
    path = PLANS / f"stories260k-{seed}.json"
    if not path.is_file():
        PLANS.mkdir(parents=True, exist_ok=True)
        found = exhaustive(planner)
        path.write_text(json.dumps([[sorted(names), value] for names, value in found.items()]))
    return {frozenset(names): value for names, value in json.loads(path.read_text())}


def exhaustive(planner: GraphPlanner) -> dict[frozenset[str], float]:
    """Return the divergence of all pairs and triples."""
    variants = Variants(planner.removals, OutputDivergence(planner.samples))
    found: dict[frozenset[str], float] = {}
    for i, first in enumerate(planner.units):  # sets that begin alike have what comes before the next unit in common
        moves = [move for n in (1, 2) for move in combinations(planner.units[i + 1 :], n)]
        for move, value in zip(moves, variants.scores((first,), moves), strict=True):
            if math.isfinite(value):
                found[frozenset(unit.name for unit in (first, *move))] = value
    return found


def case(planner: GraphPlanner, goal: str, seed: int, known: dict[frozenset[str], float]) -> list[Row]:
    """Search once, and compare with all sets that meet the goal."""
    kinds = {unit.name: unit.kind for unit in planner.units}
    size = int(goal.removeprefix("any ")) if goal.startswith("any") else sum(GOALS[goal].values())
    wanted: Goal = Counted(planner.units, GOALS[goal]) if GOALS[goal] else AnyUnits(planner.units, size)
    able = {
        names: value
        for names, value in known.items()
        if len(names) == size
        and all(sum(kinds[name] == kind for name in names) == count for kind, count in GOALS[goal].items())
    }
    best = min(able, key=lambda names: able[names])
    variants = Variants(planner.removals, OutputDivergence(planner.samples))
    search = Watched(variants, wanted)
    chosen = frozenset(unit.name for unit in search.run())
    forwards = variants.runner.layers_run
    layers = len(planner.removals.graph.of_kind("layer")) * len(planner.samples.all_samples)
    naive = (len(search.sets) + 1) * layers
    alone = dict(zip(kinds, variants.scores((), [(unit,) for unit in planner.units]), strict=True))
    once = min(able, key=lambda names: sum(alone[name] for name in names))
    values = {
        "equals the optimum": float(able[chosen] <= able[best] + SAME),  # several sets may be the same network
        "ranked once equals the optimum": float(able[once] <= able[best] + SAME),
        "regret in divergence": able[chosen] - able[best],
        "regret in divergence, ranked once": able[once] - able[best],
        "share of layer forwards": forwards / naive,
    }
    what = {
        "subject": "stories260k",
        "model": MODEL,
        "method": "joint",
        "unit": goal,
        "budget": size,
        "params_share": None,
        "macs_share": None,
        "stage": "prune_only",
        "sets": len(able),
        "optimum": able[best],
        "removed": sorted(chosen),
        "best": sorted(best),
    }
    return [{**what, "metric": metric, "value": value, **ALONE, "seed": seed} for metric, value in values.items()]


def section(rows: list[Row]) -> list[str]:
    """Render a table per goal, and the floors over all cases."""
    goals = [goal for goal in GOALS if any(row["unit"] == goal for row in rows)]
    cells = [(name, *_cells([row for row in rows if row["unit"] in chosen])) for name, chosen in _groups(goals)]
    return [
        f"Cases: {len({row['seed'] for row in rows})} draws of {STORIES} training stories of {LENGTH} tokens. The "
        "joint search's set is the best of all sets that meet the goal (or the same network as the best) in so many "
        "cases; regret is its divergence minus the best set's, the mean over cases, with the 95% interval. Ranked "
        "once: the units whose divergences alone sum to least. Layer forwards of the search as a share of a naive "
        "loop's, which makes the same choices and runs the whole network for every set that it considers.",
        "",
        table(HEAD, cells),
    ]


def _groups(goals: list[str]) -> list[tuple[str, list[str]]]:
    pairs = [goal for goal in goals if goal == "any 2" or sum(GOALS[goal].values()) == 2]
    triples = [goal for goal in goals if goal not in pairs]
    return [(goal, [goal]) for goal in goals] + [("all pairs", pairs), ("all triples", triples), ("all", goals)]


def _cells(rows: list[Row]) -> tuple[str, ...]:
    values = {metric: [row["value"] for row in rows if row["metric"] == metric] for metric in METRICS}
    if not rows:
        return ("",) * 6
    found, once = (wilson_interval(int(sum(values[name])), len(values[name])) for name in METRICS[:2])
    rest = (paired_difference(np.zeros(len(values[name])), values[name]) for name in METRICS[2:])
    equal = (f"{100 * i.value:.0f}% ({100 * i.low:.0f} to {100 * i.high:.0f})" for i in (found, once))
    regrets = [f"{i.value:.3f} ({i.low:.3f} to {i.high:.3f})" for i in rest]
    return str(len(values[METRICS[0]])), *equal, *regrets
