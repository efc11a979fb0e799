"""Routed models are judged by the networks that the router picks for prompts, and the router reads prompts alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.language import word_tokenizer
from cases.models.questions import question_rows, write_task
from cases.models.routed_language import ByNumber, encoding, sets_of
from cases.models.tiny import VOCABULARY, tiny_llama
from torch import Tensor, nn

from prunerecover import RoutedCausalLM, apply_plan
from prunerecover.importance.measuring.losses import IGNORED
from prunerecover.language.accuracy import choice_accuracy, choice_log_likelihoods
from prunerecover.language.continuation import continued_right
from prunerecover.language.harness import evaluate_with_harness
from prunerecover.language.likelihood import Encoding, answer_batches, answer_loss, next_token_loss
from prunerecover.language.questions import question_of

ROWS = [{**row, "question": f"{row['question']} w{5 + i}"} for i, row in enumerate(question_rows(12))]
QUESTIONS = [question_of(row) for row in ROWS]
TOKENS = torch.randint(3, VOCABULARY, (5, 12), generator=torch.Generator().manual_seed(5))


class BySum(ByNumber):
    """Picks the set by the sum of the tokens modulo 4, and records the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[list[int]] = []

    def features(self, model: nn.Module, prompts: Sequence[Sequence[int]], texts: Sequence[str]) -> Tensor:
        self.read += map(list, prompts)
        return torch.tensor([[float(sum(prompt))] for prompt in prompts])


@pytest.fixture
def dense() -> nn.Module:
    return tiny_llama(num_hidden_layers=6)


@pytest.fixture
def routed(dense: nn.Module) -> RoutedCausalLM:
    return RoutedCausalLM(dense, sets_of(dense), BySum(), tokenizer=encoding().tokenizer)


@pytest.fixture
def pruned(dense: nn.Module) -> list[nn.Module]:
    """Return the oracles: copies, each pruned by a plan."""
    found = [copy.deepcopy(dense) for _ in range(4)]
    for network, plan in zip(found, sets_of(dense).plans, strict=True):
        apply_plan(network, plan)
    return found


def read_by(routed: RoutedCausalLM) -> list[list[int]]:
    assert isinstance(routed.router, BySum)
    return routed.router.read


def prompts_of(asked: Encoding) -> list[list[int]]:
    return [asked.with_answer(question.prompt, "w5")[0] for question in QUESTIONS]


def test_answers_are_judged_by_the_network_of_their_prompt(routed: RoutedCausalLM, pruned: list[nn.Module]) -> None:
    found = choice_log_likelihoods(routed, QUESTIONS, encoding(), batch_size=5)
    prompts = prompts_of(encoding())
    assert {tuple(one) for one in read_by(routed)} == set(map(tuple, prompts))
    assert len({sum(prompt) % 4 for prompt in prompts}) > 2
    for one, prompt, question in zip(found, prompts, QUESTIONS, strict=True):
        (alone,) = choice_log_likelihoods(pruned[sum(prompt) % 4], [question], encoding())
        torch.testing.assert_close(one, alone, atol=1e-4, rtol=1e-4)


def test_losses_of_answers_are_those_of_the_networks_of_their_prompts(
    routed: RoutedCausalLM, pruned: list[nn.Module]
) -> None:
    (batch,) = answer_batches(QUESTIONS, encoding())
    wanted = []
    for question, prompt in zip(QUESTIONS, prompts_of(encoding()), strict=True):
        (alone,) = answer_batches([question], encoding())
        wanted.append(answer_loss(pruned[sum(prompt) % 4], alone))
    torch.testing.assert_close(answer_loss(routed, batch), torch.stack(wanted).mean(), atol=1e-5, rtol=1e-5)
    labelled = {**batch[0], "labels": batch[1]}
    assert next_token_loss(routed, labelled) > 0
    assert {tuple(one) for one in read_by(routed)} == set(map(tuple, prompts_of(encoding())))


def test_text_that_nothing_stands_before_has_no_honest_route(routed: RoutedCausalLM, pruned: list[nn.Module]) -> None:
    with pytest.raises(ValueError, match="a prompt before what is scored, for the router to read, but sample 0"):
        next_token_loss(routed, {"input_ids": TOKENS})
    assert not read_by(routed)
    labels = TOKENS.masked_fill(torch.arange(12) < 4, IGNORED)
    labels[3, :8] = IGNORED
    next_token_loss(routed, {"input_ids": TOKENS, "labels": labels})
    assert [len(one) for one in read_by(routed)] == [4, 4, 4, 8, 4]
    default = RoutedCausalLM(routed.model, routed.sets, default="set 2")
    torch.testing.assert_close(
        next_token_loss(default, {"input_ids": TOKENS}), next_token_loss(pruned[2], {"input_ids": TOKENS})
    )


def test_text_is_continued_by_the_network_of_its_prompt(routed: RoutedCausalLM, pruned: list[nn.Module]) -> None:
    text = TOKENS.clone()
    for row in (0, 2, 3):  # as the network of their prompt goes on
        alone: Any = pruned[int(text[row, :5].sum()) % 4]
        text[row] = alone.generate(
            text[row : row + 1, :5], max_new_tokens=7, min_new_tokens=7, do_sample=False, pad_token_id=0
        )[0]
    found = continued_right(routed, text, prompt=5, batch_size=3)
    assert read_by(routed) == text[:, :5].tolist()
    for row in range(5):
        alone = continued_right(pruned[int(text[row, :5].sum()) % 4], text[row : row + 1], prompt=5)
        assert found[row].tolist() == alone[0].tolist()
    assert found[[0, 2, 3]].all()


def test_blocks_that_wait_in_host_memory_change_nothing(routed: RoutedCausalLM) -> None:
    waiting = RoutedCausalLM(routed.model, routed.sets, BySum(), tokenizer=routed.tokenizer, device="cpu")
    assert choice_accuracy(waiting, QUESTIONS, encoding()) == choice_accuracy(routed, QUESTIONS, encoding())
    assert torch.equal(continued_right(waiting, TOKENS, prompt=5), continued_right(routed, TOKENS, prompt=5))


class TestWithTheHarness:
    @pytest.fixture(autouse=True)
    def _installed(self, own_cache: Path) -> None:
        pytest.importorskip("lm_eval", reason="lm_eval is not installed: pip install .[lm-eval]")

    @pytest.mark.slow
    def test_accuracy_is_ours(self, routed: RoutedCausalLM, tmp_path: Path) -> None:
        tokenizer = word_tokenizer(eos_token="</s>")
        found = evaluate_with_harness(routed, tokenizer, ["words"], task_folder=write_task(tmp_path, ROWS))["words"]
        assert {tuple(one) for one in read_by(routed)} == set(map(tuple, prompts_of(Encoding(tokenizer, 64))))
        ours = choice_accuracy(routed, QUESTIONS, Encoding(tokenizer, 64))
        assert {name: found[name] for name in ours} == ours

    def test_likelihoods_and_texts_are_those_of_the_network_of_each_context(
        self, routed: RoutedCausalLM, pruned: list[nn.Module], tmp_path: Path
    ) -> None:
        from lm_eval.api.instance import Instance
        from lm_eval.models.huggingface import HFLM

        from prunerecover.language.routed_harness import RoutedHFLM

        how = {"tokenizer": word_tokenizer(eos_token="</s>"), "batch_size": 2}
        contexts = [f"w{3 + i} w{7 + i}" for i in range(6)] + [" ".join(f"w{3 + i % 50}" for i in range(80))]
        asked = RoutedHFLM(routed, **how)
        alone = [HFLM(pretrained=network, **how) for network in pruned]

        def requests(kind: str, *rest: Any) -> list[Instance]:
            return [Instance(kind, {}, (text, *rest), i) for i, text in enumerate(contexts)]

        until = {"until": ["w5"], "max_gen_toks": 6}
        for kind, rest, left in (("loglikelihood", (" w9 w10 w11",), 62), ("generate_until", (until,), 58)):
            found = getattr(asked, kind)(requests(kind, *rest))
            for one, request in zip(found, requests(kind, *rest), strict=True):
                kept = [int(word[1:]) for word in request.args[0].split()][-left:]
                (wanted,) = getattr(alone[sum(kept) % 4], kind)([request])
                assert one == (wanted if kind == "generate_until" else pytest.approx(wanted, abs=1e-4))
                assert kept in read_by(routed)
        read_by(routed).clear()
        whole = Instance("loglikelihood_rolling", {}, ("w9 w10 w11 w12",), 0)
        (found,) = asked.loglikelihood_rolling([whole])
        assert read_by(routed) == [[2]]  # the token that texts begin with
        assert found == pytest.approx(alone[2].loglikelihood_rolling([whole])[0], abs=1e-4)
