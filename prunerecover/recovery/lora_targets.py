"""Target modules of low-rank adapters, and the parameters to train in full beside the adapters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import accumulate

from torch import nn

from prunerecover.families.describe import describe, is_supported
from prunerecover.model.paths import get_module, parent_path
from prunerecover.model.replacements import Replacement, SlopeBias


def chosen_modules(network: nn.Module, patterns: Sequence[str] | None) -> list[str]:
    """Return the paths of the modules to adapt.

    Args:
        network: Plain network without wrappers.
        patterns: Shell patterns of whole paths or their ends; None: every linear of the blocks, or every linear but the
            last where no blocks are known.

    Raises:
        ValueError: If there are none.
    """
    paths = adaptable(network)
    chosen = _of_blocks(network, paths) if patterns is None else [path for path in paths if _matches(path, patterns)]
    if not chosen:
        what = "in its blocks" if patterns is None else f"at target_modules={list(patterns)}"
        raise ValueError(
            f"Expected linears or convolutions of {type(network).__name__} to adapt {what}, but there are none. "
            f"Name some of: {', '.join(paths[:6]) or 'none'}{', ...' if len(paths) > 6 else ''}."
        )
    return chosen


def trained_names(network: nn.Module, patterns: Sequence[str] | None) -> set[str]:
    """Return the names of the parameters to train in full.

    Replacements of a branch or an activation are included, except linears: a replacement is new, and small.

    Args:
        network: Plain network without wrappers.
        patterns: Shell patterns of modules, as whole paths or ends of paths; None: modules after the blocks, or the
            last linear. With any, or None, biases, norms and scales train, too.
    """
    named = dict(network.named_parameters())
    left = [path for path, m in network.named_modules() if isinstance(m, Replacement | SlopeBias)]
    trained = {name for name in named if any(name.startswith(f"{path}.") for path in left)}
    if patterns is None or patterns:
        trained |= {name for name, p in named.items() if p.ndim <= 1}
    if patterns is None:
        return trained | set(_head(network, list(named)))
    return trained | {name for name in named if any(_matches(part, patterns) for part in _parts(name))}


def adaptable(network: nn.Module) -> list[str]:
    """Paths of linears (transformers' Conv1D, too) and plain convolutions, without shared weights.

    Modules are left out if the parent reads the weight directly, as in fused kernels of state-space models: an adapter
    would be bypassed.
    """
    holders: dict[int, int] = {}
    for module in network.modules():
        for parameter in module._parameters.values():
            holders[id(parameter)] = holders.get(id(parameter), 0) + 1
    return [
        path
        for path, module in network.named_modules()
        if path
        and _is_exact(module)
        and holders.get(id(module._parameters.get("weight"))) == 1
        and path.rpartition(".")[2] not in _read_past_forward(get_module(network, parent_path(path)))
    ]


def _is_exact(module: nn.Module) -> bool:
    """Whether an adapter on this module computes the same as the merged weight; subclasses may differ."""
    if type(module) is nn.Conv2d:
        return module.groups == 1 and set(module.dilation) == {1} and module.padding_mode == "zeros"
    return type(module) is nn.Linear or type(module).__name__ == "Conv1D"


def _read_past_forward(module: nn.Module) -> frozenset[str]:
    """Names of the parts of a state-space mixer with a weight for fused kernels; empty for other modules."""
    if not hasattr(module, "conv1d"):
        return frozenset()
    return _weights_read(type(module))  # type: ignore[arg-type]


@cache
def _weights_read(cls: type[nn.Module]) -> frozenset[str]:
    """Names of the parts with a weight read in the source of a class."""
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError):  # a class without a source file
        return frozenset()
    return frozenset(re.findall(r"\bself\.(\w+)\.weight\b(?!\.(?:dtype|device|shape)\b)", source))


def _of_blocks(network: nn.Module, paths: Sequence[str]) -> list[str]:
    linears = [path for path in paths if not isinstance(get_module(network, path), nn.Conv2d)]
    if is_supported(network):
        return [path for path in linears if path.startswith(f"{describe(network).container}.")]
    return linears[:-1]


def _head(network: nn.Module, names: Sequence[str]) -> list[str]:
    """Names of the parameters after the blocks; without known blocks, the parameters of the last linear."""
    if is_supported(network):
        inside = [i for i, name in enumerate(names) if name.startswith(f"{describe(network).container}.")]
        return list(names[max(inside, default=-1) + 1 :])
    last = [path for path in adaptable(network) if not isinstance(get_module(network, path), nn.Conv2d)][-1:]
    return [name for name in names if parent_path(name) in last]


def _parts(name: str) -> Iterator[str]:
    """`"a.b.weight"` -> `"a"`, `"a.b"`, `"a.b.weight"`."""
    return accumulate(name.split("."), "{}.{}".format)


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, pattern) or fnmatchcase(path, f"*.{pattern}") for pattern in patterns)
