"""The exact search finds what trying every unit at each step finds, by the divergence or by a loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from cases.engine import batch_of, batches_of, build, output_of
from cases.models.decoders import DECODERS
from cases.models.language import word_tokenizer
from cases.models.tiny import BUILD, tiny_inputs, tiny_llama
from cases.models.tiny import DECODERS as FIRST
from cases.sampling import one_in
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import find_units, plan_depth
from prunerecover.calibration.samples import split_batches
from prunerecover.divergence.measure import mean_divergence
from prunerecover.importance.measuring.losses import Loss
from prunerecover.language.likelihood import Encoding, answer_batches, answer_loss, next_token_loss
from prunerecover.language.questions import Question
from prunerecover.model.copies import share_copy
from prunerecover.plan.edits import Remove
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.merging import block_removals


def texts(seed: int, count: int = 2) -> list[dict[str, Tensor]]:
    ids = torch.randint(3, 60, (count, 4, 12), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": some} for some in ids]


Missed = Callable[[nn.Module], float]


def names_in(model: nn.Module, kind: str) -> list[str]:
    return [unit.name for unit in find_units(model, kinds=(kind,))]


@torch.no_grad()
def missed_without(model: nn.Module, gone: Sequence[str], missed: Missed, kind: str = "block") -> float:
    pruned = share_copy(model)
    if kind == "block":
        apply_edits(pruned, block_removals(model, [*map(names_in(model, kind).index, gone)]))
    else:
        apply_edits(pruned, [Remove(unit=name, kind=kind) for name in gone])
    return missed(pruned)


def naive(model: nn.Module, count: int, missed: Missed, kind: str = "block") -> list[str]:
    """Try every unit that is left, in the whole network, and take out the one that is missed least."""
    gone: list[str] = []
    for _ in range(count):
        left = [name for name in names_in(model, kind) if name not in gone]
        gone.append(min(left, key=lambda name: missed_without(model, [*gone, name], missed, kind)))
    return gone


def check_divergence(model: nn.Module, data: list[Any], kind: str = "block") -> None:
    samples = split_batches(data, torch.device("cpu")).all_samples
    dense = [output_of(model, batch) for batch in samples]

    def missed(pruned: nn.Module) -> float:
        return mean_divergence(samples, dense, (output_of(pruned, batch) for batch in samples))

    plan = plan_depth(model, remove={kind: 3}, batches=data, search="exact", replace="zero")
    assert [step["unit"] for step in plan.evidence["order"]] == naive(model, 3, missed, kind)


@pytest.mark.parametrize("seed", [0, 1])
def test_blocks_go_as_the_naive_loop_takes_them(seed: int) -> None:
    check_divergence(tiny_llama(num_hidden_layers=6), texts(seed))


@pytest.mark.parametrize("name", one_in(7, [*FIRST, *DECODERS]))
def test_blocks_go_alike_in_every_family(name: str) -> None:
    model = BUILD[name]() if name in FIRST else DECODERS[name].build()
    check_divergence(model, [tiny_inputs(name, batch=4, seed=seed) for seed in range(2)])


def test_attentions_go_alike() -> None:
    check_divergence(build("timm"), batches_of("timm"), "attention")


def test_the_first_unit_has_the_least_importance() -> None:
    plan = plan_depth(build("llama"), remove={"block": 1}, batches=texts(0), search="exact", replace="zero")
    found = plan.evidence["importance"]
    assert len(found) == 4
    (first,) = plan.removed["block"]
    assert min(found, key=found.__getitem__) == first


def answers() -> list[Any]:
    asked = [Question(f"w5 w{6 + i} w8", (f"w{9 + i}", "w10 w11"), i % 2) for i in range(8)]
    return answer_batches(asked, Encoding(word_tokenizer(), context=64), contrastive=True, batch_size=8)


def of_two_runs(model: nn.Module, batch: Any, rows: int = 4) -> Tensor:
    first = {"input_ids": batch["input_ids"][:rows, :9]}
    return next_token_loss(model, first) + 2 * next_token_loss(model, {"input_ids": batch["input_ids"].flip(1)})


BY_A_LOSS: dict[str, tuple[Callable[[], list[Any]], Loss, int]] = {
    "text": (partial(texts, 0), next_token_loss, 3),
    "answers": (answers, answer_loss, 1),
    # What one run gave must not answer in another, of other tokens or of another length.
    "two runs": (partial(texts, 0), of_two_runs, 2),
    "two runs of several lengths": (partial(texts, 0), partial(of_two_runs, rows=2), 2),
}


def check_loss(make: Callable[[], list[Any]], loss: Loss, count: int, search: str) -> None:
    model, batches = tiny_llama(num_hidden_layers=5), make()

    def missed(pruned: nn.Module) -> float:
        return sum(float(loss(pruned, batch)) for batch in batches)

    how = {"importance": "cross_entropy", "loss": loss, "search": search}
    found = plan_depth(model, remove={"block": count}, batches=batches, **how).removed["block"]
    wanted = naive(model, count, missed)
    assert missed_without(model, found, missed) <= missed_without(model, wanted, missed) + 1e-6
    assert search == "greedy" or set(found) == set(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("case", BY_A_LOSS)
def test_blocks_go_alike_by_a_loss(case: str) -> None:
    check_loss(*BY_A_LOSS[case], "exact")


@pytest.mark.slow
def test_the_greedy_search_loses_no_more_than_the_naive_loop() -> None:
    check_loss(partial(texts, 7), next_token_loss, 3, "greedy")


def test_a_users_own_loss_serves_a_vision_transformer() -> None:
    batches = [(batch_of("timm", 8), torch.arange(8) % 4)]
    how = {"importance": "cross_entropy", "loss": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])}
    plan = plan_depth(build("timm"), remove={"attention": 1}, batches=batches, search="greedy", **how)
    assert len(plan.removed["attention"]) == 1


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, batch: model(**batch).logits.mean(-1), r"Expected loss\(model, batch\) to return a scalar"),
        (lambda model, batch: next_token_loss(model, batch) * float("nan"), "Expected finite importances from 'cross"),
    ],
)
def test_a_loss_that_is_no_finite_scalar_is_refused(loss: Loss, message: str) -> None:
    how = {"importance": "cross_entropy", "loss": loss, "search": "greedy"}
    with pytest.raises(ValueError, match=message):
        plan_depth(build("llama"), remove={"block": 1}, batches=texts(0), **how)
