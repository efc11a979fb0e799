"""Language models quantised by torchao (int8, int4 weights): pruned by whole units and routed, the rest refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.routed_language import SETS, sets_of
from cases.models.tiny import tiny_llama, tiny_opt
from torch import Tensor, nn

from prunerecover import (
    Budget,
    Plan,
    RoutedCausalLM,
    apply_plan,
    load_pruned,
    load_routed,
    plan_depth,
    plan_width,
    save_pruned,
    save_routed,
)
from prunerecover.callbacks.distillation.cached_teacher import CachedTeacher
from prunerecover.model.batches import ModelInputs
from prunerecover.model.hashing import tensors_hash, weights_hash
from prunerecover.recovery.lora import LoraSettings, plan_adapters

pytestmark = pytest.mark.slow  # torchao is installed for the slow tests
quantization = pytest.importorskip("torchao.quantization")

IDS = torch.randint(3, 60, (16, 12), generator=torch.Generator().manual_seed(0))
SETTINGS = {
    "int8": lambda: quantization.Int8WeightOnlyConfig(),
    "int4": lambda: quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=quantization.PerGroup(16)),
}


def quantised(model: nn.Module, settings: str = "int8") -> Any:
    twin = copy.deepcopy(model)
    quantization.quantize_(twin, SETTINGS[settings]())
    assert type(next(m for m in twin.modules() if isinstance(m, nn.Linear)).weight) is not nn.Parameter
    return twin


@pytest.fixture
def dense() -> nn.Module:
    return tiny_llama(num_hidden_layers=6)


@pytest.fixture(params=SETTINGS)
def base(request: Any, dense: nn.Module) -> Any:
    return quantised(dense, request.param)


@pytest.fixture
def int8(dense: nn.Module) -> Any:
    return quantised(dense)


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("remove", [{"block": 2}, {"attention": 2}, {"attention": 1, "mlp": 1}])
def test_quantised_base_is_pruned_in_depth(base: Any, remove: dict[str, int]) -> None:
    plan = plan_depth(base, remove=remove, batches=[IDS])
    apply_plan(base, plan)
    assert {kind: len(names) for kind, names in plan.removed.items()} == remove
    kept = base.generate(IDS[:2], max_new_tokens=3, do_sample=False, pad_token_id=0)
    uncached = base.generate(IDS[:2], max_new_tokens=3, do_sample=False, pad_token_id=0, use_cache=False)
    assert torch.equal(kept, uncached)


def test_plan_of_a_quantised_base_is_applied_to_it_again(base: Any, tmp_path: Path) -> None:
    plan = plan_depth(base, remove={"attention": 2}, batches=[IDS])
    again = copy.deepcopy(base)
    apply_plan(base, plan)
    plan.save(tmp_path / "plan.json")
    apply_plan(again, Plan.load(tmp_path / "plan.json"))
    assert torch.equal(logits(again), logits(base))


def test_weights_are_known_by_their_integers_and_scales(dense: nn.Module, base: Any) -> None:
    assert tensors_hash(base) == tensors_hash(dense)
    assert weights_hash(base) == weights_hash(copy.deepcopy(base)) != weights_hash(dense)


def test_sets_route_over_one_quantised_base(base: Any) -> None:
    sets = sets_of(base)
    routed = RoutedCausalLM(base, sets)
    weights = {id(parameter) for parameter in base.parameters()}
    for number in range(len(SETS)):
        alone = copy.deepcopy(base)
        apply_plan(alone, sets.plans[number])
        assert torch.equal(logits(routed.network(number)), logits(alone))
        assert all(id(parameter) in weights for parameter in routed.network(number).parameters())


def test_routed_folder_takes_the_quantised_base_back(int8: Any, tmp_path: Path) -> None:
    routed = RoutedCausalLM(int8, sets_of(int8)).eval()
    save_routed(routed, tmp_path / "routed", base="somewhere")
    again = load_routed(tmp_path / "routed", copy.deepcopy(int8))
    assert torch.equal(again(IDS), routed(IDS))


@pytest.mark.parametrize(("settings", "remove"), [("int8", {"block": 2}), ("int4", {"attention": 1, "mlp": 1})])
def test_pruned_folder_is_quantised_afterwards(
    dense: nn.Module, tmp_path: Path, settings: str, remove: dict[str, int]
) -> None:
    plan = plan_depth(dense, remove=remove, batches=[IDS])
    apply_plan(dense, plan)
    save_pruned(dense, plan, tmp_path / "pruned")
    found = logits(quantised(load_pruned(tmp_path / "pruned"), settings))
    assert torch.equal(found, logits(quantised(dense, settings)))
    if settings == "int8":
        assert (found - logits(dense)).norm() / logits(dense).norm() < 0.05


# Refusals


def test_quantised_weights_are_not_saved(int8: Any, tmp_path: Path) -> None:
    plan = plan_depth(int8, remove={"block": 1}, batches=[IDS])
    apply_plan(int8, plan)
    with pytest.raises(ValueError, match=r"Expected plain weights to save, .*Int8Tensor.*Save before quantising"):
        save_pruned(int8, plan, tmp_path / "pruned")
    assert not list(tmp_path.iterdir())


def test_quantised_weights_are_not_saved_with_their_sets(int8: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Expected plain weights to save, .*Save before quantising"):
        save_routed(RoutedCausalLM(int8, sets_of(int8)), tmp_path / "routed", weights=True)
    assert not list(tmp_path.iterdir())


def test_what_is_fitted_to_plain_weights_is_not_for_quantised_ones(dense: nn.Module, int8: Any) -> None:
    plan = plan_depth(dense, remove={"attention": 2}, batches=[IDS])
    assert plan.tensors
    with pytest.raises(ValueError, match="Expected the weights that the plan's tensors were fitted to"):
        apply_plan(int8, plan)
    apply_plan(int8, plan, refit=[IDS])


def test_adapters_on_quantised_weights(int8: Any) -> None:
    with pytest.raises(ValueError, match="Expected plain weights to adapt, .* Recover first, and quantise the merged"):
        plan_adapters(int8, LoraSettings(rank=2, alpha=4))


def test_narrowing_quantised_weights(int8: Any) -> None:
    with pytest.raises(ValueError, match="Expected plain weights that take gradients, .* Prune first and quantise"):
        plan_width(int8, Budget(params=0.2), batches=[IDS], loss=lambda model, ids: model(ids, labels=ids).loss)


def test_gradients_of_quantised_weights(int8: Any) -> None:
    loss = {"loss": lambda model, ids: model(ids, labels=ids).loss}
    with pytest.raises(ValueError, match="Expected plain weights that take gradients, .* by another importance"):
        plan_depth(int8, remove={"block": 1}, batches=[IDS], importance="taylor", **loss)


def test_merging_quantised_linears() -> None:
    with pytest.raises(ValueError, match="Expected plain weights of .*fc1' to merge, .* Merge first, then quantise"):
        plan_depth(quantised(tiny_opt()), remove={"activation": 1}, batches=[IDS])


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_teacher_answers_each_text_once(settings: str, tmp_path: Path) -> None:
    network, calls = quantised(tiny_llama(), settings).eval(), []
    network.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        first, again = (CachedTeacher(network, tmp_path)(ModelInputs(kwargs={"input_ids": IDS})) for _ in range(2))
    assert torch.equal(first, again)
    assert len(calls) == 1
