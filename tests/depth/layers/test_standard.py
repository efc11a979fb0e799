"""Decoders of no supported family: blocks that the graph shows go as those of known families do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases.depth.hybrids import hybrid
from cases.depth.removal import removals_of
from cases.models.cached import cached, handing_on, numbers, uncached
from cases.models.decoders import OTHERS, tiny_diff_llama, tiny_minimax
from cases.models.tiny import tiny_inputs, tiny_timm
from cases.sampling import one_in
from torch import nn

from prunerecover import Plan, apply_plan, load_pruned, plan_depth, save_pruned
from prunerecover.depth.layers.standard import with_blocks_taken_out
from prunerecover.families.describe import describe_blocks, is_supported
from prunerecover.families.transformers_layers import read_stacks
from prunerecover.model.batches import as_inputs
from prunerecover.model.evaluation import evaluating
from prunerecover.plan.edits import Bypass, Config, Remove
from prunerecover.surgery.apply_edits import apply_edits, undo
from prunerecover.surgery.transformers_depth import config_edits

BATCHES = [tiny_inputs("text", batch=8)]
IDS = tiny_inputs("text", length=14)["input_ids"]


def planned(model: nn.Module, kind: str, number: int) -> Plan:
    """A plan that removes the block of this number, or its attention."""
    others = "".join(str(n) for n in range(len(describe_blocks(model).blocks)) if n != number)
    ignore = [f"*.[{others}]" if kind == "block" else f"*.[{others}].*"]
    return plan_depth(model, remove={kind: 1}, batches=BATCHES, ignore=ignore, search="one_shot")


def assert_steps_are_exact(model: nn.Module) -> None:
    torch.testing.assert_close(cached(model, IDS), uncached(model, IDS), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "deepseek_v3")) for n in OTHERS])
def test_removed_block_leaves_a_standard_model_that_reopens_and_is_restored(name: str, tmp_path: Path) -> None:
    model, oracle = OTHERS[name].build(), OTHERS[name].build()
    assert not is_supported(model)
    plan = planned(model, "block", 1)
    assert [type(edit) for edit in plan.edits] == [Remove, Config]
    applied = apply_plan(model, plan)
    folder = save_pruned(model, plan, tmp_path / "pruned")
    again = type(model).from_pretrained(folder).eval()
    assert again.config.num_hidden_layers == 3
    left = uncached(model, IDS)
    torch.testing.assert_close(uncached(again, IDS), left, atol=1e-5, rtol=0)
    assert torch.equal(uncached(load_pruned(folder), IDS), left)
    assert numbers(again) == numbers(model)
    assert_steps_are_exact(model)
    undo(model, applied.journal)
    assert model.config.to_dict() == oracle.config.to_dict()
    assert numbers(model) == numbers(oracle)
    assert torch.equal(uncached(model, IDS), uncached(oracle, IDS))
    gone = describe_blocks(oracle).blocks[1].path
    oracle.get_submodule(gone).register_forward_hook(handing_on, with_kwargs=True)
    torch.testing.assert_close(left, uncached(oracle, IDS), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_block_goes_beside_others_in_which_nothing_is_left() -> None:
    model, batch = hybrid("Lfm2ForCausalLM")
    removals = removals_of(model, batch, ("block", "attention", "mlp"))
    block = "model.layers.0"
    units = [u for u in removals.units if u.name == block or (u.kind != "block" and not u.name.startswith(block))]
    with evaluating(model):
        edits = with_blocks_taken_out(model, as_inputs(batch), removals.edits(units))
    apply_edits(model, edits)
    stream = model.model.embedding_norm(model.model.embed_tokens(IDS))
    torch.testing.assert_close(uncached(model, IDS), model.lm_head(stream))


def test_config_counts_the_first_dense_layers_and_lists_the_mixtures() -> None:
    assert config_edits(OTHERS["deepseek_v3"].build(), (1, 3))["first_k_dense_replace"] == 1
    assert config_edits(OTHERS["llama4"].build(), (0, 2, 3))["moe_layers"] == [2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "count", "ignore", "left"),
    [(OTHERS["exaone4"].build, 3, [], 1), (tiny_minimax, 1, ["*.[0234]"], 5), (tiny_minimax, 1, ["*.[1234]"], 5)],
    ids=["behind one another", "beside linear attentions", "the first of linear attentions"],
)
def test_blocks_are_gone_as_if_they_handed_on(make: Any, count: int, ignore: list[str], left: int) -> None:
    model, oracle = make(), make()
    plan = plan_depth(model, remove={"block": count}, batches=BATCHES, ignore=ignore, search="one_shot")
    apply_plan(model, plan)
    assert model.config.num_hidden_layers == len(model.model.layers) == len(model.config.layer_types) == left
    for gone in plan.removed["block"]:
        oracle.get_submodule(gone).register_forward_hook(handing_on, with_kwargs=True)
    torch.testing.assert_close(uncached(model, IDS), uncached(oracle, IDS), atol=1e-5, rtol=0)
    assert_steps_are_exact(model)


def test_layers_that_compute_with_their_number_are_bypassed(tmp_path: Path) -> None:
    model = tiny_diff_llama()
    plan = planned(model, "block", 1)
    assert [type(edit) for edit in plan.edits] == [Bypass]
    apply_plan(model, plan)
    assert len(model.model.layers) == 4
    assert_steps_are_exact(model)
    with pytest.warns(UserWarning, match="from_pretrained will not make this DiffLlamaForCausalLM again"):
        model.save_pretrained(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Qwen3_5ForCausalLM", "GraniteMoeHybridForCausalLM"])
def test_last_attention_beside_linear_ones_leaves_a_network_that_runs_with_its_cache(name: str) -> None:
    model, batch = hybrid(name)
    plan = plan_depth(model, remove={"block": 1}, batches=[batch], ignore=["*.[02]"], search="one_shot")
    apply_plan(model, plan)
    assert_steps_are_exact(model)
    model(**batch, labels=batch["input_ids"]).loss.backward()


@pytest.mark.parametrize("name", ["BambaForCausalLM", "NemotronHForCausalLM"])
def test_block_of_a_hybrid_goes_with_its_entry_of_the_config(name: str, tmp_path: Path) -> None:
    model, batch = hybrid(name)
    plan = plan_depth(model, remove={"block": 1}, batches=[batch], ignore=["*.[123]"], search="one_shot")
    assert [type(edit) for edit in plan.edits] == [Remove, Config]
    apply_plan(model, plan)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(uncached(again, IDS), uncached(model, IDS), atol=1e-5, rtol=0)
    torch.testing.assert_close(cached(model, IDS), uncached(model, IDS), atol=2e-3, rtol=0)  # dense Bamba: 1e-3


@pytest.mark.parametrize("name", one_in(3, ["gptj", "gpt_bigcode", "exaone4", "helium"]))
def test_cached_generation_without_the_first_attention_and_then_without_a_block(name: str) -> None:
    model, untouched = OTHERS[name].build(), OTHERS[name].build()
    applied = apply_plan(model, planned(model, "attention", 0))
    assert_steps_are_exact(model)
    undo(model, applied.journal)
    assert numbers(model) == numbers(untouched)
    apply_plan(model, planned(model, "attention", 0))
    apply_plan(model, planned(model, "block", 1))
    assert_steps_are_exact(model)


def test_plan_for_another_depth_names_it() -> None:
    plan = planned(OTHERS["gptj"].build(), "block", 1)
    with pytest.raises(ValueError, match="this model has 5 blocks. Make a plan for it with plan_depth"):
        apply_plan(OTHERS["gptj"].build(num_hidden_layers=5), plan)


def test_stacks_are_the_lists_as_long_as_the_config_says() -> None:
    model = OTHERS["gptj"].build()
    (stack,) = read_stacks(model)
    assert (stack.family, stack.container, len(stack.blocks)) == ("transformers GPTJForCausalLM", "transformer.h", 4)
    model.config.num_hidden_layers = 3
    assert read_stacks(model) == read_stacks(tiny_timm()) == ()
