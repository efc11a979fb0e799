"""Tokenizer of a language model, and the model's context length."""

from __future__ import annotations

from typing import Any

from torch import nn

from prunerecover.recipes.networks.model_names import from_pretrained


def name_of(module: nn.Module) -> str | None:
    """Return the path or hub id of the first transformers model loaded in a module; None without such a model."""
    names = (getattr(getattr(part, "config", None), "_name_or_path", None) for part in module.modules())
    return next((str(name) for name in names if name), None)


def open_tokenizer(model: str | None, tokenizer: str | None) -> Any:
    """Return the tokenizer at a path or hub id; by default the model's.

    Raises:
        ValueError: If both names are None, or there is no tokenizer.
    """
    from transformers import AutoTokenizer

    name = tokenizer or model
    if name is None:
        raise ValueError(
            "Expected a model or a tokenizer, but got neither, and no module in training holds a model that "
            "transformers has loaded. Set tokenizer to the path or hub id of one."
        )
    return from_pretrained(AutoTokenizer.from_pretrained, name, "tokenizer")


def context_of(model: str | None, tokenizer: Any) -> int:
    """Return the context length of a model in tokens; a huge number if unknown.

    Args:
        model: Path or hub id of the model; None: the tokenizer's length.
        tokenizer: Tokenizer of transformers.
    """
    from transformers import AutoConfig

    if model is None:
        return int(tokenizer.model_max_length)
    return context_in(from_pretrained(AutoConfig.from_pretrained, model, "model"), tokenizer)


def context_in(config: Any, tokenizer: Any) -> int:
    """Return the context length of a configuration's model: see `context_of`."""
    return int(getattr(config.get_text_config(), "max_position_embeddings", None) or tokenizer.model_max_length)


def check_length(length: int, model: str | None, tokenizer: Any) -> None:
    """Raise ValueError if `length` exceeds the context of the model."""
    context = context_of(model, tokenizer)
    if length > context:
        raise ValueError(
            f"Expected a length of at most {context} tokens, the context of {model or tokenizer.name_or_path}, but got "
            f"{length}. Set a smaller length."
        )
