"""Modules by path: wrappers are seen through, and what is missing is named."""

from __future__ import annotations

import pytest
import torch
from cases.engine import build
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim.swa_utils import AveragedModel

from prunerecover.model.paths import get_module, parent_path, set_module, unwrap


def test_wrappers_are_seen_through() -> None:
    net = nn.Linear(2, 2)
    assert unwrap(nn.DataParallel(torch.compile(net))) is net
    assert unwrap(net) is net


def test_averaged_model_and_subclasses_of_wrappers_are_seen_through() -> None:
    class OwnDataParallel(nn.DataParallel):
        pass

    net = nn.Linear(2, 2)
    averaged = AveragedModel(net)
    assert unwrap(averaged) is averaged.module
    assert unwrap(OwnDataParallel(net)) is net


@pytest.mark.parametrize("name", ["module", "_orig_mod"])
def test_a_network_with_one_part_of_such_a_name_is_no_wrapper(name: str) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, name, nn.Linear(2, 2))

    net = Scaled()
    assert unwrap(net) is net


def test_sharded_wrapper_is_seen_through() -> None:
    wrapper = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(wrapper)
    wrapper._fsdp_wrapped_module = net = nn.Linear(2, 2)
    assert unwrap(wrapper) is net


def test_peft_wrapper_is_seen_through() -> None:
    from peft import LoraConfig, get_peft_model

    model = build("llama")
    assert unwrap(get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))) is model


def test_missing_path_names_the_deepest_part_that_exists() -> None:
    net = nn.Sequential(nn.Sequential(nn.ReLU()))
    with pytest.raises(ValueError, match=r"a module at '0\.3\.x', but 0 \(Sequential\) has no '3'"):
        get_module(net, "0.3.x")
    with pytest.raises(ValueError, match="but the model .* has no 'blocks'"):
        get_module(net, "blocks.1")
    assert get_module(net, "") is net
    assert parent_path("a.b.c") == "a.b"


def test_set_module_keeps_modes_of_submodules() -> None:
    net = nn.Sequential(nn.Sequential(nn.Dropout(), nn.ReLU()))
    new = nn.Sequential(nn.Dropout().eval(), nn.ReLU())
    set_module(net, "0", new)
    assert [m.training for m in new] == [False, True]
    net.eval()
    other = nn.ReLU()
    set_module(net, "0", other)
    assert not other.training
