"""What a resumed run refuses: teachers, optimizers and checkpoints that do not fit."""

from __future__ import annotations

import pytest
import torch
from cases.models.habits import Plain, dataset, loader, tiny_vit
from cases.trainers import fit, prune, trainer_of
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from prunerecover import Plan
from prunerecover.callbacks import DistillRecover
from prunerecover.checkpoint.ledger_record import KEY


def pruned_run(folder, *callbacks):
    module = Plain()
    fit(folder, module, prune(), *callbacks, ModelCheckpoint(filename="{epoch}", save_top_k=-1), epochs=3)
    return folder / "checkpoints"


def resume(folder, files, *callbacks, epoch=1):
    trainer_of(folder, *callbacks, epochs=3).fit(Plain(), loader(), ckpt_path=files / f"epoch={epoch}.ckpt")


def test_pruned_without_a_teacher(tmp_path):
    files = pruned_run(tmp_path)
    with pytest.raises(
        RuntimeError, match=r"none was saved: the model was pruned without DistillRecover.*teacher=path"
    ):
        resume(tmp_path / "again", files, prune(), DistillRecover())


def test_teacher_is_not_there(tmp_path):
    files = pruned_run(tmp_path, DistillRecover())
    (teacher,) = files.glob("teacher-*.safetensors")
    teacher.unlink()
    with pytest.raises(
        FileNotFoundError, match="Expected the dense teacher teacher-.* but it is not there. Copy it beside"
    ):
        resume(tmp_path / "again", files, prune(), DistillRecover())


def test_teacher_is_another_file(tmp_path):
    files = pruned_run(tmp_path, DistillRecover())
    (teacher,) = files.glob("teacher-*.safetensors")
    teacher.write_bytes(teacher.read_bytes()[:-1] + b"\x01")
    with pytest.raises(
        ValueError, match="Expected the teacher that the run was started with at .*, but its sha256 differs"
    ):
        resume(tmp_path / "again", files, prune(), DistillRecover())


def test_teacher_that_answers_otherwise(tmp_path):
    with pytest.raises(ValueError, match=r"teacher and student to answer alike, but got shapes \(2, 5\) and \(2, 4\)"):
        fit(tmp_path, Plain(), prune(), DistillRecover(teacher=tiny_vit(num_classes=5)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["module", "safetensors", "folder"])
def test_teachers_by_name(tmp_path, kind):
    """A module, a state dict of the dense network, or a saved folder give the same recovery as the dense default."""
    from safetensors.torch import save_file

    from prunerecover import save_pruned

    torch.manual_seed(5)
    teacher = tiny_vit(drop_path_rate=0.2)
    path = tmp_path / "dense.safetensors"
    if kind == "safetensors":
        save_file(teacher.state_dict(), path)
    elif kind == "folder":
        path = save_pruned(teacher, Plan(), tmp_path / "dense")
    modules = []
    for given in (teacher, teacher if kind == "module" else path):
        torch.manual_seed(1)
        module = Plain()
        fit(tmp_path / "run", module, prune(), DistillRecover(teacher=given))
        modules.append(module)
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in modules), strict=True))


class OtherGroups(Plain):
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)


class OtherNames(Plain):
    def __init__(self):
        super().__init__()
        self.extra = nn.Parameter(torch.zeros(1))

    def loss(self, batch):
        return super().loss(batch) + self.extra.sum()


def test_resumed_with_other_optimizers(tmp_path):
    files = pruned_run(tmp_path)
    match = (
        r"Expected optimizers with \[2\] parameter groups, as in the checkpoint, but configure_optimizers made \[1\]"
    )
    with pytest.raises(RuntimeError, match=match):
        trainer_of(tmp_path, prune(), epochs=3).fit(OtherGroups(), loader(), ckpt_path=files / "epoch=1.ckpt")


def test_resumed_with_parameters_of_another_name(tmp_path):
    module = OtherNames()
    fit(tmp_path, module, prune(), ModelCheckpoint(filename="{epoch}", save_top_k=-1))
    file = tmp_path / "checkpoints" / "epoch=1.ckpt"
    content = torch.load(file, weights_only=True)
    del content["state_dict"]["extra"]
    torch.save(content, file)
    with pytest.raises(
        RuntimeError, match="Expected parameter 'extra' of the checkpoint's optimizer in Plain, but it has"
    ):
        trainer_of(tmp_path, prune(), epochs=3).fit(Plain(), loader(), ckpt_path=file)


def test_checkpoint_of_another_network(tmp_path):
    files = pruned_run(tmp_path)
    module = Plain(depth=4)
    before = repr(module)
    with pytest.raises(ValueError, match="Expected the model that the plan was made for .* this model has 4 blocks"):
        trainer_of(tmp_path, prune()).test(module, loader(), ckpt_path=files / "epoch=1.ckpt", verbose=False)
    assert repr(module) == before


def test_checkpoint_of_a_newer_version(tmp_path):
    file = pruned_run(tmp_path) / "epoch=1.ckpt"
    content = torch.load(file, weights_only=True)
    content[KEY]["schema"] = "prunerecover.ledger/2"
    torch.save(content, file)
    with pytest.raises(
        ValueError, match="ledger of schema prunerecover.ledger/1, but got prunerecover.ledger/2. .* install"
    ):
        trainer_of(tmp_path, prune()).test(Plain(), loader(), ckpt_path=file, verbose=False)


def test_pruned_checkpoint_without_the_callbacks(tmp_path):
    """Nobody replays the plan: Lightning refuses, and load_pruned is what opens it."""
    file = pruned_run(tmp_path) / "epoch=1.ckpt"
    with pytest.raises(RuntimeError, match="Missing key"):
        trainer_of(tmp_path).test(Plain(), loader(), ckpt_path=file, verbose=False)


def test_dense_checkpoint_of_another_run_undoes_the_surgery(tmp_path):
    dense, module = Plain(), Plain()
    runner = fit(tmp_path / "dense", dense)
    runner.save_checkpoint(tmp_path / "dense.ckpt")
    runner = fit(tmp_path, module, prune())
    with pytest.warns(UserWarning, match="nothing is pruned now"):
        runner.test(module, loader(), ckpt_path=tmp_path / "dense.ckpt", verbose=False)
    images = dataset().tensors[0]
    assert torch.equal(module.net.eval()(images), dense.net.eval()(images))
