"""Records of Hugging Face transformers' families: the names of a layer's parts, one record per family.

Classes are recognised by name, without importing transformers. Where a branch is several modules in a row (BERT's
`attention.self`, then `attention.output.dense`; the norms after the branches of Gemma 2 and OLMo 2), the first module
takes the replacement and the rest are followers. In post-norm layers (BERT, OPT-350m) the norm comes after the addition
and stays: without the branch the layer computes norm(0 + x). In parallel layers (GPT-NeoX, Phi, Cohere) both branches
read the input of the layer; a shared norm is removed with the last of both branches. Not covered: cross-attention as a
unit.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from prunerecover.model.replacements import Replacement

GATED = "its MLP is gated: the activation multiplies a second linear, so the linears cannot become one"
MIXTURE = "its MLP is a mixture of experts, whose linears cannot become one"


@dataclass(frozen=True)
class Part:
    """One residual branch, in paths relative to the layer.

    Attributes:
        path: Path of the module for a replacement.
        then: Paths of the modules after `path` that serve this branch alone, in order of execution.
        norm: Path of the norm before the branch, or None.
        returns: Number of values returned by the module at `path`.
    """

    path: str
    then: tuple[str, ...] = ()
    norm: str | None = None
    returns: int = 1

    @property
    def last(self) -> str:
        """Path of the module with the output for the residual stream."""
        return (self.path, *self.then)[-1]


@dataclass(frozen=True)
class Family:
    """Names of the parts of a layer class.

    Attributes:
        name: Name in error messages.
        layer: Name of the layer's class.
        attention: Attention branch.
        mlp: MLP branch.
        linears: Paths (first, activation, second), or the reason why the linears cannot merge.
        parallel: Whether the MLP reads the input of the attention; an attribute `use_parallel_residual` of the layer
            takes precedence.
    """

    name: str
    layer: str
    attention: Part
    mlp: Part
    linears: tuple[str, str, str] | str
    parallel: bool = False


SANDWICH, ONE_NORM = ("input_layernorm", "pre_feedforward_layernorm"), ("input_layernorm", None)
NORMS_BEHIND = ("post_attention_layernorm",), ("post_feedforward_layernorm",)


def _decoder(
    name: str,
    classes: str = "",
    linears: tuple[str, str, str] | str = GATED,
    norms: tuple[str | None, str | None] = ("input_layernorm", "post_attention_layernorm"),
    then: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
    returns: int = 1,
    parallel: bool = False,
) -> Family:
    """Return a family with the names of Llama: norms and further modules of the attention, and of the MLP."""
    attention, mlp = Part("self_attn", then[0], norms[0], returns=2), Part("mlp", then[1], norms[1], returns)
    return Family(f"transformers {name}", f"{classes or name}DecoderLayer", attention, mlp, linears, parallel)


_BERT_MLP = Part("intermediate", ("output.dense", "output.dropout"))
_BERT_LINEARS = ("intermediate.dense", "intermediate.intermediate_act_fn", "output.dense")
FAMILIES = (
    _decoder("Llama"),
    _decoder("Mistral"),
    _decoder("Qwen2"),
    _decoder("Qwen3"),
    _decoder("Qwen2-VL", "Qwen2VL"),
    _decoder("Qwen2.5-VL", "Qwen2_5_VL"),
    _decoder("Qwen3-VL", "Qwen3VLText"),
    _decoder("Qwen3-VL-MoE", "Qwen3VLMoeText", linears=MIXTURE),
    _decoder("Gemma"),
    _decoder("Gemma 2", "Gemma2", norms=SANDWICH, then=NORMS_BEHIND),
    _decoder("Gemma 3", "Gemma3", norms=SANDWICH, then=NORMS_BEHIND),
    _decoder("SmolLM3"),
    _decoder("OLMo", "Olmo"),
    _decoder("OLMo 2", "Olmo2", norms=(None, None), then=NORMS_BEHIND),
    _decoder("OLMo 3", "Olmo3", norms=(None, None), then=NORMS_BEHIND),
    _decoder("Granite"),
    _decoder("Starcoder2", linears=("mlp.c_fc", "mlp.act", "mlp.c_proj")),
    _decoder("Mixtral", linears=MIXTURE),
    _decoder("Qwen2-MoE", "Qwen2Moe", linears=MIXTURE),
    _decoder("Qwen3-MoE", "Qwen3Moe", linears=MIXTURE),
    _decoder("gpt-oss", "GptOss", linears=MIXTURE, returns=2),
    _decoder("Phi", "", ("mlp.fc1", "mlp.activation_fn", "mlp.fc2"), norms=ONE_NORM, parallel=True),
    _decoder("Cohere", norms=ONE_NORM, parallel=True),
    _decoder("Cohere2", norms=ONE_NORM, parallel=True),
    _decoder("Phi-3", "Phi3", then=(("resid_attn_dropout",), ("resid_mlp_dropout",))),
    Family(
        "transformers GPT-NeoX",
        "GPTNeoXLayer",
        Part("attention", ("post_attention_dropout",), norm="input_layernorm", returns=2),
        Part("mlp", ("post_mlp_dropout",), norm="post_attention_layernorm"),
        ("mlp.dense_h_to_4h", "mlp.act", "mlp.dense_4h_to_h"),
    ),
    _decoder("StableLM", "StableLm", then=((), ("dropout",))),
    Family(
        "transformers GPT-2",
        "GPT2Block",
        Part("attn", norm="ln_1", returns=2),
        Part("mlp", norm="ln_2"),
        ("mlp.c_fc", "mlp.act", "mlp.c_proj"),
    ),
    Family(
        "transformers OPT",
        "OPTDecoderLayer",
        Part("self_attn", norm="self_attn_layer_norm", returns=2),
        Part("fc1", ("activation_fn", "fc2"), norm="final_layer_norm"),
        ("fc1", "activation_fn", "fc2"),
    ),
    Family(
        "transformers BERT",
        "BertLayer",
        Part("attention.self", ("attention.output.dense", "attention.output.dropout"), returns=2),
        _BERT_MLP,
        _BERT_LINEARS,
    ),
    Family(
        "transformers ViT",
        "ViTLayer",
        Part("attention", norm="layernorm_before", returns=2),
        Part("mlp", norm="layernorm_after"),
        ("mlp.fc1", "mlp.activation_fn", "mlp.fc2"),
    ),
    Family(  # as laid out in transformers 5.0
        "transformers ViT",
        "ViTLayer",
        Part("attention", norm="layernorm_before"),
        Part(_BERT_MLP.path, _BERT_MLP.then, norm="layernorm_after"),
        _BERT_LINEARS,
    ),
)
SUPPORTED = tuple(dict.fromkeys(family.name for family in FAMILIES))
_NAMED = {layer: [f for f in FAMILIES if f.layer == layer] for layer in {family.layer for family in FAMILIES}}


def family_of(layers: nn.ModuleList) -> Family | None:
    """Return the common family of all layers, or None; replacements of layers do not count.

    The class of a layer counts before its base classes: a Qwen3 layer derived from a Llama layer is of Qwen3.
    """
    found = [_of_layer(layer) for layer in layers if not isinstance(layer, Replacement)]
    return found[0] if found and all(family is found[0] for family in found) else None


def _of_layer(layer: nn.Module) -> Family | None:
    """Return the family of a layer with its MLP at the path of the record (ViT changed within transformers 5)."""
    named = (family for cls in type(layer).__mro__ for family in _NAMED.get(cls.__name__, ()))
    first = next(named, None)
    if first is None:
        return None
    return next((family for family in _NAMED[first.layer] if hasattr(layer, family.mlp.path)), None)
