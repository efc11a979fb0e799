"""The plain functions on a CUDA device: the same plan as on the processor, applied there, and opened anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_images, tiny_inputs, tiny_llama, tiny_mixture, tiny_timm
from torch import Tensor, nn

from prunerecover import Budget, Plan, apply_plan, load_pruned, merge, plan_depth, plan_pruning, plan_width, save_pruned
from prunerecover.model.batches import logits_of
from prunerecover.recipes.networks.cifar_resnet import CifarResNet

pytestmark = pytest.mark.gpu
SMALL = [torch.randn(12, 3, 16, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]


def squares(network: nn.Module, batch: Any) -> Tensor:
    output = network(**batch) if isinstance(batch, dict) else network(batch)
    return logits_of(output).float().square().mean()


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return CifarResNet(blocks=2, num_classes=4)


def images() -> list[Any]:
    return [tiny_images(8, seed) for seed in range(4)]


def texts(name: str) -> list[Any]:
    return [tiny_inputs(name, 8, seed=seed) for seed in range(4)]


CASES: dict[str, tuple[Callable[[], nn.Module], list[Any], Callable[..., Plan]]] = {
    "attentions and activations": (tiny_timm, images(), lambda m, b: plan_depth(m, remove={"attention": 1}, batches=b)),
    "depth, MACs": (tiny_timm, images(), lambda m, b: plan_depth(m, Budget(macs=0.3), batches=b)),
    "blocks of a decoder": (tiny_llama, texts("llama"), lambda m, b: plan_depth(m, remove={"block": 1}, batches=b)),
    "branches of any network": (cnn, SMALL, lambda m, b: plan_depth(m, Budget(macs=0.2), batches=b)),
    "layers": (cnn, SMALL, lambda m, b: plan_depth(m, remove={"layer": 2}, batches=b)),
    "heads and neurons": (tiny_timm, images(), lambda m, b: plan_width(m, Budget(macs=0.3), batches=b, loss=squares)),
    "channels": (cnn, SMALL, lambda m, b: plan_width(m, Budget(macs=0.3), batches=b, loss=squares)),
    "experts": (
        lambda: tiny_mixture("mixtral"),
        texts("mixtral"),
        lambda m, b: plan_width(m, Budget(params=0.2), kinds="expert", batches=b, loss=squares),
    ),
    "both": (tiny_timm, images(), lambda m, b: plan_pruning(m, Budget(macs=0.3), batches=b, loss=squares)),
}


def left_of(build: Callable[[], nn.Module], plan: Plan, device: str) -> nn.Module:
    network = build().eval().to(device)
    apply_plan(network, plan)
    return network


def output(network: nn.Module, batch: Any) -> Tensor:
    with torch.no_grad():
        found = network.cpu()(**batch) if isinstance(batch, dict) else network.cpu()(batch)
    return logits_of(found)


@pytest.mark.parametrize("name", CASES)
def test_planned_on_the_gpu_as_on_the_processor(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    build, batches, plan_of = CASES[name]
    plan, expected = (plan_of(build().eval().to(device), batches) for device in ("cuda", "cpu"))
    assert plan.removed == expected.removed
    network = left_of(build, plan, "cuda")
    assert all(tensor.is_cuda for tensor in network.state_dict().values())
    torch.testing.assert_close(
        output(network, batches[0]), output(left_of(build, plan, "cpu"), batches[0]), atol=1e-3, rtol=1e-3
    )
    opened = load_pruned(save_pruned(network, plan + merge(network), tmp_path), model=build())
    torch.testing.assert_close(output(opened, batches[0]), output(network, batches[0]), atol=1e-5, rtol=1e-5)


def test_latency_is_met_by_the_clock_of_the_device() -> None:
    network = tiny_timm().eval().cuda()
    plan = plan_depth(network, Budget(latency=0.3), batches=images())
    assert plan.removed


def test_batches_may_be_on_the_device_already() -> None:
    network = tiny_timm().eval().cuda()
    here, there = images(), [batch.cuda() for batch in images()]
    plans = [plan_depth(network, remove={"attention": 1}, batches=batches) for batches in (here, there)]
    assert plans[0].removed == plans[1].removed
