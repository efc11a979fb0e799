"""Hugging Face transformers: Llama, Mistral, Qwen2, Qwen3, GPT-2, OPT decoders, BERT and ViT encoders, with any head.

One record per family says what a layer calls its parts; nothing here imports transformers, classes are told by name.
Where a branch is several modules in a row (BERT's `attention.self`, then `attention.output.dense`), the first takes the
replacement and the others are followers. In post-norm layers (BERT, OPT-350m) the norm comes after the addition, so it
stays: without the branch the layer computes norm(0 + x). Not covered: mixtures of experts, parallel and sandwich-norm
layers, cross-attention as a unit, and models with two stacks (encoder-decoders: pass one of the two).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from prunerecover.families.layout import Block, Branch, FeedForward, Layout, feed_forward_state
from prunerecover.model.paths import get_module
from prunerecover.model.replacements import Replacement

GATED = "its MLP is gated: the activation multiplies a second linear, so the linears cannot become one"
LAYER_GONE = "one of its layers has been removed"
FUNCTION = "its activation is a plain function, which cannot be replaced; set `hidden_act` to the activation's name"


@dataclass(frozen=True)
class _Part:
    """One residual branch, in paths relative to the layer; `then` is what else serves only it, as executed."""

    path: str
    then: tuple[str, ...] = ()
    norm: str | None = None
    returns: int = 1


@dataclass(frozen=True)
class _Family:
    """What a layer class calls its parts; `linears` is (first, activation, second), None for a gated MLP."""

    name: str
    layer: str
    attention: _Part
    mlp: _Part
    linears: tuple[str, str, str] | None

    def describes(self, layer: nn.Module) -> bool:
        """Whether `layer` is of this class and lays its MLP out this way (ViT changed within transformers 5)."""
        return self.layer in {cls.__name__ for cls in type(layer).__mro__} and hasattr(layer, self.mlp.path)


def _llama_like(name: str) -> _Family:
    attention = _Part("self_attn", norm="input_layernorm", returns=2)
    mlp = _Part("mlp", norm="post_attention_layernorm")
    return _Family(f"transformers {name}", f"{name}DecoderLayer", attention, mlp, linears=None)


_BERT_MLP = _Part("intermediate", ("output.dense", "output.dropout"))
_BERT_LINEARS = ("intermediate.dense", "intermediate.intermediate_act_fn", "output.dense")
FAMILIES = (
    _llama_like("Llama"),
    _llama_like("Mistral"),
    _llama_like("Qwen2"),
    _llama_like("Qwen3"),
    _Family(
        "transformers GPT-2",
        "GPT2Block",
        _Part("attn", norm="ln_1", returns=2),
        _Part("mlp", norm="ln_2"),
        ("mlp.c_fc", "mlp.act", "mlp.c_proj"),
    ),
    _Family(
        "transformers OPT",
        "OPTDecoderLayer",
        _Part("self_attn", norm="self_attn_layer_norm", returns=2),
        _Part("fc1", ("activation_fn", "fc2"), norm="final_layer_norm"),
        ("fc1", "activation_fn", "fc2"),
    ),
    _Family(
        "transformers BERT",
        "BertLayer",
        _Part("attention.self", ("attention.output.dense", "attention.output.dropout"), returns=2),
        _BERT_MLP,
        _BERT_LINEARS,
    ),
    _Family(
        "transformers ViT",
        "ViTLayer",
        _Part("attention", norm="layernorm_before", returns=2),
        _Part("mlp", norm="layernorm_after"),
        ("mlp.fc1", "mlp.activation_fn", "mlp.fc2"),
    ),
    _Family(  # as laid out in transformers 5.0
        "transformers ViT",
        "ViTLayer",
        _Part("attention", norm="layernorm_before"),
        _Part(_BERT_MLP.path, _BERT_MLP.then, norm="layernorm_after"),
        _BERT_LINEARS,
    ),
)
SUPPORTED = tuple(dict.fromkeys(family.name for family in FAMILIES))


def read(model: nn.Module) -> Layout | None:
    """Describe a transformers model; None if it is something else or of no family listed here.

    Raises:
        ValueError: If the model holds several stacks of supported layers.
    """
    if not is_transformers_model(model):
        return None
    stacks = [
        (path, family, list(module))
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and (family := _family_of(module)) is not None
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
    dim = int(config_of(model, container).hidden_size)
    blocks = (_block(family, f"{container}.{i}", layer, dim) for i, layer in enumerate(layers))
    return Layout(family.name, container, tuple(blocks))


def config_of(model: nn.Module, container: str) -> Any:
    """Return the transformers config that the blocks at `container` were built from, None if there is none.

    It is the config nearest to the blocks: the text model's own where a text model is part of a larger one.
    """
    config = getattr(model, "config", None)
    module = model
    for part in filter(None, container.split(".")):
        module = getattr(module, part)
        config = getattr(module, "config", None) or config
    return config


def is_transformers_config(value: Any) -> bool:
    """Whether this is a config object of transformers."""
    return "PreTrainedConfig" in {cls.__name__ for cls in type(value).__mro__}


def is_transformers_model(value: Any) -> bool:
    """Whether this is a model of transformers, with any head."""
    return "PreTrainedModel" in {cls.__name__ for cls in type(value).__mro__}


def _family_of(layers: nn.ModuleList) -> _Family | None:
    matches = (f for f in FAMILIES if len(layers) and all(f.describes(layer) for layer in layers))
    return next(matches, None)


def _block(family: _Family, path: str, layer: nn.Module, dim: int) -> Block:
    # OPT-350m alone among the pre-norm families puts its norms after the additions.
    pre_norm = bool(getattr(layer, "do_layer_norm_before", True))
    attention = _branch("attention", family.attention, path, layer, dim, pre_norm)
    mlp = _branch("mlp", family.mlp, path, layer, dim, pre_norm)
    if mlp is None:
        return Block(path, attention, None, None)
    forward, why = _feed_forward(family, path, layer, mlp.norm)
    return Block(path, attention, mlp, forward, why)


def _branch(
    kind: Literal["attention", "mlp"], part: _Part, path: str, layer: nn.Module, dim: int, pre_norm: bool
) -> Branch | None:
    if isinstance(get_module(layer, part.path), Replacement):
        return None
    norm = f"{path}.{part.norm}" if part.norm is not None and pre_norm else None
    then = tuple(f"{path}.{name}" for name in part.then)
    followers = then if norm is None else (norm, *then)
    return Branch(kind, f"{path}.{part.path}", followers, norm, part.returns, dim)


def _feed_forward(family: _Family, path: str, layer: nn.Module, norm: str | None) -> tuple[FeedForward | None, str]:
    if family.linears is None:
        return None, GATED
    parent, _, name = family.linears[1].rpartition(".")
    activation = getattr(get_module(layer, parent), name)
    if not isinstance(activation, nn.Module):
        return None, FUNCTION
    if any(isinstance(get_module(layer, name), Replacement) for name in family.linears):
        return None, LAYER_GONE
    state = feed_forward_state(activation, get_module(layer, family.linears[2]))
    first, act, second = (f"{path}.{name}" for name in family.linears)
    return FeedForward(first, act, second, norm=norm, state=state), ""
