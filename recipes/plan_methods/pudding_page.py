"""Markdown page beside a plan of prompt-routed depth: sets, the value of routing, and the saved model."""

from __future__ import annotations

from collections.abc import Sequence

from prunerecover.display.markdown import table
from prunerecover.recipes.plan_methods.pudding_questions import Asked
from prunerecover.routing.comparison import RouteComparison
from prunerecover.routing.routed_causal_lm import RoutedCausalLM


def page(routed: RoutedCausalLM, compared: Sequence[RouteComparison], asked: Asked, folder: str) -> str:
    """Return the page.

    Args:
        routed: Model with its sets.
        compared: Comparisons by likelihood and by accuracy, on the reported questions.
        asked: Questions by their use.
        folder: Path of the routed model.
    """
    likely, right = compared
    parts = [
        "# Prompt-routed depth",
        asked.counts(routed=routed.router is not None),
        "## Sets",
        table(("set", "blocks that go", "prompts that the router gives it"), _sets(routed, likely.picked)),
        *(part for found in compared for part in (f"## By {found.metric}", str(found))),
        "## The saved model",
        _saved(routed, likely, right, folder),
    ]
    return "\n\n".join(parts) + "\n"


def routing_of(routed: RoutedCausalLM) -> str:
    """Describe whether a model routes."""
    if routed.router is None:
        return "has nothing to route, for all tasks miss the same blocks least"
    return "routes" if routed.routed else "does not route"


def _sets(routed: RoutedCausalLM, picked: dict[str, int]) -> list[tuple[str, str, str]]:
    default = routed.sets.names[routed.default]
    return [
        (
            f"{name} (the static set)" if name == default else name,
            ", ".join(map(str, sorted(blocks))),
            "no router" if routed.router is None else f"{picked[name]:,}",
        )
        for name, blocks in zip(routed.sets.names, routed.sets.blocks, strict=True)
    ]


def _saved(routed: RoutedCausalLM, likely: RouteComparison, right: RouteComparison, folder: str) -> str:
    """Describe the routing of the folder when opened, the reason, and the way to change the routing."""
    opened, said = f'load_routed("{folder}"', f"`{folder}` {routing_of(routed)}"
    if routed.router is None:
        return f"{said}. `{opened})` opens the model without these blocks."
    if routed.routed:
        return f"{said}. `{opened}, routed=False)` opens the static set alone."
    behind = [] if likely.worth_it else ["is not ahead of the static set in likelihood, with its whole interval"]
    behind += ["is behind it in accuracy"] if right.gain.high < 0 else []
    return (
        f"{said}, because routing {' and '.join(behind)}: every prompt gets the static set. "
        f"`{opened}, routed=True)` makes it route."
    )
