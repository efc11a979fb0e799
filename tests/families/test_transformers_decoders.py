"""Records of decoder families: removing a branch equals a dense model with the branch multiplied by zero."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.models.decoders import DECODERS
from cases.models.tiny import tiny_inputs, tiny_llama
from cases.sampling import one_in
from torch import nn

from prunerecover.families.describe import describe, supported_families
from prunerecover.model.hooks import recording
from prunerecover.model.paths import get_module
from prunerecover.model.replacements import Nothing
from prunerecover.plan.edits import Remove
from prunerecover.surgery.apply_edits import apply_edits, undo

DEPTH = 4
BOTH = ("attention", "mlp")


@torch.no_grad()
def logits(model: nn.Module) -> torch.Tensor:
    return model(**tiny_inputs("text")).logits


def removal(model: nn.Module, index: int, kind: str) -> Remove:
    branch = getattr(describe(model).blocks[index], kind)
    return Remove(unit=branch.path, kind=kind)  # type: ignore[arg-type]


def multiplied_by_zero(name: str, model: nn.Module, index: int, kind: str) -> Any:
    """Hook the module whose output is added to the stream, according to the models' code."""

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        return (output[0] * 0, *output[1:]) if isinstance(output, tuple) else output * 0

    layer = get_module(model, f"{describe(model).container}.{index}")
    return get_module(layer, getattr(DECODERS[name], kind)).register_forward_hook(hook)


@pytest.mark.parametrize("name", one_in(4, DECODERS))
def test_removed_branch_equals_one_multiplied_by_zero(name: str) -> None:
    pruned, oracle = DECODERS[name].build(), DECODERS[name].build()
    dense = logits(pruned)
    for index in range(DEPTH):
        for kind in BOTH:
            applied = apply_edits(pruned, [removal(pruned, index, kind)])
            handle = multiplied_by_zero(name, oracle, index, kind)
            found = logits(pruned)
            torch.testing.assert_close(found, logits(oracle), atol=1e-5, rtol=0)
            assert (found - dense).abs().max() > 0.01
            handle.remove()
            undo(pruned, applied.journal)
    assert torch.equal(logits(pruned), dense)


@pytest.mark.parametrize("name", one_in(5, DECODERS))
def test_branches_add_up_to_the_block(name: str) -> None:
    """Fits rely on the residual stream before and after each branch, through norms, factors and parallel branches."""
    model = DECODERS[name].build()
    for block in describe(model).blocks:
        attention, mlp = block.attention, block.mlp
        assert attention is not None
        assert mlp is not None
        paths = {block.path, *(path for own in (attention, mlp) for path in (own.stream, own.beside, own.last) if path)}
        with recording({path: get_module(model, path) for path in paths}) as seen:
            logits(model)
        first, second = (seen[f"{own.stream}.in"] for own in (attention, mlp))
        between = first + attention.scale * seen[f"{attention.last}.out"]
        torch.testing.assert_close(first, seen[f"{block.path}.in"])
        torch.testing.assert_close(second, first if mlp.beside else between)
        torch.testing.assert_close(between + mlp.scale * seen[f"{mlp.last}.out"], seen[f"{block.path}.out"])


@pytest.mark.parametrize("name", DECODERS)
def test_family_is_named(name: str) -> None:
    family = f"transformers {DECODERS[name].family}"
    assert describe(DECODERS[name].build()).family == family
    assert family in supported_families()


@pytest.mark.parametrize("name", ["gpt_neox", "gpt_neox_in_turn", "phi", "starcoder2"])
def test_ungated_families_have_activations(name: str) -> None:
    pruned, oracle = DECODERS[name].build(), DECODERS[name].build()
    forward = describe(pruned).blocks[1].feed_forward
    assert forward is not None
    assert (forward.norm is None) == (name == "phi")  # the attention reads Phi's norm as well
    get_module(oracle, forward.activation).register_forward_hook(lambda _, args, __: args[0])
    get_module(pruned, forward.activation).forward = lambda x: x  # type: ignore[method-assign]
    torch.testing.assert_close(logits(pruned), logits(oracle))


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"])
def test_mixtures_say_why_there_is_no_activation(name: str) -> None:
    assert {block.no_activation for block in describe(DECODERS[name].build()).blocks} == {
        "its MLP is a mixture of experts, whose linears cannot become one"
    }


def test_shared_norm_stays_for_the_branch_that_is_left() -> None:
    model = DECODERS["phi"].build()
    apply_edits(model, [removal(model, 1, "mlp")])
    block = describe(model).blocks[1]
    assert block.attention is not None
    assert block.attention.followers == ("model.layers.1.input_layernorm",)
    assert not isinstance(model.model.layers[1].input_layernorm, nn.Identity)
    assert isinstance(model.model.layers[1].mlp, Nothing)


def test_own_class_of_a_layer_counts_before_those_it_derives_from() -> None:
    model = tiny_llama()
    layer = type(model.model.layers[0])
    derived = type("Qwen3DecoderLayer", (layer,), {})
    own = type("MyDecoderLayer", (layer,), {})
    for cls, family in ((derived, "transformers Qwen3"), (own, "transformers Llama")):
        for block in model.model.layers:
            block.__class__ = cls
        assert describe(model).family == family


def test_layers_of_two_families_are_none() -> None:
    model = tiny_llama()
    model.model.layers[1].__class__ = type("Qwen3DecoderLayer", (type(model.model.layers[0]),), {})
    with pytest.raises(ValueError, match="supported family .*gpt-oss.* but got LlamaForCausalLM"):
        describe(model)
