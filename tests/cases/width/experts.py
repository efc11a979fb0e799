"""Experts removed by hand, and a mixture whose router never chooses some of its experts."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from prunerecover import Plan
from prunerecover.surgery.provenance import plan_for
from prunerecover.width.groups.experts import find_experts
from prunerecover.width.groups.narrow_edits import narrow_edits

EXPERTS = ("expert",)
TWO = {"model.layers.0.mlp.experts": (0, 5), "model.layers.1.mlp.experts": (1, 4)}
ONE_AND_TWO = {"model.layers.0.mlp.experts": (3,), "model.layers.1.mlp.experts": (1, 4)}
UNGROUPED = ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2")


def tokens(samples: int = 3, length: int = 9, seed: int = 1) -> Tensor:
    return torch.randint(3, 61, (samples, length), generator=torch.Generator().manual_seed(seed))


def text(batches: int = 4, samples: int = 4) -> list[dict[str, Tensor]]:
    rows = [tokens(samples, seed=10 + i) for i in range(batches)]
    return [{"input_ids": ids, "labels": ids} for ids in rows]


def without(model: nn.Module, removed: Mapping[str, Sequence[int]]) -> Plan:
    units = {name: torch.tensor(numbers) for name, numbers in removed.items()}
    return plan_for(model, narrow_edits(find_experts(model), units), method="width/by_hand")


def counts(model: Any) -> list[int]:
    return [group.size for group in find_experts(model)]


class _LogitsOfRemoved(TorchFunctionMode):
    """Sets the router's logits of removed experts to minus infinity, wherever they are computed."""

    def __init__(self, removed: Mapping[int, Sequence[int]]) -> None:
        super().__init__()
        self.removed = removed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is F.linear and args[1].data_ptr() in self.removed:
            result[..., list(self.removed[args[1].data_ptr()])] = -torch.inf
        return result


@contextmanager
def masked(model: nn.Module, removed: Mapping[str, Sequence[int]]) -> Iterator[nn.Module]:
    """Yield a copy whose router never chooses some experts, including a correction of the choice."""
    model = copy.deepcopy(model)
    routers = {name: model.get_submodule(name.replace("experts", "gate")) for name in removed}
    for name, router in routers.items():
        for buffer in router.buffers():
            buffer[list(removed[name])] = -torch.inf
    with _LogitsOfRemoved({routers[name].weight.data_ptr(): gone for name, gone in removed.items()}), torch.no_grad():
        yield model
