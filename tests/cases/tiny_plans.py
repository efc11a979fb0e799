"""Plans for the tiny models, with random fitted tensors, for every way to remove a unit."""

from __future__ import annotations

import torch
from cases.models.tiny import BUILD, tiny_images, tiny_inputs
from torch import Tensor, nn

from prunerecover import apply_plan, merge
from prunerecover.families.describe import describe
from prunerecover.model.batches import logits_of
from prunerecover.plan.edits import Edit, Remove, Replace
from prunerecover.plan.plan import Plan
from prunerecover.surgery.merging import block_removals
from prunerecover.surgery.provenance import plan_for

Drop = tuple[int, str, str]  # block, kind, replacement


def tiny_plan(model: nn.Module, *drops: Drop) -> Plan:
    """Return a plan for this dense model, blocks last. The fitted tensors are random and seeded."""
    edits: list[Edit] = []
    tensors: dict[str, Tensor] = {}
    for index, kind, leaves in drops:
        if kind == "block":
            continue
        fitted = _tensors(model, index, kind, leaves, len(edits))
        edits.append(
            Remove(unit=_unit(model, index, kind), kind=kind)
            if leaves == "zero"
            else Replace(unit=_unit(model, index, kind), kind=kind, leaves=leaves, tensors=tuple(fitted))
        )
        tensors |= fitted
    edits += block_removals(model, [index for index, kind, _ in drops if kind == "block"])
    return plan_for(model, edits, method="test", tensors=tensors)


def _unit(model: nn.Module, index: int, kind: str) -> str:
    block = describe(model).blocks[index]
    part = {"attention": block.attention, "mlp": block.mlp, "activation": block.feed_forward}[kind]
    assert part is not None
    return part.activation if kind == "activation" else part.path


def _tensors(model: nn.Module, index: int, kind: str, leaves: str, number: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(number)
    block = describe(model).blocks[index]
    dim = next(b.dim for b in (block.attention, block.mlp) if b is not None)
    hidden = 48 if describe(model).family != "timm VisionTransformer" else 4 * dim
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "affine": {"weight": (dim, dim), "bias": (dim,)},
        "constant": {"bias": (dim,)},
        "slope_bias": {"slope": (hidden,), "bias": (hidden,)},
    }
    sizes = shapes.get(leaves, {})
    return {f"e{number}.{name}": torch.randn(*size, generator=generator) for name, size in sizes.items()}


VIT: dict[str, tuple[Drop, ...]] = {
    "dense": (),
    "attention zero": ((1, "attention", "zero"), (3, "attention", "zero")),
    "attention identity": ((0, "attention", "identity"),),
    "attention affine": ((2, "attention", "affine"),),
    "attention constant": ((2, "attention", "constant"),),
    "mlp zero": ((1, "mlp", "zero"),),
    "mlp affine": ((1, "mlp", "affine"),),
    "activation identity": ((1, "activation", "identity"),),
    "activation slope and bias": ((2, "activation", "slope_bias"), (3, "activation", "slope_bias")),
    "activation affine": ((3, "activation", "affine"),),
    "blocks": ((0, "block", "nothing"), (2, "block", "nothing")),
    "everything": (
        (0, "attention", "affine"),
        (0, "activation", "slope_bias"),
        (1, "attention", "zero"),
        (1, "mlp", "zero"),
        (3, "activation", "affine"),
        (2, "block", "nothing"),
    ),
}
TEXT: dict[str, tuple[str, tuple[Drop, ...]]] = {
    "llama attention": ("llama", ((1, "attention", "zero"),)),
    "llama mlp": ("llama", ((1, "mlp", "zero"), (2, "attention", "affine"))),
    "llama blocks": ("llama", ((1, "block", "nothing"), (2, "block", "nothing"))),
    "gpt2 activation": ("gpt2", ((0, "activation", "slope_bias"), (2, "activation", "affine"))),
    "gpt2 blocks": ("gpt2", ((0, "block", "nothing"),)),
    "bert attention": ("bert", ((1, "attention", "affine"), (2, "attention", "constant"))),
    "bert activation": ("bert", ((1, "activation", "slope_bias"),)),
    "bert blocks": ("bert", ((3, "block", "nothing"),)),
    "qwen3 blocks": ("qwen3", ((1, "block", "nothing"),)),
}
CASES: dict[str, tuple[str, tuple[Drop, ...]]] = {**{name: ("timm", drops) for name, drops in VIT.items()}, **TEXT}


def inputs_of(family: str) -> dict[str, Tensor]:
    return {"x": tiny_images()} if family == "timm" else tiny_inputs(family)


@torch.no_grad()
def logits(model: nn.Module, family: str) -> Tensor:
    inputs = {
        k: v.to(next(model.parameters()).dtype) if v.is_floating_point() else v for k, v in inputs_of(family).items()
    }
    return logits_of(model(**inputs))


def pruned(name: str, merged: bool = False) -> tuple[nn.Module, Plan]:
    family, drops = CASES[name]
    model = BUILD[family]()
    plan = tiny_plan(model, *drops)
    apply_plan(model, plan)
    return model, plan + merge(model) if merged else plan


def structure(model: nn.Module) -> tuple[str, dict[str, Tensor]]:
    return repr(model), {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(model: nn.Module, before: tuple[str, dict[str, Tensor]]) -> None:
    assert repr(model) == before[0]
    assert all(torch.equal(value, before[1][name]) for name, value in model.state_dict().items())
