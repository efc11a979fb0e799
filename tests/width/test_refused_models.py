"""Models and batches that cannot be planned for: a single clear error, the model untouched."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from cases.engine import unchanged
from cases.models.tiny import plain_vit, tiny_inputs, tiny_llama
from torch import nn
from torch.nn.utils import parametrizations, prune, weight_norm
from torch.nn.utils.parametrize import register_parametrization

from prunerecover import Budget, find_groups, plan_depth, plan_width
from prunerecover.refusal import Refusal

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(16) % 3
THIRD = Budget(macs=0.3)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def vit() -> Any:
    return plain_vit(embed_dim=24, num_heads=2)


def with_nan(model: Any) -> Any:
    next(iter(model.parameters())).data.view(-1)[0] = float("nan")
    return model


def with_(change: Callable[[nn.Module], object]) -> nn.Module:
    model = net()
    change(model[2])
    return model


MASKED = partial(prune.l1_unstructured, name="weight", amount=0.3)
NAN = "Expected finite weights to plan with, but '{}' holds NaN"
ATTENTION = Budget(remove={"attention": 1})
REFUSED: list[tuple[Any, Callable[[], nn.Module], Budget, Any, str]] = [
    (plan_width, lambda: with_nan(net()), THIRD, X, NAN.format("0.weight")),
    (plan_depth, lambda: with_nan(vit()), ATTENTION, torch.zeros(8, 3, 16, 16), NAN.format("cls_token")),
    (plan_width, lambda: with_(MASKED), THIRD, X, "first: torch.nn.utils.prune.remove"),
    (plan_width, lambda: with_(weight_norm), THIRD, X, "weights plain first: torch.nn.utils.remove_weight_norm"),
    (plan_width, net, THIRD, (X[:0], LABELS[:0]), "Expected samples in every calibration batch, but one has none"),
    (plan_width, net, THIRD, (X, LABELS.float()), "Expected labels as integers, but got torch.float32"),
    (plan_width, net, THIRD, (X, LABELS + 5), "Expected labels from 0 to 2, as the model has 3 outputs, but got"),
]


@pytest.mark.parametrize(("plan", "build", "budget", "batch", "message"), REFUSED)
def test_models_and_batches_that_cannot_be_planned_for_are_refused(
    plan: Any, build: Callable[[], nn.Module], budget: Budget, batch: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        plan(build(), budget, batches=[batch])


def everywhere(change: Callable[[nn.Module], object]) -> nn.Module:
    model = net()
    for linear in (model[0], model[2]):
        change(linear)
    return model.eval()


def fake_quantised() -> nn.Module:
    model = net().train()
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    model = torch.ao.quantization.prepare_qat(model)
    model(X)
    return model.eval()


PLAIN = r"first: torch.nn.utils.{}\(module, 'weight'\)."
COMPUTED: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "nothing can go": (
        lambda: everywhere(parametrizations.weight_norm),
        r"a parametrization \(_WeightNorm\)",
        PLAIN.format("parametrize.remove_parametrizations"),
    ),
    "too little can go": (
        lambda: everywhere(parametrizations.orthogonal),
        r"a parametrization \(_Orthogonal\)",
        PLAIN.format("parametrize.remove_parametrizations"),
    ),
    "entry by entry": (
        lambda: everywhere(partial(register_parametrization, tensor_name="weight", parametrization=nn.Tanh())),
        r"a parametrization \(Tanh\)",
        PLAIN.format("parametrize.remove_parametrizations"),
    ),
    "hooks": (lambda: everywhere(nn.utils.spectral_norm), "spectral_norm", PLAIN.format("remove_spectral_norm")),
    "fake quantisers": (fake_quantised, r"a quantiser of torch.ao \(\w*FakeQ", "Prune the network first, and prepare"),
}


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_computes_weights_is_named_with_the_way_out(name: str) -> None:
    build, cause, way_out = COMPUTED[name]
    for plan in (
        lambda: plan_width(build(), Budget(macs=0.9), batches=[(X, LABELS)]),
        lambda: plan_depth(build(), remove={"layer": 1}, batches=[(X, LABELS)]),
    ):
        with pytest.raises(Refusal) as refused:
            plan()
        assert re.search(cause, refused.value.cause)
        assert re.match(f".*{way_out}", refused.value.way_out)


def test_labels_of_another_integer_type_do() -> None:
    plans = [plan_width(net(), Budget(macs=0.3), batches=[(X, labels)]) for labels in (LABELS, LABELS.int())]
    assert plans[0] == plans[1]


@pytest.mark.parametrize("budget", [{"ratio": {"head": "0.3"}}, {"params": True}])
def test_share_that_is_no_number_is_refused(budget: Any) -> None:
    with pytest.raises(TypeError, match="a removed share as a number, but got"):
        Budget(**budget)


@pytest.mark.parametrize("normed", [parametrizations.spectral_norm, nn.utils.spectral_norm])
def test_spectral_norm_is_left_as_it_was(normed: Any) -> None:
    model = nn.Sequential(normed(nn.Linear(4, 6)), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).train()
    with unchanged(model):
        find_groups(model, X)
        plan_width(model, Budget(macs=0.1), batches=[X], importance="magnitude", replace="zero")


def test_blocks_deleted_by_hand_are_no_matter_where_nothing_is_cached() -> None:
    model = tiny_llama()
    del model.model.layers[1]
    model.config.num_hidden_layers = len(model.model.layers)
    assert plan_depth(model, remove={"attention": 1}, batches=[tiny_inputs("text")]).removed
