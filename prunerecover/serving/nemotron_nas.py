"""Folders of pruned decoders in the format of Nemotron-NAS, for vLLM, TensorRT-LLM and mlx-lm.

A config states for each layer the presence of attention and MLP, the number of query heads per key head, and the width
of the MLP. All layers have the same number of query heads, and widths of MLPs are multiples of 256. Cases outside the
config's format have exact equivalents in `nas_layers.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from prunerecover.model.paths import unwrap
from prunerecover.refusal import Refusal
from prunerecover.serving.computed import check_computes
from prunerecover.serving.deci_layers import Layer
from prunerecover.serving.decoder import Attention, Decoder, read_decoder
from prunerecover.serving.nas_layers import Shape, config_of, fill_biases, key_value_heads, nas_layers, tensors_of

CONFIG_CLASS = "configuration_decilm"


def write_nemotron_nas(model: nn.Module, folder: Path, tokenizer: Any) -> None:
    """Write config, weights in the network's dtype, and tokenizer.

    Args:
        model: Network, see `read_decoder`.
        folder: Empty folder.
        tokenizer: Tokenizer of transformers.

    Raises:
        Refusal: If the format cannot state the network.
    """
    decoder = read_decoder(model)
    check_computes(decoder, unwrap(model))
    shape = Shape(_heads(decoder), decoder.head_size, len(decoder.norm))
    layers = nas_layers(decoder)
    tensors = {
        f"model.layers.{i}.{name}": tensor
        for i, layer in enumerate(layers)
        for name, tensor in tensors_of(layer, shape).items()
    }
    biased = {"attention_bias": fill_biases(tensors, "self_attn"), "mlp_bias": fill_biases(tensors, "mlp")}
    tensors |= {"model.embed_tokens.weight": decoder.embeddings, "model.norm.weight": decoder.norm}
    if decoder.head is not None:
        tensors["lm_head.weight"] = decoder.head
    held = {name: tensor.detach().to("cpu", decoder.embeddings.dtype).contiguous() for name, tensor in tensors.items()}
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(decoder, layers, shape) | biased, indent=2), "utf-8")
    code = files("prunerecover.serving").joinpath(f"{CONFIG_CLASS}.py").read_text("utf-8")
    (folder / f"{CONFIG_CLASS}.py").write_text(code, "utf-8")
    tokenizer.save_pretrained(folder)


def _heads(decoder: Decoder) -> int:
    """Return the number of query heads of all layers, which fill the hidden size."""
    heads, rest = divmod(len(decoder.norm), decoder.head_size)
    attentions = [branch for block in decoder.blocks for branch in block if isinstance(branch, Attention)]
    odd = next((one for one in attentions if rest or not key_value_heads(one, heads)), None)
    if rest or odd is not None:
        there = "none" if odd is None else f"{odd.heads} queries' and {odd.key_value_heads} keys' heads"
        raise Refusal(
            f"attentions with room in {len(decoder.norm) / decoder.head_size:g} heads, which fill the hidden size",
            f"one has {there} of size {decoder.head_size}",
            "Write format='gguf', which states the heads of each layer.",
        )
    return heads


def _config(decoder: Decoder, layers: Sequence[Layer], shape: Shape) -> dict[str, Any]:
    own = decoder.config
    rotary = {name: value for name, value in own.rope_parameters.items() if name != "rope_theta"}
    return {
        "architectures": ["DeciLMForCausalLM"],
        "model_type": "nemotron-nas",
        "auto_map": {"AutoConfig": f"{CONFIG_CLASS}.DeciLMConfig"},
        "block_configs": [config_of(layer, shape) for layer in layers],
        "hidden_size": shape.width,
        "num_hidden_layers": len(layers),
        "num_attention_heads": shape.heads,
        "hidden_act": "silu",
        "rms_norm_eps": decoder.epsilon,
        "rope_parameters": own.rope_parameters,
        "rope_theta": decoder.theta,  # for readers of before transformers 5, with the next entry
        "rope_scaling": None if rotary.get("rope_type", "default") == "default" else rotary,
        "max_position_embeddings": decoder.context,
        "vocab_size": len(decoder.embeddings),
        "tie_word_embeddings": decoder.head is None,
        "torch_dtype": str(decoder.embeddings.dtype).removeprefix("torch."),
        **{f"{name}_token_id": getattr(own, f"{name}_token_id", None) for name in ("bos", "eos", "pad")},
    }
