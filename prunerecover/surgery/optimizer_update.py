"""Update of an optimizer when surgery removes and adds parameters, in any training loop.

Groups are edited in place and may become empty: schedulers, gradient scalers and wrappers of optimizers hold references
to the groups and count them. A narrowed parameter keeps its place, and its state (momentum, moments) loses the same
entries; state of another shape (Adafactor's factors) is dropped. A parameter with new values keeps the whole state: the
momentum belongs to the old values but fades within a few steps, while moments restarted at zero would make the next
steps as large as the learning rate. LBFGS, with a single state vector over all parameters, starts anew with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import LBFGS, Adagrad, Optimizer

from prunerecover.surgery.apply_edits import Applied
from prunerecover.surgery.narrowing import Cuts


def update_optimizer(optimizer: Optimizer, applied: Applied) -> None:
    """Drop removed parameters with their state, and add each new parameter to the group of the old one.

    Call right after `apply_plan`, before the next step. The optimizer and the schedulers stay in use.

    >>> import torch
    >>> net = torch.nn.Linear(2, 2)
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> update_optimizer(optimizer, Applied(removed={"bias": net.bias}))
    >>> len(optimizer.param_groups[0]["params"])
    1
    """
    check_optimizer(optimizer)
    if not isinstance(applied, Applied):
        raise TypeError(f"Expected the result of apply_plan, but got {type(applied).__name__}. Pass its result.")
    removed = set(applied.removed.values())
    cut_from = {old: new for new, (old, _) in applied.cuts.items()}
    for new, (old, cuts) in applied.cuts.items():
        state = _cut_state(optimizer.state.get(old, {}), old.shape, cuts)
        if state:
            optimizer.state[new] = state
    for group in optimizer.param_groups:
        present = set(group["params"])
        new_ones = {name: new for name, (new, like) in applied.added.items() if like in present and new not in present}
        joining = {name: new for name, new in new_ones.items() if new not in applied.cuts}
        _edit_group(group, removed, cut_from, joining)
        _begin_state(optimizer, group, new_ones.values())
    for parameter in removed:
        optimizer.state.pop(parameter, None)
    if isinstance(optimizer, LBFGS) and (applied.removed or applied.added):
        _start_anew(optimizer)


def check_optimizer(optimizer: object) -> None:
    """Raise TypeError if an object is no optimizer."""
    if not isinstance(getattr(optimizer, "param_groups", None), list):
        raise TypeError(
            f"Expected a torch optimizer, but got {type(optimizer).__name__}. Call update_optimizer for each optimizer."
        )


def _start_anew(optimizer: Any) -> None:
    optimizer.state.clear()
    optimizer._numel_cache = None  # a count of the parameters, made once
    warnings.warn(
        "LBFGS starts anew: its estimate of the curvature is over all parameters at once, and these have changed.",
        stacklevel=3,
    )


def join_group(optimizer: Optimizer, group: dict[str, Any], joining: Mapping[str, Parameter]) -> None:
    """Add parameters to a group of an optimizer.

    Args:
        optimizer: Optimizer; stays in use.
        group: Entry of the optimizer's `param_groups`, edited in place.
        joining: Parameters outside all groups, by name as in groups with `param_names`.
    """
    _edit_group(group, set(), {}, joining)
    _begin_state(optimizer, group, joining.values())


def _begin_state(optimizer: Optimizer, group: Mapping[str, Any], new: Iterable[Parameter]) -> None:
    if isinstance(optimizer, Adagrad):  # up to torch 2.9 Adagrad fills its state only on construction
        options = {name: value for name, value in group.items() if name not in ("params", "param_names")}
        bare = [parameter for parameter in new if parameter not in optimizer.state]
        optimizer.state.update(Adagrad([{**options, "params": bare}]).state)


def _edit_group(
    group: dict[str, Any],
    removed: set[Parameter],
    cut_from: Mapping[Parameter, Parameter],
    joining: Mapping[str, Parameter],
) -> None:
    kept = [p not in removed or p in cut_from for p in group["params"]]
    if "param_names" in group:
        names = [name for name, keep in zip(group["param_names"], kept, strict=True) if keep]
        group["param_names"] = [*names, *joining]
    stay = [cut_from.get(p, p) for p, keep in zip(group["params"], kept, strict=True) if keep]
    group["params"][:] = [*stay, *joining.values()]


def _cut_state(state: Mapping[str, Any], shape: torch.Size, cuts: Cuts) -> dict[str, Any]:
    """Cut state of the parameter's shape and copy single numbers; empty if the state holds another tensor."""
    carried: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == shape:
            for cut in cuts:
                value = cut.of(value)
        elif isinstance(value, Tensor) and value.ndim == 0:
            value = value.clone()
        elif value is not None and not isinstance(value, int | float):
            return {}
        carried[name] = value
    return carried
