"""Kinds of units with properties, for ordering, nesting and drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prunerecover.display.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION

Kind = Literal[
    "block", "attention", "mlp", "activation", "layer", "channel", "head", "head_dim", "neuron", "expert", "hidden"
]
WidthKind = Literal["channel", "head", "head_dim", "neuron", "expert", "hidden"]


@dataclass(frozen=True)
class KindTraits:
    """Properties of all units of a kind.

    Attributes:
        dimension: Dimension of the pruning, "depth" or "width".
        edits: Operations of plans to remove units of the kind; empty if units cannot be removed yet.
        holds: Kinds of units inside, removed with the unit.
        fitted: Whether a replacement, or, for blocks, a map before the unit, can be fitted.
        composite: Whether a unit is several features at once.
        weighed: Whether scores do not compare with scores of other kinds, so a weight is tried.
        ranked: Whether units are ranked. Dimensions of heads are not: the best dimensions are sums of present
            dimensions.
        color: Colour of bars of the kind in figures.
        ink: Colour of text on a bar.
    """

    dimension: Literal["depth", "width"]
    edits: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    fitted: bool = False
    composite: bool = False
    weighed: bool = False
    ranked: bool = True
    color: str = BLACK
    ink: str = "white"


# In the order of removal within a block.
TRAITS: dict[str, KindTraits] = {
    "block": KindTraits(
        "depth", edits=("remove", "bypass"), holds=("attention", "mlp", "activation", "layer"), fitted=True
    ),
    "attention": KindTraits("depth", edits=("remove", "replace", "bypass"), fitted=True),
    "mlp": KindTraits("depth", edits=("remove", "replace", "bypass"), holds=("activation", "layer"), fitted=True),
    "activation": KindTraits("depth", edits=("replace", "bypass"), fitted=True),
    "layer": KindTraits("depth", edits=("bypass",)),
    "channel": KindTraits("width", edits=("narrow",), color=BLUE),
    "head": KindTraits("width", edits=("narrow",), composite=True, weighed=True, color=ORANGE, ink=BLACK),
    "head_dim": KindTraits("width", edits=("narrow",), weighed=True, ranked=False, color=VERMILION),
    "neuron": KindTraits("width", edits=("narrow",), color=GREEN),
    "expert": KindTraits("width", edits=("narrow",), composite=True, weighed=True, color=PURPLE, ink=BLACK),
    "hidden": KindTraits("width", edits=("narrow",), weighed=True, color=SKY, ink=BLACK),
}
KINDS = tuple(TRAITS)
DEPTH_KINDS = tuple(kind for kind, traits in TRAITS.items() if traits.dimension == "depth" and traits.edits)
FAMILY_KINDS = tuple(kind for kind in DEPTH_KINDS if kind != "layer")
WIDTH_KINDS = tuple(kind for kind, traits in TRAITS.items() if traits.dimension == "width")
RANKED_KINDS = tuple(kind for kind, traits in TRAITS.items() if traits.ranked)
RANKED_WIDTH_KINDS = tuple(kind for kind in RANKED_KINDS if kind in WIDTH_KINDS)


def kinds_among(
    kinds: str | Sequence[str], among: Sequence[str], where: str = "", *, some: bool = True
) -> tuple[str, ...]:
    """Return kinds as a tuple, also for a single kind.

    Args:
        kinds: Requested kinds.
        among: Valid kinds.
        where: Purpose, for the message.
        some: Switch for refusing an empty list, which a part of a plan may have.

    Raises:
        ValueError: If a kind is invalid, or the list is empty.

    >>> kinds_among("head", WIDTH_KINDS)
    ('head',)
    """
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    wrong = [f"'{kind}'" for kind in kinds if kind not in among]
    if wrong or (some and not kinds):
        raise ValueError(f"Expected kinds among {', '.join(among)}{where}, but got {', '.join(wrong) or 'none'}.")
    return kinds


def plural(kind: str) -> str:
    """Return the plural of the name of a kind.

    >>> plural("head"), plural("hidden"), plural("head_dim")
    ('heads', 'hidden features', 'head dimensions')
    """
    return {"hidden": "hidden features", "head_dim": "head dimensions"}.get(kind, f"{kind}s")
