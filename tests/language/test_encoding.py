"""Answers are tokenized as they stand in the text, and not as texts of their own."""

from __future__ import annotations

import pytest
from cases.models.language import word_tokenizer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from prunerecover.language.likelihood import Encoding


@pytest.fixture(scope="module")
def metaspace() -> PreTrainedTokenizerFast:
    """Words begin with a mark, and so does every text, as in the tokenizers of Llama 1 and 2."""
    vocabulary = {name: i for i, name in enumerate(["<unk>", "▁", "▁a", "▁b", "▁c"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    marks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(marks)  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_an_answer_has_the_tokens_that_it_has_in_the_text(metaspace: PreTrainedTokenizerFast) -> None:
    assert metaspace(" c")["input_ids"] == [1, 4]  # alone it has one more
    assert Encoding(metaspace, context=9).with_answer("a b", "c") == ([2, 3], [4])


def test_space_at_the_end_of_a_prompt_belongs_to_the_answer(metaspace: PreTrainedTokenizerFast) -> None:
    metaspace.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %} b "
    chat = Encoding(metaspace, context=9, chat=True)
    assert chat.prompt("a") == [2, 3, 1]
    assert chat.with_answer("a", "c") == ([2, 3], [4])


def test_an_answer_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected an answer of one token or more, but ' ' has none"):
        Encoding(word_tokenizer(), context=9).with_answer("w5", " ")
