"""Descriptions of transformers and timm models: a removed unit equals a dense model with the unit zeroed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
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
from torch import Tensor, nn

from prunerecover.families.describe import describe, is_supported, supported_families
from prunerecover.families.layout import Branch
from prunerecover.model.paths import get_module, set_module
from prunerecover.model.replacements import Affine, Nothing, SlopeBias

# From the models' code, not from the descriptions: the module in a layer whose output is added to the residual stream
# unchanged (up to dropout). ViT's MLP has another name in transformers 5.0.
CONTRIBUTION = {
    "llama": ("self_attn", "mlp"),
    "mistral": ("self_attn", "mlp"),
    "qwen2": ("self_attn", "mlp"),
    "qwen3": ("self_attn", "mlp"),
    "gpt2": ("attn", "mlp"),
    "opt": ("self_attn", "fc2"),
    "opt_post_norm": ("self_attn", "fc2"),
    "bert": ("attention.output.dense", "output.dense"),
    "hf_vit": ("attention", "mlp|output.dense"),
}
UNGATED = tuple(name for name in TRANSFORMERS if name not in GATED)


def built(name: str) -> nn.Module:
    """A model of transformers, or a form of timm's VisionTransformer."""
    return tiny_timm(**VARIANTS[name]) if name in VARIANTS else BUILD[name]()


def answers(model: nn.Module, name: str) -> Tensor:
    return model(tiny_images()) if name in VARIANTS else model(**tiny_inputs(name)).logits


def logits(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model(**inputs).logits


def remove(model: nn.Module, branch: Branch) -> None:
    set_module(model, branch.path, Nothing(branch.returns))
    for path in branch.followers:
        set_module(model, path, nn.Identity())


def zero_contribution(name: str, layer: nn.Module, kind: str) -> None:
    paths = CONTRIBUTION[name][kind == "mlp"].split("|")
    path = next(path for path in paths if hasattr(layer, path.split(".")[0]))

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        return (torch.zeros_like(output[0]), *output[1:]) if isinstance(output, tuple) else torch.zeros_like(output)

    get_module(layer, path).register_forward_hook(hook)


@pytest.mark.parametrize(("name", "kind"), one_in(5, itertools.product(TRANSFORMERS, ["attention", "mlp"])))
def test_removed_branch_equals_zeroed_contribution(name: str, kind: str) -> None:
    dense, pruned, oracle = (BUILD[name]() for _ in range(3))
    inputs = tiny_inputs(name)
    for index in (0, 2):
        block = describe(pruned).blocks[index]
        remove(pruned, getattr(block, kind))
        zero_contribution(name, get_module(oracle, block.path), kind)
    torch.testing.assert_close(logits(pruned, inputs), logits(oracle, inputs))
    assert (logits(pruned, inputs) - logits(dense, inputs)).abs().max() > 0.1


@pytest.mark.parametrize("name", [*TRANSFORMERS, *VARIANTS])
def test_every_parameter_left_has_a_gradient(name: str) -> None:
    model = built(name).train()
    blocks = describe(model).blocks
    for branch in (blocks[0].attention, blocks[1].mlp, blocks[2].attention, blocks[2].mlp):
        assert branch is not None
        remove(model, branch)
    answers(model, name).square().mean().backward()
    assert [path for path, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("name", [*UNGATED, *VARIANTS])
def test_activation_replaced_by_identity_equals_hook_that_skips_it(name: str) -> None:
    pruned, oracle = built(name), built(name)
    forward = describe(pruned).blocks[1].feed_forward
    assert forward is not None
    set_module(pruned, forward.activation, nn.Identity())
    get_module(oracle, forward.activation).register_forward_hook(lambda _, args, __: args[0])
    with torch.no_grad():
        dense, found, expected = (answers(model, name) for model in (built(name), pruned, oracle))
    torch.testing.assert_close(found, expected)
    assert (found - dense).abs().max() > 0.01


@pytest.mark.parametrize("name", [*UNGATED, *VARIANTS])
def test_feed_forward_state_follows_the_model(name: str) -> None:
    model = built(name)
    forward = describe(model).blocks[0].feed_forward
    assert forward is not None
    assert forward.state == "nonlinear"
    set_module(model, forward.activation, SlopeBias(128 if name in VARIANTS else 48))
    assert describe(model).feed_forward(forward.activation).state == "linear"  # type: ignore[union-attr]
    set_module(model, forward.first, nn.Linear(32, 32))
    set_module(model, forward.activation, nn.Identity())
    set_module(model, forward.second, nn.Identity())
    assert describe(model).feed_forward(forward.activation).state == "merged"  # type: ignore[union-attr]
    assert answers(model, name).isfinite().all()


@pytest.mark.parametrize("name", GATED)
def test_gated_families_say_why_there_is_no_activation(name: str) -> None:
    blocks = describe(BUILD[name]()).blocks
    assert all(block.feed_forward is None and "gated" in block.no_activation for block in blocks)


@pytest.mark.parametrize("name", [*TRANSFORMERS, *VARIANTS])
def test_layout_tells_the_present_structure(name: str) -> None:
    model = built(name)
    before = describe(model)
    attention, mlp = before.blocks[0].attention, before.blocks[3].mlp
    assert attention is not None
    assert mlp is not None
    remove(model, attention)
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


HEADS = (
    ("LlamaConfig", "LlamaModel", "layers"),
    ("LlamaConfig", "LlamaForSequenceClassification", "model.layers"),
    ("GPT2Config", "GPT2Model", "h"),
    ("OPTConfig", "OPTModel", "decoder.layers"),
    ("BertConfig", "BertModel", "encoder.layer"),
    ("ViTConfig", "ViTModel", "layers"),
)


@pytest.mark.parametrize(("config", "cls", "container"), HEADS)
def test_head_does_not_matter(config: str, cls: str, container: str) -> None:
    import transformers

    settings = {key: value for key, value in TEXT.items() if key not in SPECIAL}
    layout = describe(getattr(transformers, cls)(getattr(transformers, config)(**settings, pad_token_id=0)))
    assert layout.container in (container, f"encoder.{container[:-1]}")  # ViT in transformers 5.0
    assert len(layout.blocks) == 4
    assert layout.family in supported_families()


def test_supported_families_are_listed_for_an_unsupported_model() -> None:
    from transformers import DistilBertConfig, DistilBertModel

    model = DistilBertModel(DistilBertConfig(dim=8, hidden_dim=8, n_layers=1, n_heads=1, vocab_size=9))
    with pytest.raises(ValueError, match="supported family .*Llama.*GPT-2.*BERT.*ViT.* but got DistilBertModel"):
        describe(model)
    with pytest.raises(ValueError, match=r"supported family \(timm VisionTransformer, .* but got Sequential"):
        describe(nn.Sequential(nn.Linear(2, 2)))


def test_two_stacks_ask_for_one() -> None:
    from transformers import EncoderDecoderModel

    pair = EncoderDecoderModel(encoder=tiny_bert().bert, decoder=_bert_decoder())
    with pytest.raises(ValueError, match=r"one stack of transformer layers, but EncoderDecoderModel has 2 \(encoder"):
        describe(pair)
    assert not is_supported(pair)
    assert is_supported(pair.encoder)


def _bert_decoder() -> nn.Module:
    from transformers import BertConfig, BertLMHeadModel

    return stir(BertLMHeadModel(BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)))


def test_module_around_a_model_is_not_the_model() -> None:
    assert not is_supported(nn.ModuleDict({"net": tiny_llama()}))


def test_activation_that_is_a_function_says_why_it_cannot_go() -> None:
    model = tiny_bert()
    layer = get_module(model, describe(model).blocks[1].path)
    del layer.intermediate.intermediate_act_fn
    layer.intermediate.intermediate_act_fn = torch.tanh
    block = describe(model).blocks[1]
    assert block.feed_forward is None
    assert "plain function" in block.no_activation
