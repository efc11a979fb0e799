"""Tiny seeded encoder-decoders of transformers, with two depths under various names in the configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases.models.tiny import stir
from torch import Tensor, nn

TOKENS = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(0))
SPEECH = torch.rand(2, 40, 8, generator=torch.Generator().manual_seed(0))
SPECIAL = {"vocab_size": 61, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
SIDES = {
    f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("attention_heads", 4), ("ffn_dim", 48))
}
BART = {**SPECIAL, **SIDES, "d_model": 32, "max_position_embeddings": 32, "forced_eos_token_id": None}
WHISPER = {**SPECIAL, **SIDES, "d_model": 32, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 32}
SPEECH_TO_TEXT = {**SPECIAL, **SIDES, "d_model": 32, "input_feat_per_channel": 8, "conv_channels": 16}
T5 = {**SPECIAL, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4}
LAYERS, T5_LAYERS = ("encoder_layers", "decoder_layers"), ("num_layers", "num_decoder_layers")

# Class, config entries of the encoder's and the decoder's depth, all other entries, and the encoder's inputs.
Record = tuple[str, tuple[str, str], dict[str, Any], dict[str, Tensor]]
TWO_STACKS: dict[str, Record] = {
    "whisper": ("Whisper", LAYERS, WHISPER, {"input_features": SPEECH.mT}),
    "bart": ("Bart", LAYERS, BART, {"input_ids": TOKENS}),
    "m2m_100": ("M2M100", LAYERS, BART, {"input_ids": TOKENS}),
    "speech_to_text": ("Speech2Text", LAYERS, SPEECH_TO_TEXT, {"input_features": SPEECH}),
    "umt5": ("UMT5", T5_LAYERS, T5, {"input_ids": TOKENS}),
    "t5": ("T5", T5_LAYERS, T5, {"input_ids": TOKENS}),
}


def two_stacks(name: str, encoder: int = 3, decoder: int = 3) -> nn.Module:
    """Return the model in evaluation mode, with the same weights for the same depths."""
    import transformers

    prefix, entries, settings, _ = TWO_STACKS[name]
    config = getattr(transformers, f"{prefix}Config")(**settings, **dict(zip(entries, (encoder, decoder), strict=True)))
    torch.manual_seed(0)
    make: Callable[[Any], nn.Module] = getattr(transformers, f"{prefix}ForConditionalGeneration")
    return stir(make(config))


def batch_of(name: str) -> dict[str, Tensor]:
    """Return the inputs of the model."""
    return {**TWO_STACKS[name][3], "decoder_input_ids": TOKENS}


@torch.no_grad()
def output(model: nn.Module, name: str) -> Tensor:
    """Return the logits of a call."""
    found: Tensor = model(**batch_of(name)).logits
    return found


def generated(model: Any, name: str, use_cache: bool = True) -> Tensor:
    """Greedy continuation: logits `(steps, B, V)`."""
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "num_beams": 1, "use_cache": use_cache}
    found = model.generate(**TWO_STACKS[name][3], **settings, output_logits=True, return_dict_in_generate=True)
    return torch.stack(found.logits)
