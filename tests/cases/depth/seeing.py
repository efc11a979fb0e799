"""Tiny seeded vision-language models of transformers, and batches of texts with and without images.

The images are 16 x 16, and an image stands for 4 tokens of the text (Qwen2.5-VL, Qwen3-VL: 4, of 16 patches of 4 x 4).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from cases.models.tiny import SPECIAL, stir
from torch import Tensor, nn

VOCABULARY, IMAGE = 64, 63  # the last token stands for a part of an image
SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
TEXT = {**SHAPE, **SPECIAL, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "num_key_value_heads": 2}
EYES = {**SHAPE, "num_hidden_layers": 2, "image_size": 16, "patch_size": 8}
CLIP, SIGLIP = (
    {**EYES, "model_type": "clip_vision_model"},
    {**EYES, "model_type": "siglip_vision_model", "vision_use_head": False},
)
QWEN_EYES = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "patch_size": 4}
DEEP_EYES = {**QWEN_EYES, "out_hidden_size": 32, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
MARKS = {"video_token_id": 62, "vision_start_token_id": 61, "vision_end_token_id": 60}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 1, 1]}}
MOSTLY_WINDOWS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]


@dataclass(frozen=True)
class Seeing:
    """A vision-language model.

    Attributes:
        classes: Prefix of the class names.
        text: Config of the language part, beside `TEXT`.
        vision: Config of the vision part.
        settings: Entries of the whole config.
        tokens: Number of tokens of an image.
    """

    classes: str
    text: dict[str, Any]
    vision: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    tokens: int = 4

    def build(self, **changes: Any) -> nn.Module:
        """Return the model, in evaluation mode, always of the same weights; `changes` go into the text's config."""
        import transformers

        torch.manual_seed(0)
        marks = {"image_token_id": IMAGE, "image_token_index": IMAGE, "tie_word_embeddings": False}
        parts = {"text_config": {**TEXT, **self.text, **changes}, "vision_config": self.vision}
        config = getattr(transformers, f"{self.classes}Config")(**{**marks, **parts, **self.settings})
        return stir(getattr(transformers, f"{self.classes}ForConditionalGeneration")(config), scale=6.0)

    def batch(self, size: int = 2, length: int = 14, seed: int = 1) -> dict[str, Tensor]:
        """Return texts that each begin with an image."""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(3, 60, (size, length), generator=generator)
        ids[:, 1 : 1 + self.tokens] = IMAGE
        return {"input_ids": ids, **self._types(ids), **self._images(size, generator)}

    def texts(self, size: int = 2, length: int = 14, seed: int = 1) -> dict[str, Tensor]:
        """Return texts without images."""
        ids = torch.randint(3, 60, (size, length), generator=torch.Generator().manual_seed(seed))
        return {"input_ids": ids, **self._types(ids)}

    def _types(self, ids: Tensor) -> dict[str, Tensor]:
        if self.classes.startswith("Qwen"):
            return {"mm_token_type_ids": (ids == IMAGE).int()}
        return {"token_type_ids": torch.zeros_like(ids)} if self.classes == "PaliGemma" else {}

    def _images(self, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        images = torch.randn(size, 3, 16, 16, generator=generator)
        if self.classes.startswith("Qwen"):
            patches = torch.randn(size * 16, 3 * 2 * 4 * 4, generator=generator)
            return {"pixel_values": patches, "image_grid_thw": torch.tensor([[1, 4, 4]] * size)}
        if self.classes == "LlavaNext":
            return {
                "pixel_values": images[:, None].repeat(1, 2, 1, 1, 1),
                "image_sizes": torch.tensor([[16, 16]] * size),
            }
        return {"pixel_values": images[:, None] if self.classes in ("SmolVLM", "Idefics3") else images}


LLAMA, QWEN2 = {"model_type": "llama"}, {"model_type": "qwen2"}
CONNECTED = {"scale_factor": 1, "image_seq_len": 4}
SEEING = {
    "llava": Seeing("Llava", LLAMA, CLIP),
    "llava_next": Seeing("LlavaNext", LLAMA, CLIP, {"image_grid_pinpoints": [[16, 16]]}, tokens=10),
    "paligemma": Seeing("PaliGemma", {"model_type": "gemma", "head_dim": 8}, SIGLIP, {"projection_dim": 32}),
    "qwen2_5_vl": Seeing(
        "Qwen2_5_VL", ROPE, {**QWEN_EYES, "out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [1]}, MARKS
    ),
    "qwen2_vl": Seeing("Qwen2VL", ROPE, {**QWEN_EYES, "embed_dim": 32, "mlp_ratio": 2, "hidden_size": 32}, MARKS),
    "smolvlm": Seeing("SmolVLM", LLAMA, EYES, CONNECTED),
    "idefics3": Seeing("Idefics3", LLAMA, EYES, CONNECTED),
    "qwen3_vl": Seeing("Qwen3VL", {**ROPE, "head_dim": 8}, DEEP_EYES, MARKS),
    "qwen3_vl_moe": Seeing(
        "Qwen3VLMoe",
        {**ROPE, "head_dim": 8, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2},
        DEEP_EYES,
        MARKS,
    ),
    "gemma3": Seeing(
        "Gemma3",
        {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4, "layer_types": MOSTLY_WINDOWS},
        SIGLIP,
        {"mm_tokens_per_image": 4},
    ),
    "internvl": Seeing(
        "InternVL", QWEN2, {**EYES, "image_size": [16, 16], "patch_size": [4, 4]}, {"image_seq_length": 4}
    ),
}
