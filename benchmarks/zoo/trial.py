"""Shared parts of the zoo's trials: seeds, a training step, and a network loaded in another process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.networks.network import Network, outputs
from benchmarks.zoo.networks.suites import networks_of
from prunerecover import Plan, export, load_pruned, save_pruned
from prunerecover.importance.measuring.losses import loss_of, supervised_loss
from prunerecover.refusal import Refusal
from prunerecover.runtimes.program_file import FIXED_SIZES

SEED, BATCHES = 0, 2
FILE, FOLDER = "outputs.pt", "pruned"
SLOW = 20  # most processor seconds of finding and planning at these sizes
Row = dict[str, Any]
FREE, FIXED, REFUSED, LATE = "free sizes", "fixed sizes", "refused", "not in time"  # results of an export


class Ended(Exception):
    """A network ends in another way than "ok".

    Args:
        outcome: Outcome of the row.
        reason: Failed step, and the error.
        error: Error behind it; the row keeps a refusal's cause and way out.
    """

    def __init__(self, outcome: str, reason: str, error: Exception | None = None) -> None:
        super().__init__(reason)
        self.row: Row = {"outcome": outcome, "reason": reason, **parts_of(error)}


def ended(what: str, error: Exception, nothing: str) -> Ended:
    """Return how a network ends by an error of finding or planning.

    Args:
        what: Failed step.
        error: Error of the step.
        nothing: Words of the error if there is nothing to prune.
    """
    if not isinstance(error, ValueError):
        return Ended("failed", f"{what}: {type(error).__name__}: {error}")
    if nothing in str(error):
        return Ended("nothing", str(error), error)
    return Ended("refused" if isinstance(error, Refusal) else "failed", f"{what}: {error}", error)


def parts_of(error: Exception | None) -> dict[str, str]:
    """Return the cause and the way out of a refusal; empty for any other error."""
    return {"cause": error.cause, "way_out": error.way_out} if isinstance(error, Refusal) else {}


def prepare() -> None:
    """Set up a process: a single thread, for a fixed order of sums."""
    torch.set_num_threads(1)


def reloaded(suite: str, name: str, folder: Path) -> Row:
    """Load the saved network of `trained_and_saved`, and return the outcome: ok if its outputs are bitwise equal."""
    network = networks_of(suite)[name]
    row: Row = {"outcome": "ok"}
    try:
        with stage("load_pruned"):
            model, row["rebuilt"] = _loaded(network, folder)
        for parameter in model.parameters():  # a mapped file is aligned otherwise, and kernels round otherwise then
            parameter.data = parameter.data.clone()
        ours, theirs = _outputs(model, batches(network)[0]), torch.load(folder / FILE)
        same = len(ours) == len(theirs) > 0 and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        if not same:
            raise Ended("failed", f"load_pruned: the outputs differ{_by_how_much(ours, theirs)}")
    except Ended as end:
        return row | end.row
    return row


def exported(suite: str, name: str, folder: Path) -> Row:
    """Export the network of `trained_and_saved` as ONNX, checked in onnxruntime; return the kind of sizes."""
    network = networks_of(suite)[name]
    model = _loaded(network, folder)[0]
    try:
        export(model, folder / "model.onnx", batches(network)[0])
    except Refusal as error:
        how = FIXED if error.way_out == FIXED_SIZES else REFUSED
        return {"outcome": "ok", "onnx": how, "onnx_reason": str(error), "onnx_parts": parts_of(error)}
    return {"outcome": "ok", "onnx": FREE}


def trained_and_saved(model: nn.Module, plan: Plan, given: list[Any], network: Network, folder: Path) -> list[str]:
    """Train a pruned network for a step, save it, and save its outputs for the first batch.

    Returns:
        Parameters without a gradient that have a gradient in the dense network.
    """
    with stage("training"):
        reached = _backward(dense(network, SEED), given[1], network)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        missed = {name for name, _ in model.named_parameters()} - _backward(model, given[1], network)
        optimizer.step()
    with stage("save_pruned"):
        save_pruned(model, plan, folder / FOLDER)
        torch.save(_outputs(model, given[0]), folder / FILE)
    return sorted(reached & missed)


def silently(dead: list[str], seconds: float) -> Row:
    """Return the outcome of a trial without errors, which may be a silent failure.

    Args:
        dead: Result of `trained_and_saved`.
        seconds: Processor seconds of finding and planning.

    >>> silently([], 1.5)
    {'outcome': 'ok'}
    >>> silently(["enter.weight"], 1.5)["reason"]
    'no gradient any more: enter.weight'
    >>> silently([], 21.3)["reason"]
    'finding and planning take 21.3 s of processor time'
    """
    if dead:
        return {"outcome": "dead", "reason": f"no gradient any more: {', '.join(dead)}"}
    if seconds > SLOW:
        return {"outcome": "slow", "reason": f"finding and planning take {seconds:.1f} s of processor time"}
    return {"outcome": "ok"}


@contextmanager
def timed(row: Row) -> Iterator[None]:
    """Note the processor seconds of finding and planning, also on a refusal."""
    started = time.process_time()
    try:
        yield
    finally:
        row["planning_seconds"] = round(time.process_time() - started, 2)


def dense(network: Network, seed: int) -> nn.Module:
    """Return a network with random weights."""
    torch.manual_seed(seed)
    return network.build().eval()


def batches(network: Network) -> list[Any]:
    """Return batches of random inputs."""
    generator = torch.Generator().manual_seed(SEED)
    return [network.batch(generator) for _ in range(BATCHES)]


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Turn any error of a step after the plan into a failure."""
    try:
        yield
    except Exception as error:
        raise Ended("failed", f"{name}: {type(error).__name__}: {error}") from error


def _loaded(network: Network, folder: Path) -> tuple[nn.Module, bool]:
    """Return the saved network, and whether the plan built it; otherwise a dense network of other weights is passed."""
    rebuilt = Plan.load(folder / FOLDER / "plan.json").source.constructor is not None
    return load_pruned(folder / FOLDER, None if rebuilt else dense(network, SEED + 1)), rebuilt


def _backward(model: nn.Module, batch: Any, network: Network) -> set[str]:
    """Run backward once in training mode; return the names of the parameters with a gradient."""
    loss = loss_of(model.train(), batch, network.loss or supervised_loss)
    loss.backward()
    assert loss.isfinite(), f"the loss is {loss}"
    reached = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert reached, "no parameter got a gradient"
    return reached


@torch.no_grad()
def _outputs(model: nn.Module, batch: Any) -> list[torch.Tensor]:
    torch.manual_seed(SEED)  # for networks with random numbers
    return outputs(model.eval(), batch)


def _by_how_much(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> str:
    if [output.shape for output in ours] != [output.shape for output in theirs]:
        return f" in shape: {[tuple(o.shape) for o in ours]} and {[tuple(o.shape) for o in theirs]}"[:200]
    if any(output.isnan().any() for output in ours):
        return ": some are not finite"
    return f" by {max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True) if a.numel()):.1e}"
