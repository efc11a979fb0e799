"""One network of the zoo pruned in width, trained for a step, saved, and loaded again in another process.

Planned with default arguments for 30% of the MACs on two batches of random inputs. What happens is told as an outcome:
"ok" only if the share that is really gone is the one asked for, or a warning names both.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.width.zoo_networks.network import Network, outputs
from benchmarks.width.zoo_networks.suites import networks_of
from prunerecover import Budget, Plan, apply_plan, load_pruned, plan_width, save_pruned
from prunerecover.cost.macs import count_macs
from prunerecover.importance.losses import loss_of, supervised_loss
from prunerecover.model.batches import without_labels

SEED, ASKED, BATCHES, MISS = 0, 0.3, 2, 0.02
NOTHING = "to have groups of kind"  # of the error that says that there is nothing to prune
FILE, FOLDER = "outputs.pt", "pruned"
Row = dict[str, Any]


class Ended(Exception):
    """A network ends in another way than "ok"."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


def prepare() -> None:
    """Set up a process: one thread, whose sums have one order."""
    torch.set_num_threads(1)


def pruned(suite: str, name: str, folder: Path) -> Row:
    """Plan, apply, train and save a network; leave its outputs beside it, and return what its row says of that."""
    network = networks_of(suite)[name]
    model, batches = _dense(network, SEED), _batches(network)
    example = without_labels(batches[0])
    dense = count_macs(model, example)
    try:
        plan, told = _planned(model, batches, network)
        with _stage("apply_plan"):
            apply_plan(model, plan)
        removed = 1 - count_macs(model, example) / dense
        with _stage("training"):
            _train(model, batches[1], network)
        with _stage("save_pruned"):
            save_pruned(model, plan, folder / FOLDER)
            torch.save(_outputs(model, batches[0]), folder / FILE)
    except Ended as end:
        return {"outcome": end.outcome, "reason": str(end)}
    return {**judged(removed, told), "removed": removed}


def reloaded(suite: str, name: str, folder: Path) -> Row:
    """Load what `pruned` saved, and return how it ends: ok if its outputs are the same bits.

    Where the plan cannot build the network, a dense one of other weights is passed.
    """
    network = networks_of(suite)[name]
    rebuilt = Plan.load(folder / FOLDER / "plan.json").source.constructor is not None
    try:
        with _stage("load_pruned"):
            model = load_pruned(folder / FOLDER, None if rebuilt else _dense(network, SEED + 1))
        for parameter in model.parameters():  # a mapped file is aligned otherwise, and kernels round otherwise then
            parameter.data = parameter.data.clone()
        ours, theirs = _outputs(model, _batches(network)[0]), torch.load(folder / FILE)
        same = len(ours) == len(theirs) > 0 and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        if not same:
            raise Ended("failed", f"load_pruned: the outputs differ{_by_how_much(ours, theirs)}")
    except Ended as end:
        return {"outcome": end.outcome, "reason": str(end), "rebuilt": rebuilt}
    return {"outcome": "ok", "rebuilt": rebuilt}


def judged(removed: float, told: Sequence[str]) -> Row:
    """Return how a share of the MACs that is really gone ends, given the warnings of planning.

    >>> judged(0.31, [])
    {'outcome': 'ok'}
    >>> judged(0.35, [])["reason"]
    '35.0% of the MACs are gone instead of 30%, and no warning says so'
    >>> judged(0.35, ["Asked for 30% of the MACs, 35.0% go."])["outcome"]
    'ok'
    """
    if abs(removed - ASKED) <= MISS:
        return {"outcome": "ok"}
    named = next((text for text in told if _names(text, ASKED) and _names(text, removed)), None)
    if named is not None:
        return {"outcome": "ok", "warned": named}
    reason = f"{removed:.1%} of the MACs are gone instead of {ASKED:.0%}, and no warning says so"
    return {"outcome": "failed", "reason": reason}


def _names(text: str, share: float) -> bool:
    return any(abs(float(number) / 100 - share) < 0.006 for number in re.findall(r"(\d+(?:\.\d+)?) ?%", text))


def _planned(model: nn.Module, batches: list[Any], network: Network) -> tuple[Plan, list[str]]:
    """Return the plan by default arguments, and the warnings."""
    loss = {} if network.loss is None else {"loss": network.loss}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            plan = plan_width(model, Budget(macs=ASKED), batches=batches, **loss)
        except ValueError as error:
            if NOTHING in str(error):
                raise Ended("nothing", str(error)) from error
            raise Ended("refused" if str(error).startswith("Expected") else "failed", f"plan_width: {error}") from error
        except Exception as error:
            raise Ended("failed", f"plan_width: {type(error).__name__}: {error}") from error
    return plan, [str(warning.message) for warning in caught]


@contextmanager
def _stage(name: str) -> Iterator[None]:
    """Any error of a step that comes after the plan is a failure."""
    try:
        yield
    except Exception as error:
        raise Ended("failed", f"{name}: {type(error).__name__}: {error}") from error


def _train(model: nn.Module, batch: Any, network: Network) -> None:
    """One step of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loss = loss_of(model.train(), batch, network.loss or supervised_loss)
    loss.backward()
    assert loss.isfinite(), f"the loss is {loss}"
    assert any(parameter.grad is not None for parameter in model.parameters()), "no parameter got a gradient"
    optimizer.step()


def _dense(network: Network, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return network.build().eval()


def _batches(network: Network) -> list[Any]:
    generator = torch.Generator().manual_seed(SEED)
    return [network.batch(generator) for _ in range(BATCHES)]


@torch.no_grad()
def _outputs(model: nn.Module, batch: Any) -> list[torch.Tensor]:
    torch.manual_seed(SEED)  # for networks that draw anything
    return outputs(model.eval(), batch)


def _by_how_much(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> str:
    if [output.shape for output in ours] != [output.shape for output in theirs]:
        return f" in shape: {[tuple(o.shape) for o in ours]} and {[tuple(o.shape) for o in theirs]}"[:200]
    if any(output.isnan().any() for output in ours):
        return ": some are not finite"
    return f" by {max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True) if a.numel()):.1e}"


STEPS: tuple[Callable[[str, str, Path], Row], ...] = (pruned, reloaded)  # each in a process of its own
