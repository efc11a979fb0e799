"""Forward hooks that note what enters and leaves modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def recording(modules: dict[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """Note first inputs and outputs of modules as `<name>.in` and `<name>.out` inside a `with` block."""
    seen: dict[str, Tensor] = {}
    handles = []
    for name, module in modules.items():

        def record(_: nn.Module, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
            seen[f"{name}.in"] = args[0] if args else next(iter(kwargs.values()))
            seen[f"{name}.out"] = output[0] if isinstance(output, tuple) else output

        handles.append(module.register_forward_hook(record, with_kwargs=True))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return the hidden state of a block's call."""
    value = args[0] if args else kwargs["hidden_states"]
    assert isinstance(value, Tensor)
    return value
