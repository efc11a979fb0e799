"""CausalLM at multiple choice: trained on right answers, scored as `choice_accuracy`, each question once."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases.models.language import llama_folder
from cases.models.questions import question_rows, write_rows
from cases.trainers import trainer_of
from transformers import AutoTokenizer

from prunerecover.language.accuracy import choice_accuracy, choice_log_likelihoods
from prunerecover.language.likelihood import Encoding
from prunerecover.language.questions import question_of
from prunerecover.recipes.data.language.choice_data import ChoiceData
from prunerecover.recipes.tasks.causal_lm import CausalLM

ROWS = question_rows(11)
QUESTIONS = [question_of(row) for row in ROWS]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(llama_folder(tmp_path_factory.mktemp("llama")))


@pytest.fixture
def data(tmp_path: Path, own_cache: Path, llama: str) -> ChoiceData:
    write_rows(tmp_path / "q" / "train.jsonl", question_rows(24))
    write_rows(tmp_path / "q" / "validation.jsonl", ROWS)
    return ChoiceData(str(tmp_path / "q"), model=llama, batch_size=4)


def metrics_by_hand(module: CausalLM, llama: str) -> dict[str, float]:
    encoding = Encoding(AutoTokenizer.from_pretrained(llama), context=64)
    losses = []
    for question, logs in zip(QUESTIONS, choice_log_likelihoods(module.model, QUESTIONS, encoding), strict=True):
        tokens = len(encoding.with_answer(question.prompt, question.right)[1])
        losses.append(-float(logs[question.answer]) / tokens)
    return {**choice_accuracy(module.model, QUESTIONS, encoding), "loss": sum(losses) / len(losses)}


@pytest.mark.parametrize(("loop", "prefix"), [("validate", "val"), ("test", "test")])
def test_metrics_are_those_of_the_functions(
    llama: str, tmp_path: Path, data: ChoiceData, loop: str, prefix: str
) -> None:
    module = CausalLM(llama)
    expected = metrics_by_hand(module, llama)
    (found,) = getattr(trainer_of(tmp_path), loop)(module, data, verbose=False)
    assert found == pytest.approx({f"{prefix}_{name}": value for name, value in expected.items()}, abs=1e-5)
