"""Folders of pruned models: saved = reloaded, bitwise, here and in a new process."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from cases.models.tiny import BUILD, tiny_gpt2, tiny_inputs, tiny_llama, tiny_timm
from cases.sampling import one_in
from cases.tiny_plans import CASES, logits, pruned, tiny_plan
from safetensors import safe_open
from torch import nn

from prunerecover import Plan, apply_plan, load_pruned, save_pruned
from prunerecover.checkpoint.replay import dense_of
from prunerecover.plan.records import Source


@pytest.mark.parametrize(("name", "merged"), one_in(3, zip(CASES, itertools.cycle([False, True]))))
def test_reloaded_is_saved(name: str, merged: bool, tmp_path: Path) -> None:
    model, plan = pruned(name, merged)
    path = save_pruned(model, plan, tmp_path / "pruned")
    loaded = load_pruned(path)
    assert torch.equal(logits(loaded, CASES[name][0]), logits(model, CASES[name][0]))
    assert repr(loaded) == repr(model)
    assert not loaded.training
    assert [p.shape for p in loaded.parameters()] == [p.shape for p in model.parameters()]
    assert Plan.load(path / "plan.json").edits == plan.edits


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("gpt2 blocks", torch.float32), ("bert blocks", torch.float32), ("llama blocks", torch.bfloat16)],
    ids=str,
)
def test_from_pretrained_opens_models_without_whole_blocks(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    import transformers

    model, plan = pruned(name)
    model.to(dtype)
    auto = transformers.AutoModelForSequenceClassification if "bert" in name else transformers.AutoModelForCausalLM
    loaded, report = auto.from_pretrained(save_pruned(model, plan, tmp_path / "pruned"), output_loading_info=True)
    assert not any(report.values()), report
    assert loaded.dtype == dtype
    family = CASES[name][0]
    if dtype == torch.float32:
        assert torch.equal(logits(loaded.eval(), family), logits(model, family))
    else:  # transformers builds rotary tables in float32, which `model.to` had rounded
        torch.testing.assert_close(logits(loaded.eval(), family), logits(model, family), rtol=0.1, atol=0.1)
    if "bert" not in name:
        settings = {"max_new_tokens": 5, "do_sample": False}
        assert torch.equal(
            loaded.generate(**tiny_inputs(family), **settings), model.generate(**tiny_inputs(family), **settings)
        )


@pytest.mark.parametrize("name", ["llama attention", "bert activation"])
def test_from_pretrained_refuses_what_it_cannot_rebuild(name: str, tmp_path: Path) -> None:
    import transformers

    model, plan = pruned(name)
    path = save_pruned(model, plan, tmp_path / "pruned")
    for opens in (transformers.AutoModel, type(model)):
        with pytest.raises((AttributeError, ValueError), match="open this folder with prunerecover.load_pruned"):
            opens.from_pretrained(path)


@pytest.mark.parametrize("family", ["timm", "llama"])
def test_bfloat16_stays_bfloat16(family: str, tmp_path: Path) -> None:
    model = BUILD[family]()
    plan = tiny_plan(model, (1, "attention", "affine"), (0, "block", "nothing"))
    apply_plan(model, plan)
    model.bfloat16()
    loaded = load_pruned(save_pruned(model, plan, tmp_path / "pruned"))
    dtypes = [{n: t.dtype for n, t in (*m.named_parameters(), *m.named_buffers())} for m in (model, loaded)]
    assert dtypes[0] == dtypes[1]
    assert torch.equal(logits(loaded, family), logits(model, family))


@pytest.mark.parametrize("name", ["gpt2 activation", "qwen3 blocks"])
def test_tied_weights_are_stored_once_and_stay_tied(name: str, tmp_path: Path) -> None:
    model, plan = pruned(name)
    path = save_pruned(model, plan, tmp_path / "pruned")
    with safe_open(path / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118
    for loaded in (load_pruned(path), load_pruned(path, BUILD[CASES[name][0]]())):
        assert loaded.lm_head.weight is loaded.get_input_embeddings().weight


def test_weights_that_were_parted_stay_parted(tmp_path: Path) -> None:
    model = tiny_gpt2()
    plan = tiny_plan(model, (1, "attention", "zero"))
    apply_plan(model, plan)
    model.lm_head.weight = nn.Parameter(2 * model.lm_head.weight.detach())
    path = save_pruned(model, plan, tmp_path / "pruned")
    for loaded in (load_pruned(path), load_pruned(path, tiny_gpt2())):
        assert torch.equal(logits(loaded, "gpt2"), logits(model, "gpt2"))


def test_weights_tied_across_modules_that_the_library_keeps_apart(tmp_path: Path) -> None:
    model = tiny_llama()
    plan = tiny_plan(model, (1, "attention", "zero"))
    apply_plan(model, plan)
    model.lm_head.weight = model.model.embed_tokens.weight
    loaded = load_pruned(save_pruned(model, plan, tmp_path / "pruned"))
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_slices_of_one_memory_are_stored_apart(tmp_path: Path) -> None:
    model, plan = pruned("attention zero")
    both = torch.randn(2, 32)
    model.norm.weight.data, model.norm.bias.data = both[0], both[1]
    loaded = load_pruned(save_pruned(model, plan, tmp_path / "pruned"))
    assert torch.equal(torch.stack([loaded.norm.weight, loaded.norm.bias]), both)


def test_into_a_dense_model_in_place(tmp_path: Path) -> None:
    model, plan = pruned("everything")
    path = save_pruned(model.double(), plan, tmp_path / "pruned")
    dense = tiny_timm().train()
    parameters = dict(dense.named_parameters())
    loaded = load_pruned(path, dense)
    assert loaded is dense
    assert not loaded.training
    assert torch.equal(logits(loaded, "timm"), logits(model, "timm"))
    kept = {id(p) for p in loaded.parameters()} & {id(p) for p in parameters.values()}
    assert id(parameters["blocks.0.attn.qkv.weight"]) not in kept
    assert id(parameters["head.weight"]) in kept


def test_frozen_parameters_stay_frozen(tmp_path: Path) -> None:
    path = save_pruned(*pruned("everything"), tmp_path / "pruned")
    dense = tiny_timm()
    dense.patch_embed.requires_grad_(False)
    loaded = load_pruned(path, dense)
    assert {n for n, p in loaded.named_parameters() if not p.requires_grad} == {
        "patch_embed.proj.weight",
        "patch_embed.proj.bias",
    }


def test_wrapped_models(tmp_path: Path) -> None:
    model, plan = pruned("attention zero")
    path = save_pruned(nn.DataParallel(model), plan, tmp_path / "pruned")
    assert torch.equal(logits(load_pruned(path, nn.DataParallel(tiny_timm())), "timm"), logits(model, "timm"))


def test_a_model_that_only_its_owner_can_build(tmp_path: Path) -> None:
    model = tiny_timm(norm_layer=nn.LayerNorm)
    plan = tiny_plan(model, (1, "attention", "affine"))
    apply_plan(model, plan)
    path = save_pruned(model, plan, tmp_path / "pruned")
    with pytest.raises(ValueError, match=r"dense .*VisionTransformer: it has .*eps=1e-05.* load_pruned\(path, model\)"):
        load_pruned(path)
    loaded = load_pruned(path, tiny_timm(norm_layer=nn.LayerNorm))
    assert torch.equal(logits(loaded, "timm"), logits(model, "timm"))


def test_what_a_file_says_of_its_model_is_told_in_short() -> None:
    source = Source(class_="x" * 20_000, not_constructed="y" * 20_000)
    with pytest.raises(ValueError, match=r"has none \(xx.*: yy.*load_pruned") as raised:
        dense_of(Plan(source=source), Path("pruned"))
    assert len(str(raised.value)) < 1000
