"""Refusals on sound networks name a cause and a way out, with a case for each cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_images, tiny_timm
from torch import Tensor, nn

from prunerecover import Budget, find_groups, plan_depth, plan_pruning, plan_width
from prunerecover.refusal import Refusal

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()  # type: ignore[no-any-return]


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).relu())


class Sorted(nn.Module):
    """Sorts its units."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).sort(-1).values)


class WithoutGradients(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(Branch(), Branch()), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.body(x)
        return self.head(x)


def blocks(*extra: nn.Module) -> nn.Sequential:
    return nn.Sequential(Branch(), Branch(), *extra)


def twice() -> nn.Module:
    model = tiny_timm()
    model.blocks[1] = model.blocks[0]
    return model


def quantised() -> nn.Module:
    return nn.Sequential(torch.ao.nn.quantized.Linear(6, 6), nn.Linear(6, 2))


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return blocks()


def made_in_inference_mode() -> nn.Module:
    with torch.inference_mode():
        return blocks()


def scripted() -> nn.Module:
    return nn.Sequential(torch.jit.script(nn.Linear(6, 6)), nn.Linear(6, 2))


def wide(model: nn.Module, share: float = 0.3, **options: Any) -> Any:
    return plan_width(model, Budget(macs=share), batches=[X], loss=loss, **options)


def deep(model: nn.Module, **remove: int) -> Any:
    return plan_depth(model, remove=remove, batches=[X])


CASES: dict[str, tuple[Callable[[], Any], str, str]] = {
    "nothing narrows": (lambda: wide(Sorted()), "'first' by sort", "plan_depth"),
    "too much": (lambda: wide(nn.Sequential(Sorted(), nn.Linear(3, 8), nn.Linear(8, 1)), 0.9), "at most", "plan_"),
    "no groups of a kind": (lambda: find_groups(blocks(), X, "head"), "it has 2 of kind neuron", "kinds="),
    "no units of a kind": (lambda: deep(Sorted(), attention=1), "there is none", "plan_width"),
    "blocks": (lambda: deep(nn.Sequential(blocks(Branch()), nn.Linear(6, 2)), block=3), "got 3", "Lower the number"),
    "more layers than can go": (
        lambda: deep(nn.Sequential(Sorted(), nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 3)), layer=3),
        "wider side of '0.last'",
        "Lower the budget",
    ),
    "neither depth nor width": (
        lambda: plan_pruning(nn.Linear(6, 3), Budget(macs=0.3), batches=[X], loss=loss),
        "it is in the head",
        "another part of the network",
    ),
    "no gradients": (lambda: wide(WithoutGradients()), "torch.no_grad", "magnitude"),
    "one module twice": (
        lambda: plan_depth(twice(), remove={"block": 1}, batches=[tiny_images()]),
        "'blocks.1' is 'blocks.0'",
        "copy.deepcopy",
    ),
    "quantised": (lambda: find_groups(quantised(), X), "'0' is quantised", "Prune first"),
    "meta device": (lambda: wide(on_meta()), "meta device", "to_empty"),
    "inference mode": (lambda: wide(made_in_inference_mode()), "torch.inference_mode", "outside of it"),
    "TorchScript": (lambda: find_groups(scripted(), X), "TorchScript", "script what is left"),
    "lazy": (lambda: wide(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))), "lazy", "Call the model"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_refusal_names_its_cause_and_a_way_out(name: str) -> None:
    tried, cause, way_out = CASES[name]
    with pytest.raises(Refusal) as caught:
        tried()
    refusal = caught.value
    assert cause in refusal.cause
    assert way_out in refusal.way_out
    assert str(refusal) == f"Expected {refusal.expected}, but {refusal.cause}. {refusal.way_out}"
    assert refusal.way_out.endswith(".")
