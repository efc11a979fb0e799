"""A live model in lm-evaluation-harness has the same accuracy as ours on the same questions."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
import torch
from cases.models.language import word_tokenizer
from cases.models.questions import question_rows, write_task
from cases.models.tiny import tiny_llama

from prunerecover import apply_plan, plan_depth
from prunerecover.language.accuracy import choice_accuracy
from prunerecover.language.harness import evaluate_with_harness
from prunerecover.language.likelihood import Encoding
from prunerecover.language.questions import question_of

ROWS = question_rows(12)


def test_a_missing_harness_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(ModuleNotFoundError, match=r"lm_eval is not installed. `pip install \"prunerecover\[lm-eval\]"):
        evaluate_with_harness(tiny_llama(), word_tokenizer(), ["arc_easy"])


class TestWithTheHarness:
    @pytest.fixture(autouse=True)
    def _installed(self, own_cache: Path) -> None:
        pytest.importorskip("lm_eval", reason="lm_eval is not installed: pip install .[lm-eval]")

    @pytest.mark.slow
    @pytest.mark.parametrize("chat", [False, True])
    def test_a_pruned_models_accuracy_is_ours(self, tmp_path: Path, chat: bool) -> None:
        llama, tokenizer = tiny_llama(), word_tokenizer(eos_token="</s>")
        tokenizer.chat_template = "{% for m in messages %}w40 {{ m['content'] }} {% endfor %}w41 " if chat else None
        torch.manual_seed(2)  # both accuracies differ
        batches = [{"input_ids": torch.randint(3, 60, (8, 9))}]
        apply_plan(llama, plan_depth(llama, remove={"block": 1}, batches=batches))
        llama.train()
        state = random.getstate()
        folder = write_task(tmp_path, ROWS)
        found = evaluate_with_harness(llama, tokenizer, ["words"], task_folder=folder, chat=chat)["words"]
        ours = choice_accuracy(llama, [question_of(row) for row in ROWS], Encoding(tokenizer, 64, chat))
        assert ours["acc"] != ours["acc_norm"]
        assert {name: found[name] for name in ours} == ours
        assert found["acc_stderr"] > 0
        assert llama.training
        assert tokenizer.pad_token is None
        assert random.getstate() == state

    @pytest.mark.data
    def test_real_questions_are_counted_alike(self, data_root: Path, tmp_path: Path) -> None:
        """stories260K on 60 questions."""
        import transformers

        folder = data_root / "models" / "stories260K"
        lines = (data_root / "data" / "commonsense" / "openbookqa.test.jsonl").read_text().splitlines()[:60]
        rows = [json.loads(line) for line in lines]
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        found = evaluate_with_harness(model, tokenizer, ["real"], task_folder=write_task(tmp_path, rows, "real"))
        ours = choice_accuracy(model, [question_of(row) for row in rows], Encoding(tokenizer))
        assert {metric: found["real"][metric] for metric in ours} == ours

    @pytest.mark.slow
    def test_an_unknown_task_is_refused(self) -> None:
        with pytest.raises(ValueError, match="Expected tasks that lm-evaluation-harness knows, but got arc_eazy"):
            evaluate_with_harness(tiny_llama(), word_tokenizer(eos_token="</s>"), ["arc_eazy"])

    def test_one_name_is_no_list(self) -> None:
        with pytest.raises(ValueError, match="Expected a list of one task or more, but got 'arc_easy'"):
            evaluate_with_harness(tiny_llama(), word_tokenizer(eos_token="</s>"), "arc_easy")

    def test_another_network_is_refused(self) -> None:
        with pytest.raises(TypeError, match="or a RoutedCausalLM, but got Linear. Pass the network"):
            evaluate_with_harness(torch.nn.Linear(2, 2), word_tokenizer(), ["arc_easy"])

    def test_a_tokenizer_without_special_tokens_is_refused(self) -> None:
        with pytest.raises(ValueError, match="Expected a tokenizer with an end-of-text or beginning-of-text token"):
            evaluate_with_harness(tiny_llama(), word_tokenizer(), ["arc_easy"])
