"""Models with batches, and helpers for engine tests: outputs, and snapshots of all invariants."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from cases.models.tiny import BUILD, tiny_images, tiny_inputs, tiny_timm
from cases.sampling import first
from torch import Tensor, nn

from prunerecover.model.batches import as_inputs, call, predictions_of
from prunerecover.plan.plan import Plan
from prunerecover.planning.plan_depth import plan_depth

TIMM: dict[str, dict[str, Any]] = {
    "timm": {},
    "timm_all": {"distilled": True, "init_values": 0.5, "drop_path_rate": 0.4, "qk_norm": True},
}
UNLIKE = ("timm_all", "llama", "gpt2", "opt_post_norm", "bert")  # between them they have every kind of layout
PLANNED = first(3, UNLIKE)
UNGATED = ("timm", "timm_all", "gpt2", "opt", "opt_post_norm", "bert", "hf_vit")


def build(name: str) -> nn.Module:
    return tiny_timm(**TIMM[name]) if name in TIMM else BUILD[name]()


def batch_of(name: str, n: int = 4, seed: int = 1) -> Any:
    return tiny_images(n, seed=seed) if name in TIMM else tiny_inputs(name, n, seed=seed)


def batches_of(name: str, count: int = 2, n: int = 8) -> list[Any]:
    return [batch_of(name, n, seed=10 + i) for i in range(count)]


def plan_of(name: str, model: nn.Module, **arguments: Any) -> Plan:
    return plan_depth(model, batches=batches_of(name), **arguments)


def loss(model: nn.Module, batch: Any) -> Tensor:
    """Return a loss without labels."""
    return -predictions_of(call(model, as_inputs(batch))).log_softmax(-1)[..., 1].mean()


def output_of(model: nn.Module, batch: Any) -> Tensor:
    with torch.no_grad():
        return predictions_of(call(model, as_inputs(batch)))


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Return everything that planning must not change in a model and the random state, with values copied."""
    return {
        "modules": [(name, id(module), module.training) for name, module in model.named_modules()],
        "parameters": {n: (id(p), p.requires_grad, p.detach().clone(), p.grad) for n, p in model.named_parameters()},
        "buffers": {n: (id(b), b.clone()) for n, b in model.named_buffers()},
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "forwards": ["forward" in vars(m) for m in model.modules()],
        "slots": [getattr(m, "layer_idx", None) for m in model.modules()],
        "config": getattr(model, "config", None) and model.config.to_dict(),
        "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()),
        "gradients on": torch.is_grad_enabled(),
    }


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor | np.ndarray):
        return type(a) is type(b) and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Check that a `with` block leaves the model unchanged, whether or not it raises."""
    before = snapshot(model)
    try:
        yield
    finally:
        after = snapshot(model)
        different = [key for key in before if not equal(before[key], after[key])]
        assert not different, different
