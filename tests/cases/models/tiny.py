"""Tiny seeded models of every supported family, on the CPU; shared by all tests.

Weights are larger than at initialisation: every branch affects the output, and errors show.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 61
SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
TEXT = {**SHAPE, **SPECIAL, "vocab_size": VOCABULARY, "max_position_embeddings": 64}
DECODERS = ("llama", "mistral", "qwen2", "qwen3", "gpt2", "opt", "opt_post_norm")
ENCODERS = ("bert", "hf_vit")
TRANSFORMERS = (*DECODERS, *ENCODERS)
GATED = ("llama", "mistral", "qwen2", "qwen3")


def stir(model: nn.Module, seed: int = 0, scale: float = 10.0) -> nn.Module:
    """Enlarge the matrices and move biases and norms off the initial values; eval mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.mul_(scale)
            else:
                parameter.add_(0.1 * noise)
    return model.eval()


def _hf(config: str, model: str, /, **settings: Any) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    return stir(getattr(transformers, model)(getattr(transformers, config)(**settings)))


def alternating(depth: int = 4) -> list[str]:
    return [("full_attention", "sliding_attention")[i % 2] for i in range(depth)]


GROUPED = {**TEXT, "num_key_value_heads": 2}
WINDOWS = {"use_sliding_window": True, "sliding_window": 4, "layer_types": alternating()}  # in the odd layers
GPT2 = {"n_embd": 32, "n_inner": 48, "n_layer": 4, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY, **SPECIAL}
OPT = {key: value for key, value in TEXT.items() if key != "intermediate_size"} | {"ffn_dim": 48}

tiny_llama = partial(_hf, "LlamaConfig", "LlamaForCausalLM", **GROUPED)
tiny_mistral = partial(_hf, "MistralConfig", "MistralForCausalLM", **GROUPED, sliding_window=5)
tiny_qwen2 = partial(_hf, "Qwen2Config", "Qwen2ForCausalLM", **GROUPED, **WINDOWS)
tiny_qwen3 = partial(_hf, "Qwen3Config", "Qwen3ForCausalLM", **GROUPED, head_dim=8, tie_word_embeddings=True)
tiny_gpt2 = partial(_hf, "GPT2Config", "GPT2LMHeadModel", **GPT2)
tiny_opt = partial(_hf, "OPTConfig", "OPTForCausalLM", **OPT, word_embed_proj_dim=32)
tiny_opt_post_norm = partial(tiny_opt, do_layer_norm_before=False)  # norms after the additions, as in the 350m size
tiny_bert = partial(_hf, "BertConfig", "BertForSequenceClassification", **TEXT, num_labels=5)
tiny_hf_vit = partial(_hf, "ViTConfig", "ViTForImageClassification", **SHAPE, image_size=16, patch_size=4, num_labels=5)


def plain_vit(**changes: Any) -> nn.Module:
    """Return a small VisionTransformer of timm with initial weights."""
    import timm

    shape = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 4}
    return timm.create_model("vit_tiny_patch16_224", **{**shape, **changes})


def tiny_timm(**changes: Any) -> nn.Module:
    """A VisionTransformer of timm; `distilled=True` gives the two-headed DeiT."""
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import VisionTransformer

    cls = VisionTransformerDistilled if changes.pop("distilled", False) else VisionTransformer
    shape = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 4, "num_heads": 4, "num_classes": 5}
    torch.manual_seed(0)
    return stir(cls(**{**shape, **changes}))


# Variants by changed settings.
VARIANTS: dict[str, dict[str, Any]] = {
    "vit": {},
    "distilled": {"distilled": True},
    "layer_scale": {"init_values": 0.5},
    "drop_path": {"drop_path_rate": 0.4},
    "qk_norm": {"qk_norm": True},
    "all": {"distilled": True, "init_values": 0.5, "drop_path_rate": 0.4, "qk_norm": True},
}
BUILD: dict[str, Callable[..., nn.Module]] = {
    "llama": tiny_llama,
    "mistral": tiny_mistral,
    "qwen2": tiny_qwen2,
    "qwen3": tiny_qwen3,
    "gpt2": tiny_gpt2,
    "opt": tiny_opt,
    "opt_post_norm": tiny_opt_post_norm,
    "bert": tiny_bert,
    "hf_vit": tiny_hf_vit,
    "timm": tiny_timm,
}


def tiny_inputs(name: str, batch: int = 2, length: int = 9, seed: int = 1) -> dict[str, Tensor]:
    """A batch for a transformers model, as keyword arguments; `(B, T)` tokens or `(B, 3, 16, 16)` images."""
    generator = torch.Generator().manual_seed(seed)
    if name == "hf_vit":
        return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=generator)}
    return {"input_ids": torch.randint(3, VOCABULARY, (batch, length), generator=generator)}


def tiny_images(batch: int = 2, seed: int = 1) -> Tensor:
    """`(B, 3, 16, 16)` images for `tiny_timm`."""
    return torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


MIXTURE = {**TEXT, "num_hidden_layers": 2, "num_key_value_heads": 2, "num_experts_per_tok": 2}
DEEPSEEK = {"moe_intermediate_size": 16, "n_shared_experts": 1, "first_k_dense_replace": 0}
HALF_OF_EXPERTS = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1}
MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", {"num_local_experts": 6}),
    "qwen2_moe": ("Qwen2Moe", {"num_experts": 6, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24}),
    "qwen3_moe": ("Qwen3Moe", {"num_experts": 6, "moe_intermediate_size": 16, "head_dim": 8, "norm_topk_prob": True}),
    "deepseek_v2": ("DeepseekV2", {**DEEPSEEK, "n_routed_experts": 6}),
    "deepseek_v2_grouped": ("DeepseekV2", {**DEEPSEEK, **HALF_OF_EXPERTS, "topk_method": "group_limited_greedy"}),
    "deepseek_v3": ("DeepseekV3", {**DEEPSEEK, **HALF_OF_EXPERTS}),
}
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}


def tiny_mixture(name: str, **changes: Any) -> nn.Module:
    """Return a decoder with routed experts in both layers (DeepSeek: `first_k_dense_replace=1` for a dense first)."""
    family, settings = MIXTURES[name]
    if name.startswith("deepseek"):
        settings = {**settings, **LATENT, "num_key_value_heads": 4}
    model = _hf(f"{family}Config", f"{family}ForCausalLM", **{**MIXTURE, **settings, **changes})
    generator = torch.Generator().manual_seed(3)
    for buffer_name, buffer in model.named_buffers():
        if buffer_name.endswith("e_score_correction_bias"):
            buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
    return model
