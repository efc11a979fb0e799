"""The quality to keep: how far a metric of validation may fall while a network is pruned in steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from prunerecover.display.summary import call_text, changed_fields

ROUNDING = 1e-6  # rounding of a metric in single precision, relative to the value


@dataclass(frozen=True)
class Quality:
    """Prune step by step while a validation metric stays near the dense network's value.

    Args:
        monitor: Name of the metric, as logged in validation.
        drop: Allowed difference from the dense network's value, in the metric's own unit: 0.01 is one point of an
            accuracy between 0 and 1.
        mode: "max" if higher is better, "min" if lower is.
        baseline: Reference value; None: the value of a validation before the first step.
        most: Largest share of the cost to remove, all steps together; steps in units continue while units are left.

    Raises:
        ValueError: If a number is out of range, or the mode is unknown.
        TypeError: If a number is none, or the name of the metric no text.

    >>> quality = Quality("val_acc", drop=0.01)
    >>> quality.holds(0.97, dense=0.975), quality.holds(0.96, dense=0.975)
    (True, False)
    """

    monitor: str
    drop: float
    mode: Literal["max", "min"] = "max"
    baseline: float | None = None
    most: float = 0.9

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not isinstance(self.monitor, str) or not self.monitor:
            raise TypeError(
                f"Expected argument monitor to be the name of a metric, but got {self.monitor!r}. Name one that "
                'validation logs: Quality("val_acc", drop=0.01).'
            )
        for name in ("drop", "baseline", "most"):
            value = getattr(self, name)
            is_unsaid = name == "baseline" and value is None
            if isinstance(value, bool) or not (is_unsaid or isinstance(value, int | float)):
                raise TypeError(f"Expected argument {name} of Quality to be a number, but got {value!r}.")
        if not (self.drop >= 0 and math.isfinite(self.drop)):
            raise ValueError(
                f"Expected argument drop to be at least 0, but got {self.drop}. It is a difference, whatever the mode: "
                "0.01 lets an accuracy fall, and a loss rise, by 0.01."
            )
        if self.mode not in ("max", "min"):
            raise ValueError(f"Expected argument mode to be 'max' or 'min', but got {self.mode!r}.")
        if self.baseline is not None and not math.isfinite(self.baseline):
            raise ValueError(f"Expected argument baseline to be a finite number, but got {self.baseline}.")
        if not 0 < self.most < 1:
            raise ValueError(f"Expected argument most to be a share between 0 and 1 (exclusive), but got {self.most}.")

    def __repr__(self) -> str:
        """Return the call for an equal object."""
        return call_text("Quality", changed_fields(self))

    def worst(self, dense: float) -> float:
        """Return the worst allowed value.

        Args:
            dense: Value of the dense network; a baseline takes precedence.
        """
        reference = dense if self.baseline is None else self.baseline
        return reference - self.drop if self.mode == "max" else reference + self.drop

    def holds(self, value: float, dense: float) -> bool:
        """Whether a value is allowed; NaN never is.

        Args:
            value: Value of the pruned network.
            dense: Value of the dense network, as of `worst`.
        """
        worst = self.worst(dense)
        slack = ROUNDING * max(1.0, abs(worst))
        return value >= worst - slack if self.mode == "max" else value <= worst + slack

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments as JSON primitives, without defaults.

        >>> Quality("val_loss", drop=0.1, mode="min").to_dict()
        {'monitor': 'val_loss', 'drop': 0.1, 'mode': 'min'}
        """
        return changed_fields(self)
