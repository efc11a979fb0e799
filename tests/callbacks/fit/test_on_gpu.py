"""Callbacks on a CUDA device: every precision, resuming, strategies, and files that open anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.fits.routed_lora import BLOCKS, Language, batches
from cases.fits.routed_lora import fit as fit_routed
from cases.lora import IMAGES as SMALL_IMAGES
from cases.lora import depth as depth_of_plain
from cases.lora import fit as fit_plain
from cases.lora import lora
from cases.models.habits import Compiled, Manual
from cases.models.routed_language import removing
from cases.refusals import plan_for_plain
from cases.width.width_prune import Classifier, fit, rows, trainer
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

from prunerecover import Budget, load_pruned
from prunerecover.callbacks import DepthPrune, DistillRecover, Prune, WidthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.pruning import PruneCallback

pytestmark = pytest.mark.gpu
GPU: dict[str, Any] = {"accelerator": "gpu", "devices": 1}
IMAGES = next(iter(rows(False)))[0]
SURGEONS = {
    "DepthPrune": lambda **more: DepthPrune(remove={"attention": 1, "activation": 1}, calibration=24, **more),
    "WidthPrune": lambda **more: WidthPrune(Budget(macs=0.3), calibration=24, **more),
    "Prune": lambda **more: Prune(Budget(macs=0.3), calibration=24, kinds=("attention", "neuron"), **more),
}


def surgeon(name: str, **more: Any) -> PruneCallback:
    found: PruneCallback = SURGEONS[name](**{"schedule": {"start": 1}, **more})
    return found


def outputs(network: torch.nn.Module, images: torch.Tensor = IMAGES) -> torch.Tensor:
    with torch.no_grad():
        return network.eval().cpu().float()(images)  # type: ignore[no-any-return]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed", "bf16-true"])
@pytest.mark.parametrize("name", SURGEONS)
def test_prunes_and_goes_on_in_any_precision(tmp_path: Path, name: str, precision: str) -> None:
    module = fit(tmp_path, surgeon(name), DistillRecover(), network="vit", precision=precision, **GPU)
    (event,) = Ledger.of(module).events
    assert event.epoch == 1
    assert all(value.isfinite().all() for value in module.state_dict().values())
    opened = load_pruned(tmp_path / "files" / "pruned", model=Classifier("vit").net)
    torch.testing.assert_close(outputs(opened), outputs(module.net), atol=2e-2 if "true" in precision else 1e-4, rtol=0)


@pytest.mark.parametrize("name", SURGEONS)
def test_resumed_ends_where_the_whole_fit_ends(tmp_path: Path, name: str) -> None:
    whole = fit(tmp_path / "whole", surgeon(name, merge="never"), network="vit", **GPU)
    for epoch in (0, 1):
        file = tmp_path / "whole" / "files" / f"epoch={epoch}.ckpt"
        part = fit(tmp_path / str(epoch), surgeon(name, merge="never"), network="vit", ckpt=file, **GPU)
        assert Ledger.of(part).plans["net"].removed == Ledger.of(whole).plans["net"].removed
        torch.testing.assert_close(outputs(part.net), outputs(whole.net), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", SURGEONS)
def test_what_was_fitted_on_the_gpu_is_tested_on_either_device(tmp_path: Path, name: str) -> None:
    fit(tmp_path, surgeon(name), network="vit", **GPU)
    found = [
        trainer(tmp_path / kind, surgeon(name), accelerator=kind, devices=1).test(
            Classifier("vit"), rows(False), ckpt_path=tmp_path / "files" / "last.ckpt", weights_only=False
        )[0]["val_loss"]
        for kind in ("gpu", "cpu")
    ]
    assert found[0] == pytest.approx(found[1], abs=1e-3)


def test_convolutions_with_batchnorm_are_reconstructed(tmp_path: Path) -> None:
    module = fit(tmp_path, surgeon("WidthPrune"), network="cnn", **GPU)
    opened = load_pruned(tmp_path / "files" / "pruned", model=Classifier().net)
    torch.testing.assert_close(outputs(opened), outputs(module.net), atol=1e-3, rtol=0)


@pytest.mark.parametrize("make", [Compiled, Manual])
def test_compiled_networks_and_manual_optimization(tmp_path: Path, make: Any) -> None:
    module, _ = fit_plain(tmp_path, depth_of_plain(), make=make, **GPU)
    assert len(Ledger.of(module).events) == 1


def test_adapters_behind_a_surgery(tmp_path: Path) -> None:
    module, _ = fit_plain(tmp_path, depth_of_plain(), lora(start=1), **GPU)
    assert Ledger.of(module).adapters["net"].modules
    assert outputs(Ledger.of(module).plain_copy(module, "net"), SMALL_IMAGES).isfinite().all()


def test_adapters_that_all_sets_share(tmp_path: Path) -> None:
    module, _ = fit_routed(tmp_path, module=Language(), epochs=1, **GPU)
    assert all(parameter.isfinite().all() for parameter in module.parameters())


def test_ranks_by_nccl(tmp_path: Path) -> None:
    module = fit(tmp_path, surgeon("DepthPrune"), network="vit", strategy="ddp", **GPU)
    assert len(Ledger.of(module).events) == 1


def test_sharded_with_a_plan_made_beforehand(tmp_path: Path) -> None:
    plan = plan_for_plain(replace="identity")
    module, _ = fit_plain(tmp_path, DepthPrune(plan=plan), epochs=1, strategy=FSDPStrategy(), **GPU)
    assert Ledger.of(module).plans["net"].edits == plan.edits


def test_sharded_by_the_module_itself(tmp_path: Path) -> None:
    class Sharded(Language):
        def configure_model(self) -> None:
            if not hasattr(self, "sharded"):
                self.sharded = True
                fully_shard(self.net)

    surgeon = DepthPrune(plan=removing(Language().net, 2))
    settings = {"strategy": ModelParallelStrategy(), "use_distributed_sampler": False, **GPU}
    runner = pl.Trainer(max_epochs=1, callbacks=[surgeon], default_root_dir=tmp_path, logger=False, **settings)
    module = Sharded()
    runner.fit(module, batches())
    assert len(module.net.model.layers) == BLOCKS - 1
