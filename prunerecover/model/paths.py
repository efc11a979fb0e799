"""Submodules by canonical path: search and replacement.

A canonical path is relative to the pruned network, without the wrappers of training (`module.` of DDP, `_orig_mod.` of
`torch.compile`, `base_model.model.` of peft). A plan made on a wrapped model applies to the bare model and the other
way round.
"""

from __future__ import annotations

from typing import Any, cast

from torch import nn

# Package and name of each class, without an import.
WRAPPERS = {
    ("torch", "DataParallel"): "module",
    ("torch", "DistributedDataParallel"): "module",
    ("torch", "FullyShardedDataParallel"): "_fsdp_wrapped_module",
    ("torch", "OptimizedModule"): "_orig_mod",
    ("torch", "AveragedModel"): "module",
    ("deepspeed", "DeepSpeedEngine"): "module",
}


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside DDP, FSDP, `torch.compile`, averaged and peft wrappers, or the model itself.

    Wrappers are known by class: a network with a single part called `module` is no wrapper.

    Raises:
        TypeError: If the argument is no module.

    >>> from torch import nn
    >>> inner = nn.Linear(2, 2)
    >>> unwrap(nn.DataParallel(inner)) is inner
    True
    """
    if not isinstance(cast(object, model), nn.Module):
        got = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise TypeError(f"Expected a network, an nn.Module, but got {got}. Pass the model itself, with its weights.")
    while True:
        inner = _inner(model)
        if inner is None:
            return model
        model = inner


def _inner(model: nn.Module) -> nn.Module | None:
    for cls in type(model).__mro__:
        name = WRAPPERS.get((cls.__module__.partition(".")[0], cls.__name__))
        if name is not None:
            return model.get_submodule(name)
    if is_of_peft(model) and hasattr(model, "get_base_model"):
        base = cast(Any, model).get_base_model()
        return base if isinstance(base, nn.Module) else None
    return None


def is_of_peft(module: nn.Module) -> bool:
    """Whether a module's class is defined in peft."""
    return type(module).__module__.startswith("peft.")


def get_module(root: nn.Module, path: str) -> nn.Module:
    """Return the submodule at `path`.

    Raises:
        ValueError: If there is no module; the message names the deepest existing part of the path.
    """
    module = root
    parts = path.split(".") if path else []
    for depth, part in enumerate(parts):
        child = getattr(module, part, None)
        if not isinstance(child, nn.Module):
            where = ".".join(parts[:depth]) or "the model"
            raise ValueError(
                f"Expected a module at '{path}', but {where} ({type(module).__name__}) has no '{part}'. "
                "Was the plan made for another model?"
            )
        module = child
    return module


def set_module(root: nn.Module, path: str, new: nn.Module) -> nn.Module:
    """Replace a submodule and return the old one.

    Args:
        root: Network with the submodule.
        path: Path of the submodule; not the root itself.
        new: New module, set to the training mode of the old.
    """
    parent_path, _, name = path.rpartition(".")
    parent = get_module(root, parent_path)
    old = get_module(parent, name)
    setattr(parent, name, new)
    if new.training != old.training:  # else each submodule keeps its own mode
        new.train(old.training)
    return old


def holder_of(module: nn.Module, attribute: str) -> tuple[Any, str]:
    """Return the holder of a dotted attribute, such as the config of `config.num_heads`, and the last name.

    Raises:
        ValueError: If the attribute is missing.

    >>> holder_of(nn.Linear(2, 3), "in_features")
    (Linear(in_features=2, out_features=3, bias=True), 'in_features')
    """
    holder: Any = module
    *parts, name = attribute.split(".")
    for part in parts:
        holder = getattr(holder, part, None)
    if not hasattr(holder, name):
        raise ValueError(
            f"Expected a {type(module).__name__} with the attribute '{attribute}', but it has none. "
            "Was the plan made for another model or version?"
        )
    return holder, name


def parent_path(path: str) -> str:
    """Return the path of the parent: `"blocks.3.attn"` -> `"blocks.3"`; the empty string is the root."""
    return path.rpartition(".")[0]


def is_within(path: str, module: str) -> bool:
    """Whether the module at `path` is `module` or inside `module`; the root, the empty path, holds all.

    >>> is_within("head.0", "head"), is_within("heads", "head")
    (True, False)
    """
    return not module or path == module or path.startswith(f"{module}.")
