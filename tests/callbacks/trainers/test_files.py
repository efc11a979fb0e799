"""Files of a pruned fit in transformers' Trainer: checkpoints, the merged copy, the best one."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.fits.transformers_fits import STEPS, depth, fit, images, llama, texts, trainer_of, vit
from cases.trainers import assert_same
from transformers import AutoModelForCausalLM, EarlyStoppingCallback

from prunerecover import Budget, DepthPrune, DistillRecover, LoRARecover, Prune, load_pruned
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.checkpoint.trainer_folder import BESIDE

pytestmark = pytest.mark.slow  # each trains a model or two
ONE_BLOCK = {"remove": {"block": 1}, "schedule": 1, "replace": "zero"}


def logits(model: Any, rows: int = 8) -> torch.Tensor:
    tokens = torch.stack([row["input_ids"] for row in texts(rows)])
    with torch.no_grad():
        return model.eval()(tokens).logits


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Return the folder and the Trainer of a fit that prunes twice, with a teacher; checkpoints raise no warning."""
    folder = tmp_path_factory.mktemp("pruned")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="from_pretrained will not make")
        return folder, fit(folder, depth(), DistillRecover())


def test_checkpoints_of_all_moments_open(pruned: tuple[Path, Any]) -> None:
    """Pruned twice, with tied tensors, and a teacher beside them."""
    folder, trainer = pruned
    assert_same(load_pruned(folder / f"checkpoint-{3 * STEPS}"), trainer.model.eval())
    shapes = [sum(p.numel() for p in load_pruned(folder / f"checkpoint-{STEPS * i}").parameters()) for i in (2, 3)]
    assert shapes[0] > shapes[1]
    into = load_pruned(folder / f"checkpoint-{3 * STEPS}", llama())
    assert torch.equal(logits(into), logits(trainer.model))
    torch.testing.assert_close(logits(load_pruned(folder / "pruned")), logits(trainer.model))


def test_what_was_done_stands_in_the_log(pruned: tuple[Path, Any]) -> None:
    trainer = pruned[1]
    surgeries = [log for log in trainer.state.log_history if "surgery/params" in log]
    assert [log["step"] for log in surgeries] == [STEPS, 2 * STEPS]
    assert surgeries[-1]["surgery/params"] == sum(p.numel() for p in trainer.model.parameters())
    losses = [log["distillation_loss"] for log in trainer.state.log_history if "distillation_loss" in log]
    assert len(losses) == 4  # every fourth of 16 steps


def test_what_transformers_cannot_open_says_so_where_it_is_saved(pruned: tuple[Path, Any], tmp_path: Path) -> None:
    """Checkpoints raise no warning, because `load_pruned` opens them."""
    with pytest.warns(UserWarning, match="from_pretrained will not make"):
        pruned[1].save_model(str(tmp_path / "saved"))
    assert_same(load_pruned(tmp_path / "saved"), pruned[1].model)


def test_the_teacher_is_found_beside_a_checkpoint_that_moved(pruned: tuple[Path, Any], tmp_path: Path) -> None:
    moved = shutil.move(pruned[0], tmp_path / "moved")
    again = fit(tmp_path / "again", depth(), DistillRecover(), resume=moved / f"checkpoint-{2 * STEPS}")
    shutil.move(moved, pruned[0])
    assert_same(pruned[1].model, again.model)


def test_adapters_are_merged_in_what_opens(tmp_path: Path) -> None:
    trainer = fit(tmp_path, depth(schedule=1), LoRARecover(rank=2))
    for folder in ("pruned", f"checkpoint-{3 * STEPS}"):
        torch.testing.assert_close(logits(load_pruned(tmp_path / folder)), logits(trainer.model))


def test_whole_blocks_gone_open_by_transformers_alone(tmp_path: Path) -> None:
    """This holds for the copy, a checkpoint, and the output of `save_model` and `save_pretrained`."""
    trainer = fit(tmp_path / "fit", depth(**ONE_BLOCK))
    trainer.save_model(str(tmp_path / "saved"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.model.save_pretrained(tmp_path / "pretrained")
    for folder in ("fit/pruned", f"fit/checkpoint-{3 * STEPS}", "saved", "pretrained"):
        again = AutoModelForCausalLM.from_pretrained(tmp_path / folder)
        assert again.config.num_hidden_layers == 3
        assert torch.equal(logits(again), logits(trainer.model))
    assert_same(load_pruned(tmp_path / "saved"), trainer.model)


def test_names_of_older_formats_do_not_get_lost(tmp_path: Path) -> None:
    """A ViT is saved under the present names."""
    trainer = fit(tmp_path, depth(), model=vit, data=images)
    assert_same(load_pruned(tmp_path / f"checkpoint-{3 * STEPS}"), trainer.model.eval())


class Around(torch.nn.Module):
    """User's model with a network inside and a head beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = vit()
        self.head = torch.nn.Linear(4, 4)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.head(self.backbone(pixel_values).logits)
        return {"loss": torch.nn.functional.cross_entropy(found, labels), "logits": found}


@pytest.mark.parametrize("recovery", [DistillRecover, LoRARecover])
def test_a_model_around_the_network_opens_as_a_whole(recovery: Any, tmp_path: Path) -> None:
    trainer = fit(tmp_path, depth(target="model.backbone"), recovery(), model=Around, data=images)
    folder = tmp_path / f"checkpoint-{3 * STEPS}"
    batch = {name: torch.stack([torch.as_tensor(row[name]) for row in images(8)]) for name in images(1)[0]}
    with torch.no_grad():
        answers = load_pruned(folder, Around())(**batch)["logits"]
        torch.testing.assert_close(answers, trainer.model.eval()(**batch)["logits"])
    with pytest.warns(UserWarning, match=r"at 'backbone' alone, but .* head.weight\. .*load_pruned\(path, YourModel"):
        assert not hasattr(load_pruned(folder), "head")


def test_a_dense_checkpoint_of_a_plain_trainer_begins_a_pruned_fit(tmp_path: Path) -> None:
    """The file has no ledger; the due surgery still comes."""
    fit(tmp_path / "plain")
    again = fit(tmp_path / "again", depth(), resume=tmp_path / "plain" / f"checkpoint-{STEPS}")
    assert [event.epoch for event in Ledger.of(again.pruning.module).events] == [1, 2]


def test_a_checkpoint_is_of_what_the_live_model_is_not(tmp_path: Path) -> None:
    """In the same process, the pruned model returns to a dense file, and continues from there; a second fit goes on."""
    trainer = fit(tmp_path, depth())
    once = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{STEPS}"))
    assert all(torch.equal(value, once[name]) for name, value in trainer.model.state_dict().items())
    trainer.train()
    assert Ledger.of(trainer.pruning.module).removed_units == 3


def worse_and_worse(**settings: Any) -> dict[str, Any]:
    """Return settings of a fit with falling scores from epoch to epoch."""
    scores = iter(range(9, 0, -1))
    best = {"eval_strategy": "epoch", "load_best_model_at_end": True, "metric_for_best_model": "score"}
    return {**best, "greater_is_better": True, "compute_metrics": lambda _: {"score": next(scores)}, **settings}


def test_the_best_is_of_the_pruned_model(tmp_path: Path) -> None:
    """Scores before the surgery do not count, and the loaded network has the file's structure."""
    trainer = fit(tmp_path, depth(schedule=1), LoRARecover(rank=2, start=2), **worse_and_worse())
    assert trainer.state.best_model_checkpoint.endswith(f"checkpoint-{2 * STEPS}")
    assert Ledger.of(trainer.pruning.module).adapters == {}
    assert_same(load_pruned(trainer.state.best_model_checkpoint), trainer.model.eval())


def test_patience_begins_anew_at_a_surgery(tmp_path: Path) -> None:
    def steps(start: int) -> int:
        stopping = EarlyStoppingCallback(early_stopping_patience=2)
        settings = worse_and_worse(num_train_epochs=5, callbacks=[stopping], save_total_limit=1)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The fit ended before 1 surgeries")
            return int(fit(tmp_path / str(start), depth(schedule=start), **settings).state.global_step)

    assert steps(start=4) == 3 * STEPS  # it stops before
    assert steps(start=2) == 5 * STEPS


def test_no_files_where_none_are_saved(tmp_path: Path) -> None:
    fit(tmp_path, depth(), DistillRecover(), save_strategy="no")
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_cut_off_file_says_so(pruned: tuple[Path, Any], tmp_path: Path) -> None:
    shutil.copytree(pruned[0], tmp_path, dirs_exist_ok=True)
    path = tmp_path / f"checkpoint-{2 * STEPS}" / BESIDE
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"Expected what was pruned in .*prunerecover.pt, but it cannot be read"):
        fit(tmp_path / "b", depth(), resume=path.parent)
    weights = tmp_path / f"checkpoint-{3 * STEPS}" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ValueError, match="Expected weights in safetensors in .* Is a file cut"):
        load_pruned(weights.parent)


def test_a_plan_from_elsewhere_is_applied(tmp_path: Path) -> None:
    first = fit(tmp_path / "a", Prune(Budget(params=0.2), kinds=("block",), calibration=16, schedule=1))
    plan = Ledger.of(first.pruning.module).plans["model"]
    again = trainer_of(tmp_path / "b", DepthPrune(plan=plan))
    again.train()
    assert again.model.state_dict().keys() == first.model.state_dict().keys()
