"""attach: valid and refused arguments, and callbacks' attributes of either Trainer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from cases.fits.transformers_fits import STEPS, depth, fit, llama, trainer_of
from peft import LoraConfig, get_peft_model
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments

from prunerecover import PruneReport, PruneSchedule, Quality, RecoverySchedule, WidthPrune, attach
from prunerecover.callbacks.trainers.follow import follow


def test_other_trainers_and_callbacks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"Expected a Trainer of transformers, but got Trainer\. In a Trainer of Light"):
        attach(pl.Trainer(barebones=True, accelerator="cpu"), depth())
    trainer = trainer_of(tmp_path)
    with pytest.raises(TypeError, match="but got none. Those of transformers"):
        attach(trainer)
    for odd in (EarlyStoppingCallback(), PruneReport()):
        with pytest.raises(TypeError, match=f"Expected callbacks among Prune, .* but got {type(odd).__name__}"):
            attach(trainer, odd)
    with pytest.raises(ValueError, match="Expected schedules by epochs beside RecoverySchedule"):
        attach(trainer, depth(schedule={"by": "step"}), RecoverySchedule())
    with pytest.raises(ValueError, match="Expected pruning callbacks with a budget, but got Quality, whose metric"):
        attach(trainer, WidthPrune(Quality("eval_loss", drop=0.1)))
    attach(trainer, depth())
    with pytest.raises(RuntimeError, match="some were attached before. Attach all at once"):
        attach(trainer, depth())


def test_models_that_are_made_anew_or_hold_adapters_are_refused(tmp_path: Path) -> None:
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    with pytest.raises(ValueError, match="Expected a Trainer with a model, but got model_init"):
        attach(Trainer(model_init=lambda: llama(), args=arguments), depth())
    adapted = trainer_of(tmp_path, model=lambda: get_peft_model(llama(), LoraConfig(target_modules=["q_proj"])))
    with pytest.raises(ValueError, match="Expected a model without adapters of peft, .* attach LoRARecover"):
        attach(adapted, depth())


def test_models_in_pieces_or_copies_are_refused(tmp_path: Path) -> None:
    """Strategies of other machines are simulated by the Trainer's attributes."""
    trainer = trainer_of(tmp_path)
    for name in ("is_fsdp_enabled", "is_deepspeed_enabled", "is_distributed_loading_by_transformers"):
        setattr(trainer, name, True)
        with pytest.raises(ValueError, match=r"Expected a Trainer that keeps the model whole, .* or torchrun \(DDP\)"):
            attach(trainer, depth())
        setattr(trainer, name, False)
    trainer.args._n_gpu = 2
    with pytest.raises(ValueError, match=r"Expected one device for each process, but got 2 GPUs .* with torchrun"):
        attach(trainer, depth())


def test_a_schedule_that_does_not_fit_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected all surgeries before max_steps=24, .* start of step 30"):
        fit(tmp_path, depth(schedule={"start": 30, "by": "step"}))
    with pytest.raises(ValueError, match="Expected all surgeries before max_epochs=3"):
        fit(tmp_path, depth(schedule=3))


def test_schedules_count_epochs_or_steps() -> None:
    at = SimpleNamespace(current_epoch=2, global_step=7, max_epochs=3, max_steps=9)
    assert (PruneSchedule().now(at), PruneSchedule(by="step").now(at)) == (2, 7)
    assert (PruneSchedule().end(at), PruneSchedule(by="step").end(at)) == (3, 9)
    with pytest.raises(ValueError, match=r"Expected a schedule by epochs in a Trainer of Lightning, .*by='step'"):
        PruneSchedule(by="step").end(pl.Trainer(barebones=True, accelerator="cpu"))


@pytest.mark.slow
def test_an_error_lets_go_of_the_model(tmp_path: Path) -> None:
    from prunerecover import DistillRecover

    def broken(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        raise RuntimeError("broken")

    trainer = trainer_of(tmp_path, depth(), DistillRecover(), compute_loss_func=broken)
    with pytest.raises(RuntimeError, match="broken"):
        trainer.train()
    assert "training_step" not in vars(trainer.pruning.module)
    assert not trainer.model._forward_hooks


def test_ddp_stays_one_object_with_a_reducer_of_what_is_there(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        settings = {"find_unused_parameters": True, "broadcast_buffers": False, "bucket_cap_mb": 3}
        wrapped = torch.nn.parallel.DistributedDataParallel(net, **settings)
        net[0] = torch.nn.Linear(2, 2)
        follow(SimpleNamespace(model_wrapped=wrapped, accelerator=SimpleNamespace()))
        wrapped(torch.ones(1, 2)).sum().backward()
        assert wrapped.module is net
        assert wrapped.find_unused_parameters
        assert wrapped.bucket_bytes_cap == 3 * 2**20
        assert not wrapped.broadcast_buffers
        assert all(p.grad is not None for p in net.parameters())
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_training_data_of_any_form_is_calibrated_on(tmp_path: Path) -> None:
    """An iterable, and a sampler of the user's own."""
    from cases.fits.transformers_fits import texts

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(texts())

    prune, settings = depth(schedule={"start": STEPS, "by": "step"}), {"max_steps": 2 * STEPS}
    trainer = fit(tmp_path, prune, data=lambda n=0: texts(n) if n else Stream(), **settings)
    assert trainer.pruning.module.model.num_parameters() < llama().num_parameters()  # type: ignore[operator]
