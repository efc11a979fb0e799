"""Properties of every network without 30% of the units of all its groups."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from cases.width.groups import assert_equal, outputs
from cases.width.oracle import masked, thirty_percent
from torch import Tensor, nn

from prunerecover import load_pruned, save_pruned
from prunerecover.model.batches import as_inputs, call
from prunerecover.model.evaluation import uncompiled
from prunerecover.plan.plan import Plan
from prunerecover.surgery.apply_edits import Applied, apply_edits, undo
from prunerecover.surgery.provenance import plan_for
from prunerecover.width.groups.discovery import find_groups
from prunerecover.width.groups.found import FoundGroups
from prunerecover.width.groups.narrow_edits import narrow_edits


@dataclass(frozen=True, eq=False)
class RoundTrip:
    """Network with inputs, and a plan that removes 30% of the units of each group.

    Args:
        build: Makes the network, always the same.
        inputs: Batch of inputs.
        kinds: Kinds of the groups.
    """

    build: Callable[[], nn.Module]
    inputs: Any
    kinds: tuple[str, ...] = ("channel", "head", "neuron")

    @cached_property
    def found(self) -> FoundGroups:
        return find_groups(self.build(), self.inputs, self.kinds)

    @cached_property
    def plan(self) -> Plan:
        keep = thirty_percent(self.found)
        gone = {g.name: torch.tensor([u for u in range(g.size) if u not in k]) for g, k in keep.items()}
        edits = (*self.found.edits, *narrow_edits(self.found.groups, gone))
        return plan_for(self.build(), edits, method="test")

    def pruned(self) -> nn.Module:
        return self.applied()[0]

    def applied(self) -> tuple[nn.Module, Applied]:
        model = self.build()
        return model, apply_edits(model, self.plan.edits)

    @torch.no_grad()
    def given(self, model: nn.Module) -> list[Tensor]:
        with uncompiled():  # fused encoder layers put zeros where tokens are padding
            return outputs(model.eval(), self.inputs)

    def masked(self, dense: nn.Module) -> nn.Module:
        return masked(dense, self.found, thirty_percent(self.found))

    def assert_masked_equals_narrowed(self, tolerance: float = 1e-5) -> None:
        """The dense network with all writers of removed units at zero computes the narrowed outputs."""
        dense = self.build()
        zeroed = self.masked(dense)
        assert_equal(self.given(self.pruned()), self.given(zeroed), tolerance)
        changes = [(a - b).abs().max() for a, b in zip(self.given(zeroed), self.given(dense), strict=True)]
        assert max(changes) > 1e-3

    def assert_in_onnx(self, folder: Path) -> None:
        """Onnxruntime computes the same."""
        import onnxruntime

        model, path = self.pruned().eval(), str(folder / "model.onnx")
        given = as_inputs(self.inputs)
        torch.onnx.export(model, given.args, path, dynamo=True, external_data=False, verbose=False)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        feeds = dict(zip((i.name for i in session.get_inputs()), (a.numpy() for a in given.args), strict=True))
        found = [torch.from_numpy(one) for one in session.run(None, feeds)]
        assert_equal(found, self.given(model), 1e-3)

    def run(self, model: nn.Module) -> Any:
        return call(model, as_inputs(self.inputs))


class RoundTripChecks:
    """Tests for a file's `Test...` class to inherit; its fixture `network` provides the round trips."""

    def test_narrowed_equals_masked(self, network: RoundTrip) -> None:
        network.assert_masked_equals_narrowed()

    def test_undone(self, network: RoundTrip) -> None:
        """An undo restores the network bit by bit."""
        model, applied = network.applied()
        undo(model, applied.journal)
        dense = network.build()
        assert [str(module) for module in model.modules()] == [str(module) for module in dense.modules()]
        assert all(torch.equal(a, b) for a, b in zip(network.given(model), network.given(dense), strict=True))

    def test_pruned_network_trains(self, network: RoundTrip) -> None:
        """A step of an optimizer changes every parameter, and the network can be copied."""
        model = network.pruned().train()
        before = copy.deepcopy(model)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        results = outputs(model, network.inputs)
        sum(t.square().sum() for t in results if t.is_floating_point()).backward()
        optimizer.step()
        still = [n for (n, a), b in zip(model.named_parameters(), before.parameters(), strict=True) if a.equal(b)]
        assert not [name for name in still if not name.endswith("bias")]  # a norm behind may take a bias away

    def test_saved_and_opened(self, network: RoundTrip, tmp_path: Path) -> None:
        """The saved network opens as the same network."""
        model = network.pruned()
        again = load_pruned(save_pruned(model, network.plan, tmp_path / "pruned"), network.build())
        assert all(torch.equal(a, b) for a, b in zip(network.given(again), network.given(model), strict=True))


class ExportedRoundTripChecks(RoundTripChecks):
    """Further tests, for networks that `torch.export` takes."""

    def test_exported(self, network: RoundTrip) -> None:
        """`torch.export` takes the network, and its program computes the same outputs."""
        model, given = network.pruned().eval(), as_inputs(network.inputs)
        program = torch.export.export(model, given.args, dict(given.kwargs)).module()
        with torch.no_grad():
            assert_equal(outputs(program, network.inputs), network.given(model), 1e-5)
