"""Encoder-decoders: blocks leave the lists of both sides, and the config says how many are left on each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases.depth.two_stacks import TWO_STACKS, batch_of, generated, output, two_stacks
from cases.models.cached import handing_on

from prunerecover import Plan, apply_plan, load_pruned, plan_depth, save_pruned
from prunerecover.families.describe import describe_blocks, describe_stacks
from prunerecover.plan.edits import Bypass, Config, Remove
from prunerecover.surgery.apply_edits import apply_edits, undo
from prunerecover.surgery.merging import removals_of
from prunerecover.surgery.provenance import plan_for

SECOND = ["*encoder.*.[02]", "*decoder.*.[02]"]  # what stays, that the second block of each side goes


def planned(name: str, ignore: list[str], **remove: int) -> Plan:
    how: dict[str, Any] = {"importance": "magnitude", "ignore": ignore}  # the quickest search
    return plan_depth(two_stacks(name), remove=remove, batches=[batch_of(name)], **how)


# T5's own blocks hand several tensors on, and are no units.
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "whisper")) for n in TWO_STACKS if n != "t5"]
)
def test_blocks_of_both_sides_leave_a_standard_model(name: str, tmp_path: Path) -> None:
    model, oracle = two_stacks(name), two_stacks(name)
    dense, before = output(model, name), model.config.to_dict()
    plan = planned(name, SECOND, block=2)
    assert [type(edit) for edit in plan.edits] == [Remove, Remove, Config]
    for gone in plan.removed["block"]:
        oracle.get_submodule(gone).register_forward_hook(handing_on, with_kwargs=True)
    applied = apply_plan(model, plan)
    assert [getattr(model.config, entry) for entry in TWO_STACKS[name][1]] == [2, 2]
    torch.testing.assert_close(output(model, name), output(oracle, name), atol=1e-5, rtol=0)
    folder = save_pruned(model, plan, tmp_path / "pruned")
    for again in (load_pruned(folder), type(model).from_pretrained(folder).eval()):
        assert torch.equal(output(again, name), output(model, name))
        assert torch.equal(generated(again, name), generated(model, name))
    torch.testing.assert_close(generated(model, name), generated(model, name, use_cache=False), atol=1e-4, rtol=1e-4)
    undo(model, applied.journal)
    assert torch.equal(output(model, name), dense)
    assert model.config.to_dict() == before


@pytest.mark.slow
def test_first_units_say_the_depths_that_they_leave() -> None:
    plan = planned("whisper", SECOND, block=2)
    for count in (1, 2):
        model = two_stacks("whisper")
        apply_plan(model, plan.first(count))
        left = [len(stack.blocks) for stack in describe_stacks(model)]
        assert left == [model.config.encoder_layers, model.config.decoder_layers]
        assert sum(left) == 6 - count


@pytest.mark.slow
def test_cached_generation_without_an_attention_of_the_decoder() -> None:
    """The attentions behind it move up to the first slots of the cache, as in decoders alone."""
    model = two_stacks("bart")
    others = ["*encoder.*", "*layers.[12].*", "*encoder_attn*"]
    apply_plan(model, planned("bart", others, attention=1))
    assert [layer.self_attn.layer_idx for layer in model.model.decoder.layers[1:]] == [0, 1]
    torch.testing.assert_close(
        generated(model, "bart"), generated(model, "bart", use_cache=False), atol=1e-4, rtol=1e-4
    )


@pytest.mark.slow
def test_encoder_stays_deep_where_the_cache_is_counted_by_it() -> None:
    """Transformers gives T5 as many slots as its encoder has layers: with fewer, cached generation would fail."""
    plan = planned("umt5", ["encoder.block.[02]", "decoder.*"], block=1)
    assert [type(edit) for edit in plan.edits] == [Bypass]


def test_config_of_each_part_of_t5_says_its_own_depth() -> None:
    model = two_stacks("t5")
    apply_edits(model, removals_of(model, ["encoder.block.2"]))
    apply_edits(model, removals_of(model, ["decoder.block.2", "decoder.block.1"]))
    assert (model.config.num_layers, model.config.num_decoder_layers) == (2, 1)
    assert (model.encoder.config.num_layers, model.decoder.config.num_layers) == (2, 1)


def test_convolutions_are_no_blocks_though_as_many() -> None:
    model = two_stacks("speech_to_text", encoder=2)
    assert len(model.model.encoder.conv.conv_layers) == 2
    assert [stack.container for stack in describe_stacks(model)] == ["model.encoder.layers", "model.decoder.layers"]


def test_what_does_not_fit_two_lists_is_refused() -> None:
    model = two_stacks("whisper", decoder=2)
    with pytest.raises(ValueError, match=r"one list of blocks, but Whisper\w+ has 2 \(model.encoder.layers, model.dec"):
        describe_blocks(model)
    with pytest.raises(ValueError, match="at least one block to stay, but all 2 are to be removed"):
        removals_of(model, ["model.encoder.layers.0", "model.decoder.layers.0", "model.decoder.layers.1"])
    edits = removals_of(model, ["model.decoder.layers.0"])
    plan = plan_for(model, edits, method="by hand")
    with pytest.raises(ValueError, match="this model has 3 and 3 blocks. Make a plan for it with plan_depth"):
        apply_plan(two_stacks("whisper"), plan)
    with pytest.raises(ValueError, match="but it sets decoder_layers=1 where 2 blocks are left"):
        apply_plan(model, plan.model_copy(update={"edits": tuple(reversed(edits))}))
    with pytest.raises(ValueError, match="removes 'model.decoder.layers.0', the last block of 'model.decoder.layers'"):
        apply_edits(model, [edits[0], edits[0]])
    assert len(model.model.decoder.layers) == model.config.decoder_layers == 2
