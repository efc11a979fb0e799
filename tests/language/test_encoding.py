"""Texts as tokens: answers as in the text, and responses to instructions and in chats."""

from __future__ import annotations

from typing import Any

import pytest
from cases.models.language import BOS, EOS, word_tokenizer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from prunerecover.language.likelihood import Encoding
from prunerecover.language.responses import chat_row, instruction_messages, instruction_row


@pytest.fixture(scope="module")
def metaspace() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a mark before words and texts, like the tokenizers of Llama 1 and 2."""
    vocabulary = {name: i for i, name in enumerate(["<unk>", "▁", "▁a", "▁b", "▁c"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    marks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(marks)  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_an_answer_has_the_tokens_that_it_has_in_the_text(metaspace: PreTrainedTokenizerFast) -> None:
    assert metaspace(" c")["input_ids"] == [1, 4]  # alone it has one more
    encoding = Encoding(metaspace, context=9)
    assert encoding.prompt("a b") == [2, 3]
    assert encoding.with_answer("a b", "c") == ([2, 3], [4])


def test_space_at_the_end_of_a_prompt_belongs_to_the_answer(metaspace: PreTrainedTokenizerFast) -> None:
    metaspace.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %} b "
    chat = Encoding(metaspace, context=9, chat=True)
    assert chat.prompt("a") == [2, 3, 1]
    assert chat.with_answer("a", "c") == ([2, 3], [4])


def test_an_answer_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected an answer of one token or more, but ' ' has none"):
        Encoding(word_tokenizer(), context=9).with_answer("w5", " ")


TURNS = "{% for m in messages %}{{ 'w40 ' if m['role'] == 'user' else 'w41 ' }}{{ m['content'] }} </s> {% endfor %}"
CHATML = TURNS + "{% if add_generation_prompt %}w41 {% endif %}"
STRICT = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('users first') }}{% endif %}" + CHATML
LAST_ALONE = "{% for m in messages %}{{ m['content'] if loop.last else 'w50' }} {% endfor %}"


def chat_tokenizer(template: str = CHATML) -> Any:
    tokenizer = word_tokenizer(eos_token="</s>")
    tokenizer.chat_template = template
    return tokenizer


def test_a_chat_has_the_special_tokens_of_its_template_alone() -> None:
    tokenizer, begin = chat_tokenizer("<s> " + CHATML), [("<s>", BOS)]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=begin)
    assert Encoding(tokenizer, context=9).prompt("w5") == [BOS, 5]
    assert Encoding(tokenizer, context=9, chat=True).prompt("w5") == [BOS, 40, 5, EOS, 41]


def chat(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


def test_every_reply_is_scored_with_its_end() -> None:
    ids, labels = chat_row(chat("w5", "w6 w7", "w8", "w9"), chat_tokenizer())
    assert ids == [40, 5, 2, 41, 6, 7, 2, 40, 8, 2, 41, 9, 2]
    assert labels == [-100, -100, -100, -100, 6, 7, 2, -100, -100, -100, -100, 9, 2]


def test_keys_without_values_are_left_out() -> None:
    """Tables have the keys of all rows in each row."""
    messages = [{**message, "tool_calls": None} for message in chat("w5", "w6")]
    template = CHATML.replace("{{ m['content'] }}", "{{ m['content'] }}{% if 'tool_calls' in m %} w50{% endif %}")
    assert chat_row(messages, chat_tokenizer(template)) == chat_row(chat("w5", "w6"), chat_tokenizer())


def test_an_instruction_is_a_chat_of_two() -> None:
    assert instruction_messages("do", "this", "done")[0] == {"role": "user", "content": "do\n\nthis"}
    ids, labels = chat_row(instruction_messages("w5", "w6", "w7"), chat_tokenizer())
    assert ids == [40, 5, 6, 2, 41, 7, 2]
    assert labels == [-100] * 5 + [7, 2]


@pytest.mark.parametrize(("given", "before"), [("", 5), ("w6", 8), (None, 5)])
def test_an_instruction_under_headings_ends_with_the_end_of_text(given: Any, before: int) -> None:
    ids, labels = instruction_row("w5", given, "w7 w8", word_tokenizer(eos_token="</s>"))
    assert ids[before:] == [7, 8, 2]
    assert labels == [-100] * before + [7, 8, 2]
    assert (6 in ids) == bool(given)


def test_instructions_that_are_refused() -> None:
    ends = word_tokenizer(eos_token="</s>")
    with pytest.raises(ValueError, match="Expected text as the instruction, but got"):
        instruction_row("", "", "w6", ends)
    with pytest.raises(ValueError, match="Expected text as the response, but got"):
        instruction_row("w5", "", " ", ends)
    with pytest.raises(ValueError, match="Expected a tokenizer with an end-of-text token, to end responses with"):
        instruction_row("w5", "", "w6", word_tokenizer())


@pytest.mark.parametrize(
    ("messages", "template", "message"),
    [
        (chat("w5", "w6"), None, "Expected a tokenizer with a chat template, but .* has none. Name another"),
        (chat("w5"), CHATML, r"Expected messages of an assistant that are not empty, but got roles \['user'\]"),
        (chat("w5", " "), CHATML, "Expected messages of an assistant that are not empty"),
        ([], CHATML, r"Expected messages of an assistant that are not empty, but got roles \[\]"),
        ([{"from": "human", "value": "w5"}], CHATML, "Expected messages of role and content, but got .*from"),
        (chat("w5", "w6")[1:], STRICT, "Expected messages that the chat template .* takes, but it says: users first"),
        (chat("w5", "w6"), LAST_ALONE, "Expected a chat template under which a chat .* writes message 1 otherwise"),
    ],
)
def test_chats_that_are_refused(messages: list[Any], template: str | None, message: str) -> None:
    tokenizer = word_tokenizer(eos_token="</s>") if template is None else chat_tokenizer(template)
    with pytest.raises(ValueError, match=message):
        chat_row(messages, tokenizer)
