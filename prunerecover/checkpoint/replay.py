"""Replay of a plan on a dense network, and the weights that belong there afterwards."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from prunerecover.checkpoint.weights_file import Weights, check_fit, fill, warn_if_mixed
from prunerecover.families.constructors import WHY, build, library_of
from prunerecover.files.in_short import in_short
from prunerecover.model.checks import warn_unless_finite
from prunerecover.model.hashing import tensors_hash
from prunerecover.model.settings import data_hash, differing_settings, settings_of
from prunerecover.plan.plan import Plan
from prunerecover.recovery.lora import Adapters, has_adapters, inject_adapters, merge_adapters
from prunerecover.surgery.apply_edits import apply_and_check, check_source, undo

YOLO = "ultralytics.nn."


def end_of(plan: Plan) -> str:
    """Return the hash of the names and shapes that a plan leaves."""
    return plan.result.tensors if plan.edits else plan.source.tensors


def dense_of(plan: Plan, path: Path) -> nn.Module:
    """Rebuild the model that the plan of a file starts from, with parameters on the meta device.

    Raises:
        ValueError: If the plan does not say how, or the installed library builds another.
    """
    source = plan.source
    if source.constructor is None:
        why = f": {in_short(source.not_constructed, WHY)}" if source.not_constructed else ""
        raise ValueError(
            f"Expected a plan that says how to build its dense model, but that of {path} does not "
            f"({in_short(source.class_) or 'unknown class'}{why}). Build the dense model and pass it: "
            f"load_pruned(path, model). In one line: {_line(source.class_, path)}"
        )
    if source.constructed not in (None, data_hash(source.constructor)):
        raise ValueError(
            f"Expected the constructor that the plan was made with, but that of {path} is another. Was the file "
            "edited? Copy it again, or build the dense model and pass it: load_pruned(path, model)."
        )
    model = build(source.constructor)
    if tensors_hash(model) != source.tensors:
        raise ValueError(
            f"Expected the {source.class_} that the plan of {path} starts from, but the installed version builds "
            f"another. Install the {library_of(source.constructor)} that it was made with, or pass the dense model."
        )
    return model


def _line(name: str, path: Path) -> str:
    """Return the call that opens a file whose dense model only its owner can build."""
    cls = in_short(name.rpartition(".")[2]) or "YourNetwork"
    dense = "YOLO('the weights or the YAML that it was made from').model" if name.startswith(YOLO) else f"{cls}(...)"
    return f"model = load_pruned({str(path)!r}, {dense})"


def prune_and_fill(
    network: nn.Module,
    plan: Plan,
    weights: Weights,
    path: Path,
    adapters: Adapters | None = None,
    whole: nn.Module | None = None,
) -> None:
    """Replay the plan's structure on a dense network and load the weights; after an error it is as it was.

    A network that has this structure already, such as one that lies in the hyperparameters of its own checkpoint, gets
    the weights alone. Adapters are injected, and hold their weights afterwards.

    Args:
        network: Unwrapped.
        plan: All edits.
        weights: Of the network after them, or of the whole.
        path: Their file, for messages.
        adapters: What is injected after all edits.
        whole: What holds the network, where the weights are of more.

    Raises:
        ValueError: If the network is not the one that the plan starts from, or the weights are of another one.
    """
    whole = network if whole is None else whole
    is_pruned = plan.source.tensors != end_of(plan) == tensors_hash(network)
    if is_pruned or has_adapters(network):
        difference = differing_settings(plan.result.settings, settings_of(network))
        if difference:
            raise ValueError(
                f"Expected the network that the plan of {path} leaves, but got another ({difference}). "
                "Pass the dense one."
            )
        _fill_pruned(network, weights, path, adapters, whole)
        return
    check_source(network, plan)
    applied = apply_and_check(network, plan, None, f" in {path}")
    try:
        _fill_pruned(network, weights, path, adapters, whole)
    except BaseException:
        undo(network, applied.journal)
        raise


def _fill_pruned(network: nn.Module, weights: Weights, path: Path, adapters: Adapters | None, whole: nn.Module) -> None:
    injected = adapters is not None and not has_adapters(network)
    if adapters is not None and injected:
        inject_adapters(network, adapters)
    try:
        check_fit(whole, weights, str(path))
    except BaseException:
        if adapters is not None and injected:
            merge_adapters(network, adapters, structure_only=True)
        raise
    if adapters is None:  # they may be in another dtype than what they adapt
        warn_if_mixed(whole, weights, str(path))
    fill(whole, weights)
    warn_unless_finite(whole, path)
