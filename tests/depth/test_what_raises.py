"""Units without which a network raises are left out, with the reason: they are never the end of the planning."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from prunerecover import Budget, apply_plan, find_units, plan_depth

X = torch.rand(8, 5, 8, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).relu())  # type: ignore[no-any-return]


class Collecting(nn.Module):
    """Fuses what hooks on its blocks collect while it runs, as backbones of transformers do.

    Args:
        fused: Numbers of the blocks whose outputs are fused; None: none, they are outputs beside the logits.
    """

    def __init__(self, fused: tuple[int, ...] | None, d: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head, self.fused = nn.Linear(8, d), nn.Linear(d, 3), fused
        self.blocks = nn.ModuleList(Block(d) for _ in range(4))
        self.fuse = nn.ModuleList(nn.Linear(d, d) for _ in fused or ())

    def forward(self, x: Tensor) -> Any:
        kept: list[Tensor] = []
        hooks = [
            module.register_forward_hook(lambda _, given, output: kept.append(output))
            for module in self.modules()
            if isinstance(module, Block)
        ]
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        for hook in hooks:
            hook.remove()
        if self.fused is None:
            return {"logits": self.head(x), "states": kept}
        return self.head(sum((fuse(kept[n]) for fuse, n in zip(self.fuse, self.fused, strict=True)), torch.zeros(())))


@pytest.mark.parametrize("fused", [(0, 1, 2, 3), (3,)], ids=["all", "the last"])
def test_blocks_whose_outputs_hooks_collect_are_no_units(fused: tuple[int, ...]) -> None:
    """Also those whose own output is not read: the place of the others in the list depends on them."""
    model = Collecting(fused)
    assert not find_units(model, X, "block")
    refused = find_units(model, X, "block").refused
    assert refused["blocks.0"].startswith("a hook that the network puts on 'blocks.0' while it runs hands on")
    with pytest.raises(ValueError, match="units of kind block that may go, but there is none .'blocks.0': a hook that"):
        plan_depth(model, remove={"block": 1}, batches=[X])
    plan = plan_depth(model, Budget(macs=0.15), batches=[X])
    assert plan.removed
    apply_plan(model, plan)
    assert model(X).shape == (8, 5, 3)


def test_blocks_stay_units_if_hooks_only_put_their_outputs_out() -> None:
    assert [unit.name for unit in find_units(Collecting(None), X, "block")] == [f"blocks.{n}" for n in range(4)]


SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
SIZES |= {"image_size": 32, "patch_size": 8, "backbone_out_indices": [0, 1, 2, 3], "is_hybrid": False}
SIZES |= {"neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 8}
STAGES = {"image_size": 16, "patch_size": 1, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2]}
STAGES |= {"window_size": 4, "mlp_ratio": 2.0, "upscale": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "purpose", "sizes"),
    [
        ("DPT", "DepthEstimation", SIZES),
        # Stages hand on sizes beside their maps: an error only where an attention that is a stage goes.
        ("Swin2SR", "ImageSuperResolution", STAGES),
    ],
)
def test_backbones_of_transformers_are_planned(name: str, purpose: str, sizes: dict[str, Any]) -> None:
    import transformers

    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, f"{name}For{purpose}")(config).eval()
    batch = {"pixel_values": torch.rand(8, 3, config.image_size, config.image_size)}
    model(**batch)  # transformers puts its hooks on a network that runs, and leaves them there
    kinds = {unit.kind for unit in find_units(model, batch, ("block", "attention", "mlp"))}
    assert {"attention", "mlp"} <= kinds
    for kind in kinds:
        left = copy.deepcopy(model)
        apply_plan(left, plan_depth(model, remove={kind: 1}, batches=[batch]))
        left(**batch)


class Particular(nn.Module):
    """Raises without some of its branches.

    Args:
        needs: Sets of branches, of which one each must be there.
    """

    def __init__(self, *needs: set[int], d: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.needs, self.head = needs, nn.Linear(d, 3)
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(d, d), nn.ReLU()) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        there = {n for n, branch in enumerate(self.branches) if isinstance(branch, nn.Sequential)}
        for needed in self.needs:
            if not needed & there:
                raise KeyError(f"one of {needed}")
        for branch in self.branches:
            x = x + branch(x)
        return self.head(x)  # type: ignore[no-any-return]


HOW: dict[str, dict[str, Any]] = {
    "the default": {},
    "greedy": {"search": "greedy"},
    "exact": {"search": "exact"},
    "ranked": {"importance": "random"},
    "in rounds": {"search": "rounds"},
    "by scores without the unit": {"importance": "magnitude"},
}


@pytest.mark.parametrize("how", HOW)
def test_a_unit_without_which_the_network_raises_is_left_out(how: str) -> None:
    plan = plan_depth(Particular({0}, {2}), remove={"mlp": 2}, batches=[X], **HOW[how])
    assert set(plan.removed["mlp"]) == {"branches.1.0", "branches.3.0"}


@pytest.mark.parametrize("how", HOW)
def test_units_that_raise_together_do_not_go_together(how: str) -> None:
    first = plan_depth(Particular(), remove={"mlp": 2}, batches=[X], **HOW[how]).removed["mlp"]
    needed = {int(name.split(".")[1]) for name in first}
    other = plan_depth(Particular(needed), remove={"mlp": 2}, batches=[X], **HOW[how]).removed["mlp"]
    assert len(set(other)) == 2
    assert set(other) != set(first)


@pytest.mark.parametrize("how", ["the default", "greedy", "ranked"])
def test_a_share_of_the_cost_leaves_out_what_raises(how: str) -> None:
    plan = plan_depth(Particular({0}, {2}), Budget(macs=0.4), kinds="mlp", batches=[X], **HOW[how])
    assert set(plan.removed["mlp"]) == {"branches.1.0", "branches.3.0"}


@pytest.mark.parametrize("how", HOW)
def test_if_too_few_are_left_the_error_of_the_network_is_the_reason(how: str) -> None:
    with pytest.raises(ValueError, match="the network does not run without it .KeyError: 'one of"):
        plan_depth(Particular({0}, {1}, {2}), remove={"mlp": 2}, batches=[X], **HOW[how])


def test_an_error_that_is_not_of_the_network_is_told() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        if not isinstance(model.branches[0], nn.Sequential):  # type: ignore[index]
            raise KeyError("of the loss")
        return model(batch).square().mean()  # type: ignore[no-any-return]

    with pytest.raises(KeyError, match="of the loss"):
        plan_depth(Particular(), remove={"mlp": 1}, batches=[X], loss=loss, importance="cross_entropy")
