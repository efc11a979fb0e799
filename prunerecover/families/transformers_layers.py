"""Layers of Hugging Face transformers' models, with any head, read by the records of their families.

Classes are recognised by name, without importing transformers. In models with two stacks (encoder-decoders), whole
blocks are known; for smaller units, pass either stack.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from torch import nn

from prunerecover.families.layout import Block, Branch, FeedForward, Layout, feed_forward_state
from prunerecover.families.transformers_families import Family, Part, family_of
from prunerecover.model.paths import get_module
from prunerecover.model.replacements import Constant, Nothing, Replacement

FUNCTION = "its activation is a plain function, which cannot be replaced; set `hidden_act` to the activation's name"
IMAGES_BEHIND = "the network adds features of images behind it, by its number; remove its attention and its MLP"
LAYER_GONE = "one of its layers has been removed"
# Entries of a config with the number of blocks of a stack, by the name of the stack's part of the model.
DEPTH_ENTRIES = {
    "encoder": ("encoder_layers", "num_encoder_layers", "encoder_num_hidden_layers", "num_layers", "num_hidden_layers"),
    "decoder": ("decoder_layers", "num_decoder_layers", "decoder_num_hidden_layers"),
}


def read(model: nn.Module) -> Layout | None:
    """Describe a transformers model; None for another model or an unlisted family.

    Raises:
        ValueError: If the model holds several stacks of supported layers.
    """
    if not is_transformers_model(model):
        return None
    stacks = [
        (path, family, list(module))
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and (family := family_of(module)) is not None
    ]
    if not stacks:
        return None
    if len(stacks) > 1:
        raise ValueError(
            f"Expected one stack of transformer layers, but {type(model).__name__} has {len(stacks)} "
            f"({', '.join(path for path, *_ in stacks)}). Pass the network that holds only the one to prune "
            "(callbacks: `target=`)."
        )
    container, family, layers = stacks[0]
    present = next(layer for layer in layers if not isinstance(layer, Replacement))
    dim = _width(family, present, int(config_of(model, container).hidden_size))
    blocks = (_block(family, f"{container}.{i}", layer, dim) for i, layer in enumerate(layers))
    seeing = _blocks_before_images(model)
    held = (replace(block, stays=IMAGES_BEHIND) if i < seeing else block for i, block in enumerate(blocks))
    return Layout(family.name, container, tuple(held))


def read_stacks(model: nn.Module) -> tuple[Layout, ...]:
    """Describe the layers of any transformers model as whole blocks, with unknown parts.

    The blocks are in lists of modules of the lengths in the model's config.

    Returns:
        One layout, or two for an encoder and a decoder; none for another model, or if no single config tells the
        lengths of the lists apart.
    """
    if not is_transformers_model(model):
        return ()
    lists = {path: module for path, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    # Layers have parts; Speech2Text's convolutions have none, and may be as many as its encoder's layers.
    lengths = {path: len(blocks) for path, blocks in lists.items() if any(list(block.children()) for block in blocks)}
    entries = {path: said for path, n in lengths.items() if (said := _depth_entries(config_of(model, path), path, n))}
    outermost = [path for path in entries if not any(path.startswith(f"{other}.") for other in entries)]
    named = [name for path in outermost for name in entries[path]]
    if len(named) > len(set(named)) or len({type(config_of(model, path)) for path in outermost}) > 1:
        return ()
    name = f"transformers {type(model).__name__}"
    return tuple(
        Layout(name, path, tuple(Block(f"{path}.{i}", None, None, None) for i in range(lengths[path])), entries[path])
        for path in outermost
    )


def _depth_entries(config: Any, container: str, length: int) -> tuple[str, ...]:
    """Return the entries of a config with the length of the list at a path; none if they differ or are absent."""
    part = next((name for name in reversed(container.split(".")) if name in DEPTH_ENTRIES), "")
    own = [name for name in DEPTH_ENTRIES.get(part, ()) if name in getattr(config, "__dict__", {})]
    return tuple(name for name in own or ["num_hidden_layers"] if getattr(config, name, 0) == length)


def config_of(model: nn.Module, container: str) -> Any:
    """Return the transformers config of the blocks at `container`, or None.

    The nearest config to the blocks counts: the text model's config where a text model is part of a larger model.
    """
    config = getattr(model, "config", None)
    module = model
    for part in filter(None, container.split(".")):
        module = getattr(module, part)
        config = getattr(module, "config", None) or config
    return config


def _blocks_before_images(model: nn.Module) -> int:
    """Return the number of first blocks followed by features of images, in the text of Qwen3-VL (DeepStack)."""
    vision = getattr(getattr(model, "config", None), "vision_config", None)
    return len(getattr(vision, "deepstack_visual_indexes", None) or ())


def is_transformers_config(value: Any) -> bool:
    """Whether a value is a config object of transformers."""
    return "PreTrainedConfig" in {cls.__name__ for cls in type(value).__mro__}


def is_transformers_model(value: Any) -> bool:
    """Whether a value is a model of transformers, with any head."""
    return "PreTrainedModel" in {cls.__name__ for cls in type(value).__mro__}


def _width(family: Family, layer: nn.Module, said: int) -> int:
    """Return the width of the residual stream: of a norm if present, as a config cannot hold every narrowed width."""
    norms = (getattr(layer, part.norm or "", None) for part in (family.attention, family.mlp))
    weights = (getattr(norm, "weight", None) for norm in norms)
    return next((len(weight) for weight in weights if isinstance(weight, nn.Parameter)), said)


def _block(family: Family, path: str, layer: nn.Module, dim: int) -> Block:
    if isinstance(layer, Replacement):
        return Block(path, None, None, None)
    attention = _branch("attention", family, path, layer, dim)
    mlp = _branch("mlp", family, path, layer, dim)
    if mlp is None:
        return Block(path, attention, None, None)
    forward, why = _feed_forward(family, path, layer, mlp.norm)
    return Block(path, attention, mlp, forward, why)


def _branch(kind: Literal["attention", "mlp"], family: Family, path: str, layer: nn.Module, dim: int) -> Branch | None:
    part, other = (family.attention, family.mlp) if kind == "attention" else (family.mlp, family.attention)
    if isinstance(get_module(layer, part.path), Replacement):
        return None
    parallel = bool(getattr(layer, "use_parallel_residual", family.parallel))
    own, shared = _norm(part, layer), None
    if parallel and None in (own, _norm(other, layer)):
        shared = own or _norm(other, layer)
        # A zero or constant replacement reads no norm: the norm then serves the remaining branch alone.
        own = shared if isinstance(get_module(layer, other.path), Nothing | Constant) else None
    norm, reads = (None if name is None else f"{path}.{name}" for name in (own, shared))
    then = tuple(f"{path}.{name}" for name in part.then)
    return Branch(
        kind,
        f"{path}.{part.path}",
        then if norm is None else (norm, *then),
        norm,
        part.returns,
        dim,
        reads=reads,
        beside=f"{path}.{other.last}" if parallel and kind == "mlp" else None,
        scale=float(getattr(layer, "residual_multiplier", 1.0)),
    )


def _norm(part: Part, layer: nn.Module) -> str | None:
    """Return the norm before a branch, or None: OPT-350m has the norm after the addition."""
    before = part.norm is not None and getattr(layer, "do_layer_norm_before", True)
    return part.norm if before and getattr(layer, part.norm or "", None) is not None else None


def _feed_forward(family: Family, path: str, layer: nn.Module, norm: str | None) -> tuple[FeedForward | None, str]:
    if isinstance(family.linears, str):
        return None, family.linears
    parent, _, name = family.linears[1].rpartition(".")
    activation = getattr(get_module(layer, parent), name)
    if not isinstance(activation, nn.Module):
        return None, FUNCTION
    if any(isinstance(get_module(layer, name), Replacement) for name in family.linears):
        return None, LAYER_GONE
    state = feed_forward_state(activation, get_module(layer, family.linears[2]))
    first, act, second = (f"{path}.{name}" for name in family.linears)
    return FeedForward(first, act, second, norm=norm, state=state), ""
