"""Surgery: what is removed equals what a hook would silence; all or nothing; and it can be taken back."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from cases.engine import FAMILIES, UNGATED, batch_of, batches_of, build, equal, output_of, snapshot, unchanged
from torch import nn

from prunerecover.apply import apply_plan
from prunerecover.depth.plan_depth import plan_depth
from prunerecover.families.describe import describe
from prunerecover.model.copies import meta_copy, share_copy
from prunerecover.model.hashing import tensors_hash
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Config, Edit, Merge, Remove, Replace
from prunerecover.plan.plan import Plan
from prunerecover.surgery.apply_edits import apply_and_check, apply_edits, undo


def plan_of(name: str, model: nn.Module, **arguments: Any) -> Plan:
    return plan_depth(model, batches=batches_of(name), **arguments)


@pytest.mark.parametrize("name", FAMILIES)
def test_removed_block_equals_identity(name: str) -> None:
    pruned, oracle = build(name), build(name)
    layout = describe(pruned)
    block = get_module(oracle, layout.blocks[1].path)

    def hand_on(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    block.register_forward_hook(hand_on, with_kwargs=True)
    apply_plan(pruned, plan_of(name, pruned, remove={"block": 1}, ignore=[f"{layout.container}.[023]"]))
    assert len(describe(pruned).blocks) == 3
    assert torch.equal(output_of(pruned, batch_of(name)), output_of(oracle, batch_of(name)))


@pytest.mark.parametrize("kind", ["attention", "mlp"])
@pytest.mark.parametrize("name", FAMILIES)
def test_identity_branch_equals_a_hook_that_hands_on_its_input(name: str, kind: str) -> None:
    pruned, oracle = build(name), build(name)
    branch = getattr(describe(pruned).blocks[2], kind)
    inputs = []
    get_module(oracle, branch.path).register_forward_pre_hook(
        lambda _, args, kwargs: inputs.append(args[0] if args else next(iter(kwargs.values()))), with_kwargs=True
    )
    linear_after = [p for p in branch.then if list(get_module(oracle, p).parameters())]
    linear_after = [p for p in linear_after if max(q.ndim for q in get_module(oracle, p).parameters()) > 1]
    silenced = linear_after[-1] if linear_after else branch.path

    def hand_on(_: nn.Module, __: Any, output: Any) -> Any:
        return (inputs[-1], *output[1:]) if isinstance(output, tuple) else inputs[-1]

    get_module(oracle, silenced).register_forward_hook(hand_on)
    apply_edits(pruned, [Replace(unit=branch.path, kind=kind, leaves="identity")])
    assert torch.allclose(output_of(pruned, batch_of(name)), output_of(oracle, batch_of(name)), atol=1e-5)


@pytest.mark.parametrize("name", UNGATED)
def test_identity_activation_equals_identity_module(name: str) -> None:
    pruned, oracle = build(name), build(name)
    forward = describe(pruned).blocks[0].feed_forward
    assert forward is not None
    get_module(oracle, forward.activation).register_forward_hook(lambda _, args, __: args[0])
    apply_edits(pruned, [Replace(unit=forward.activation, kind="activation", leaves="identity")])
    assert torch.equal(output_of(pruned, batch_of(name)), output_of(oracle, batch_of(name)))


@pytest.mark.parametrize("leaves", ["affine", "constant"])
@pytest.mark.parametrize("kind", ["attention", "mlp"])
@pytest.mark.parametrize("name", FAMILIES)
def test_fitted_branch_equals_its_map_added_to_the_residual_stream(name: str, kind: str, leaves: str) -> None:
    pruned, oracle = build(name), build(name)
    branch = getattr(describe(pruned).blocks[1], kind)
    weight, bias = torch.randn(32, 32) / 8, torch.randn(32)
    values = {"e0.weight": weight, "e0.bias": bias} if leaves == "affine" else {"e0.bias": bias}
    apply_edits(pruned, [Replace(unit=branch.path, kind=kind, leaves=leaves, tensors=tuple(values))], values)
    inputs = []
    get_module(oracle, branch.path).register_forward_pre_hook(
        lambda _, args, kwargs: inputs.append(args[0] if args else next(iter(kwargs.values()))), with_kwargs=True
    )

    def stand_in(_: nn.Module, __: Any, output: Any) -> Any:
        shape = (output[0] if isinstance(output, tuple) else output).shape
        new = inputs[-1] @ weight.T + bias if leaves == "affine" else bias.expand(shape)
        return (new, *output[1:]) if isinstance(output, tuple) else new

    get_module(oracle, branch.last).register_forward_hook(stand_in)
    assert torch.allclose(output_of(pruned, batch_of(name)), output_of(oracle, batch_of(name)), atol=1e-4)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_undo_is_exact(name: str, training: bool) -> None:
    model = build(name).train(training)
    describe(model)
    get_module(model, describe(model).blocks[3].path).eval()  # a part that the user froze in evaluation mode
    kinds = {"attention": 2, "mlp": 1, "block": 1}
    plan = plan_of(name, model, remove=kinds, search="one_shot")
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
    undo(model, journal, keep=kept)
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
    with unchanged(model), pytest.raises(ValueError, match=r"the last block of the model\. Keep at least one"):
        apply_edits(model, edits)


def test_removing_twice_says_so() -> None:
    model = build("timm")
    plan = plan_of("timm", model, remove={"attention": 1})
    apply_plan(model, plan)
    with unchanged(model), pytest.raises(ValueError, match="It has been pruned with this plan already"):
        apply_plan(model, plan)


def test_plan_for_another_model_changes_nothing() -> None:
    plan = plan_of("timm", build("timm"), remove={"attention": 1})
    for other, message in (
        ("timm_all", "this model has 4 blocks. Make a plan for it"),
        ("llama", "but got LlamaForCausalLM"),
    ):
        model = build(other)
        with unchanged(model), pytest.raises(ValueError, match=message):
            apply_plan(model, plan)
    foreign = nn.Linear(2, 2)
    with unchanged(foreign), pytest.raises(ValueError, match="of a supported family"):
        apply_plan(foreign, plan)


def test_tensors_fitted_to_other_weights_are_refused() -> None:
    model = build("timm")
    plan = plan_of("timm", model, remove={"activation": 1})
    with torch.no_grad():
        model.head.weight.mul_(2)
    with unchanged(model), pytest.raises(ValueError, match=r"but the model has others .*Pass refit=batches"):
        apply_plan(model, plan)


def test_structure_alone_applies_to_other_weights() -> None:
    model = build("timm")
    plan = plan_of("timm", model, remove={"attention": 1}, replace="zero")
    with torch.no_grad():
        model.head.weight.mul_(2)
    assert apply_plan(model, plan).removed


def test_missing_fitted_tensors_are_refused() -> None:
    model = build("timm")
    plan = plan_of("timm", model, remove={"activation": 1}).with_tensors({})
    with unchanged(model), pytest.raises(ValueError, match=r"fitted tensors .* are missing\. Put the \.safetensors"):
        apply_plan(model, plan)


def test_plan_that_leaves_another_model_is_taken_back() -> None:
    model = build("timm")
    plan = plan_of("timm", model, remove={"attention": 1}, replace="zero")
    edited = plan.model_copy(update={"edits": (Remove(unit="blocks.0.mlp", kind="mlp"),)})
    with unchanged(model), pytest.raises(ValueError, match="Was the file edited"):
        apply_plan(model, edited)


def test_empty_plan_is_the_identity() -> None:
    model = build("timm")
    with unchanged(model):
        applied = apply_plan(model, Plan())
    assert not applied.removed
    assert not applied.added
    assert not applied.journal.entries


@pytest.mark.parametrize("name", ["timm_all", "llama", "bert"])
def test_plan_applies_to_a_bfloat16_copy(name: str) -> None:
    model = build(name)
    plan = plan_of(name, model, remove={"attention": 1, "mlp": 1})
    half = copy.deepcopy(model).bfloat16()
    apply_plan(half, plan)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    apply_plan(model, plan)
    expected = model.bfloat16().state_dict()
    assert equal(half.state_dict(), expected)


@pytest.mark.parametrize("name", ["timm_all", "gpt2", "llama"])
def test_plan_applies_on_the_meta_device(name: str) -> None:
    model = build(name)
    bare = meta_copy(model)
    plan = plan_of(name, model, remove={"attention": 1, "mlp": 1, "block": 1})
    apply_plan(bare, plan)
    assert all(p.is_meta for p in bare.parameters())
    assert tensors_hash(bare) == plan.result.tensors
    assert sum(p.numel() for p in bare.parameters()) == plan.result.params


def test_wrapped_model_takes_the_same_plan() -> None:
    model, bare = build("timm"), build("timm")
    wrapped = nn.DataParallel(model)
    plan = plan_depth(wrapped, remove={"attention": 1, "activation": 1}, batches=batches_of("timm"))
    apply_plan(bare, plan)
    apply_plan(wrapped, plan)
    assert torch.equal(output_of(model, batch_of("timm")), output_of(bare, batch_of("timm")))


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


def test_what_was_applied_prints_names_and_no_values() -> None:
    from prunerecover.surgery.apply_edits import Applied

    parameter = torch.nn.Parameter(torch.ones(3))
    assert repr(Applied({"a.weight": parameter})) == "Applied(removed=[a.weight], added=[])"


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


def test_snapshot_sees_a_change() -> None:
    model = build("timm")
    before = snapshot(model)
    with torch.no_grad():
        model.head.bias[0] += 1
    assert not equal(before, snapshot(model))


@pytest.mark.parametrize("where", ["", " in plan.json"])
def test_edits_that_leave_another_model_are_taken_back(where: str) -> None:
    model, edits = build("timm"), [Remove(unit="blocks.1.attn", kind="attention")]
    before = tensors_hash(model)
    match = f"Expected the plan{where} to leave the model it describes, but it left another .* Was the file edited"
    with pytest.raises(ValueError, match=match):
        apply_and_check(model, edits, None, "0" * 64, where)
    assert tensors_hash(model) == before
    apply_and_check(model, edits, None, None)
    assert tensors_hash(model) != before
