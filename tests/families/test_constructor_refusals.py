"""A model that plain data cannot rebuild has no constructor, and data with further reach is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from cases.models.tiny import tiny_llama, tiny_timm
from torch import nn

from prunerecover.families.constructors import build, construction_of, constructor_of
from prunerecover.model.hashing import tensors_hash
from prunerecover.model.replacements import Nothing


class OwnVit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)


def _subclass() -> nn.Module:
    import transformers

    class Own(transformers.LlamaForCausalLM):
        pass

    return Own(tiny_llama().config)


def _changed(path: str, new: nn.Module) -> nn.Module:
    model = tiny_timm()
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, new)
    return model


def _scaled() -> nn.Module:
    model = tiny_timm()
    model.blocks[0].attn.scale *= 2
    return model


def _other_table() -> nn.Module:
    model = tiny_llama()
    model.model.rotary_emb.inv_freq *= 2
    return model


def _other_config() -> nn.Module:
    model = tiny_llama()
    model.config.hidden_act = "none"
    return model


UNKNOWN: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "own module": (OwnVit, "OwnVit is no class of timm, transformers, torchvision, ultralytics itself"),
    "own subclass": (_subclass, "Own is no class of timm, transformers"),
    "own layer": (
        lambda: _changed("blocks.1.norm2", nn.LayerNorm(32, eps=0.1)),
        r"it has \(norm2\): Layer.*eps=0.1",
    ),
    "own head": (lambda: _changed("head", nn.Sequential(nn.Linear(32, 5))), r"it has \(head\): Sequential\( where"),
    "norm class": (lambda: tiny_timm(norm_layer=nn.LayerNorm), r"eps=1e-06, .* is built"),
    "other scale": (_scaled, r"its blocks.0.attn.scale is 0.70\d*, but 0.35\d* as built"),
    "other rotary table": (_other_table, "its buffer model.rotary_emb.inv_freq, which no file holds, has other values"),
    "other config": (_other_config, "building it again fails: .*none"),
    "pruned": (lambda: _changed("blocks.1.attn", Nothing()), "parts of it had been replaced before"),
}


@pytest.mark.parametrize(("make", "why"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_cannot_be_built_again_has_no_constructor(make: Callable[[], nn.Module], why: str) -> None:
    construction = construction_of(make())
    assert construction.data is None
    assert re.search(why, construction.why_not), construction.why_not


DEIT = "deit_tiny_patch16_224"
NAMES_OF_TIMM = ("local-dir:/tmp/model", "hf-hub:timm/deit_tiny_patch16_224.fb_in1k", "no_such_model", [DEIT])
WITH_REACH: tuple[dict[str, Any], ...] = (
    {"checkpoint_path": "/tmp/weights.pth"},
    {"pretrained_cfg": {"url": "https://example.org/weights.pth"}},
    {"pretrained": True},
    {"cache_dir": "/tmp"},
    {"embed_layer": "os.system"},
    {"norm_layer": {"class": "x"}},
    {"img_size": ["a", "b"]},
)
CLASSES = ("AutoModel", "PreTrainedModel", "pipeline", "no_such_class", "LlamaConfig", None)
OF_TORCHVISION = "Expected the name of a model of torchvision"


@pytest.mark.parametrize(
    ("constructor", "message"),
    [
        *(({"timm": name, "kwargs": {}}, "Expected the name of a model of timm .*too old") for name in NAMES_OF_TIMM),
        *(({"timm": DEIT, "kwargs": one}, f"only arguments that shape .* but got {[*one][0]}") for one in WITH_REACH),
        *(({"transformers": name, "config": {}}, "name of a model class of transformers") for name in CLASSES),
        ({"torchvision": "no_such_model"}, f"{OF_TORCHVISION} .* 'no_such_model'. Is torchv"),
        ({"torchvision": ["resnet18"]}, OF_TORCHVISION),
        ({"torchvision": "resnet18", "kwargs": {"weights": "DEFAULT"}}, "only arguments that shape .* but got weights"),
        ({"torchvision": "resnet18", "kwargs": {"num_classes": "x"}}, "Expected the installed torchvision to build"),
        ({"timm": DEIT, "kwargs": {"num_heads": 5}}, "Expected the installed timm to build .* but it failed: "),
        (
            {"transformers": "LlamaForCausalLM", "config": {"hidden_size": "many"}},
            "Expected the installed transformers to build .* but it failed: ",
        ),
        ({"transformers": "LlamaForCausalLM"}, "Expected the installed transformers to build .* but it failed: "),
        ({"module": "os.system"}, r"Expected a constructor of timm, .*ultralytics, but got \['module'\]"),
    ],
    ids=str,
)
def test_only_known_names_and_arguments_that_shape_a_network(constructor: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(constructor)


def test_a_config_cannot_name_code() -> None:
    constructor = constructor_of(tiny_llama())
    assert constructor is not None
    evil = {
        "attn_implementation": "kernels-community/evil",
        "_attn_implementation": "kernels-community/evil",
        "_attn_implementation_internal": "kernels-community/evil",
        "auto_map": {"AutoModel": "evil--code"},
    }
    config = build({**constructor, "config": {**constructor["config"], **evil}}).config
    assert config._attn_implementation == "sdpa"
    assert not hasattr(config, "auto_map")
    config = build({**constructor, "attention": "kernels-community/evil"}).config
    assert config._attn_implementation == "sdpa"


def _detr() -> nn.Module:
    from transformers import DetrConfig, DetrForObjectDetection, TimmBackboneConfig

    halves = {
        f"{half}_{name}": 2 for half in ("encoder", "decoder") for name in ("layers", "attention_heads", "ffn_dim")
    }
    backbone = TimmBackboneConfig(backbone="resnet10t", use_pretrained_backbone=False, out_indices=(1, 2))
    return DetrForObjectDetection(DetrConfig(**halves, d_model=8, backbone_config=backbone))


def test_a_backbone_of_timm_is_built_by_its_name_and_nothing_is_fetched() -> None:
    model = _detr()
    constructor = constructor_of(model)
    assert constructor is not None
    constructor["config"]["backbone_config"]["use_pretrained_backbone"] = True
    built: Any = build(constructor)
    assert tensors_hash(built) == tensors_hash(model)
    assert built.config.backbone_config.use_pretrained_backbone is False
    constructor["config"]["backbone_config"]["backbone"] = "hf-hub:timm/resnet10t.c3_in1k"
    with pytest.raises(ValueError, match="Expected the installed transformers to build .* but it failed"):
        build(constructor)
