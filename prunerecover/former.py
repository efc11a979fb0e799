"""Former names of arguments and values: accepted with a warning until a version."""

from __future__ import annotations

import warnings
from typing import TypeVar

Value = TypeVar("Value")

END = "0.3"
FORMER = {
    "find_units(model, kinds, batches)": "find_units(model, batches, kinds)",
    "find_units(example_inputs=)": "find_units(batches=)",
    "find_groups(example_inputs=)": "find_groups(batches=)",
    "DistillRecover(alpha=)": "DistillRecover(teacher_weight=)",
    "RoutedLoRARecover(distill=)": "RoutedLoRARecover(teacher_weight=)",
    "allocation='tolerance'": "allocation='fair_pruner'",
    "search='joint'": "search=None, or search='greedy' with a loss",
    "plan_omission_sets(losses=)": "plan_omission_sets(objectives=)",
    "compare(search=)": "compare(planning_cost=)",
    "Report.search": "Report.planning_cost",
    "--method fair": "--method fair_pruner",
    "--method boundary_published": "--method boundary_dpt",
    "--method.search recovered": "--method.recover true",
    "--method.losses": "--method.objectives",
    "--method.router_loss": "--method.router_objective",
}


def warn_of(former: str, level: int = 3) -> None:
    """Warn that a name is a former name.

    Args:
        former: Key of `FORMER`.
        level: Number of frames up to the caller's line.
    """
    warnings.warn(f"Use {FORMER[former]}: {former} ends with version {END}.", FutureWarning, stacklevel=level)


def renamed(former: str, given: Value | None, present: Value) -> Value:
    """Return the value of an argument, perhaps given by the former name.

    Args:
        former: Key of `FORMER`.
        given: Value by the former name; None: not given.
        present: Value by the present name.
    """
    if given is None:
        return present
    warn_of(former, 4)
    return given
