"""Replay of a plan on a dense network, with the weights of the pruned network."""

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
    """Return the hash of the names and shapes after a plan."""
    return plan.result.tensors if plan.edits else plan.source.tensors


def dense_of(plan: Plan, path: Path) -> nn.Module:
    """Rebuild the dense model of a plan in a file, with parameters on the meta device.

    Raises:
        ValueError: If the plan holds no constructor, or the installed library builds another model.
    """
    source = plan.source
    if source.constructor is None:
        why = f": {in_short(source.not_constructed, WHY)}" if source.not_constructed else ""
        raise ValueError(
            f"Expected a plan with the constructor of its dense model, but the plan of {path} has none "
            f"({in_short(source.class_) or 'unknown class'}{why}). Build the dense model and pass it: "
            f"load_pruned(path, model). In one line: {_line(source.class_, path)}"
        )
    if source.constructed not in (None, data_hash(source.constructor)):
        raise ValueError(
            f"Expected the original constructor in the plan, but {path} has another. Was the file edited? "
            " Copy it again, or build the dense model and pass it: load_pruned(path, model)."
        )
    model = build(source.constructor)
    if tensors_hash(model) != source.tensors:
        raise ValueError(
            f"Expected the {source.class_} that the plan of {path} starts from, but the installed version builds "
            f"another. Install the plan's version of {library_of(source.constructor)}, or pass the dense model."
        )
    return model


def _line(name: str, path: Path) -> str:
    """Return the call for a file whose dense model only the user can build."""
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
    """Replay the plan's structure on a dense network and load the weights; an error leaves the network unchanged.

    A network with the pruned structure already, for example from the hyperparameters of its own checkpoint, gets the
    weights alone. Adapters are injected, and hold their weights afterwards.

    Args:
        network: Network without wrappers.
        plan: Plan with all edits.
        weights: Weights of the pruned network, or of `whole`.
        path: File of the weights, for messages.
        adapters: Adapters to inject after all edits.
        whole: Module around the network, where the weights are of more than the network.

    Raises:
        ValueError: If the plan starts from another network, or the weights belong to another.
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
    if adapters is None:  # adapters may differ in dtype from the adapted weights
        warn_if_mixed(whole, weights, str(path))
    fill(whole, weights)
    warn_unless_finite(whole, path)
