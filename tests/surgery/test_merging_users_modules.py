"""Merging and what users put on modules: hooks stay or are named, computed weights are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from cases.engine import batch_of, build, output_of, unchanged
from cases.tiny_plans import tiny_plan
from torch import nn
from torch.nn.utils import parametrize, prune, spectral_norm, weight_norm

from prunerecover import apply_plan, find_units, merge
from prunerecover.families.describe import describe
from prunerecover.model.paths import get_module


def linearised() -> nn.Module:
    model = build("timm")
    apply_plan(model, tiny_plan(model, (1, "activation", "slope_bias")))
    return model


class Seen:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: object) -> None:
        self.calls += 1


@pytest.mark.parametrize("path", ["norm2", "mlp.fc1", "mlp.act", "mlp.fc2"])
@pytest.mark.parametrize("how", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"])
def test_hooks_of_merged_modules_are_called_on_and_named(path: str, how: str) -> None:
    model, seen = linearised(), Seen()
    handle = getattr(get_module(model, f"blocks.1.{path}"), how)(seen)
    with pytest.warns(UserWarning, match=rf"Hooks at blocks.1.{path} see other values .* Register them anew"):
        merge(model)
    model(batch_of("timm").requires_grad_()).sum().backward()
    assert seen.calls == 1
    handle.remove()
    model(batch_of("timm"))
    assert seen.calls == 1


def test_hooks_take_keyword_arguments_as_before() -> None:
    model, seen = linearised(), Seen()
    model.blocks[1].mlp.fc1.register_forward_hook(lambda _, args, kwargs, out: seen(), with_kwargs=True)
    with pytest.warns(UserWarning, match="Hooks at"):
        merge(model)
    model(batch_of("timm"))
    assert seen.calls == 1


def test_hooks_elsewhere_stay_without_a_word() -> None:
    model, seen = linearised(), Seen()
    model.blocks[1].attn.register_forward_hook(seen)
    model.blocks[2].mlp.fc1.register_forward_hook(seen)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge(model)
    model(batch_of("timm"))
    assert seen.calls == 2


def test_hooks_that_go_with_an_empty_block_are_named() -> None:
    model = build("timm")
    apply_plan(model, tiny_plan(model, (2, "attention", "zero"), (2, "mlp", "zero")))
    model.blocks[2].register_forward_hook(Seen())
    with pytest.warns(UserWarning, match=r"Hooks at blocks.2 see other values from now on, or are not called"):
        merge(model)


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


COMPUTED: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "mask": (
        lambda m: prune.l1_unstructured(m, "weight", 0.3),
        r"a mask of torch.nn.utils.prune.*torch.nn.utils.prune.remove\(module, 'weight'\)",
    ),
    "mask of biases": (lambda m: prune.l1_unstructured(m, "bias", 0.3), r"a mask.*prune.remove\(module, 'bias'\)"),
    "weight norm": (weight_norm, r"weight_norm, .*torch.nn.utils.remove_weight_norm\(module, 'weight'\)"),
    "spectral norm": (spectral_norm, r"spectral_norm, .*remove_spectral_norm\(module, 'weight'\)"),
    "parametrization": (
        lambda m: parametrize.register_parametrization(m, "weight", Doubled()),
        r"a parametrization.*remove_parametrizations\(module, 'weight'\)",
    ),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("path", ["norm2", "mlp.fc1", "mlp.fc2"])
@pytest.mark.parametrize("case", COMPUTED)
def test_computed_weights_are_refused_by_name(case: str, path: str) -> None:
    if case in ("weight norm", "spectral norm") and path == "norm2":
        pytest.skip("a norm's weight has one dimension")
    model = linearised()
    compute, message = COMPUTED[case]
    compute(get_module(model, f"blocks.1.{path}"))
    before = output_of(model, batch_of("timm"))
    with unchanged(model), pytest.raises(ValueError, match=rf"plain parameters .*'blocks.1.{path}'.*{message}"):
        merge(model)
    assert torch.equal(output_of(model, batch_of("timm")), before)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("path", ["fc1", "fc2"])
@pytest.mark.parametrize("case", COMPUTED)
def test_activations_between_computed_weights_are_refused_by_name(case: str, path: str) -> None:
    model = build("timm")
    plan = tiny_plan(model, (1, "activation", "slope_bias"))
    compute, message = COMPUTED[case]
    compute(get_module(model, f"blocks.1.mlp.{path}"))
    with pytest.raises(ValueError, match=rf"plain parameters .*'blocks.1.mlp.{path}'.*{message}"):
        find_units(model, kinds=("activation",))
    assert len(find_units(model, kinds=("attention",))) == 4
    with pytest.raises(ValueError, match="Expected the model that the plan was made for"):
        apply_plan(model, plan)


def test_masks_made_permanent_merge() -> None:
    model = linearised()
    fc1 = model.blocks[1].mlp.fc1
    prune.l1_unstructured(fc1, "weight", 0.3)
    before = output_of(model, batch_of("timm"))
    prune.remove(fc1, "weight")
    merge(model)
    assert describe(model).blocks[1].feed_forward.state == "merged"
    assert torch.allclose(output_of(model, batch_of("timm")), before, atol=2e-5)
