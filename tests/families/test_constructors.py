"""A dense model is built again from plain data, bit for bit."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.engine import unchanged
from cases.models.tiny import (
    BUILD,
    TRANSFORMERS,
    tiny_gpt2,
    tiny_inputs,
    tiny_llama,
    tiny_mixture,
    tiny_timm,
)
from torch import nn
from transformers import AutoModelForCausalLM, RobertaConfig, RobertaForMaskedLM

from benchmarks.zoo.networks.network import outputs
from benchmarks.zoo.networks.transformers import rebuilt as harder
from prunerecover import Plan, apply_plan, load_pruned, plan_depth, save_pruned
from prunerecover.checkpoint.pruned_folder import standard_class
from prunerecover.families.constructors import build, constructor_of, is_described_by_config
from prunerecover.model.batches import logits_of
from prunerecover.model.hashing import tensors_hash

HARDER = {network.name: network for network in harder()}
QUICK = ("SwinForImageClassification-wide-windows", "RwkvForCausalLM", "Mamba2ForCausalLM", "Detr")
SMALL = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
TIMM = {
    "layer scale": {"init_values": 1e-4},
    "other image": {"img_size": (8, 24), "patch_size": 8, "in_chans": 1},
    "average, norm before": {"global_pool": "avg", "fc_norm": False},
    "pooling with registers": {"global_pool": "avg", "reg_tokens": 3, "pool_include_prefix": True, "fc_norm": True},
    "attention pooling": {"global_pool": "map", "class_token": False, "no_embed_class": True},
    "no positions": {"pos_embed": "none"},
    "inner norms": {"scale_attn_norm": True, "scale_mlp_norm": True, "final_norm": False},
    "any size": {"dynamic_img_size": True, "dynamic_img_pad": True},
    "other layers": {"act_layer": "silu", "norm_layer": "rmsnorm"},
    "dropouts": {
        **{"drop_rate": 0.1, "pos_drop_rate": 0.2, "patch_drop_rate": 0.3, "proj_drop_rate": 0.4},
        **{"attn_drop_rate": 0.5, "drop_path_rate": 0.3},
    },
}


def rebuilt(model: nn.Module) -> Any:
    """Return the model as rebuilt in another process, ready for the same weights."""
    constructor = constructor_of(model)
    assert constructor is not None
    new = build(json.loads(json.dumps(constructor)))
    assert all(p.is_meta for p in new.parameters())
    assert not any(b.is_meta for b in new.buffers())
    new.load_state_dict(model.state_dict(), strict=True, assign=True)
    return new.train(model.training)


@pytest.mark.parametrize("changes", TIMM.values(), ids=TIMM)
def test_timm_classes(changes: dict[str, Any]) -> None:
    """In training mode, which shows the dropouts, too."""
    model = tiny_timm(**changes).train()
    images = torch.randn(2, changes.get("in_chans", 3), *changes.get("img_size", (16, 16)))
    found = []
    for network in (model, rebuilt(model)):
        torch.manual_seed(3)
        found.append(network(images))
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("deit_tiny_patch16_224", {}),
        ("deit_tiny_distilled_patch16_224", {"num_classes": 7}),
        ("vit_tiny_patch16_224", {**SMALL, "qk_norm": True}),
        ("vit_small_patch14_dinov2", {"img_size": 28, "depth": 2}),
        ("vit_base_patch16_siglip_224", SMALL),
        ("resnet10t", {"num_classes": 3}),
    ],
)
def test_timm_names(name: str, kwargs: dict[str, Any]) -> None:
    import timm

    model = timm.create_model(name, **kwargs)
    constructor = constructor_of(model)
    assert constructor is not None
    assert constructor["timm"] == name
    assert kwargs or constructor["kwargs"] == {}
    assert tensors_hash(build(constructor)) == tensors_hash(model)


def test_arguments_are_read_off_the_model_where_timm_keeps_no_call(make_vit: Callable[..., nn.Module]) -> None:
    model = make_vit("deit_tiny_patch16_224", drop_path_rate=0.2, init_values=1e-3)
    vars(model).pop("_model_args", None)
    assert torch.equal(model(torch.ones(1, 1, 8, 8)), rebuilt(model)(torch.ones(1, 1, 8, 8)))


def test_a_changed_head_is_seen(make_vit: Callable[..., nn.Module]) -> None:
    model = make_vit()
    model.reset_classifier(9, "avg")
    constructor = constructor_of(model)
    assert constructor is not None
    assert (constructor["kwargs"]["num_classes"], constructor["kwargs"]["global_pool"]) == (9, "avg")


def test_a_model_from_a_local_folder(tmp_path: Path, make_vit: Callable[..., nn.Module]) -> None:
    """The folder may be gone when the model is built again."""
    import timm
    from safetensors.torch import save_file

    model = make_vit("deit_tiny_patch16_224")
    shape = {**SMALL, "depth": 3, "in_chans": 1}
    cfg = {"input_size": [1, 8, 8], "num_classes": 4, "first_conv": "patch_embed.proj", "classifier": "head"}
    config = {"architecture": "deit_tiny_patch16_224", "num_classes": 4, "model_args": shape, "pretrained_cfg": cfg}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    local = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = torch.ones(1, 1, 8, 8)
    assert str(tmp_path) not in json.dumps(constructor_of(local))
    assert torch.equal(rebuilt(local)(images), model(images))


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name: str) -> None:
    model = BUILD[name]()
    new = rebuilt(model)
    inputs = tiny_inputs(name)
    assert torch.equal(logits_of(model(**inputs)), logits_of(new(**inputs)))
    assert new.config._attn_implementation == model.config._attn_implementation


def test_attentions_and_experts_are_computed_as_they_were() -> None:
    model, mixture = tiny_llama(attn_implementation="eager"), tiny_mixture("mixtral")
    assert rebuilt(model).config._attn_implementation == "eager"
    mixture.set_experts_implementation("batched_mm")
    assert rebuilt(mixture).config._experts_implementation == "batched_mm"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in HARDER])
def test_what_was_pruned_after_use_opens_alone(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, batch = HARDER[name].build().eval(), HARDER[name].batch(torch.Generator().manual_seed(0))
    outputs(model, batch)
    kind = "block" if name in ("Mamba2ForCausalLM", "NemotronHForCausalLM") else "layer"
    plan = plan_depth(model, remove={kind: 1}, batches=[batch], importance="magnitude")
    apply_plan(model, plan)
    folder = save_pruned(model, plan, tmp_path / "pruned")
    expected = outputs(model, batch)
    for again in (load_pruned(folder), load_pruned(folder, HARDER[name].build())):
        assert all(torch.equal(*pair) for pair in zip(outputs(again, batch), expected, strict=True))


def test_weights_that_forward_divided_are_no_standard_ones(tmp_path: Path) -> None:
    rwkv = HARDER["RwkvForCausalLM"]
    model = rwkv.build().eval()
    assert standard_class(save_pruned(model, Plan(), tmp_path / "fresh")) == "RwkvForCausalLM"
    outputs(model, rwkv.batch(torch.Generator()))
    assert standard_class(save_pruned(model, Plan(), tmp_path / "used")) is None
    with pytest.raises(ValueError, match=r"open this folder with prunerecover.load_pruned"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "used")


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_each_part_keeps_its_attention(part: str) -> None:
    model: Any = HARDER["TrOCR"].build()
    other = {"encoder": "decoder", "decoder": "encoder"}[part]
    expected = getattr(model.config, other)._attn_implementation
    getattr(model, part).set_attn_implementation("eager")
    again: Any = rebuilt(model)
    assert getattr(again, part).config._attn_implementation == "eager"
    assert getattr(again, other).config._attn_implementation == expected


def test_tied_parameters_are_one() -> None:
    constructor = constructor_of(tiny_gpt2())
    assert constructor is not None
    model = build(constructor)
    assert model.lm_head.weight is model.transformer.wte.weight


def test_a_token_that_pads_may_be_named_later() -> None:
    """As by a Trainer with a tokenizer. RoBERTa counts positions from the token, and its output would change."""
    model = tiny_llama()
    model.config.pad_token_id = 3
    new = rebuilt(model)
    assert new.config.pad_token_id == 3
    assert is_described_by_config(model)
    tokens = torch.tensor([[3, 5, 3]])
    assert torch.equal(model(tokens).logits, new(tokens).logits)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40}
    roberta = RobertaForMaskedLM(RobertaConfig(**sizes, intermediate_size=32, pad_token_id=1))
    assert constructor_of(roberta) is not None
    roberta.config.pad_token_id = 3
    assert constructor_of(roberta) is None


def test_other_dtype_device_and_use_do_not_matter() -> None:
    model = tiny_llama()
    expected = constructor_of(model)
    model.model.gradient_checkpointing = True
    model.generate(tiny_inputs("llama")["input_ids"], max_new_tokens=2)
    assert constructor_of(model.bfloat16()) == expected
    vit = tiny_timm()
    expected = constructor_of(vit)
    vit.set_grad_checkpointing()
    assert constructor_of(vit.bfloat16().train()) == expected
    assert constructor_of(copy.deepcopy(vit).to("meta")) == expected


def test_the_random_state_and_the_model_stay_as_they_were() -> None:
    for model in (tiny_timm(), tiny_llama()):
        with unchanged(model):
            constructor_of(model)
