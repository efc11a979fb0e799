"""Evenly narrowed transformers models are standard models: `save_pretrained` and `from_pretrained` reopen them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.tiny import BUILD, tiny_inputs, tiny_llama, tiny_mixture
from cases.sampling import one_in
from torch import nn

from prunerecover import Budget, Plan, apply_plan, find_groups, load_pruned, plan_depth, plan_width, save_pruned
from prunerecover.checkpoint.pruned_folder import standard_class
from prunerecover.surgery.apply_edits import undo
from prunerecover.surgery.provenance import plan_for
from prunerecover.width.groups.narrow_edits import narrow_edits

HALVED = {
    "llama": {"intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8},
    "qwen3": {"intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8},
    "hf_vit": {"intermediate_size": 24, "num_attention_heads": 2, "head_dim": 8},
    "bert": {"intermediate_size": 24},
    "gpt2": {"n_inner": 24},
    "opt": {"ffn_dim": 24},
}


def halving(model: nn.Module, name: str, layers: str = "0123") -> Plan:
    """Remove every other unit, of heads only where a config has their number; BERT's pooler stays."""
    kinds = ("head", "neuron") if "num_attention_heads" in HALVED[name] else ("neuron",)
    groups = [g for g in find_groups(model, tiny_inputs(name), kinds).groups if is_of(g.name, layers)]
    return plan_for(model, narrow_edits(groups, {g.name: torch.arange(0, g.size, 2) for g in groups}), method="test")


def is_of(group: str, layers: str) -> bool:
    return any(f".{layer}." in group for layer in layers)


def run(model: Any, name: str) -> torch.Tensor:
    return model(**tiny_inputs(name)).logits


@pytest.mark.parametrize("name", one_in(2, HALVED))
def test_layers_alike_make_a_standard_model(name: str, tmp_path: Path) -> None:
    model: Any = BUILD[name]()
    given = model.config
    before = given.to_dict()
    plan = halving(model, name)
    applied = apply_plan(model, plan)
    assert {key: getattr(model.config, key) for key in HALVED[name]} == HALVED[name]
    assert given.to_dict() == before
    save_pruned(model, plan, tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs")
    for again in (
        type(model).from_pretrained(tmp_path / "theirs").eval(),
        type(model).from_pretrained(tmp_path / "ours").eval(),
        load_pruned(tmp_path / "ours"),
    ):
        for parameter in again.parameters():  # a mapped file is aligned otherwise, and kernels round otherwise then
            parameter.data = parameter.data.clone()
        assert torch.equal(run(again, name), run(model, name))
        assert {key: getattr(again.config, key) for key in HALVED[name]} == HALVED[name]
    undo(model, applied.journal)
    assert model.config is given
    assert torch.equal(run(model, name), run(BUILD[name](), name))


def test_static_cache_is_as_narrow_as_the_model() -> None:
    model: Any = tiny_llama()
    apply_plan(model, halving(model, "llama"))
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, **tiny_inputs("llama")}
    assert torch.equal(
        model.generate(cache_implementation="static", disable_compile=True, **settings),
        model.generate(use_cache=False, **settings),
    )


@pytest.mark.slow
def test_config_stays_until_all_layers_are_alike() -> None:
    model: Any = tiny_llama()
    before = model.config.to_dict()
    apply_plan(model, halving(model, "llama", "012"))
    assert model.config.to_dict() == before
    assert [layer.mlp.intermediate_size for layer in model.model.layers] == [24, 24, 24, 48]
    apply_plan(model, halving(model, "llama", "3"))
    assert {key: getattr(model.config, key) for key in HALVED["llama"]} == HALVED["llama"]


def test_config_that_cannot_say_it_stays(tmp_path: Path) -> None:
    """BERT's code takes a head's size for a share of the hidden size."""
    model: Any = BUILD["bert"]()
    given = model.config
    groups = find_groups(model, tiny_inputs("bert"), "head").groups
    plan = plan_for(model, narrow_edits(groups, {g.name: torch.tensor([1]) for g in groups}), method="test")
    apply_plan(model, plan)
    assert model.config is given
    assert given.num_attention_heads == 4
    save_pruned(model, plan, tmp_path / "pruned")
    assert standard_class(tmp_path / "pruned") is None
    assert torch.equal(run(load_pruned(tmp_path / "pruned"), "bert"), run(model, "bert"))


# The config of another model


def test_experts_leave_the_config_that_two_models_share() -> None:
    model: Any = tiny_mixture("mixtral")
    dense: Any = type(model)(model.config)
    batches = [{"input_ids": torch.arange(3, 11).view(1, 8), "labels": torch.arange(3, 11).view(1, 8)}]
    apply_plan(model, plan_width(model, Budget(remove={"expert": 4}), batches=batches, allocation="uniform"))
    assert model.config.num_local_experts == 4
    assert dense.config.num_local_experts == 6


def test_depth_leaves_the_config_that_two_models_share() -> None:
    model: Any = tiny_llama()
    dense: Any = type(model)(model.config)
    applied = apply_plan(model, plan_depth(model, remove={"block": 1}, batches=[tiny_inputs("llama", 8)]))
    assert model.config.num_hidden_layers == 3
    assert {id(module.config) for module in model.modules() if hasattr(module, "config")} == {id(model.config)}
    assert dense.config.num_hidden_layers == 4
    undo(model, applied.journal)
    assert model.config is dense.config
