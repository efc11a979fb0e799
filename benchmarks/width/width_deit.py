"""Heads and neurons of the real DeiT-Tiny: width pruning at matched MACs, on the 200 classes of tiny_imagenet.

    PRUNERECOVER_DATA=... python -m benchmarks.width.width_deit

Ours, Tolerance of Difference and uniform shares narrow heads and neurons. The default tries what a head counts for
beside a neuron; a row shows what gate gradients alone say. torch-pruning's isomorphic pruning narrows what it chooses
(embedding, head dimensions and neurons, with heads kept whole in number). All score the same 192 training images, lose
20 and 40% of the MACs, and are scored on every second validation image, 2,500, before and after one epoch on 1,000
training images with distillation. Resumable; 3 to 8 minutes per method and budget on a core.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from rich.progress import track
from torch import nn

from benchmarks.boundary.boundary_methods import IMAGES, isomorphic
from benchmarks.data.real import accuracy, ahead_by, command, deit_tiny, parser, stored, unpacked, write
from benchmarks.data.tiny_imagenet import calibration, hits, loss, recover, validation
from prunerecover import Budget, apply_plan
from prunerecover.cost.macs import count_macs
from prunerecover.display.markdown import table
from prunerecover.model.batches import ModelInputs
from prunerecover.session.session import Session
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.width.allocation.by_importance import per_cost
from prunerecover.width.arguments import WidthConfig, WidthRule
from prunerecover.width.compensation import fit_compensation, with_compensation
from prunerecover.width.narrow_edits import narrow_edits
from prunerecover.width.planner import WidthPlanner

NAME = "width_deit"
SHARES, IMAGES_TO_RECOVER, SEED, STEPS = (0.2, 0.4), 1000, 1, 10
Row = dict[str, Any]


@cache
def planner() -> WidthPlanner:
    """Return our planner for heads and neurons."""
    return WidthPlanner(
        Session(deit_tiny(), calibration(), loss=loss), WidthConfig(loss=loss, kinds=("head", "neuron"))
    )


def ours(share: float, **how: Any) -> nn.Module:
    """Narrow by one of our rules."""
    network = deit_tiny()
    apply_plan(network, planner().plan(Budget(macs=share), WidthRule(**how)))
    return network


def as_scored(share: float) -> nn.Module:
    """Narrow by gate gradients per cost, with no rate between heads and neurons."""
    network, narrow = deit_tiny(), planner()
    (scores,) = narrow.scores("gate_taylor")
    edits = narrow_edits(narrow.groups, per_cost(narrow.groups, scores, narrow.costs, Budget(macs=share)))
    found = fit_compensation(network, edits, [ModelInputs((images,)) for images, _ in calibration()])
    apply_edits(network, *with_compensation(edits, found))
    return network


def by_isomorphism(share: float) -> nn.Module:
    """Narrow by torch-pruning to the least ratio that removes the share."""
    low, high = 0.0, 0.9
    for _ in range(STEPS):
        ratio = (low + high) / 2
        low, high = (low, ratio) if macs_share(isomorphic(ratio)) <= 1 - share else (ratio, high)
    return isomorphic(high)


OURS = "prunerecover, per cost (default)"
METHODS = {
    OURS: ours,
    "prunerecover, per cost, kinds as scored": as_scored,
    "prunerecover, ToD by the book": partial(ours, allocation="tolerance", replace="zero"),
    "prunerecover, uniform, lowest U-Score": partial(ours, allocation="uniform", importance="u_score", replace="zero"),
    "prunerecover, uniform": partial(ours, allocation="uniform"),
    "torch-pruning, Taylor, isomorphic": by_isomorphism,
}


def macs_share(network: nn.Module) -> float:
    """Return the share of the dense network's MACs."""
    return count_macs(network, IMAGES[:1]) / count_macs(deit_tiny(), IMAGES[:1])


def measured(method: str, share: float) -> list[Row]:
    """Narrow, score, recover and score again."""
    network = METHODS[method](share)
    about = {
        "model": "DeiT-Tiny",
        "method": method,
        "match": "macs",
        "budget": share,
        "macs_share": macs_share(network),
    }
    rows = [{**about, **scored("prune_only", network)}]
    recover(network, IMAGES_TO_RECOVER, SEED)
    return [*rows, {**about, **scored("recovered", network)}]


def scored(stage: str, network: nn.Module) -> Row:
    """Score a network on every second validation image."""
    scored = hits(network, ((images[::2], labels[::2]) for images, labels in validation()))
    return {"stage": stage, "seed": SEED, **accuracy(scored)}


def main() -> None:
    """Make the rows that are missing."""
    parser(__doc__).parse_args()
    rows = stored(NAME)
    if not any(row["method"] == "dense" for row in rows):
        about = {"model": "DeiT-Tiny", "method": "dense", "match": "", "budget": 0.0, "macs_share": 1.0}
        rows.append({**about, **scored("prune_only", deit_tiny())})
        write(NAME, {"rows": rows}, markdown(rows))
    wanted = [(method, share) for share in SHARES for method in METHODS]
    known = {(row["method"], row["budget"]) for row in rows}
    for method, share in track([key for key in wanted if key not in known], "narrowing"):
        rows += measured(method, share)
        write(NAME, {"rows": rows}, markdown(rows))


COLUMNS = ("method", *(name for share in SHARES for name in (f"{share:.0%}", "default ahead by")))


def markdown(rows: list[Row]) -> str:
    """Render one table per stage."""
    lines = ["# Heads and neurons of DeiT-Tiny at matched MACs, tiny_imagenet, 200 classes", "", f"`{command()}`"]
    lines += ["", *(f"Dense: {row['top1']:.1f}." for row in rows if row["method"] == "dense")]
    for stage in ("prune_only", "recovered"):
        lines += ["", f"## {stage.replace('_', ' ')}", ""]
        of = {(row["method"], row["budget"]): row for row in rows if row["stage"] == stage}
        cells = (
            (method, *(cell for share in SHARES for cell in _cells(of, method, share)))
            for method in METHODS
            if any(name == method for name, _ in of)
        )
        lines += [table(COLUMNS, cells)]
    note = (
        "Top-1 in percent, 2,500 validation images; paired 95% intervals. Recovered: one epoch of "
        f"{IMAGES_TO_RECOVER:,} training images with distillation, the same for all."
    )
    return "\n".join([*lines, "", note])


def _cells(of: dict[tuple[str, float], Row], method: str, share: float) -> tuple[str, str]:
    row, best = of.get((method, share)), of.get((OURS, share))
    if row is None:
        return "", ""
    if row is best or best is None:
        return f"{row['top1']:.1f}", ""
    return f"{row['top1']:.1f}", ahead_by(*(unpacked(r["hits"], r["n"]) for r in (best, row)))


if __name__ == "__main__":
    main()
