"""Models without some whole blocks are standard checkpoints that generate; in encoder-decoders, on both sides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.depth.two_stacks import TWO_STACKS, batch_of, generated, output, two_stacks
from cases.models.cached import cached, handing_on, numbers, uncached
from cases.models.decoders import DECODERS, WINDOWS
from cases.models.tiny import tiny_inputs
from cases.sampling import one_in
from torch import nn

from prunerecover import Plan, apply_plan, load_pruned, plan_depth, save_pruned
from prunerecover.families.constructors import constructor_of
from prunerecover.families.describe import describe_blocks, describe_stacks
from prunerecover.plan.edits import Bypass, Config, Remove
from prunerecover.surgery.apply_edits import apply_edits, undo
from prunerecover.surgery.merging import block_removals, removals_of
from prunerecover.surgery.provenance import plan_for
from prunerecover.surgery.transformers_depth import config_edits

SECOND = ["*encoder.*.[02]", "*decoder.*.[02]"]  # ignored, to remove the second block of each side


def planned(name: str, ignore: list[str], **remove: int) -> Plan:
    how: dict[str, Any] = {"importance": "magnitude", "ignore": ignore}  # the quickest search
    return plan_depth(two_stacks(name), remove=remove, batches=[batch_of(name)], **how)


def assert_generation_is_exact(model: nn.Module, name: str) -> None:
    torch.testing.assert_close(generated(model, name), generated(model, name, use_cache=False), atol=1e-4, rtol=1e-4)


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
    assert_generation_is_exact(model, name)
    undo(model, applied.journal)
    assert torch.equal(output(model, name), dense)
    assert model.config.to_dict() == before


@pytest.mark.slow
def test_cached_generation_without_an_attention_of_the_decoder() -> None:
    """The attentions after it move up to the first slots of the cache, as in plain decoders."""
    model = two_stacks("bart")
    others = ["*encoder.*", "*layers.[12].*", "*encoder_attn*"]
    apply_plan(model, planned("bart", others, attention=1))
    assert [layer.self_attn.layer_idx for layer in model.model.decoder.layers[1:]] == [0, 1]
    assert_generation_is_exact(model, "bart")


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


BATCHES = [tiny_inputs("text", batch=8, seed=seed) for seed in (1, 2)]
IDS = tiny_inputs("text", length=14)["input_ids"]
RELOADED = """
import transformers
model = transformers.AutoModelForCausalLM.from_pretrained({folder!r}).eval()
assert not any(type(module).__module__.startswith("prunerecover") for module in model.modules())
held = torch.load({expected!r})
with torch.no_grad():
    torch.testing.assert_close(model(input_ids=held["ids"]).logits, held["logits"], atol=1e-5, rtol=0)
settings = {{"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}}
for use_cache in (True, False):
    assert torch.equal(model.generate(held["ids"], use_cache=use_cache, **settings), held["tokens"])
"""


# Norms behind branches, parallel branches, a norm behind the sum, experts beside dense layers: the others are slow.
QUICK = ("gemma2", "phi", "olmo2", "qwen2_moe")
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in DECODERS]


def planned_for(model: nn.Module, **remove: int) -> Plan:
    """Return a plan with defaults except for a faster search; of the blocks, the second is removed."""
    ignore = ["*layers.[023]"] if "block" in remove else []
    return plan_depth(model, remove=remove, batches=BATCHES, ignore=ignore, search="one_shot")


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_removed_block_leaves_a_checkpoint_that_transformers_reloads(
    name: str, tmp_path: Path, in_a_new_process: Callable[[str], None]
) -> None:
    model = DECODERS[name].build()
    apply_plan(model, planned_for(model, block=1))
    assert model.config.num_hidden_layers == 3
    folder, expected = tmp_path / "standard", tmp_path / "expected.pt"
    model.save_pretrained(folder)
    settings = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "use_cache": False}
    torch.save({"ids": IDS, "logits": uncached(model, IDS), "tokens": model.generate(IDS, **settings)}, expected)
    in_a_new_process(RELOADED.format(folder=str(folder), expected=str(expected)))


@pytest.mark.parametrize("name", NAMES)
def test_config_builds_what_is_left_whichever_blocks_go(name: str) -> None:
    model = DECODERS[name].build()
    for gone in ((1,), (3,), (0, 2), (1, 2, 3)):
        applied = apply_edits(model, block_removals(model, gone))
        standard = type(model)(type(model.config).from_dict(model.config.to_dict())).eval()
        standard.load_state_dict(model.state_dict())
        assert numbers(standard) == numbers(model)
        torch.testing.assert_close(uncached(standard, IDS), uncached(model, IDS), atol=1e-5, rtol=0)
        assert_steps_are_exact(model)
        undo(model, applied.journal)
    assert constructor_of(model) == constructor_of(DECODERS[name].build())


def assert_steps_are_exact(model: nn.Module) -> None:
    torch.testing.assert_close(cached(model, IDS), uncached(model, IDS), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "name", one_in(3, ["olmo2", "gemma2", "stablelm_parallel", "gpt_oss", "gpt_neox", "qwen2_moe"])
)
def test_saved_plan_of_all_kinds_replays_and_is_undone(name: str, tmp_path: Path) -> None:
    model, other = DECODERS[name].build(), DECODERS[name].build()
    dense, before = uncached(model, IDS), model.config.to_dict()
    plan = planned_for(model, block=1, attention=1, mlp=1)
    plan.save(tmp_path / "plan.json")
    applied = apply_plan(model, plan)
    apply_plan(other, Plan.load(tmp_path / "plan.json"))
    assert torch.equal(uncached(other, IDS), uncached(model, IDS))
    assert_steps_are_exact(model)
    undo(model, applied.journal)
    assert torch.equal(uncached(model, IDS), dense)
    assert_steps_are_exact(model)
    assert model.config.to_dict() == before


@pytest.mark.parametrize(
    ("name", "changes", "kept", "entries"),
    [
        ("qwen3_moe", {"mlp_only_layers": [0, 1, 2, 3]}, (1, 2), {"num_hidden_layers": 2, "mlp_only_layers": [0, 1]}),
        ("qwen3_moe", {"mlp_only_layers": [1]}, (0, 2, 3), {"num_hidden_layers": 3, "mlp_only_layers": []}),
        (  # a step between mixtures becomes indices
            "qwen2_moe",
            {"mlp_only_layers": [3], "decoder_sparse_step": 2},
            (1, 2, 3),
            {"num_hidden_layers": 3, "layer_types": WINDOWS[1:], "mlp_only_layers": [1, 2], "decoder_sparse_step": 1},
        ),
        (  # entries after the last layer are dropped
            "smollm3",
            {"no_rope_layers": [1, 0, 1, 1, 0, 1], "layer_types": ["full_attention"] * 4},
            (1, 3),
            {"num_hidden_layers": 2, "no_rope_layers": [0, 1], "layer_types": ["full_attention"] * 2},
        ),
    ],
)
def test_entries_of_the_config_follow_the_blocks(
    name: str, changes: dict[str, Any], kept: tuple[int, ...], entries: dict[str, Any]
) -> None:
    assert config_edits(DECODERS[name].build(**changes), kept) == entries


def test_checkpoint_of_another_depth_is_refused(tmp_path: Path) -> None:
    model = DECODERS["phi"].build()
    plan = planned_for(model, attention=1)
    apply_plan(model, plan)
    save_pruned(model, plan, tmp_path / "pruned")
    with pytest.raises(ValueError, match="Expected the model that the plan was made for .*this model has 3 blocks"):
        load_pruned(tmp_path / "pruned", DECODERS["phi"].build(num_hidden_layers=3))
