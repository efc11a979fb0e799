"""Names of the clocks of a latency, without the runtimes themselves: a budget is made without importing PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TORCH = "torch"
CLOCK_NAMES = (TORCH, "compile", "onnxruntime", "onnxruntime_int8", "openvino")
Clock = Callable[[Any, Any], float]  # network and `ModelInputs` -> seconds of a forward pass


def check_clock(clock: object) -> None:
    """Raise ValueError for an unknown name, and TypeError for an object that is neither a name nor a callable."""
    if isinstance(clock, str) and clock not in CLOCK_NAMES:
        raise ValueError(
            f"Expected argument clock to be one of {', '.join(CLOCK_NAMES)}, or a callable (network, inputs) -> "
            f"seconds, but got '{clock}'."
        )
    if not isinstance(clock, str) and not callable(clock):
        raise TypeError(
            f"Expected argument clock to be a name or a callable (network, inputs) -> seconds, but got {clock!r}."
        )


def clock_name(clock: str | Clock) -> str:
    """Return the name of a clock; of a callable, where it is defined.

    >>> clock_name("torch"), clock_name(clock_name)
    ('torch', 'prunerecover.cost.units.clock_names.clock_name')
    """
    if isinstance(clock, str):
        return clock
    kind = clock if hasattr(clock, "__qualname__") else type(clock)
    return f"{kind.__module__}.{kind.__qualname__}"
