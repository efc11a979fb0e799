"""Layouts of models of timm and transformers: a removed unit equals a dense model with the unit zeroed."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from cases.models.decoders import DECODERS
from cases.models.tiny import (
    BUILD,
    GATED,
    SPECIAL,
    TEXT,
    TRANSFORMERS,
    VARIANTS,
    stir,
    tiny_bert,
    tiny_images,
    tiny_inputs,
    tiny_llama,
    tiny_timm,
)
from cases.sampling import one_in
from timm.layers import SwiGLU
from timm.models.vision_transformer import ResPostBlock
from torch import Tensor, nn
from transformers import BertConfig, BertLMHeadModel, DistilBertConfig, DistilBertModel, EncoderDecoderModel

from prunerecover.families.describe import describe, is_supported, supported_families
from prunerecover.families.layout import Branch
from prunerecover.model.hooks import recording
from prunerecover.model.paths import get_module, set_module
from prunerecover.model.replacements import Affine, Nothing, SlopeBias
from prunerecover.plan.edits import Remove
from prunerecover.surgery.apply_edits import apply_edits, undo

# From the models' code, not from the descriptions: the modules in a block, of attention and MLP, whose outputs join the
# stream unchanged (up to dropout and factors). The MLP of ViT has another name in transformers 5.0.
JUNCTIONS = {
    **dict.fromkeys(VARIANTS, ("attn", "mlp")),
    **dict.fromkeys(GATED, ("self_attn", "mlp")),
    **{"gpt2": ("attn", "mlp"), "opt": ("self_attn", "fc2"), "opt_post_norm": ("self_attn", "fc2")},
    **{"bert": ("attention.output.dense", "output.dense"), "hf_vit": ("attention", "mlp|output.dense")},
    **{name: (decoder.attention, decoder.mlp) for name, decoder in DECODERS.items()},
}
KINDS = ("attention", "mlp")
SMALL = (*TRANSFORMERS, *VARIANTS)
UNGATED = tuple(name for name in TRANSFORMERS if name not in GATED)
UNGATED += ("gpt_neox", "gpt_neox_in_turn", "phi", "starcoder2", "vit", "all")


def built(name: str) -> nn.Module:
    if name in DECODERS:
        return DECODERS[name].build()
    return tiny_timm(**VARIANTS[name]) if name in VARIANTS else BUILD[name]()


def answers(model: nn.Module, name: str) -> Tensor:
    """Return the logits, in training mode of both heads of a distilled model."""
    torch.manual_seed(7)
    found = model(tiny_images()) if name in VARIANTS else model(**tiny_inputs(name)).logits
    return torch.stack(found) if isinstance(found, tuple) else found


def without(dense: nn.Module, name: str, path: str, kind: str) -> nn.Module:
    """Oracle: a copy with a zero in place of a branch's output, without DropPath and its random numbers."""

    def zeroed(_: nn.Module, __: Any, output: Any) -> Any:
        return (output[0] * 0, *output[1:]) if isinstance(output, tuple) else output * 0

    oracle = copy.deepcopy(dense)
    block, number = get_module(oracle, path), KINDS.index(kind)
    junction = next(each for each in JUNCTIONS[name][number].split("|") if hasattr(block, each.split(".")[0]))
    get_module(block, junction).register_forward_hook(zeroed)
    if name in VARIANTS:
        setattr(block, f"drop_path{number + 1}", nn.Identity())
    return oracle


def remove(model: nn.Module, branch: Branch | None) -> None:
    assert branch is not None
    set_module(model, branch.path, Nothing(branch.returns))
    for path in branch.followers:
        set_module(model, path, nn.Identity())


@pytest.mark.parametrize(
    ("name", "training"),
    [*one_in(4, ((name, False) for name in JUNCTIONS if name != "all")), ("all", False), ("all", True)],
)
@torch.no_grad()
def test_removed_branch_equals_zeroed_branch(name: str, training: bool) -> None:
    model = built(name).train(training)
    if training:
        model.set_distilled_training(True)
    dense = answers(model, name)
    for index, kind in itertools.product((0, 2, 3), KINDS):
        block = describe(model).blocks[index]
        expected = answers(without(model, name, block.path, kind), name)
        applied = apply_edits(model, [Remove(unit=getattr(block, kind).path, kind=kind)])
        found = answers(model, name)
        torch.testing.assert_close(found, expected)
        assert (found - dense).abs().max() > 0.01
        undo(model, applied.journal)
    assert torch.equal(answers(model, name), dense)


@pytest.mark.parametrize("name", one_in(5, DECODERS))
def test_branches_add_up_to_the_block(name: str) -> None:
    """Fits rely on the residual stream before and after each branch, through norms, factors and parallel branches."""
    model = built(name)
    for block in describe(model).blocks:
        attention, mlp = block.attention, block.mlp
        assert attention is not None
        assert mlp is not None
        paths = {block.path, *(path for own in (attention, mlp) for path in (own.stream, own.beside, own.last) if path)}
        with recording({path: get_module(model, path) for path in paths}) as seen, torch.no_grad():
            answers(model, name)
        first, second = (seen[f"{own.stream}.in"] for own in (attention, mlp))
        between = first + attention.scale * seen[f"{attention.last}.out"]
        torch.testing.assert_close(first, seen[f"{block.path}.in"])
        torch.testing.assert_close(second, first if mlp.beside else between)
        torch.testing.assert_close(between + mlp.scale * seen[f"{mlp.last}.out"], seen[f"{block.path}.out"])


def test_families_are_named() -> None:
    named = {describe(decoder.build()).family for decoder in DECODERS.values()}
    assert named == {f"transformers {decoder.family}" for decoder in DECODERS.values()}
    assert named <= {*supported_families()}


@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_left_has_a_gradient(name: str) -> None:
    model = built(name).train()
    blocks = describe(model).blocks
    for branch in (blocks[0].attention, blocks[1].mlp, blocks[2].attention, blocks[2].mlp):
        remove(model, branch)
    answers(model, name).square().mean().backward()
    assert [path for path, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("name", UNGATED)
@torch.no_grad()
def test_activation_replaced_by_identity_equals_hook_that_skips_it(name: str) -> None:
    model, oracle = built(name), built(name)
    dense, forward = answers(model, name), describe(model).blocks[1].feed_forward
    assert forward is not None
    assert forward.state == "nonlinear"
    assert (forward.norm is None) == (name in ("phi", "bert", "opt_post_norm"))  # Phi's attention reads the norm, too
    get_module(oracle, forward.activation).register_forward_hook(lambda _, args, __: args[0])
    set_module(model, forward.activation, nn.Identity())
    found = answers(model, name)
    torch.testing.assert_close(found, answers(oracle, name))
    assert (found - dense).abs().max() > 0.01
    set_module(model, forward.activation, SlopeBias(128 if name in VARIANTS else 48))
    assert describe(model).feed_forward(forward.activation).state == "linear"  # type: ignore[union-attr]
    set_module(model, forward.first, nn.Linear(32, 32))
    set_module(model, forward.activation, nn.Identity())
    set_module(model, forward.second, nn.Identity())
    assert describe(model).feed_forward(forward.activation).state == "merged"  # type: ignore[union-attr]
    assert answers(model, name).isfinite().all()


def with_a_function() -> nn.Module:
    model: Any = tiny_bert()
    for layer in model.bert.encoder.layer:
        del layer.intermediate.intermediate_act_fn
        layer.intermediate.intermediate_act_fn = torch.tanh
    return model


@pytest.mark.parametrize(
    ("make", "why"),
    [
        *((BUILD[name], "gated: the activation multiplies a second linear") for name in GATED),
        *((partial(built, name), "a mixture of experts") for name in ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss")),
        (partial(tiny_timm, mlp_layer=SwiGLU), "gated (SwiGLU)"),
        (partial(tiny_timm, scale_mlp_norm=True), "norm between"),
        (with_a_function, "plain function"),
    ],
)
def test_layouts_say_why_there_is_no_activation(make: Callable[[], nn.Module], why: str) -> None:
    assert all(block.feed_forward is None and why in block.no_activation for block in describe(make()).blocks)


@pytest.mark.parametrize("kind", KINDS)
def test_branches_of_a_gated_mlp_can_go(kind: str) -> None:
    model = tiny_timm(mlp_layer=SwiGLU)
    expected = answers(without(model, "vit", "blocks.1", kind), "vit")
    remove(model, getattr(describe(model).blocks[1], kind))
    torch.testing.assert_close(answers(model, "vit"), expected)


@pytest.mark.parametrize("name", SMALL)
def test_layout_tells_the_present_structure(name: str) -> None:
    model = built(name)
    before = describe(model)
    mlp = before.blocks[3].mlp
    assert mlp is not None
    remove(model, before.blocks[0].attention)
    set_module(model, mlp.path, Affine(mlp.dim, mlp.returns))
    for path in mlp.followers:
        if path != mlp.norm:
            set_module(model, path, nn.Identity())
    after = describe(model)
    assert after.blocks[0].attention is None
    assert after.blocks[0].mlp == before.blocks[0].mlp
    assert after.blocks[1:3] == before.blocks[1:3]
    assert (after.blocks[3].mlp, after.blocks[3].feed_forward, after.blocks[3].no_activation) == (None, None, "")
    assert (after.family, after.container) == (before.family, before.container)
    assert answers(model, name).isfinite().all()


def test_shared_norm_stays_for_the_branch_that_is_left() -> None:
    model: Any = built("phi")
    apply_edits(model, [Remove(unit="model.layers.1.mlp", kind="mlp")])
    block = describe(model).blocks[1]
    assert block.attention is not None
    assert block.attention.followers == ("model.layers.1.input_layernorm",)
    assert not isinstance(model.model.layers[1].input_layernorm, nn.Identity)
    assert isinstance(model.model.layers[1].mlp, Nothing)


def test_lookups_by_path() -> None:
    layout = describe(tiny_timm())
    assert layout.branch("blocks.2.attn") == layout.blocks[2].attention
    assert layout.branch("blocks.2.norm1") is None
    assert layout.feed_forward("blocks.2.mlp.act") == layout.blocks[2].feed_forward
    assert layout.feed_forward("blocks.2.mlp") is None
    assert layout.block_of("blocks.3.mlp.act") == 3
    with pytest.raises(ValueError, match="inside one of 4 blocks, but got 'head'"):
        layout.block_of("head")


@pytest.mark.parametrize(
    ("cls", "container"),
    [
        ("LlamaModel", "layers"),
        ("LlamaForSequenceClassification", "model.layers"),
        ("GPT2Model", "h"),
        ("OPTModel", "decoder.layers"),
        ("BertModel", "encoder.layer"),
        ("ViTModel", "layers"),
    ],
)
def test_head_does_not_matter(cls: str, container: str) -> None:
    made = getattr(transformers, cls)
    settings = {key: value for key, value in TEXT.items() if key not in SPECIAL}
    layout = describe(made(made.config_class(**settings, pad_token_id=0)))
    assert layout.container in (container, f"encoder.{container[:-1]}")  # ViT in transformers 5.0
    assert len(layout.blocks) == 4
    assert layout.family in supported_families()


def derived(model: Any, name: str, *numbers: int) -> nn.Module:
    """Give some layers of a Llama a class of another name, derived from their own."""
    for number in numbers:
        layer = model.model.layers[number]
        layer.__class__ = type(name, (type(layer),), {})
    return model


@pytest.mark.parametrize(
    ("name", "family"), [("Qwen3DecoderLayer", "transformers Qwen3"), ("MyDecoderLayer", "transformers Llama")]
)
def test_own_class_of_a_layer_counts_before_those_it_derives_from(name: str, family: str) -> None:
    assert describe(derived(tiny_llama(), name, 0, 1, 2, 3)).family == family


def two_stacks() -> nn.Module:
    decoder = stir(BertLMHeadModel(BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)))
    return EncoderDecoderModel(encoder=tiny_bert().bert, decoder=decoder)


def unlisted() -> nn.Module:
    return DistilBertModel(DistilBertConfig(dim=8, hidden_dim=8, n_layers=1, n_heads=1, vocab_size=9))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (unlisted, r"supported family \(timm Vis.*Llama.*gpt-oss.*GPT-2.*BERT.*ViT.* but got DistilBertModel"),
        (lambda: derived(tiny_llama(), "Qwen3DecoderLayer", 1), "supported family .* but got LlamaForCausalLM"),
        (partial(tiny_timm, block_fn=ResPostBlock, init_values=None), "supported family .* but got VisionTransformer"),
        (lambda: nn.ModuleDict({"net": tiny_llama()}), "supported family .* but got ModuleDict"),
        (two_stacks, r"one stack of transformer layers, but EncoderDecoderModel has 2 \(encoder"),
    ],
)
def test_other_models_are_not_supported(make: Callable[[], nn.Module], message: str) -> None:
    model = make()
    with pytest.raises(ValueError, match=message):
        describe(model)
    assert not is_supported(model)
    assert make is not two_stacks or is_supported(model.get_submodule("encoder"))
