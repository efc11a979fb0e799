"""Plans that bypass and patch modules: undone, copied, exported, saved, and followed by an optimizer."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cases.depth.architectures import ARCHITECTURES, image
from cases.depth.hand_made import InPlaceSums
from cases.depth.removal import outputs, pruned, removals_in, removals_of
from cases.sampling import one_in
from torch import nn

from prunerecover import apply_plan, load_pruned, save_pruned, update_optimizer
from prunerecover.depth.layers.removals import Removals
from prunerecover.model.copies import deep_copy
from prunerecover.plan.edit_parts import StandIn
from prunerecover.plan.edits import Bypass, Edit, Patch
from prunerecover.surgery.apply_edits import apply_edits, undo
from prunerecover.surgery.provenance import plan_for

LAYERS = ("layer1.0.conv1", "layer1.0.conv2", "layer3.1.conv2")


@pytest.fixture(scope="module")
def removals() -> Removals:
    return removals_of(*ARCHITECTURES["resnet18"](), ("layer",))


@pytest.fixture
def model(removals: Removals) -> nn.Module:
    return deep_copy(removals.model).eval()


@pytest.fixture(scope="module")
def edits(removals: Removals) -> tuple[Edit, ...]:
    units = {unit.name: unit for unit in removals.units}
    return removals.edits([units[name] for name in LAYERS])


def result(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return outputs(model, image())[0]


def test_undo_puts_every_module_back(model: nn.Module, edits: tuple[Edit, ...]) -> None:
    before, modules = result(model), [(path, id(module)) for path, module in model.named_modules()]
    applied = apply_edits(model, edits)
    assert not torch.equal(result(model), before)
    undo(model, applied.journal)
    assert [(path, id(module)) for path, module in model.named_modules()] == modules
    assert torch.equal(result(model), before)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_a_bypassed_network_compute_the_same(
    model: nn.Module, edits: tuple[Edit, ...], copied: Callable[[nn.Module], nn.Module]
) -> None:
    apply_edits(model, edits)
    assert torch.equal(result(copied(model)), result(model))


def test_optimizer_keeps_what_is_left(model: nn.Module, edits: tuple[Edit, ...]) -> None:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(image()).square().sum().backward()
    optimizer.step()
    update_optimizer(optimizer, apply_edits(model, edits))
    assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in model.parameters()}
    assert {id(p) for p in optimizer.state} <= {id(p) for p in model.parameters()}


@pytest.mark.parametrize("name", one_in(2, ["deit", "poolformer"]))
def test_pruned_folder_of_a_bypassed_model_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    model, batch = ARCHITECTURES[name]()
    removals = removals_of(model, batch, ("block", "layer"))
    blocks = [unit for unit in removals.units if unit.kind == "block"]
    layers = [u for u in removals.units if u.kind == "layer" and u.block not in ("", blocks[1].name)]
    plan = plan_for(model, removals.edits([blocks[1], layers[0], layers[-1]]), method="test")
    apply_plan(model, plan)
    save_pruned(model, plan, tmp_path / "pruned")
    again = load_pruned(tmp_path / "pruned")
    assert torch.equal(result(again.eval()), result(model.eval()))


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({"7": StandIn()}, r"Expected a module at '7', but the model \(Sequential\) has no"),
        ({"": StandIn()}, "Expected the path of a module inside the network, but got the network"),
    ],
)
@pytest.mark.parametrize("first", [{}, {"0": StandIn()}], ids=["alone", "after another"])
def test_wrong_module_is_explained_and_nothing_is_changed(
    modules: dict[str, StandIn], message: str, first: dict[str, StandIn]
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 1))
    before = [(path, id(module)) for path, module in model.named_modules()]
    earlier = [Bypass(unit="0", kind="layer", modules=first)] if first else []
    with pytest.raises(ValueError, match=message):
        apply_edits(model, [*earlier, Patch(modules=modules)])
    assert [(path, id(module)) for path, module in model.named_modules()] == before


def test_pytorch_encoder_without_parts_runs_in_inference_and_with_padding() -> None:
    model, batch = ARCHITECTURES["encoder"]()
    removals = removals_of(model, batch, ("block", "attention", "mlp"))
    for unit in removals.units:
        left = pruned(removals, [unit])
        padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        with torch.inference_mode():
            alone = left(batch)
            padded = left[1](left[0](batch), src_key_padding_mask=padding)
        assert torch.isfinite(alone).all()
        assert padded.shape == (2, 5, 16)


@pytest.mark.slow
def test_stand_in_answers_code_that_reads_the_type_of_a_weight() -> None:
    removals = removals_in("t5", ("layer",))
    (unit,) = (unit for unit in removals.units if unit.name == "encoder.block.1.layer.1.DenseReluDense.wo")
    left = pruned(removals, [unit]).to(torch.bfloat16)
    assert outputs(left, removals.example)[0].dtype == torch.bfloat16


class Independent(InPlaceSums):
    """Computation of `InPlaceSums` without its layer `b`, written without overwriting."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        out = torch.relu(torch.relu(self.a(x)) + x)
        return self.head((out + self.c(out) * 2.0).mean((2, 3)))


def gradients(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(x).square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_pass_through_is_not_overwritten_by_what_reads_it() -> None:
    torch.manual_seed(0)
    model, x = InPlaceSums().eval(), torch.randn(2, 3, 8, 8)
    removals = removals_of(model, x, ("layer",))
    left = pruned(removals, [unit for unit in removals.units if unit.name == "b"])
    written = Independent()
    written.load_state_dict(model.state_dict())
    torch.testing.assert_close(left(x), written(x))
    expected = gradients(written, x)
    for name, gradient in gradients(left, x).items():
        torch.testing.assert_close(gradient, expected[name])
