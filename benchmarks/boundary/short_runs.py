"""Short recoveries for a map of splits, recorded in a file against repetition."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from prunerecover import Plan
from prunerecover.boundary.search import Trial


class ShortRuns:
    """Recovers trials of `plan_boundary` for a short while, scores them, and records the results.

    Args:
        run: Function from a plan and a seed to the held-out accuracy after a recovery of the dense network.
        path: File of the records, a line each.
        about: Settings of the recovery, such as its length and rate; records with other settings do not count.
    """

    def __init__(self, run: Callable[[Plan, int], float], path: Path, **about: float) -> None:
        self.run, self.path, self.about = run, path, about

    def __call__(self, trials: Sequence[Trial]) -> list[float]:
        """Return the accuracies, in percent."""
        return [self.accuracy(trial.plan, trial.seed) for trial in trials]

    def accuracy(self, plan: Plan, seed: int) -> float:
        """Return the accuracy after a recovery, from the records if possible."""
        told = json.dumps([edit.model_dump(mode="json") for edit in plan.edits], sort_keys=True)
        key = hashlib.sha256(told.encode()).hexdigest()[:16]
        asked = {"plan": key, "seed": seed, **self.about}
        lines = self.path.read_text().splitlines() if self.path.is_file() else []
        for record in map(json.loads, lines):
            if all(record[key] == value for key, value in asked.items()):
                return float(record["accuracy"])
        removed = {kind: len(names) for kind, names in plan.removed.items()}
        record = {**asked, "removed": removed, "accuracy": self.run(plan, seed)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        return float(record["accuracy"])
