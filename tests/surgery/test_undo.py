"""Surgery is all or nothing: undo is exact, and a failed edit or plan leaves the model untouched."""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import Any

import pytest
import torch
from cases.engine import UNLIKE, batch_of, build, output_of, plan_of, unchanged
from torch import nn

from prunerecover import Budget, plan_width
from prunerecover.apply import apply_plan
from prunerecover.families.describe import describe
from prunerecover.model.hashing import tensors_hash
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Config, Edit, Merge, Remove, Replace
from prunerecover.surgery.apply_edits import apply_edits, undo


@pytest.mark.parametrize(("name", "training"), zip(UNLIKE, itertools.cycle([False, True])))
def test_undo_is_exact(name: str, training: bool) -> None:
    model = build(name).train(training)
    describe(model)
    get_module(model, describe(model).blocks[3].path).eval()  # a part that the user froze in evaluation mode
    kinds = {"attention": 2, "mlp": 1, "block": 1}
    replace = "calibrated" if name == "timm_all" else "zero"
    plan = plan_of(name, model, remove=kinds, search="one_shot", replace=replace)
    with unchanged(model):
        applied = apply_plan(model, plan)
        assert tensors_hash(model) == plan.result.tensors
        undo(model, applied.journal)


def test_partial_undo_keeps_the_first_changes() -> None:
    model, half = build("timm"), build("timm")
    first = Replace(unit="blocks.0.attn", kind="attention", leaves="identity")
    journal = apply_edits(model, [first]).journal
    kept = len(journal.entries)
    second = apply_edits(model, [Remove(unit="blocks.2", kind="block")]).journal
    journal.entries += second.entries
    journal.undo(model, keep=kept)
    apply_edits(half, [first])
    assert torch.equal(output_of(model, batch_of("timm")), output_of(half, batch_of("timm")))


def test_undo_follows_a_change_of_mode_and_journal_survives_pickling() -> None:
    model = build("timm")
    applied = apply_edits(
        model, [Remove(unit="blocks.1.attn", kind="attention"), Remove(unit="blocks.2", kind="block")]
    )
    applied.journal.to_cpu()
    model.train()
    undo(model, pickle.loads(pickle.dumps(applied.journal)))
    assert all(module.training for module in model.modules())
    assert torch.equal(output_of(model.eval(), batch_of("timm")), output_of(build("timm"), batch_of("timm")))


BAD: dict[str, tuple[Edit, str]] = {
    "no such block": (Remove(unit="blocks.12", kind="block"), r"removes block 'blocks\.12' but the model has 3 blocks"),
    "no such branch": (Remove(unit="blocks.7.attn", kind="attention"), "to be a present attention of this timm"),
    "wrong kind": (Remove(unit="blocks.1.mlp", kind="attention"), "to be a present attention"),
    "no such activation": (
        Replace(unit="blocks.1.mlp.fc1", kind="activation", leaves="identity"),
        "to be the activation of a two-linear MLP",
    ),
    "no such module": (Merge(into="blocks.1.mlp.fc9", from_=()), r"but blocks\.1\.mlp \(Mlp\) has no 'fc9'"),
    "not linear": (
        Merge(into="blocks.1.mlp.fc1", from_=("blocks.1.mlp.fc1", "blocks.1.mlp.act", "blocks.1.mlp.fc2")),
        r"only linear maps to merge, but 'blocks\.1\.mlp\.act' is a GELU",
    ),
    "no config": (Config(set={"num_hidden_layers": 3}), "config"),
}


@pytest.mark.parametrize("case", BAD)
def test_failed_edit_leaves_the_model_untouched(case: str) -> None:
    model = build("timm").train()
    edit, message = BAD[case]
    good: list[Edit] = [
        Remove(unit="blocks.0.attn", kind="attention"),
        Replace(unit="blocks.0.mlp.act", kind="activation", leaves="affine"),
        Remove(unit="blocks.3", kind="block"),
    ]
    with unchanged(model), pytest.raises((ValueError, AttributeError), match=message):
        apply_edits(model, [*good, edit])


def test_last_block_stays() -> None:
    model = build("timm")
    edits = [Remove(unit="blocks.0", kind="block")] * 4
    with unchanged(model), pytest.raises(ValueError, match=r"the last block of '[\w.]+'\. Keep at least one"):
        apply_edits(model, edits)


class Interrupted(RuntimeError):
    """Raised at any point, as by the handler of a signal."""


def interrupt_at(line: int) -> Callable[..., Any]:
    """Return a trace function with an exception at a line of surgery, but not during the undo."""
    left = itertools.count(line, -1)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if "/prunerecover/surgery/" not in file or name in ("undo", "renumber", "apply_and_check"):
            return None
        if event == "line" and next(left) == 0:
            raise Interrupted
        return trace

    return trace


def test_an_interruption_at_any_line_comes_out_as_itself_and_leaves_the_model_untouched() -> None:
    model, pruned = build("timm"), build("timm")
    plan = plan_of("timm", model, remove={"block": 1, "attention": 1}, search="one_shot")
    apply_plan(pruned, plan)
    batches = [(batch_of("timm"), torch.arange(4) % 2)]
    plan = plan + plan_width(pruned, Budget(params=0.1), batches=batches, allocation="uniform", kinds=("neuron",))
    for line in itertools.count(0, 263):
        former = sys.gettrace()
        with unchanged(model):
            sys.settrace(interrupt_at(line))
            try:
                applied = apply_plan(model, plan)
            except Interrupted:
                continue
            finally:
                sys.settrace(former)
            undo(model, applied.journal)
        break
    assert line > 1000


class Sealed(nn.Module):
    """User's module with a refusal of new children on demand."""

    error: Exception | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "fc1" and self.error is not None:
            raise self.error
        super().__setattr__(name, value)


AFFINE = Replace(unit="blocks.1.mlp.act", kind="activation", leaves="affine")


@pytest.mark.parametrize("error", [RuntimeError("a user's"), AttributeError("a user's")])
def test_what_no_plan_explains_comes_out_as_itself(error: Exception) -> None:
    model = build("timm")
    model.blocks[1].mlp.__class__ = type("Mlp", (Sealed, type(model.blocks[1].mlp)), {"error": error})
    with unchanged(model), pytest.raises(type(error), match="a user's"):
        apply_edits(model, [Remove(unit="blocks.0.attn", kind="attention"), AFFINE])


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (RuntimeError("shapes"), ValueError, r"an edit that fits this .* \(RuntimeError: shapes\)\. Was the plan"),
        (torch.OutOfMemoryError("full"), torch.OutOfMemoryError, "full"),
    ],
)
def test_what_torch_raises_is_said_of_the_plan_unless_memory_is_full(
    raised: Exception, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, failed = build("timm"), Future[Any]()
    failed.set_exception(raised)
    monkeypatch.setattr(torch, "eye", failed.result)
    with unchanged(model), pytest.raises(error, match=message):
        apply_edits(model, [AFFINE])
