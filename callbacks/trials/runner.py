"""Short runs of pruned models inside a nested Trainer, by which a search compares plans.

Each trial copies the user's LightningModule, prunes the copy with `Prune`, recovers the copy for a few epochs with
`DistillRecover`, and reads one metric logged by the module in validation. The user's own optimizers and data are used;
the module, its random state and a running fit around the trials stay unchanged. The ranks share the trials, and all
ranks get all results; within a trial, a rank is alone. Lightning's `barebones` mode is not used: `self.log` has no
effect there.
"""

from __future__ import annotations

import copy
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from prunerecover.boundary.search import Trial
from prunerecover.callbacks.distill_recover import DistillRecover
from prunerecover.callbacks.ledger.random_state import isolated, seed_all
from prunerecover.callbacks.ledger.target import find_network
from prunerecover.callbacks.prune import Prune
from prunerecover.callbacks.trials.nested import alone, nested_trainer, own_copy, quiet
from prunerecover.callbacks.trials.records import TrialRecord, append_record, files_of_ranks, read_records
from prunerecover.cost.memory import peak_memory, reset_peak_memory
from prunerecover.display.interrupted import resumable
from prunerecover.display.progress import progress
from prunerecover.files.json_lines import complete_lines
from prunerecover.model.hashing import weights_hash
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.evidence import DepthEvidence
from prunerecover.store.ranks import from_first_rank, gathered, patient_group, rank_and_world

SET_BY_TRIALS = {"max_epochs", "callbacks", "accelerator", "devices", "strategy", "logger"}


@dataclass(frozen=True)
class TrialSettings:
    """Settings of the training in every trial, and of the metric read at its end.

    Args:
        metric: Metric logged by the module in validation; higher is better.
        scale: Factor from the metric to percent: 100 for a share, 1 for a metric logged in percent.
        epochs: Number of epochs of each trial.
        distill: Whether the dense network is the teacher of the recovery.
        trainer: Further arguments of the trials' Trainer, e.g. {"limit_train_batches": 100}.

    Raises:
        ValueError: If there are no epochs, or a Trainer argument is set by the trials themselves.
    """

    metric: str = "val_top1"
    scale: float = 100.0
    epochs: int = 1
    distill: bool = True
    trainer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the arguments."""
        if self.epochs < 1:
            raise ValueError(f"Expected trials of at least 1 epoch, but got {self.epochs}.")
        taken = sorted(SET_BY_TRIALS & self.trainer.keys())
        if taken:
            raise ValueError(f"Expected no {', '.join(taken)} among the trials' Trainer arguments: trials set them.")


class TrialRunner:
    """Runner of trials that returns accuracies in percent; an `Evaluate` of `prunerecover.boundary.search`.

    Args:
        module: LightningModule with dense weights; stays unchanged.
        datamodule: Data of the trials; None: the module has its own data.
        store: JSONL file of the results; a trial in the file is not run again. The key of a trial covers removed units,
            number of calibration samples, weights, hyperparameters of the module that are numbers or text, seed and
            settings, but not the data: name another file for other data.
        settings: Settings of the trials.
        target: Path of the network in the module; None: the only supported network, else the only child with weights.

    Attributes:
        records: Records of the requested trials, in order.
        after_trial: Function called after each trial.
    """

    def __init__(
        self,
        module: pl.LightningModule,
        datamodule: pl.LightningDataModule | None,
        store: str | Path,
        settings: TrialSettings | None = None,
        target: str | None = None,
    ) -> None:
        self.module, self.datamodule, self.store = module, datamodule, Path(store)
        self.settings = settings or TrialSettings()
        self.target = find_network(module, target)
        self.after_trial: Callable[[], object] = lambda: None
        self.records: list[TrialRecord] = []
        self._weights = weights_hash(unwrap(get_module(module, self.target)))
        self._known: dict[str, TrialRecord] = {}
        self._ranks = patient_group()
        self._share(read_records(self.store))
        self._checked = False

    def __call__(self, trials: Sequence[Trial]) -> list[float]:
        """Run the trials without a known result, spread over the ranks, and return all accuracies in order.

        Raises:
            ValueError: If the module does not log the metric, or the metric is no percentage.
        """
        trials = from_first_rank(list(trials))
        keys = [self._key(trial) for trial in trials]
        missing = {key: trial for key, trial in zip(keys, trials, strict=True) if key not in self._known}
        rank, world = rank_and_world()
        mine = list(missing.items())[rank::world]
        found: dict[str, TrialRecord] = {}
        if mine and not self._checked:
            self._check_metric()
        with progress("recovering pruned models for a while", len(mine)) as advance:
            for key, trial in mine:
                found[key] = self._run(key, trial)
                append_record(self.store, rank, found[key])
                advance()
                self.after_trial()
        self._share(found)
        for _ in range(len(trials) - len(mine)):
            self.after_trial()
        self.records += [self._known[key] for key in keys]
        return [self._known[key].accuracy for key in keys]

    def _share(self, found: dict[str, TrialRecord]) -> None:
        """Collect the results of every rank, the same on all ranks."""
        for records in [found] if self._ranks is None else gathered(found, self._ranks):
            self._known |= records

    def _run(self, key: str, trial: Trial) -> TrialRecord:
        device = self.module.device
        reset_peak_memory(device)
        started = time.perf_counter()
        accuracy = self._accuracy_after(trial)
        removed = {kind: len(units) for kind, units in trial.plan.removed.items()}
        seconds = time.perf_counter() - started
        return TrialRecord(key, removed, trial.seed, accuracy, seconds, peak_memory(device))

    def _accuracy_after(self, trial: Trial) -> float:
        callbacks: list[pl.Callback] = []
        if trial.plan.edits:
            callbacks.append(Prune(plan=trial.plan, target=self.target, merge="never"))
            if self.settings.distill:
                callbacks.append(DistillRecover(target=self.target))
        with isolated(), quiet(), alone():
            seed_all(trial.seed)
            trainer = self._trainer(callbacks, max_epochs=self.settings.epochs)
            trainer.fit(own_copy(self.module), datamodule=copy.copy(self.datamodule))
        return self._metric_of(trainer)

    def _trainer(self, callbacks: list[pl.Callback], **arguments: Any) -> pl.Trainer:
        return nested_trainer(self.module.device, callbacks, **{**self.settings.trainer, **arguments})

    def _metric_of(self, trainer: pl.Trainer) -> float:
        if self.settings.metric not in trainer.callback_metrics:
            names = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
            raise ValueError(
                f"Expected the module to log '{self.settings.metric}' in validation, but it logged {names}. "
                "Name another metric in the trials' settings, or add validation data."
            )
        logged = float(trainer.callback_metrics[self.settings.metric])
        if not 0 <= logged * self.settings.scale <= 100:  # NaN is out of range, too
            raise ValueError(
                f"Expected '{self.settings.metric}' times scale={self.settings.scale:g} to be a percentage, but the "
                f"module logged {logged:g}. Use scale=1 for a metric in percent; NaN means that the run diverged."
            )
        return logged * self.settings.scale

    def _check_metric(self) -> None:
        """Read the metric on one batch, before hours go into trials."""
        with isolated(), quiet(), alone():
            trainer = self._trainer([], limit_val_batches=1)
            trainer.validate(own_copy(self.module), datamodule=copy.copy(self.datamodule), verbose=False)
            self._metric_of(trainer)
        self._checked = True

    def _key(self, trial: Trial) -> str:
        edits = [edit.model_dump(mode="json") for edit in trial.plan.edits]
        given = self.module.hparams.items()  # names with an underscore are LightningCLI's: the place of the class
        values = {name: v for name, v in given if isinstance(v, int | float | str) and not name.startswith("_")}
        samples = DepthEvidence.of(trial.plan.evidence).samples
        told = [edits, samples, self._weights, values, trial.seed, asdict(self.settings)]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def trials_in(store: Path) -> int:
    """Return the number of trials in a file, and in the files of all ranks beside it."""
    return sum(len(complete_lines(file)) for file in files_of_ranks(store))


def resumable_trials(store: Path) -> AbstractContextManager[None]:
    """Explain how to continue when a search by trials inside the `with` block is interrupted.

    Args:
        store: JSONL file of the first rank's trials.
    """
    return resumable(store, "trial", trials_in)
