"""Surgery: a removal equals a hook that silences the unit, and reports removed and new parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.engine import UNGATED, UNLIKE, batch_of, build, output_of, plan_of
from cases.models.cached import handing_on
from cases.sampling import one_in
from torch import nn

from prunerecover.apply import apply_plan
from prunerecover.families.describe import describe
from prunerecover.families.layout import Branch
from prunerecover.model.copies import meta_copy, share_copy
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Merge, Remove, Replace
from prunerecover.surgery.apply_edits import apply_edits


@pytest.mark.parametrize("name", one_in(2, UNLIKE))
def test_removed_block_equals_identity(name: str) -> None:
    pruned, oracle = build(name), build(name)
    layout = describe(pruned)
    get_module(oracle, layout.blocks[1].path).register_forward_hook(handing_on, with_kwargs=True)
    apply_plan(pruned, plan_of(name, pruned, remove={"block": 1}, ignore=[f"{layout.container}.[023]"], replace="zero"))
    assert len(describe(pruned).blocks) == 3
    assert torch.equal(output_of(pruned, batch_of(name)), output_of(oracle, batch_of(name)))


@pytest.mark.parametrize("name", UNGATED)
def test_identity_activation_equals_identity_module(name: str) -> None:
    pruned, oracle = build(name), build(name)
    forward = describe(pruned).blocks[0].feed_forward
    assert forward is not None
    get_module(oracle, forward.activation).register_forward_hook(lambda _, args, __: args[0])
    apply_edits(pruned, [Replace(unit=forward.activation, kind="activation", leaves="identity")])
    assert torch.equal(output_of(pruned, batch_of(name)), output_of(oracle, batch_of(name)))


def last_linear(model: nn.Module, branch: Branch) -> str:
    """Return the path of a branch's last module with a matrix."""
    after = [path for path in branch.then if any(p.ndim > 1 for p in get_module(model, path).parameters())]
    return after[-1] if after else branch.path


@pytest.mark.parametrize("leaves", ["identity", "affine", "constant"])
@pytest.mark.parametrize("kind", ["attention", "mlp"])
@pytest.mark.parametrize("name", UNLIKE)
def test_replaced_branch_equals_a_hook_that_computes_the_replacement(name: str, kind: str, leaves: str) -> None:
    pruned, oracle = build(name), build(name)
    branch = getattr(describe(pruned).blocks[1], kind)
    weight, bias = torch.randn(32, 32) / 8, torch.randn(32)
    values = {"identity": {}, "affine": {"e0.weight": weight, "e0.bias": bias}, "constant": {"e0.bias": bias}}[leaves]
    apply_edits(pruned, [Replace(unit=branch.path, kind=kind, leaves=leaves, tensors=tuple(values))], values)
    inputs = []
    get_module(oracle, branch.path).register_forward_pre_hook(
        lambda _, args, kwargs: inputs.append(args[0] if args else next(iter(kwargs.values()))), with_kwargs=True
    )

    def stand_in(_: nn.Module, __: Any, output: Any) -> Any:
        shape = (output[0] if isinstance(output, tuple) else output).shape
        new = {"identity": inputs[-1], "affine": inputs[-1] @ weight.T + bias, "constant": bias.expand(shape)}[leaves]
        return (new, *output[1:]) if isinstance(output, tuple) else new

    silenced, apart = (last_linear(oracle, branch), 1e-5) if leaves == "identity" else (branch.last, 1e-4)
    get_module(oracle, silenced).register_forward_hook(stand_in)
    assert torch.allclose(output_of(pruned, batch_of(name)), output_of(oracle, batch_of(name)), atol=apart)


def test_applied_tells_which_parameters_came_and_went() -> None:
    model = build("timm")
    before = dict(model.named_parameters())
    edits = [
        Replace(unit="blocks.1.mlp.act", kind="activation", leaves="slope_bias"),
        Remove(unit="blocks.2.attn", kind="attention"),
    ]
    applied = apply_edits(model, edits)
    assert set(applied.added) == {"blocks.1.mlp.act.slope", "blocks.1.mlp.act.bias"}
    assert all(new is model.get_parameter(n) for n, (new, _) in applied.added.items())
    assert all(like is before["blocks.1.mlp.fc1.bias"] for _, like in applied.added.values())
    gone = {n for n in before if n.startswith(("blocks.2.attn.", "blocks.2.norm1."))}
    assert applied.removed.keys() == gone
    assert all(applied.removed[n] is before[n] for n in gone)


def test_new_parameters_follow_back_through_several_edits_and_keep_what_is_frozen() -> None:
    model = build("timm")
    before = dict(model.named_parameters())
    model.blocks[1].mlp.requires_grad_(False)
    applied = apply_edits(
        model,
        [
            Replace(unit="blocks.1.mlp.act", kind="activation", leaves="affine"),
            Merge(into="blocks.1.mlp.fc1", from_=("blocks.1.mlp.fc1",), norm="blocks.1.norm2"),
        ],
    )
    new, like = applied.added["blocks.1.mlp.fc1.weight"]
    assert like is before["blocks.1.mlp.fc1.weight"]
    assert not new.requires_grad


def test_copies_leave_hooks_and_compiled_calls_behind() -> None:
    model = build("timm")
    model.register_forward_hook(lambda *_: None)
    model.compile()
    for copied in (meta_copy(model), share_copy(model)):
        assert not copied._forward_hooks
        assert copied._compiled_call_impl is None
    assert share_copy(model).head.weight is model.head.weight
    assert model._compiled_call_impl is not None
