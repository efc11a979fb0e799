"""Instructions and chats as tokens, with labels on the responses alone, for training.

Chats go through the tokenizer's own chat template; the end of a turn in the template is part of the response, so that a
model learns to stop. Instructions without a template stand under headings, as in Alpaca, and end with the end-of-text
token. Not covered: templates that rewrite earlier turns once later turns follow, and calls of tools as labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prunerecover.importance.measuring.losses import IGNORED
from prunerecover.language.likelihood import TokenRow

INSTRUCTION = "### Instruction:\n{instruction}\n\n"
INPUT = "### Input:\n{given}\n\n"
RESPONSE = "### Response:\n"


def instruction_row(instruction: str, given: str, response: str, tokenizer: Any) -> TokenRow:
    """Return the tokens and labels of an instruction under headings, with the response.

    Args:
        instruction: Text of the instruction.
        given: Input of the instruction; may be empty.
        response: Response to score, with the end-of-text token behind.
        tokenizer: Tokenizer of transformers.

    Raises:
        ValueError: If the instruction or the response is empty, or the tokenizer has no end-of-text token.
    """
    _check_instruction(instruction, response)
    end = tokenizer.eos_token_id
    if end is None:
        raise ValueError(
            f"Expected a tokenizer with an end-of-text token, to end responses with, but {tokenizer.name_or_path} has "
            "no eos_token. Set it in its tokenizer_config.json."
        )
    headed = INPUT.format(given=given.strip()) if given and given.strip() else ""
    prompt = INSTRUCTION.format(instruction=instruction.strip()) + headed + RESPONSE
    before, ids = (_without(end, tokenizer(text, verbose=False)["input_ids"]) for text in (prompt, prompt + response))
    return [*ids, end], [*[IGNORED] * len(before), *ids[len(before) :], end]


def instruction_messages(instruction: str, given: str, response: str) -> list[dict[str, str]]:
    """Return an instruction and its response as a chat of two messages.

    Raises:
        ValueError: If the instruction or the response is empty.
    """
    _check_instruction(instruction, response)
    asked = f"{instruction.strip()}\n\n{given.strip()}" if given and given.strip() else instruction.strip()
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": response}]


def chat_row(messages: Sequence[Mapping[str, Any]], tokenizer: Any) -> TokenRow:
    """Return the tokens and labels of a chat, with labels on the messages of the assistant.

    Args:
        messages: Messages with `role` and `content`, as for chat templates.
        tokenizer: Tokenizer of transformers, with a chat template.

    Raises:
        ValueError: If there is no template, no message of the assistant or an empty one, or the template refuses the
            messages, or rewrites earlier text once a response follows.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            f"Expected a tokenizer with a chat template, but {tokenizer.name_or_path} has none. Name another "
            "tokenizer, or give instructions and outputs."
        )
    messages = [_checked(message) for message in messages or ()]
    replies = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    if not replies or not all(str(messages[number]["content"]).strip() for number in replies):
        raise ValueError(
            f"Expected messages of an assistant that are not empty, but got roles {[m['role'] for m in messages]}. "
            "Leave the chat out."
        )
    whole = _rendered(messages, tokenizer)
    ids = _tokens(whole, tokenizer)
    labels = [IGNORED] * len(ids)
    for number in replies:
        before = _rendered(messages[:number], tokenizer, reply=True)
        after = _rendered(messages[: number + 1], tokenizer)
        if not (whole.startswith(after) and after.startswith(before)):
            raise ValueError(
                "Expected a chat template under which a chat begins with the chat up to each response, but that of "
                f"{tokenizer.name_or_path} writes message {number} otherwise. Pass only the messages up to there."
            )
        scored = slice(len(_tokens(before, tokenizer)), len(_tokens(after, tokenizer)))
        labels[scored] = ids[scored]
    return ids, labels


def _check_instruction(instruction: Any, response: Any) -> None:
    for name, text in (("instruction", instruction), ("response", response)):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"Expected text as the {name}, but got {text!r}. Leave the sample out.")


def _checked(message: Any) -> Mapping[str, Any]:
    if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
        raise ValueError(
            f"Expected messages of role and content, but got {str(message)[:80]}. Rename their keys, such as from and "
            "value."
        )
    return {name: value for name, value in message.items() if value is not None}


def _rendered(messages: Sequence[Mapping[str, Any]], tokenizer: Any, reply: bool = False) -> str:
    from jinja2 import TemplateError

    try:
        text: str = tokenizer.apply_chat_template(list(messages), add_generation_prompt=reply, tokenize=False)
    except TemplateError as error:
        raise ValueError(
            f"Expected messages that the chat template of {tokenizer.name_or_path} takes, but it says: {error} Leave "
            "the chat out, or change its roles."
        ) from error
    return text


def _tokens(text: str, tokenizer: Any) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def _without(end: int, ids: list[int]) -> list[int]:
    return ids[:-1] if ids[-1:] == [end] else ids
