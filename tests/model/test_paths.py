"""Paths, wrappers, hashes, caches, and replacements of removed units."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from cases.engine import build
from cases.models.tiny import tiny_timm
from cases.width.narrow import without
from cases.width.narrow_models import Padded
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn import functional as F

from prunerecover import Budget, apply_plan, plan_width
from prunerecover.model import replacements as r
from prunerecover.model.evaluation import evaluating
from prunerecover.model.hashing import tensors_hash, weights_hash
from prunerecover.model.paths import get_module, parent_path, unwrap
from prunerecover.plan.groups import Slice
from prunerecover.surgery.apply_edits import apply_edits


def test_wrappers_are_seen_through() -> None:
    net, llama = nn.Linear(2, 2), build("llama")
    sharded = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(sharded)
    sharded._fsdp_wrapped_module = net
    for wrapped in (nn.DataParallel(torch.compile(net)), sharded, net):
        assert unwrap(wrapped) is net
    assert unwrap(get_peft_model(llama, LoraConfig(r=2, target_modules=["q_proj"]))) is llama


@pytest.mark.parametrize("name", ["module", "_orig_mod"])
def test_a_network_with_one_part_of_such_a_name_is_no_wrapper(name: str) -> None:
    net = nn.Sequential(OrderedDict({name: nn.Linear(2, 2)}))
    assert unwrap(net) is net


def test_missing_path_names_the_deepest_part_that_exists() -> None:
    net = nn.Sequential(nn.Sequential(nn.ReLU()))
    with pytest.raises(ValueError, match=r"a module at '0\.3\.x', but 0 \(Sequential\) has no '3'"):
        get_module(net, "0.3.x")
    with pytest.raises(ValueError, match="but the model .* has no 'blocks'"):
        get_module(net, "blocks.1")
    assert get_module(net, "") is net
    assert parent_path("a.b.c") == "a.b"


def test_hashes_see_names_shapes_and_values() -> None:
    model = build("timm")
    assert tensors_hash(model) == tensors_hash(build("timm").half())
    assert tensors_hash(model) != tensors_hash(tiny_timm(depth=3))
    assert weights_hash(model) == weights_hash(build("timm").bfloat16())
    other = build("timm")
    with torch.no_grad():
        other.blocks[2].attn.qkv.weight[0, 0] += 1
    assert weights_hash(model) != weights_hash(other)
    assert weights_hash(nn.Linear(2, 2, device="meta")) is None


@pytest.mark.parametrize("returns", [1, 3])
@pytest.mark.parametrize("make", [r.Nothing, r.PassThrough, lambda n: r.Affine(4, n), lambda n: r.Constant(4, n)])
def test_replacement_answers_in_the_form_of_what_it_replaces(make: Any, returns: int) -> None:
    module = make(returns)
    x = torch.randn(2, 3, 4)
    for out in (module(x, mask=None), module(hidden_states=x, mask=None)):
        parts = out if returns > 1 else (out,)
        assert len(parts) == returns
        assert (x + parts[0]).shape == x.shape
        assert all(p is None for p in parts[1:])
    assert (f"returns={returns}" in repr(module)) == (returns > 1)


@pytest.mark.parametrize(
    ("stride", "first", "dtype"), [(1, 0, torch.float64), (2, 2, torch.bfloat16), (3, 4, torch.int64)]
)
def test_channel_map_equals_the_padded_shortcut(dtype: torch.dtype, stride: int, first: int) -> None:
    x = (10 * torch.randn(2, 4, 7, 7)).to(dtype)
    if dtype.is_floating_point:
        x[0, 0, 0, 0], x[0, 1, 0, 0] = torch.nan, torch.inf
    expected = Padded(stride, first, 8 - 4 - first)(x)
    found = r.ChannelMap(4, 8, stride, first)(x)
    assert found.dtype == dtype
    assert torch.equal(found.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))
    assert torch.equal(
        r.ChannelMap(4, 8, stride, first).bfloat16()(x[0]).nan_to_num(nan=7.0), expected[0].nan_to_num(nan=7.0)
    )


def test_channel_map_without_any_channel_left_is_zero_and_exports() -> None:
    model = nn.Sequential(r.ChannelMap(4, 8, 2, 2))
    apply_edits(model, [without("0", "channel", 8, (2, 3, 4, 5), (Slice(tensor="0.weight", dim=0),))])
    x = torch.full((1, 4, 4, 4), torch.inf)
    assert torch.equal(model(x), torch.zeros(1, 4, 2, 2))
    full = nn.Sequential(r.ChannelMap(4, 8, 2, 2))
    for net in (model, full):
        exported = torch.export.export(net.eval(), (torch.ones(1, 4, 4, 4),)).module()
        assert torch.equal(exported(x), net(x))


IMAGES = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
BATCHES = [(IMAGES, torch.arange(8) % 3)]


class Caching(nn.Module):
    """Picks biases by an index once in evaluation mode, as attentions with relative positions do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.leave = nn.Linear(6, 16), nn.Linear(16, 3)
        self.biases = nn.Parameter(torch.randn(5, 3))
        self.cache: dict[str, list[Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        if "cpu" not in self.cache:
            self.cache["cpu"] = [self.biases[2]]
        return self.leave(self.enter(x).relu()) + self.cache["cpu"][0]


def test_planning_leaves_no_graph_in_a_cache() -> None:
    model = Caching().eval()
    plan = plan_width(model, Budget(macs=0.3), batches=BATCHES)
    assert model.cache == {}
    apply_plan(model, plan)
    for _ in range(2):
        model.cache.clear()
        model(IMAGES).sum().backward()


class Entries(dict[str, Any]):
    """A config whose attributes are its entries."""

    __getattr__, __setattr__, __delattr__ = dict.get, dict.__setitem__, dict.__delitem__


def test_caches_are_on_again_in_a_config_without_attributes_of_its_own() -> None:
    model = nn.Linear(2, 2)
    model.config = config = Entries(use_cache=True)  # type: ignore[assignment]
    with evaluating(model):
        assert config == {"use_cache": False}
    assert config == {"use_cache": True}


@pytest.mark.parametrize(("leaves", "neutral"), [("zero", torch.add), ("zeros", torch.add), ("one", torch.mul)])
def test_neutral_element_leaves_the_other_operand(leaves: str, neutral: object) -> None:
    x = torch.randn(2, 3, dtype=torch.float64)
    made = r.replacement_for(leaves)(x)
    assert made.dtype == x.dtype
    assert torch.equal(neutral(x, made), x)  # type: ignore[operator]


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_empty_leaves_a_concatenation_alone(dim: int) -> None:
    x = torch.randn(2, 3, 4)
    assert torch.equal(torch.cat([x, r.replacement_for("empty", dim=dim)(x)], dim), x)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_pooling_averages_over_the_windows_of_the_convolution(dims: int) -> None:
    x = torch.randn(2, 4, *(9,) * dims)
    window = ((3,) * dims, (2,) * dims, (1,) * dims)
    pooled = r.replacement_for("pool", window=window)(x)
    conv = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    ones = torch.ones(4, 1, *(3,) * dims)
    total, count = (conv(t, ones, stride=2, padding=1, groups=4) for t in (x, torch.ones_like(x)))
    torch.testing.assert_close(pooled, total / count)


def test_plain_data_is_carried_and_objects_are_not() -> None:
    old, new = nn.Conv2d(2, 3, 3, stride=2), r.PassThrough()
    old.f, old.i, old.kind, old.parts = [-1, 3], 7, None, {"a": 1}
    r.carry_attributes(old, new)
    assert (new.f, new.i, new.kind, new.stride, new.out_channels) == ([-1, 3], 7, None, (2, 2), 3)
    assert not hasattr(new, "parts")
    assert new.returns == 1


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_weights_leave_their_dtype_and_nothing_to_save(device: str) -> None:
    new = r.PassThrough()
    r.carry_attributes(nn.Linear(2, 3, bias=False, device=device, dtype=torch.float64), new)
    assert (new.weight.dtype, new.weight.numel(), new.bias) == (torch.float64, 0, None)
    assert not new.weight.is_meta
    assert not new.state_dict()
    assert new.to(torch.bfloat16).weight.dtype == torch.bfloat16
