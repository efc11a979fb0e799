"""A teacher with outputs cached by inputs gives the same loss as a teacher called each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import lightning.pytorch as pl
import pytest
import torch
from cases.models.habits import Compiled, Manual, Plain, Unaugmented, Wrapped, dataset, loader
from cases.models.tiny import tiny_llama
from cases.trainers import assert_same, every_epoch, fit, prune
from safetensors import safe_open
from torch import Tensor, nn
from torch.utils.data import DataLoader

from prunerecover import DistillRecover
from prunerecover.callbacks.distillation.cached_teacher import CachedTeacher
from prunerecover.callbacks.distillation.sample_keys import sample_keys
from prunerecover.model.batches import ModelInputs, call, predictions_of
from prunerecover.recovery.distillation import distillation_loss

SURGERY = {"schedule": {"start": 0}, "remove": {"attention": 1}}


class Losses(pl.Callback):
    """Notes the teacher's part of the loss of each step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        self.seen.append(float(trainer.callback_metrics["distillation_loss"]))


class Counting(nn.Module):
    """Network with a counter of samples, and more outputs than inputs of the last layer."""

    def __init__(self, classes: int = 40) -> None:
        super().__init__()
        self.samples = 0
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        self.samples += len(x)
        out: Tensor = self.head(self.body(x).relu())
        return out


def trained(folder: Path, make: Any, cache: bool, *callbacks: Any, **arguments: Any) -> tuple[Any, list[float]]:
    pl.seed_everything(0, verbose=False)
    module, losses = make(), Losses()
    fit(folder, module, prune(**SURGERY), DistillRecover(cache=cache), losses, *callbacks, epochs=3, **arguments)
    return module, losses.seen


def padded() -> list[dict[str, Tensor]]:
    """Return texts of two lengths, padded to the longer on either side."""
    ids = torch.randint(3, 61, (16, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[::2, 6:], mask[1::4, :3] = 0, 0
    labels = ids.masked_fill(mask == 0, -100)
    return [
        dict(zip(("input_ids", "attention_mask", "labels"), parts, strict=True))
        for parts in zip(ids.split(4), mask.split(4), labels.split(4), strict=True)
    ]


class Texts(Wrapped):
    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self.lm(**batch, use_cache=False).loss
        return loss


def both(folder: Path, make: Any, **arguments: Any) -> tuple[Any, Any]:
    """Return the fit with a teacher called in every step, and the fit with cached outputs."""
    return tuple(trained(folder / str(cache), make, cache, **arguments) for cache in (False, True))


class CompiledUnaugmented(Unaugmented, Compiled):
    """Sees the same images in every epoch, with a network compiled in place."""


IN_ORDER = {"data": loader(shuffle=False)}
MIXED = {**IN_ORDER, "precision": "bf16-mixed"}


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (Unaugmented, IN_ORDER),
        (Texts, {"data": DataLoader(padded(), batch_size=None)}),
        pytest.param(Manual, IN_ORDER, marks=pytest.mark.slow),
        pytest.param(Unaugmented, MIXED, marks=pytest.mark.slow),
        pytest.param(CompiledUnaugmented, IN_ORDER, marks=pytest.mark.slow),
    ],
)
def test_the_same_batches_give_the_same_bits(tmp_path: Path, make: Any, arguments: dict[str, Any]) -> None:
    (plain, losses), (cached, same) = both(tmp_path, make, **arguments)
    assert losses == same
    assert_same(plain, cached)


def test_shuffled_samples_are_known(tmp_path: Path) -> None:
    (_, losses), (_, same) = both(tmp_path, Unaugmented)
    assert losses == pytest.approx(same, rel=1e-5)
    (folder,) = (tmp_path / "True" / "checkpoints").glob("answers-*/*")
    keys = [key for file in folder.iterdir() for key in safe_open(file, "pt").keys()]  # noqa: SIM118
    assert len(list(folder.iterdir())) == 6
    assert sorted(keys) == sorted(sample_keys(ModelInputs((dataset().tensors[0],))))


def test_a_text_is_known_however_long_the_others_of_its_batch_are(tmp_path: Path) -> None:
    network, batch = tiny_llama().eval(), padded()[0]
    short, calls = {name: value[[0, 2], :7] for name, value in batch.items()}, []
    network.register_forward_hook(lambda *_: calls.append(1))
    teacher = CachedTeacher(network, tmp_path)
    with torch.no_grad():
        teacher(ModelInputs(kwargs=batch))
        found = teacher(ModelInputs(kwargs=short))
        assert len(calls) == 1
        wanted = network(**short).logits
    assert found.shape == wanted.shape
    torch.testing.assert_close(found[:, :6], wanted[:, :6])  # what follows is padding


def test_padding_is_no_part_of_the_loss(tmp_path: Path) -> None:
    batch, teacher = padded()[0], tiny_llama().eval()
    module, losses = Texts(), Losses()
    student = predictions_of(call(module.lm, ModelInputs(kwargs=batch)))
    wanted = predictions_of(call(teacher, ModelInputs(kwargs=batch)))
    real = batch["attention_mask"].bool()
    fit(tmp_path, module, DistillRecover(teacher=teacher), losses, data=DataLoader([batch], batch_size=None), epochs=1)
    assert losses.seen == pytest.approx([distillation_loss(student[real], wanted[real]).item()], rel=1e-5)


@pytest.mark.parametrize("classes", [3, 40])
def test_each_sample_is_answered_once(tmp_path: Path, classes: int) -> None:
    network = Counting(classes).eval()
    teacher, x = CachedTeacher(network, tmp_path), torch.randn(12, 6)
    with torch.no_grad():
        for chosen in (x[:4], x[2:8], x.flip(0), x):
            torch.testing.assert_close(teacher(ModelInputs((chosen,))), network(chosen))
    assert network.samples == 12 + 4 + 6 + 12 + 12  # the teacher's, and those that are compared with
    network.samples = 0
    with torch.no_grad():
        other = CachedTeacher(network, tmp_path / "new", earlier=[tmp_path])
        torch.testing.assert_close(other(ModelInputs((x,))), teacher(ModelInputs((x,))))
    assert network.samples == 0


def test_another_teacher_has_answers_of_its_own(tmp_path: Path) -> None:
    x = torch.randn(4, 6)
    networks = [Counting().eval() for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    with torch.no_grad():
        networks[1].head.bias[-1] += 1e-6
        answers = [CachedTeacher(network, tmp_path)(ModelInputs((x,))) for network in networks]
    assert len(list(tmp_path.iterdir())) == 2
    assert not torch.equal(*answers)


def test_augmented_samples_end_the_cache(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"has seen 0 of this epoch's 48 samples before: the data are augmented"):
        cached, same = trained(tmp_path / "True", Plain, True)
    plain, losses = trained(tmp_path / "False", Plain, False)
    assert losses == same
    assert_same(plain, cached)
    assert not list((tmp_path / "True" / "checkpoints").glob("answers-*/*"))


def test_without_checkpoints_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with patch("prunerecover.callbacks.distill_recover.CachedTeacher", wraps=CachedTeacher) as made:
        trained(tmp_path, Unaugmented, True, enable_checkpointing=False)
    path = made.call_args.args[1]
    assert path.is_relative_to(tmp_path)
    assert not path.parent.exists()


def test_a_checkpoint_that_was_moved_is_resumed_without_the_answers(tmp_path: Path) -> None:
    whole, _ = trained(tmp_path / "whole", Unaugmented, True, every_epoch(tmp_path / "whole"))
    (answers,) = (tmp_path / "whole").glob("answers-*")
    answers.rename(tmp_path / "elsewhere")
    part, _ = trained(tmp_path / "part", Unaugmented, True, resume=tmp_path / "whole" / "epoch=0.ckpt")
    for ours, theirs in zip(part.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_one_answer_for_all_samples_is_refused(tmp_path: Path) -> None:
    class Mean(Counting):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).mean(0)

    with pytest.raises(ValueError, match=r"one answer per sample .* but got shape \(40,\) for 4 samples"):
        CachedTeacher(Mean().eval(), tmp_path)(ModelInputs((torch.randn(4, 6),)))


class Recurrent(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.recurrent, self.head = nn.GRU(6, 16, batch_first=batch_first), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.recurrent(x)[0])
        return out


def test_samples_in_the_second_dimension_are_refused(tmp_path: Path) -> None:
    """Rows there are steps in time, which depend on earlier rows."""
    inputs, network = ModelInputs((torch.randn(4, 7, 6),)), Recurrent(batch_first=True).eval()
    with torch.no_grad():
        teacher = CachedTeacher(network, tmp_path)
        assert torch.equal(teacher(inputs), network(*inputs.args))
        assert torch.equal(teacher(inputs), network(*inputs.args))
        with pytest.raises(ValueError, match=r"samples in the first dimension of its outputs, but got \(4, 7, 5\)"):
            CachedTeacher(Recurrent(batch_first=False).eval(), tmp_path)(inputs)


def test_rows_that_are_no_samples_are_refused(tmp_path: Path) -> None:
    class Pictured(Counting):
        def forward(self, x: Tensor, patches: Tensor) -> Tensor:
            return super().forward(x) + patches.mean()

    inputs = ModelInputs((torch.randn(4, 6),), {"patches": torch.randn(9, 3)})
    with pytest.raises(ValueError, match=r"for 4 samples. Rows of 'patches' are no samples"):
        CachedTeacher(Pictured().eval(), tmp_path)(inputs)


def test_padding_on_the_left_makes_another_sample() -> None:
    """With positions counted from the first token, outputs depend on the padding."""
    ids = torch.arange(1, 7).view(1, 6)
    masks = [torch.tensor([[0] * left + [1] * 4 + [0] * (2 - left)]) for left in range(3)]
    inputs = [{"input_ids": ids.roll(left, 1), "attention_mask": mask} for left, mask in enumerate(masks)]
    assert len({sample_keys(ModelInputs(kwargs=given))[0] for given in inputs}) == 3


def test_samples_differ_in_all_that_the_network_is_called_with() -> None:
    x = torch.arange(6.0).view(2, 3)
    calls = [
        ModelInputs((x,)),
        ModelInputs((x.double(),)),
        ModelInputs((x[:, None],)),
        ModelInputs((x, True)),
        ModelInputs(kwargs={"x": x}),
        ModelInputs((x,), {"mask": x > 2}),
    ]
    keys = [key for inputs in calls for key in sample_keys(inputs)]
    assert len(set(keys)) == len(keys)
    assert sample_keys(ModelInputs((x.flip(0),))) == sample_keys(calls[0])[::-1]
