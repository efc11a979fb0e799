"""Omission sets as they are found, in a file: a search that is interrupted goes on behind the last one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from prunerecover.files.json_lines import append_json, complete_lines
from prunerecover.language.likelihood import AnswerBatch
from prunerecover.model.hashing import weights_hash
from prunerecover.plan.plan import Plan


class FoundSets:
    """The plan of each search, by everything that decides about it.

    Args:
        path: JSONL file, one search per line; None: nothing is kept.
        model: That is searched.
        settings: Of all its searches, JSON primitives.

    Raises:
        ValueError: If a line of the file is no plan of a search.
    """

    def __init__(self, path: str | Path | None, model: nn.Module, settings: dict[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        self._model = weights_hash(model) if self.path else None
        self._settings = json.dumps(settings, sort_keys=True)
        lines = complete_lines(self.path) if self.path and self.path.is_file() else []
        self._plans = dict(map(self._read, lines))

    def key(self, batches: Sequence[AnswerBatch]) -> str:
        """Return the hash of the model's weights, the settings and the answers that sets are judged on."""
        digest = hashlib.sha256(f"{self._model}{self._settings}".encode())
        for inputs, *rest in batches:
            for tensor in (*inputs.values(), *rest):
                digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def get(self, key: str) -> Plan | None:
        """Return the plan that an earlier search found, if any."""
        return self._plans.get(key)

    def add(self, key: str, plan: Plan) -> None:
        """Keep what a search found."""
        self._plans[key] = plan
        if self.path is not None:
            append_json(self.path, {"key": key, "plan": plan.to_dict()})

    def _read(self, line: str) -> tuple[str, Plan]:
        try:
            record = json.loads(line)
            return str(record["key"]), Plan.from_dict(record["plan"])
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(
                f"Expected one search per line in {self.path}, but got {line[:60]!r}. Move the file away to start anew."
            ) from error
