"""Description of a Llama-shaped decoder, branch by branch, as a server's file has to state the decoder.

Covered: pre-norm decoders of transformers with RMS norms, rotary positions and gated SiLU MLPs, in which attentions and
MLPs may be absent, be fitted replacements, or have a width of their own in each block. `computed.py` compares a
description with the network. Not covered: normed queries and keys (Qwen3), further norms or scales (Gemma, Granite),
layers without positions (SmolLM3), fused projections (Phi-3), mixtures of experts, windows shorter than the context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.model.checks import check_unquantised
from prunerecover.model.linears import linear_shape
from prunerecover.model.paths import is_of_peft, unwrap
from prunerecover.model.replacements import Affine, Constant, Nothing, PassThrough, Replacement
from prunerecover.refusal import Refusal

MODELS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
FIXED_ROTATIONS = ("default", "linear", "llama3")  # others depend on the length of the text
SILU = ("SiLU", "SiLUActivation")
OTHERWISE = "Serve it with transformers: save_pruned writes a folder, and load_pruned opens it."


@dataclass(frozen=True)
class Attention:
    """Attention with rotary positions.

    Attributes:
        norm: Weight of the RMS norm before the attention, `(C,)`.
        query: Projection of the queries.
        key: Projection of the keys.
        value: Projection of the values.
        output: Projection of the heads' outputs.
        heads: Number of query heads.
        key_value_heads: Number of heads of keys and values, a divisor of `heads`.
    """

    norm: Tensor
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    heads: int
    key_value_heads: int


@dataclass(frozen=True)
class GatedMLP:
    """MLP: `down(silu(gate(x)) * up(x))`, x the normed input.

    Attributes:
        norm: Weight of the RMS norm before the MLP, `(C,)`.
        gate: Linear before the activation.
        up: Linear beside the activation.
        down: Linear back to the residual stream.
    """

    norm: Tensor
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear


@dataclass(frozen=True)
class LinearMap:
    """Linear map of the normed input, fitted in place of a branch; the fitted bias is a `Shift` after the map.

    Attributes:
        norm: Weight of the RMS norm before the branch, `(C,)`.
        weight: Matrix, `(C, C)`.
    """

    norm: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Shift:
    """Constant added to the residual stream, fitted in place of a branch.

    Attributes:
        bias: Constant, `(C,)`.
    """

    bias: Tensor


Branch = Attention | GatedMLP | LinearMap | Shift


@dataclass(frozen=True)
class Decoder:
    """Parts of a decoder; tensors are the network's own.

    Attributes:
        name: Class of the network.
        embeddings: Embeddings of the tokens, `(vocabulary, C)`.
        blocks: Branches of each block, in the order in which they add to the residual stream; removed ones are absent.
        norm: Weight of the last norm, `(C,)`.
        head: Weight of the head, `(vocabulary, C)`; None: the embeddings.
        epsilon: Constant in the root of all norms.
        head_size: Size of each attention head, D.
        frequencies: Angles of a position's rotation for the pairs of a head, `(D / 2,)`.
        theta: Base of the frequencies before any scaling.
        context: Number of positions.
        config: Config of the network.
    """

    name: str
    embeddings: Tensor
    blocks: tuple[tuple[Branch, ...], ...]
    norm: Tensor
    head: Tensor | None
    epsilon: float
    head_size: int
    frequencies: Tensor
    theta: float
    context: int
    config: Any


def read_decoder(model: nn.Module) -> Decoder:
    """Describe a Llama-shaped decoder, pruned or dense.

    Args:
        model: Network of `MODELS`, wrapped or not; not changed.

    Raises:
        Refusal: If the network, or a part of it, has another shape.
        ValueError: If a weight is quantised.
    """
    network: Any = unwrap(model)
    _check_model(network)
    inner, config = network.model, network.config
    blocks = tuple(_branches(f"model.layers.{i}", layer) for i, layer in enumerate(inner.layers))
    head, embeddings = network.lm_head.weight, inner.embed_tokens.weight
    return Decoder(
        name=type(network).__name__,
        embeddings=embeddings,
        blocks=blocks,
        norm=inner.norm.weight,
        head=None if head is embeddings else head,
        epsilon=_epsilon(network),
        head_size=_head_size(inner.layers, config),
        frequencies=inner.rotary_emb.inv_freq,
        theta=float(config.rope_parameters["rope_theta"]),
        context=int(config.max_position_embeddings),
        config=config,
    )


def _check_model(network: Any) -> None:
    names = {cls.__name__ for cls in type(network).__mro__}
    if names.isdisjoint(MODELS):
        raise Refusal(
            f"a decoder with its head, {', '.join(MODELS[:-1])} or {MODELS[-1]}",
            f"got {type(network).__name__}",
            "Pass the language model itself, such as module.network of a LightningModule; a file for servers says "
            "nothing of other families. " + OTHERWISE,
        )
    check_unquantised(network, "to write for a server", ". Write the file first: it can be quantised itself.")
    adapters = next((path for path, module in network.named_modules() if is_of_peft(module)), None)
    if adapters is not None:
        raise Refusal(
            "adapters that are merged into the weights",
            f"'{adapters}' still holds its own",
            "Merge them with merge_adapters or peft's merge_and_unload, or export the checkpoint's folder.",
        )
    config = network.config
    scaling = config.rope_parameters.get("rope_type", "default")
    if scaling not in FIXED_ROTATIONS:
        raise Refusal(
            "rotary positions that are the same for texts of any length",
            f"rope_type of the config is '{scaling}'",
            OTHERWISE,
        )
    windows = [getattr(getattr(layer, "self_attn", None), "sliding_window", None) for layer in network.model.layers]
    shortest = min((window for window in windows if window), default=config.max_position_embeddings)
    if shortest < config.max_position_embeddings:
        raise Refusal(
            "attentions over the whole context",
            f"some look back {shortest} of {config.max_position_embeddings} tokens",
            f"If no text will be longer, set config.max_position_embeddings = {shortest} before the export.",
        )
    if getattr(network.lm_head, "bias", None) is not None:
        raise Refusal("a head without a bias", "'lm_head' has one", OTHERWISE)


def _epsilon(network: nn.Module) -> float:
    told = (getattr(module, "variance_epsilon", None) for module in network.modules())
    found = {epsilon for epsilon in told if isinstance(epsilon, float)}
    if len(found) != 1:
        raise Refusal("norms with one variance_epsilon", f"they have {sorted(found)}", OTHERWISE)
    return found.pop()


def _head_size(layers: Any, config: Any) -> int:
    """Return the size of all heads; of the config where no attention is left."""
    sizes = {int(layer.self_attn.head_dim) for layer in layers if not isinstance(layer.self_attn, Replacement)}
    said = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if len(sizes) > 1:
        raise Refusal("heads of one size in all layers", f"their sizes are {sorted(sizes)}", OTHERWISE)
    return sizes.pop() if sizes else int(said)


def _branches(path: str, layer: Any) -> tuple[Branch, ...]:
    attention, mlp = layer.self_attn, layer.mlp
    first = _replaced(f"{path}.self_attn", attention, layer.input_layernorm)
    second = _replaced(f"{path}.mlp", mlp, layer.post_attention_layernorm)
    return (
        *(_attention(path, attention, layer.input_layernorm) if first is None else first),
        *(_mlp(path, mlp, layer.post_attention_layernorm) if second is None else second),
    )


def _replaced(path: str, module: nn.Module, norm: Any) -> tuple[Branch, ...] | None:
    """Return the branches equivalent to a replacement; None for any other module."""
    if not isinstance(module, Replacement):
        return None
    if isinstance(module, Nothing):
        return ()
    if isinstance(module, Constant):
        return (Shift(module.bias),)
    if isinstance(module, Affine):
        return LinearMap(norm.weight, module.weight), Shift(module.bias)
    if isinstance(module, PassThrough):
        return (LinearMap(norm.weight, torch.eye(len(norm.weight))),)
    raise Refusal("a replacement that is zero, constant or affine", f"'{path}' is {type(module).__name__}", OTHERWISE)


def _attention(path: str, attention: Any, norm: Any) -> tuple[Branch, ...]:
    query, key, value, output = (_linear(f"{path}.self_attn", attention, f"{name}_proj") for name in "qkvo")
    heads, shared = (linear_shape(linear)[1] // attention.head_dim for linear in (query, key))
    if heads != shared * attention.num_key_value_groups:
        raise Refusal(
            "as many query heads for each head of keys",
            f"'{path}.self_attn' has {heads} and {shared}",
            "Remove heads with their keys: plan_width does.",
        )
    return (Attention(norm.weight, query, key, value, output, heads, shared),)


def _mlp(path: str, mlp: Any, norm: Any) -> tuple[Branch, ...]:
    linears = [_linear(f"{path}.mlp", mlp, name) for name in ("gate_proj", "up_proj", "down_proj")]
    if type(mlp.act_fn).__name__ not in SILU:
        raise Refusal("MLPs with the activation silu", f"'{path}.mlp.act_fn' is {type(mlp.act_fn).__name__}", OTHERWISE)
    return (GatedMLP(norm.weight, *linears),)


def _linear(path: str, parent: nn.Module, name: str) -> nn.Linear:
    linear = getattr(parent, name, None)
    if type(linear) is not nn.Linear:
        raise Refusal(
            "attentions and MLPs of ordinary linears",
            f"'{path}.{name}' is {type(linear).__name__}",
            "Call merge(model) if pruning left it. " + OTHERWISE,
        )
    return linear
