"""Recovery as long as training: BoundaryDPT as published against our defaults, on a small ViT and CIFAR-10's JPEGs.

    PRUNERECOVER_DATA=... python -m benchmarks.boundary.long_recovery
    PRUNERECOVER_DATA=... python -m benchmarks.boundary.long_recovery --methods book default --seeds 0 1

The dense ViT is trained here (see `long_recovery_training.py`). Every method removes a share of its MACs, and is scored
on the 10,000 test images untrained, after a tenth of the recovery (its own short schedule) and after the whole, which
is as long as training was. The published method leaves identities, ranks by gate gradients, and takes the split of its
polynomial map, from the 22 runs of its published table; `boundary` is our map with its own five runs. All that is
chosen is chosen on training images. Resumable: plans, short runs and rows that are there are not made again; no step
takes longer than training. To train another network, for longer or on more images, remove checkpoints/long_recovery,
the results and their trials first: rows of two networks do not compare.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from torch import nn

from benchmarks.boundary.long_recovery_page import markdown
from benchmarks.boundary.long_recovery_training import (
    CALIBRATION,
    EPOCHS,
    EXAMPLE,
    HELD_OUT,
    RATE,
    SHORT,
    TENTH,
    TRAINED,
    WEIGHTS,
    calibration,
    dense,
    pruned,
    short_runs,
    train,
)
from benchmarks.data.cifar import cross_entropy, hits
from benchmarks.data.real import accuracy, commands_so_far, kept_plan, parser, stored, write
from prunerecover import Budget, Plan, merge, plan_boundary, plan_depth
from prunerecover.boundary.designs import axes_and_staircase
from prunerecover.boundary.plan_boundary import PUBLISHED
from prunerecover.cost.macs import count_macs

NAME = "long_recovery"
BUDGETS = (0.33, 0.50)
LAYERS = (12, 12)
STAGES = {"untrained": 0, "a tenth": TENTH, "whole": EPOCHS}
Row = dict[str, Any]
console = Console()


def book(budget: float) -> Plan:
    """BoundaryDPT: gate gradients within the type, identities, the split of a polynomial map of short recoveries."""
    how = {**PUBLISHED, "design": axes_and_staircase(LAYERS), "loss": cross_entropy}
    return plan_boundary(dense(), Budget(macs=budget), batches=calibration(), evaluate=short_runs(RATE), **how)


def default(budget: float) -> Plan:
    """What `DepthPrune(Budget(macs=...))` plans: whichever units change the output least, with what fits best left."""
    return plan_depth(dense(), Budget(macs=budget), batches=calibration())


def boundary(budget: float) -> Plan:
    """`plan_boundary` with its defaults: attentions and activations, five short recoveries along the budget."""
    return plan_boundary(dense(), Budget(macs=budget), batches=calibration(), evaluate=short_runs(RATE))


METHODS: dict[str, Callable[[float], Plan]] = {"default": default, "book": book, "boundary": boundary}


def main() -> None:
    """Make the rows that are missing, budget by budget for each seed."""
    command_line = parser(__doc__)
    command_line.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    command_line.add_argument("--budgets", nargs="*", type=float, default=BUDGETS)
    command_line.add_argument("--seeds", nargs="*", type=int, default=(0,), help="of the recoveries")
    command_line.add_argument("--stages", nargs="*", default=list(STAGES), choices=list(STAGES))
    command_line.add_argument("--distill", action="store_true", help="recover with the dense network as a teacher, too")
    command_line.add_argument("--dense", action="store_true", help="train the dense network for as long again, too")
    options = command_line.parse_args()
    rows = stored(NAME)
    wanted = [("dense", 0.0, "untrained", 0, False)]
    wanted += [
        (method, budget, stage, seed if STAGES[stage] else 0, options.distill and STAGES[stage] > 0)
        for seed in options.seeds
        for budget in options.budgets
        for method in options.methods
        for stage in options.stages
    ]
    wanted += [("dense", 0.0, "whole", seed, options.distill) for seed in options.seeds if options.dense]
    for asked in wanted:
        key = dict(zip(("method", "budget", "stage", "seed", "distilled"), asked, strict=True))
        if not any(all(row[name] == value for name, value in key.items()) for row in rows):
            console.print(f"{time.strftime('%H:%M:%S')} {key}")
            rows.append(made(*asked))
            save(rows)
    save(rows)


def made(method: str, budget: float, stage: str, seed: int, distilled: bool) -> Row:
    """Prune the trained network, recover it and score it on all test images."""
    plan = Plan() if method == "dense" else found(method, budget)
    network = pruned(plan)
    started = time.perf_counter()
    teacher = dense() if distilled else None
    epochs = STAGES[stage]
    curve = train(network, epochs, RATE, seed, teacher) if epochs else []
    seconds = time.perf_counter() - started
    predicted = plan.evidence.get("predicted") if plan.edits else None
    return {
        "method": method,
        "budget": budget,
        "stage": stage,
        "seed": seed,
        "distilled": distilled,
        "epochs": epochs,
        "rate": RATE if epochs else None,
        "removed": {kind: list(names) for kind, names in plan.removed.items()},
        "macs_share": macs_share(network),
        "predicted": predicted,
        "held_out": [list(point) for point in curve],
        "seconds": seconds,
        **accuracy(hits(network)),
    }


def found(method: str, budget: float) -> Plan:
    """Return a method's plan: that of an earlier run, if there is one."""
    return kept_plan(WEIGHTS / f"{method}-{budget:.2f}.json", lambda: METHODS[method](budget))


def macs_share(network: nn.Module) -> float:
    """Return the share of the dense network's MACs that is left once linears are merged."""
    merged = pruned(Plan())
    full = count_macs(merged, EXAMPLE)
    merge(network)
    return count_macs(network, EXAMPLE) / full


def save(rows: list[Row]) -> None:
    """Write JSON and Markdown."""
    commands = commands_so_far(NAME)
    settings = {
        "trained": TRAINED,
        "held_out": HELD_OUT,
        "calibration": CALIBRATION,
        "epochs": EPOCHS,
        "tenth": TENTH,
        "short": SHORT,
        "rate": RATE,
    }
    write(NAME, {"commands": commands, **settings, "rows": rows}, markdown(rows, commands, settings))


if __name__ == "__main__":
    main()
