"""Keep an optimizer right when surgery takes parameters away and brings new ones, in any training loop.

Groups are edited in place and may become empty: schedulers, gradient scalers and wrappers of optimizers hold references
to them and count them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.nn import Parameter
from torch.optim import Adagrad, Optimizer

from prunerecover.surgery import Applied


def update_optimizer(optimizer: Optimizer, applied: Applied) -> None:
    """Drop removed parameters with their state; let each new one join the group of the parameter it stands for.

    Call it right after `apply_plan`, before the next step. The optimizer and its schedulers stay in use.

    >>> import torch
    >>> net = torch.nn.Linear(2, 2)
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> update_optimizer(optimizer, Applied(removed={"bias": net.bias}))
    >>> len(optimizer.param_groups[0]["params"])
    1
    """
    removed = set(applied.removed.values())
    for group in optimizer.param_groups:
        present = set(group["params"])
        joining = {name: new for name, (new, like) in applied.added.items() if like in present and new not in present}
        _edit_group(group, removed, joining)
        if isinstance(optimizer, Adagrad):  # up to torch 2.9 it fills its state when it is made, and never later
            options = {name: value for name, value in group.items() if name not in ("params", "param_names")}
            optimizer.state.update(Adagrad([{**options, "params": list(joining.values())}]).state)
    for parameter in removed:
        optimizer.state.pop(parameter, None)


def _edit_group(group: dict[str, Any], removed: set[Parameter], joining: Mapping[str, Parameter]) -> None:
    kept = [p not in removed for p in group["params"]]
    if "param_names" in group:
        names = [name for name, keep in zip(group["param_names"], kept, strict=True) if keep]
        group["param_names"] = [*names, *joining]
    group["params"][:] = [*(p for p, keep in zip(group["params"], kept, strict=True) if keep), *joining.values()]
