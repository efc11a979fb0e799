"""The tokenizer of a language model, and how many tokens the model takes."""

from __future__ import annotations

from typing import Any

from prunerecover.recipes.networks.model_names import from_pretrained


def check_named(model: str | None, tokenizer: str | None) -> None:
    """Raise ValueError if neither a model nor a tokenizer is named."""
    if model is None and tokenizer is None:
        raise ValueError("Expected a model or a tokenizer, but got neither. Set model to the one that is trained.")


def open_tokenizer(model: str | None, tokenizer: str | None) -> Any:
    """Return the tokenizer at a path or hub id; the model's where it has no name of its own.

    Raises:
        ValueError: If there is none.
    """
    from transformers import AutoTokenizer

    return from_pretrained(AutoTokenizer.from_pretrained, tokenizer or model or "")


def context_of(model: str | None, tokenizer: Any) -> int:
    """Return how many tokens a model takes; where nobody says, a number beyond any length.

    Args:
        model: Its path or hub id; None: as many as the tokenizer says.
        tokenizer: Of transformers.
    """
    from transformers import AutoConfig

    if model is None:
        return int(tokenizer.model_max_length)
    config = from_pretrained(AutoConfig.from_pretrained, model).get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or tokenizer.model_max_length)


def check_length(length: int, model: str | None, tokenizer: Any) -> None:
    """Raise ValueError if sequences of this length are longer than what the model takes."""
    context = context_of(model, tokenizer)
    if length > context:
        raise ValueError(
            f"Expected a length of at most {context} tokens, the context of {model or tokenizer.name_or_path}, but got "
            f"{length}. Set a smaller length."
        )
