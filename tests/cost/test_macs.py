"""MACs against closed forms, for all implementations."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import transformers
from cases.sampling import covering
from torch import nn
from torch.utils import flop_counter

from prunerecover.cost.macs import count_macs, macs_by_module

IDS = torch.arange(20).reshape(2, 10)


def vit(**changes: Any) -> nn.Module:
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **(arguments | changes))


def vit_macs(depth: int, d: int, n: int, patch: int, classes: int) -> int:
    """Return the closed form for an image of n - 1 patches; per block q, k, v, out, scores, values, and the MLP."""
    return depth * (4 * d * d * n + 2 * n * n * d + 8 * d * d * n) + (n - 1) * 3 * patch**2 * d + d * classes


def llama(attention: str = "sdpa", device: str = "cpu", kind: str = "Llama", **changes: Any) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=100,
        attn_implementation=attention,
        **changes,
    )
    with torch.device(device):
        return getattr(transformers, f"{kind}ForCausalLM")(config)


def llama_macs(mlp: int) -> int:
    """Two sequences of 10 tokens, two layers of width 64 with 4 of 8 heads for keys and values, 100 words."""
    attention = 10 * (2 * 64 * 64 + 2 * 64 * 32) + 2 * 10 * 10 * 64
    return 2 * (2 * (attention + 10 * mlp) + 10 * 64 * 100)


def angles(model: nn.Module) -> int:
    """Return the MACs of rotary positions: some versions of transformers multiply 10 positions by 4 frequencies."""
    macs = macs_by_module(model, {"input_ids": IDS})["model.rotary_emb"]
    assert macs in (0, 10 * 4)
    return macs


def test_deit_tiny_equals_closed_form() -> None:
    with torch.device("meta"):
        model = timm.create_model("deit_tiny_patch16_224")
    expected = vit_macs(depth=12, d=192, n=197, patch=16, classes=1000)
    assert count_macs(model, torch.zeros(1, 3, 224, 224)) == expected == 1_253_683_200


@pytest.mark.parametrize(("fused", "training"), [(True, False), (False, True)])
def test_attention_counts_the_same_fused_and_unfused(fused: bool, training: bool) -> None:
    model = vit().train(training)
    for block in model.blocks:
        block.attn.fused_attn = fused
    assert count_macs(model, torch.zeros(2, 3, 32, 32)) == 2 * vit_macs(depth=3, d=24, n=17, patch=8, classes=5)


def test_attention_on_cpu_is_counted_where_pytorch_has_no_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    monkeypatch.delitem(flop_counter.flop_registry, kernel, raising=False)
    assert count_macs(vit(), torch.zeros(1, 3, 32, 32)) == vit_macs(depth=3, d=24, n=17, patch=8, classes=5)


@pytest.mark.parametrize(("attention", "device", "masked"), covering(["sdpa", "eager"], ["cpu", "meta"], [True, False]))
def test_grouped_query_attention_equals_closed_form(attention: str, device: str, masked: bool) -> None:
    batch = {"input_ids": IDS} | ({"attention_mask": torch.ones_like(IDS)} if masked else {})
    model = llama(attention, device)
    assert count_macs(model, batch) == llama_macs(mlp=3 * 64 * 96) + angles(model)


OLD = pytest.mark.skipif(torch.__version__ < "2.10", reason="torch 2.9 takes fused experts without values as bf16 only")


@pytest.mark.parametrize("device", ["cpu", pytest.param("meta", marks=OLD)])
def test_fused_experts_equal_closed_form(device: str) -> None:
    model = llama(device=device, kind="Mixtral", num_local_experts=4, num_experts_per_tok=2)
    if device == "meta":  # torch 2.14 multiplies groups there in half precision alone
        model = model.bfloat16()
    assert count_macs(model, {"input_ids": IDS}) == llama_macs(mlp=2 * 3 * 64 * 96 + 64 * 4) + angles(model)


def test_fast_path_of_pytorchs_own_attention_is_seen_through() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    assert count_macs(layer, torch.zeros(3, 5, 16)) == 3 * (4 * 5 * 16 * 16 + 2 * 5 * 5 * 16 + 2 * 5 * 16 * 32)
    assert torch.backends.mha.get_fastpath_enabled()


def test_convolutions_equal_closed_form() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1, groups=2), nn.ConvTranspose2d(8, 2, 2, stride=2))
    assert count_macs(model, torch.zeros(2, 4, 6, 6)) == 2 * (36 * 8 * (4 // 2) * 9 + 36 * 8 * 2 * 4)


def test_compiled_modules_and_wrappers_count_as_eager_ones() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    model[0].compile(backend="eager")
    wrapped = torch.compile(model, backend="eager")
    for network in (wrapped, nn.DataParallel(model)):
        assert macs_by_module(network, torch.zeros(1, 4)) == {"": 36, "0": 24, "1": 0, "2": 12}


def test_module_counts_are_inclusive_and_add_up() -> None:
    macs = macs_by_module(vit(), torch.zeros(1, 3, 32, 32))
    n, d = 17, 24
    attention, mlp = 4 * d * d * n + 2 * n * n * d, 8 * d * d * n
    assert macs["blocks.1.attn"] == attention
    assert macs["blocks.1.mlp"] == mlp
    assert macs["blocks.1.mlp.act"] == 0
    assert macs["blocks.1"] == attention + mlp
    assert macs["blocks"] == 3 * (attention + mlp)
    assert macs[""] == macs["blocks"] + macs["patch_embed"] + macs["head"]


def test_container_that_is_never_called_counts_its_children() -> None:
    model = llama()
    macs = macs_by_module(model, {"input_ids": IDS})
    assert macs["model.layers"] == macs["model.layers.0"] + macs["model.layers.1"] > 0
    assert macs["model.layers"] == macs["model"] - macs["model.rotary_emb"]
    assert set(macs) == {path for path, _ in model.named_modules()}


def test_shared_module_counts_each_call_under_its_first_name() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = self.first

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    assert macs_by_module(Twice(), torch.zeros(1, 3)) == {"": 18, "first": 18}


class Query(nn.Module):
    """Attention pooling: a module is given a view of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.latent = nn.Parameter(torch.zeros(1, 1, 4))
        self.project = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.project(self.latent.expand(len(x), -1, -1)) * x.sum()


@pytest.mark.parametrize("mode", [torch.enable_grad(), torch.no_grad(), torch.inference_mode()])
def test_views_of_parameters_are_counted_in_every_mode(mode: Any) -> None:
    with mode:
        assert count_macs(Query(), torch.ones(2, 3)) == 2 * 4 * 6
