"""Target modules of low-rank adapters, and the parameters that train in full beside them."""

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
    """Return the paths of what is adapted.

    Args:
        network: Unwrapped and plain.
        patterns: Shell patterns of whole paths or their ends; None: every linear of the blocks, or every linear but the
            last where no blocks are known.

    Raises:
        ValueError: If nothing is.
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


def trained_names(network: nn.Module, patterns: Sequence[str] | None, vectors: bool) -> set[str]:
    """Return the names of the parameters that go on training in full.

    What surgery left in the place of a branch or an activation does, but for linears: it is new, and small.

    Args:
        network: Unwrapped and plain.
        patterns: Shell patterns of modules, alike; None: what comes after the blocks, or the last linear.
        vectors: Whether biases, norms and scales do.
    """
    named = dict(network.named_parameters())
    left = [path for path, m in network.named_modules() if isinstance(m, Replacement | SlopeBias)]
    trained = {name for name in named if any(name.startswith(f"{path}.") for path in left)}
    if vectors:
        trained |= {name for name, p in named.items() if p.ndim <= 1}
    if patterns is None:
        return trained | set(_head(network, list(named)))
    return trained | {name for name in named if any(_matches(part, patterns) for part in _parts(name))}


def adaptable(network: nn.Module) -> list[str]:
    """Paths of linears (transformers' Conv1D, too) and plain convolutions whose weight is theirs alone.

    Those whose weight the module around them reads itself, as fused kernels of state-space models do, are none: an
    adapter would be passed by.
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
    """Whether an adapter on this module computes what merging it makes of the weight; subclasses may compute else."""
    if type(module) is nn.Conv2d:
        return module.groups == 1 and set(module.dilation) == {1} and module.padding_mode == "zeros"
    return type(module) is nn.Linear or type(module).__name__ == "Conv1D"


def _read_past_forward(module: nn.Module) -> frozenset[str]:
    """Names of the parts of a state-space mixer whose weight it hands to fused kernels; other modules call theirs."""
    if not hasattr(module, "conv1d"):
        return frozenset()
    return _weights_read(type(module))  # type: ignore[arg-type]


@cache
def _weights_read(cls: type[nn.Module]) -> frozenset[str]:
    """Names of the parts whose weight the source of a class reads."""
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError):  # of no file
        return frozenset()
    return frozenset(re.findall(r"\bself\.(\w+)\.weight\b(?!\.(?:dtype|device|shape)\b)", source))


def _of_blocks(network: nn.Module, paths: Sequence[str]) -> list[str]:
    linears = [path for path in paths if not isinstance(get_module(network, path), nn.Conv2d)]
    if is_supported(network):
        return [path for path in linears if path.startswith(f"{describe(network).container}.")]
    return linears[:-1]


def _head(network: nn.Module, names: Sequence[str]) -> list[str]:
    """Names of the parameters after the blocks; without known blocks, those of the last linear."""
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
