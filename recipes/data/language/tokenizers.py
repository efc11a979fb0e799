"""The tokenizer of a language model, and how many tokens the model takes."""

from __future__ import annotations

from typing import Any

from torch import nn

from prunerecover.recipes.networks.model_names import from_pretrained


def name_of(module: nn.Module) -> str | None:
    """Return the path or hub id that transformers has loaded the first of its models in a module from; None: none."""
    names = (getattr(getattr(part, "config", None), "_name_or_path", None) for part in module.modules())
    return next((str(name) for name in names if name), None)


def open_tokenizer(model: str | None, tokenizer: str | None) -> Any:
    """Return the tokenizer at a path or hub id; the model's where it has no name of its own.

    Raises:
        ValueError: If neither has a name, or there is no tokenizer.
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
    """Return how many tokens a model takes; where nobody says, a number beyond any length.

    Args:
        model: Its path or hub id; None: as many as the tokenizer says.
        tokenizer: Of transformers.
    """
    from transformers import AutoConfig

    if model is None:
        return int(tokenizer.model_max_length)
    return context_in(from_pretrained(AutoConfig.from_pretrained, model, "model"), tokenizer)


def context_in(config: Any, tokenizer: Any) -> int:
    """Return how many tokens the model of a configuration takes: see `context_of`."""
    return int(getattr(config.get_text_config(), "max_position_embeddings", None) or tokenizer.model_max_length)


def check_length(length: int, model: str | None, tokenizer: Any) -> None:
    """Raise ValueError if sequences of this length are longer than what the model takes."""
    context = context_of(model, tokenizer)
    if length > context:
        raise ValueError(
            f"Expected a length of at most {context} tokens, the context of {model or tokenizer.name_or_path}, but got "
            f"{length}. Set a smaller length."
        )
