"""Plan for a share of a cost until the share that is measured on what was planned meets it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")
TRIES = 4
MOST = 0.99  # that is planned for


class BudgetMissed(UserWarning):
    """A plan saves less than its budget asks for."""


def met_share(
    cost: str,
    wanted: float,
    plan: Callable[[float], Found],
    measure: Callable[[Found], float],
    *,
    below: float,
    above: float,
    tries: int = TRIES,
) -> tuple[Found, float]:
    """Return what was planned, and the share that it is measured to save; a warning says if that is not enough.

    Args:
        cost: For the warning.
        wanted: The share that has to go.
        plan: Plans for a share; a ValueError says that so much cannot go.
        measure: Returns the share that goes with what was planned.
        below: By how much the share may be missed.
        above: By how much it may be exceeded before less is planned for.
        tries: How often at most something is planned.

    Returns:
        Of what saves enough, that which saves least; what saves most if nothing saves enough.

    Raises:
        ValueError: If not even `wanted` can be planned for.

    >>> met_share("latency", 0.3, lambda share: share, lambda planned: 0.75 * planned, below=0.0, above=0.1)
    (0.4, 0.30000000000000004)
    """
    found: list[tuple[float, Found]] = []
    asked = wanted
    while len(found) < tries:
        try:
            planned = plan(asked)
        except ValueError:
            if not found:
                raise
            break
        if any(planned == other for _, other in found):
            break
        saved = measure(planned)
        found.append((saved, planned))
        if -below <= saved - wanted <= above:
            break
        asked = min(asked * wanted / saved if saved > 0 else 2 * asked, MOST)
    enough = [one for one in found if one[0] >= wanted - below]
    saved, planned = min(enough, key=_saved) if enough else max(found, key=_saved)
    if not enough:
        warnings.warn(
            f"The plan saves {saved:.1%} of the {cost} for a budget of {wanted:.1%}, and what was planned for more "
            "saves no more. Is the machine busy? Ask for a larger budget, or plan on an idle one.",
            BudgetMissed,
            stacklevel=6,
        )
    return planned, saved


def _saved(found: tuple[float, Found]) -> float:
    return found[0]
