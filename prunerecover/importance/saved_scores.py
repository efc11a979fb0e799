"""File of the scores behind a plan, kept beside the plan, since a checkpoint holds the plan itself.

A file serves depth and width, with scores of units and of groups. A later plan of the same network, for any budget,
reads the file instead of scoring again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from prunerecover.files.atomic import atomic_file
from prunerecover.model.hashing import weights_hash
from prunerecover.model.paths import unwrap

SEPARATOR = "/"  # occurs neither in names of importances nor in paths of modules
FORMAT = "prunerecover.scores/1"


@dataclass(frozen=True)
class SavedScores:
    """Scores of a network.

    Attributes:
        weights: Hash of the scored network.
        scores: Scores by the name of the importance, then of the unit `()` or group `(size,)`; float64.
    """

    weights: str
    scores: Mapping[str, Mapping[str, Tensor]]

    @classmethod
    def of(cls, model: nn.Module, scores: Mapping[str, Mapping[str, Tensor]]) -> SavedScores:
        """Return scores of a model with the hash of the model's weights."""
        return cls(weights_hash(unwrap(model)) or "", scores)

    def save(self, path: str | Path) -> None:
        """Write the scores, exactly, as safetensors with a name and a unit in each key: `u_score/layer1.0.conv1`."""
        named = {f"{name}{SEPARATOR}{unit}": v for name, by_unit in self.scores.items() for unit, v in by_unit.items()}
        with atomic_file(path) as unfinished:
            tensors = {key: values.contiguous() for key, values in named.items()}
            save_file(tensors, unfinished, metadata={"format": FORMAT, "weights": self.weights})

    @classmethod
    def load(cls, path: str | Path) -> SavedScores:
        """Read a file written by `save`.

        Raises:
            FileNotFoundError: If the file does not exist.
            ValueError: If the file holds no scores.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"Expected a file of scores, but {path} does not exist.")
        found: dict[str, dict[str, Tensor]] = {}
        try:
            with safe_open(path, "pt") as file:
                told = file.metadata() or {}
                for key in file.keys():  # noqa: SIM118  (the file is no mapping)
                    name, _, unit = key.partition(SEPARATOR)
                    found.setdefault(name, {})[unit] = file.get_tensor(key)
        except SafetensorError as error:
            raise ValueError(f"Expected a file of scores at {path}, but it cannot be read: {error}.") from error
        if told.get("format") != FORMAT:
            raise ValueError(
                f"Expected a file of scores at {path}, as `prunerecover plan` writes beside a plan, but got another."
            )
        return cls(told.get("weights", ""), found)

    def of_units(self, model: nn.Module, name: str, units: Iterable[str]) -> dict[str, Tensor]:
        """Return the scores of some units or groups of a network.

        Args:
            model: Network, unwrapped.
            name: Name of the importance.
            units: Names of the units or groups.

        Raises:
            ValueError: If the scores are of other weights, of another importance, or of other units.
        """
        if self.weights != (weights_hash(model) or ""):
            raise ValueError(
                "Expected scores of this network as it is, but got those of other weights. Score anew: leave scores "
                "out."
            )
        known = self.scores.get(name)
        if known is None:
            raise ValueError(
                f"Expected scores by '{name}', but got those by {', '.join(self.scores)}. Score anew: leave scores out."
            )
        units = list(units)
        missing = [unit for unit in units if unit not in known]
        if missing:
            raise ValueError(
                f"Expected scores of all that may go, but '{missing[0]}' has none (of {len(units)}, {len(missing)}). "
                "Score anew: leave scores out, or allow the same kinds as then."
            )
        return {unit: known[unit] for unit in units}


def scores_from(given: str | Path | SavedScores | None) -> SavedScores | None:
    """Return the given scores, or the scores in a file; None for None.

    Raises:
        TypeError: If the argument is neither a path nor scores.
    """
    if isinstance(given, str | Path):
        return SavedScores.load(given)
    if not isinstance(given, SavedScores | None):
        raise TypeError(f"Expected argument scores to be a path or SavedScores, but got {type(given).__name__}.")
    return given
