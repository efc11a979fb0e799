"""The small parts under the engine: batches, budgets, units, paths, hashes, divergences, token weights, stand-ins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.engine import FAMILIES, batch_of, build, output_of, unchanged
from cases.models.tiny import tiny_timm
from torch import Tensor, nn

from prunerecover.calibration.divergence import output_divergence
from prunerecover.calibration.token_weights import token_weights
from prunerecover.depth.units import find_units
from prunerecover.families.describe import describe
from prunerecover.importance.parameters import unit_parameters
from prunerecover.model import batches as b
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.evaluation import evaluating
from prunerecover.model.hashing import tensors_hash, weights_hash
from prunerecover.model.paths import get_module, parent_path, set_module, unwrap
from prunerecover.model.replacements import Affine, Constant, Nothing, PassThrough, Replacement, SlopeBias
from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Replace
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.merging import merge

# --- batches ---


def test_batches_of_every_form_reach_the_model_alike() -> None:
    x, y = torch.randn(4, 3), torch.zeros(4)
    net = nn.Linear(3, 2)
    forms: list[Any] = [
        x,
        (x, y),
        [x, y],
        {"input": x},
        b.ModelInputs((x,)),
        ({"input": x}, y),
        (b.ModelInputs((x,)), y),
    ]
    assert all(torch.equal(b.call(net, b.as_inputs(form)), net(x)) for form in forms)
    assert all(b.as_inputs(form).n_samples == 4 for form in forms)


@pytest.mark.parametrize("bad", ["text", 3, None, (), ("a", "b")])
def test_other_forms_are_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match="Expected each batch to be a tensor, a tuple"):
        b.as_inputs(bad)


def test_batch_without_tensors_has_no_size() -> None:
    with pytest.raises(TypeError, match="at least one tensor of one or more dimensions"):
        _ = b.ModelInputs((3,)).n_samples


def test_selecting_samples_leaves_unbatched_tensors_alone() -> None:
    inputs = b.ModelInputs((torch.arange(6).view(3, 2),), {"scale": torch.tensor(2.0), "table": torch.zeros(5), "n": 1})
    chosen = inputs.select(torch.tensor([2, 0]))
    assert chosen.args[0].tolist() == [[4, 5], [0, 1]]
    assert chosen.kwargs["table"].shape == (5,)
    assert chosen.kwargs["n"] == 1


def test_lists_of_images_are_batched_along_the_list() -> None:
    images, targets = [torch.randn(3, 8, 8), torch.randn(3, 6, 8)], [{"boxes": torch.zeros(i, 4)} for i in (2, 5)]
    forms: list[Any] = [(images, targets), (images,), (tuple(images), tuple(targets)), [images]]
    assert all(b.as_inputs(form).args[0][1] is images[1] for form in forms)
    assert all(b.as_inputs(form).n_samples == 2 for form in forms)
    assert b.as_inputs((targets,)).n_samples == 2
    inputs = b.ModelInputs((images, targets), {"scale": torch.ones(3, 1)})
    assert inputs.n_samples == 2
    assert b.ModelInputs(([torch.randn(4, 3, 8, 8), torch.randn(4, 3, 4, 4)],)).n_samples == 4, "maps of two scales"
    second = inputs.select(torch.tensor([1]))
    assert second.args[0][0] is images[1]
    assert second.args[1] == [targets[1]]
    assert second.kwargs["scale"].shape == (3, 1)


def test_logits_are_found_in_outputs_of_every_form() -> None:
    logits, other = torch.randn(2, 3), torch.zeros(2, dtype=torch.long)
    for output in (logits, {"logits": logits}, {"last_hidden_state": logits}, (other, logits), {"x": logits}):
        assert b.logits_of(output) is logits
    assert torch.equal(b.predictions_of((logits, 3 * logits)), 2 * logits)
    with pytest.raises(TypeError, match="output to hold a floating-point tensor, but got tuple"):
        b.logits_of((other,))


def test_padding_is_cut_from_logits() -> None:
    output = torch.randn(2, 3, 5)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    padded = b.ModelInputs(kwargs={"input_ids": torch.zeros(2, 3), "attention_mask": mask})
    assert torch.equal(b.without_padding(output, padded), output[mask.bool()])
    assert b.without_padding(output, b.ModelInputs((output,))) is output
    assert b.without_padding(output[:, 0], padded).shape == (2, 5)


# --- budget ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of remove, ratio, macs, params, latency, but got none"),
        ({"macs": 0.1, "params": 0.1}, r"but got \['macs', 'params'\]"),
        ({"remove": {"attn": 1}}, "Expected kinds among .*, but got 'attn'"),
        ({"remove": {"attention": 1.5}}, "a whole number of units >= 0 for 'attention', but got 1.5"),
        ({"remove": {"attention": True}}, "but got True"),
        ({"ratio": {"attention": 1.0}}, r"a removed share between 0 and 1 \(exclusive\), but got 1.0"),
        ({"macs": -0.1}, "but got -0.1"),
    ],
)
def test_bad_budget_is_explained(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Budget(**arguments)


def test_share_of_cost_has_no_count() -> None:
    with pytest.raises(TypeError, match="a budget in units, but got one in a share of cost"):
        Budget(latency=0.2).counts({})


def test_budget_tells_kinds_and_share() -> None:
    assert Budget(remove={"mlp": 1}).kinds(("block", "mlp")) == ("mlp",)
    assert Budget(ratio={"block": 0.5}).counts({"block": 5}) == {"block": 2}
    assert Budget(macs=0.2).kinds(("block", "mlp")) == ("block", "mlp")
    assert Budget(params=0.2).share == ("params", 0.2)
    assert Budget(remove={"mlp": 1}).share is None
    assert Budget(remove={"mlp": 1}).to_dict() == {"remove": {"mlp": 1}}


# --- units ---


@pytest.mark.parametrize("name", FAMILIES)
def test_units_tell_what_removal_and_merging_save(name: str) -> None:
    for unit in find_units(build(name)):
        model = build(name)
        before = sum(p.numel() for p in model.parameters())
        if unit.kind == "block":
            continue
        leaves = "identity" if unit.kind == "activation" else "constant"
        values = {} if leaves == "identity" else {"e0.bias": torch.zeros(32)}
        apply_edits(model, [Replace(unit=unit.name, kind=unit.kind, leaves=leaves, tensors=tuple(values))], values)
        merge(model)
        saved = before - sum(p.numel() for p in model.parameters())
        left = 32 if values else 0
        norm = 2 * 32 if unit.kind == "activation" and describe(model).blocks[0].mlp.norm else 0
        scale = 32 if unit.kind == "activation" and name == "timm_all" else 0
        assert saved + left - norm - scale == unit.params, unit


def test_unknown_kind_is_explained() -> None:
    with pytest.raises(ValueError, match="Expected kinds among block, attention, mlp, activation, but got 'head'"):
        find_units(build("timm"), ("head",))


def test_unit_knows_its_block() -> None:
    assert {u.block for u in find_units(build("opt"))} == {f"model.decoder.layers.{i}" for i in range(4)}


def test_activation_stands_for_its_linears() -> None:
    model = build("opt")
    (unit,) = (u for u in find_units(model, ("activation",)) if ".2." in u.name)
    layer = model.model.decoder.layers[2]
    assert unit_parameters(model, [unit])[unit.name] == [*layer.fc1.parameters(), *layer.fc2.parameters()]


# --- paths ---


def test_wrappers_are_seen_through() -> None:
    net = nn.Linear(2, 2)
    assert unwrap(nn.DataParallel(torch.compile(net))) is net
    assert unwrap(net) is net


def test_peft_wrapper_is_seen_through() -> None:
    from peft import LoraConfig, get_peft_model

    model = build("llama")
    assert unwrap(get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))) is model


def test_missing_path_names_the_deepest_part_that_exists() -> None:
    net = nn.Sequential(nn.Sequential(nn.ReLU()))
    with pytest.raises(ValueError, match=r"a module at '0\.3\.x', but 0 \(Sequential\) has no '3'"):
        get_module(net, "0.3.x")
    with pytest.raises(ValueError, match="but the model .* has no 'blocks'"):
        get_module(net, "blocks.1")
    assert get_module(net, "") is net
    assert parent_path("a.b.c") == "a.b"


def test_set_module_keeps_modes_of_submodules() -> None:
    net = nn.Sequential(nn.Sequential(nn.Dropout(), nn.ReLU()))
    new = nn.Sequential(nn.Dropout().eval(), nn.ReLU())
    set_module(net, "0", new)
    assert [m.training for m in new] == [False, True]
    net.eval()
    other = nn.ReLU()
    set_module(net, "0", other)
    assert not other.training


# --- hashes ---


def test_hashes_see_names_shapes_and_values() -> None:
    model = build("timm")
    assert tensors_hash(model) == tensors_hash(build("timm").half())
    assert tensors_hash(model) != tensors_hash(tiny_timm(depth=3))
    assert weights_hash(model) == weights_hash(build("timm").bfloat16())
    other = build("timm")
    with torch.no_grad():
        other.blocks[2].attn.qkv.weight[0, 0] += 1
    assert weights_hash(model) != weights_hash(other)
    assert weights_hash(nn.Linear(2, 2, device="meta")) is None


# --- divergence and token weights ---


def test_divergence_equals_torch_kl() -> None:
    dense, pruned = torch.randn(6, 5), torch.randn(6, 5)
    oracle = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=dense), torch.distributions.Categorical(logits=pruned)
    )
    assert output_divergence(dense, pruned).item() == pytest.approx(oracle.mean().item(), rel=1e-5)
    folded = output_divergence(dense.view(2, 3, 5), pruned.view(2, 3, 5)).item()
    assert folded == pytest.approx(oracle.mean().item(), rel=1e-5)


def test_divergence_of_maps_and_single_values_is_relative() -> None:
    for shape in ((2, 3, 4, 4), (5, 1), (5,)):
        dense, pruned = torch.randn(shape), torch.randn(shape)
        expected = ((dense - pruned).square().sum() / dense.square().sum()).item()
        assert output_divergence(dense, pruned).item() == pytest.approx(expected, rel=1e-5)
    assert output_divergence(torch.zeros(3), torch.zeros(3)).item() == 0


@pytest.mark.parametrize("name", ["timm", "llama", "bert"])
def test_token_weights_equal_squared_gradients_of_each_block(name: str) -> None:
    """The weight of a token before normalisation, by autograd with respect to a perturbation of one block's output."""
    model = build(name)
    inputs = b.as_inputs(batch_of(name))
    runner = BlockRunner(model, describe(model).container)
    with evaluating(model):
        weights = token_weights(runner, [inputs], seed=3)
    logits = output_of(model, batch_of(name))
    drawn = torch.multinomial(logits.flatten(0, -2).softmax(-1), 1, generator=torch.Generator().manual_seed(3))
    nudge: list[Tensor] = []

    def add(_: nn.Module, __: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        nudge.append(torch.zeros_like(hidden, requires_grad=True))
        return (hidden + nudge[0], *output[1:]) if isinstance(output, tuple) else hidden + nudge[0]

    handle = runner.blocks[2].register_forward_hook(add)
    output = b.predictions_of(b.call(model, inputs)).flatten(0, -2)
    handle.remove()
    output.log_softmax(-1).gather(-1, drawn).sum().backward()
    raw = nudge[0].grad.square().sum(-1).mean(0, keepdim=True).expand(4, -1)
    assert torch.allclose(weights[2][0], (raw / raw.mean() + 1) / 2, rtol=1e-3, atol=1e-5)


def test_token_weights_average_one_and_have_a_floor() -> None:
    model = build("timm")
    runner = BlockRunner(model, "blocks")
    with evaluating(model), unchanged(model):
        weights = token_weights(runner, [b.as_inputs(batch_of("timm")), b.as_inputs(batch_of("timm", 2, seed=5))])
    assert len(weights) == 4
    for block in weights:
        assert [w.shape for w in block] == [(4, 17), (2, 17)]
        assert torch.cat(block).mean().item() == pytest.approx(1, rel=1e-4)
        assert torch.cat(block).min() >= 0.5
    # Only the class token is read after the last block.
    assert weights[3][0][0].argmax() == 0
    assert torch.allclose(weights[3][0][0][1:], torch.tensor(0.5))


def test_regression_outputs_have_token_weights_too() -> None:
    model = tiny_timm(num_classes=1)
    with evaluating(model):
        weights = token_weights(BlockRunner(model, "blocks"), [b.as_inputs(batch_of("timm"))])
    assert all(torch.isfinite(w).all() for block in weights for w in block)


def test_batches_of_several_lengths_are_weighted_by_content() -> None:
    model = build("llama")
    inputs = [b.as_inputs(batch_of("llama")), b.as_inputs({"input_ids": batch_of("llama")["input_ids"][:, :5]})]
    with evaluating(model):
        weights = token_weights(BlockRunner(model, describe(model).container), inputs)
    assert [w.shape for w in weights[1]] == [(4, 9), (4, 5)]
    assert not torch.equal(weights[1][0][0], weights[1][0][1])


# --- replacements ---


@pytest.mark.parametrize("returns", [1, 2, 3])
@pytest.mark.parametrize("make", [Nothing, PassThrough, lambda r: Affine(4, r), lambda r: Constant(4, r)])
def test_replacement_answers_in_the_form_of_what_it_replaces(make: Any, returns: int) -> None:
    module = make(returns)
    x = torch.randn(2, 3, 4)
    for out in (module(x, mask=None), module(hidden_states=x, mask=None)):
        parts = out if returns > 1 else (out,)
        assert len(parts) == returns
        assert (x + parts[0]).shape == x.shape
        assert all(p is None for p in parts[1:])
    assert (f"returns={returns}" in repr(module)) == (returns > 1)


def test_initial_maps_are_neutral() -> None:
    x = torch.randn(2, 4)
    assert torch.equal(Affine(4)(x), x)
    assert torch.equal(SlopeBias(4)(x), x)
    assert not Constant(4)(x).any()
    with pytest.raises(NotImplementedError):
        Replacement()(x)
