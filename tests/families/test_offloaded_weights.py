"""Models whose weights accelerate holds elsewhere are planned and pruned as if they were loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model  # type: ignore[import-untyped]
from accelerate.hooks import ModelHook, add_hook_to_module  # type: ignore[import-untyped]
from cases.models.tiny import VOCABULARY, tiny_gpt2, tiny_llama
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from prunerecover import Budget, apply_plan, plan_depth, plan_pruning, prune
from prunerecover.families.libraries.offloaded_weights import is_offloaded, map_offloaded
from prunerecover.model.copies import share_copy

CPU = torch.device("cpu")
TEXTS = torch.randint(3, VOCABULARY, (16, 12), generator=torch.Generator().manual_seed(0))
BATCHES = [{"input_ids": some} for some in TEXTS.split(8)]


def in_memory(network: nn.Module, _: Path) -> nn.Module:
    return cpu_offload(network, execution_device=CPU)


def on_disk(network: nn.Module, folder: Path) -> nn.Module:
    return disk_offload(network, str(folder), execution_device=CPU)


def in_safetensors(network: nn.Module, folder: Path) -> nn.Module:
    network.save_pretrained(folder)  # type: ignore[operator]
    places = {"model.embed_tokens": "cpu", "model.layers": "disk", "model.norm": "cpu", "model.rotary_emb": "cpu"}
    how = {"device_map": {**places, "lm_head": "disk"}, "offload_folder": folder / "offloaded"}
    return AutoModelForCausalLM.from_pretrained(folder, **how).eval()


def logits(network: nn.Module) -> Tensor:
    with torch.no_grad():
        return network(TEXTS, return_dict=False)[0]


@pytest.mark.parametrize("offload", [in_memory, on_disk, in_safetensors])
def test_an_offloaded_model_has_the_plan_of_the_loaded_model(
    offload: Callable[[nn.Module, Path], nn.Module], tmp_path: Path
) -> None:
    loaded, budget = tiny_llama(), Budget(params=0.25)
    wanted = plan_pruning(loaded, budget, batches=BATCHES)
    offloaded = offload(tiny_llama(), tmp_path)
    dense = logits(offloaded)
    plan = plan_pruning(offloaded, budget, batches=BATCHES)
    assert plan.edits == wanted.edits
    assert all(torch.equal(plan.tensors[key], wanted.tensors[key]) for key in wanted.tensors)
    assert is_offloaded(offloaded), "the user's model is not edited while planning"
    assert torch.equal(logits(offloaded), dense)
    apply_plan(loaded, wanted)
    apply_plan(offloaded, plan)
    assert not is_offloaded(offloaded)
    assert torch.equal(logits(offloaded), logits(loaded))


@pytest.mark.parametrize("offload", [in_memory, on_disk])
def test_tied_and_half_precision_weights_come_back_as_they_were(
    offload: Callable[[nn.Module, Path], nn.Module], tmp_path: Path
) -> None:
    wanted = tiny_gpt2().to(torch.bfloat16)
    offloaded = offload(tiny_gpt2().to(torch.bfloat16), tmp_path)
    map_offloaded(offloaded)
    assert offloaded.lm_head.weight is offloaded.transformer.wte.weight
    for (name, value), (other, back) in zip(wanted.named_parameters(), offloaded.named_parameters(), strict=True):
        assert name == other
        assert back.dtype == value.dtype
        assert torch.equal(back, value)
    assert not any(hasattr(module, "_old_forward") for module in offloaded.modules())
    assert torch.equal(logits(offloaded), logits(wanted))


def test_weights_on_disk_are_read_when_their_values_are_used(tmp_path: Path) -> None:
    network = on_disk(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), tmp_path)
    map_offloaded(network)
    with (tmp_path / "1.weight.dat").open("r+b") as file:
        file.write(torch.full((64, 64), 7.0).numpy().tobytes())
    assert torch.equal(network[1].weight, torch.full((64, 64), 7.0)), "a copy would hold the former values"


def test_copies_share_the_weights_that_accelerate_holds() -> None:
    network = in_memory(nn.Sequential(nn.Linear(4, 4)), Path())
    copied = share_copy(network)
    map_offloaded(copied)
    assert copied[0].weight.data_ptr() == network[0]._hf_hook.weights_map["weight"].data_ptr()
    assert is_offloaded(network)


def test_tied_weights_of_a_plain_network_stay_tied() -> None:
    network = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    network[1].weight = network[0].weight
    map_offloaded(in_memory(network, Path()))
    assert network[1].weight is network[0].weight


def test_hooks_around_the_hooks_of_accelerate_are_looked_through() -> None:
    network = in_memory(nn.Sequential(nn.Linear(4, 4)), Path())
    for _ in range(2):
        add_hook_to_module(network[0], ModelHook(), append=True)
    map_offloaded(network)
    assert not network[0].weight.is_meta
    assert not is_offloaded(network)


def test_the_plan_of_another_model_leaves_the_weights_where_they_are(tmp_path: Path) -> None:
    other = plan_depth(tiny_gpt2(), remove={"block": 1}, batches=BATCHES)
    network = on_disk(tiny_llama(), tmp_path)
    with pytest.raises(ValueError, match="Expected the model that the plan was made for"):
        apply_plan(network, other)
    assert is_offloaded(network)


def test_moves_of_a_copy_leave_the_dispatched_model_alone() -> None:
    network = dispatch_model(tiny_llama(), {"": "cpu"}, main_device="cpu", force_hooks=True)
    copied = share_copy(network)
    assert copied.to("cpu") is copied
    assert torch.equal(logits(copied), logits(network))


def test_a_network_with_batchnorm_is_pruned_in_one_call() -> None:
    def network() -> nn.Sequential:
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 36, 5)).eval()

    images = torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    loaded, offloaded = network(), in_memory(network(), Path())
    for one in (loaded, offloaded):
        prune(one, Budget(macs=0.3), [images])
    assert torch.equal(offloaded(images), loaded(images))


def test_a_scalar_on_disk_comes_back(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(3.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * x

    network = on_disk(Scaled(), tmp_path)
    map_offloaded(network)
    assert network.scale.shape == ()
    assert float(network.scale.detach()) == 3.0


def test_depth_alone_is_planned_too(tmp_path: Path) -> None:
    wanted = plan_depth(tiny_llama(), remove={"block": 1}, batches=BATCHES)
    assert plan_depth(on_disk(tiny_llama(), tmp_path), remove={"block": 1}, batches=BATCHES).edits == wanted.edits
