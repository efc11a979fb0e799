"""`save_pretrained` of live models: quiet where `from_pretrained` makes the same model again, else a warning."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from cases.models.tiny import BUILD, tiny_inputs, tiny_llama
from cases.tiny_plans import logits, pruned, tiny_plan
from torch import nn

from prunerecover import apply_plan, load_pruned, merge, plan_width, save_pruned
from prunerecover.plan.budget import Budget
from prunerecover.recovery.lora import LoraSettings, inject_adapters, merge_adapters, plan_adapters
from prunerecover.surgery.apply_edits import apply_edits, undo

LOST = "from_pretrained will not make this .* again from what save_pretrained writes: "
SURGERY = rf"{LOST}.*\(such as .*\).* Use save_pruned\(model, plan, folder\) and load_pruned\(folder\)"
ADAPTERS = rf"{LOST}it holds low-rank adapters.*load_pruned makes of .*, or merge the adapters"


def adapted(model: nn.Module):
    adapters = plan_adapters(model, LoraSettings(rank=2, alpha=4.0))
    inject_adapters(model, adapters)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(0))
    return adapters


def assert_reopens(model: nn.Module, family: str, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.eval().save_pretrained(folder)  # type: ignore[operator]
    again = type(model).from_pretrained(folder).eval()  # type: ignore[attr-defined]
    assert torch.equal(logits(again, family), logits(model, family))


@pytest.mark.parametrize("case", ["llama attention", "llama mlp", "gpt2 activation", "bert attention"])
def test_what_surgery_left_in_a_place_is_not_saved_in_silence(case: str, tmp_path: Path) -> None:
    model, _ = pruned(case)
    with pytest.warns(UserWarning, match=SURGERY):
        model.save_pretrained(tmp_path)  # type: ignore[operator]
    assert (tmp_path / "config.json").exists()


@pytest.mark.slow
def test_layers_of_different_widths_are_not_saved_in_silence(tmp_path: Path) -> None:
    model = tiny_llama()
    apply_plan(model, plan_width(model, Budget(params=0.2), batches=[tiny_inputs("llama", 8)], importance="magnitude"))
    with pytest.warns(UserWarning, match=r"such as layers of different sizes.*save_pruned"):
        model.save_pretrained(tmp_path)  # type: ignore[operator]


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_whole_blocks_reopen_quietly(family: str, tmp_path: Path) -> None:
    model, _ = pruned(f"{family} blocks")
    assert_reopens(model, family, tmp_path)


def test_a_block_whose_branches_are_gone_reopens_once_merged(tmp_path: Path) -> None:
    model = tiny_llama()
    apply_plan(model, tiny_plan(model, (1, "attention", "zero"), (1, "mlp", "zero")))
    with pytest.warns(UserWarning, match=SURGERY):
        model.save_pretrained(tmp_path / "live")
    merge(model)
    assert_reopens(model, "llama", tmp_path / "merged")


def test_what_load_pruned_makes_reopens(tmp_path: Path) -> None:
    model, plan = pruned("llama blocks")
    save_pruned(model, plan, tmp_path / "pruned")
    assert_reopens(load_pruned(tmp_path / "pruned"), "llama", tmp_path / "standard")
    with pytest.raises(RuntimeError, match="Expected a pruned model that is kept while it is saved, .* Give it a name"):
        load_pruned(tmp_path / "pruned").save_pretrained(tmp_path / "standard")  # type: ignore[operator]


def test_what_is_not_standard_reopens_by_load_pruned_as_the_warning_says(tmp_path: Path) -> None:
    model, plan = pruned("llama attention")
    with pytest.warns(UserWarning, match="this LlamaModel again"):
        model.model.save_pretrained(tmp_path / "inside")  # type: ignore[operator,union-attr]
    again = load_pruned(save_pruned(model, plan, tmp_path / "pruned"))
    assert torch.equal(logits(again, "llama"), logits(model, "llama"))
    with pytest.warns(UserWarning, match=SURGERY):
        again.save_pretrained(tmp_path / "standard")  # type: ignore[operator]


def test_adapters_are_not_saved_in_silence_and_reopen_once_merged(tmp_path: Path) -> None:
    model = tiny_llama()
    adapters = adapted(model)
    with pytest.warns(UserWarning, match=ADAPTERS):
        model.save_pretrained(tmp_path / "live")
    merge_adapters(model, adapters)
    assert "save_pretrained" not in vars(model)
    assert_reopens(model, "llama", tmp_path / "merged")


def test_undo_leaves_nothing_behind() -> None:
    model = tiny_llama()
    applied = apply_edits(model, tiny_plan(model, (1, "attention", "zero")).edits)
    assert "save_pretrained" in vars(model)
    undo(model, applied.journal)
    assert not any(
        "save_pretrained" in vars(module) or module._load_state_dict_post_hooks for module in model.modules()
    )


def test_a_tied_weight_that_was_saved_once_is_not_missing() -> None:
    """As transformers' Trainer loads its own checkpoints (load_best_model_at_end), with a warning on missing keys."""
    model = BUILD["gpt2"]()
    apply_plan(model, tiny_plan(model, (1, "attention", "zero")))
    saved = {name: value + 1 for name, value in model.state_dict().items() if name != "lm_head.weight"}
    assert model.load_state_dict(saved, strict=False).missing_keys == []
    assert torch.equal(model.lm_head.weight, saved["transformer.wte.weight"])  # type: ignore[union-attr]
    del saved["transformer.wte.weight"], saved["transformer.ln_f.bias"]
    gone = ["transformer.wte.weight", "transformer.ln_f.bias", "lm_head.weight"]
    assert model.load_state_dict(saved, strict=False).missing_keys == gone


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_warns_for_itself(copied, tmp_path: Path) -> None:
    model, _ = pruned("llama attention")
    other = copied(model)
    with torch.no_grad():
        other.lm_head.weight.zero_()
    del model
    with pytest.warns(UserWarning, match=SURGERY):
        other.save_pretrained(tmp_path)
    assert not BUILD["llama"]().from_pretrained(tmp_path).lm_head.weight.any()  # type: ignore[operator]


class OwnLlama(type(tiny_llama())):  # type: ignore[misc]
    """A subclass of the user's own, as many have."""


def test_a_class_of_the_users_own_saves_quietly_where_it_is_standard(tmp_path: Path) -> None:
    model = OwnLlama(tiny_llama().config).eval()
    apply_plan(model, tiny_plan(model, (1, "block", "nothing")))
    assert_reopens(model, "llama", tmp_path)
