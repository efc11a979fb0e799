"""Kinds of units and everything that is ever asked of a kind, wherever kinds are ordered, nested or drawn."""

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
    """What is true of all units of a kind.

    Attributes:
        dimension: Of the network in which they are pruned.
        edits: Operations of plans that take them out; none for a kind that nothing removes yet.
        holds: Kinds of units inside, which go along.
        fitted: Whether something can be fitted in their place, or, for blocks, before it.
        composite: Whether a unit is several features at once.
        weighed: Whether its scores do not compare with those of other kinds, so that what it counts for is tried.
        ranked: Whether its units are ranked. Dimensions of heads are not: the best ones are sums of those there are.
        color: Of bars of the kind in figures.
        ink: Of text on that colour.
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


# In the order in which the units of one block are removed.
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
    """Return kinds as a tuple, of one where there is one alone.

    Args:
        kinds: Kinds that were asked for.
        among: Kinds that there are.
        where: Purpose, for the message.
        some: Switch for refusing an empty list, which a part of a plan may have.

    Raises:
        ValueError: If one is none of those that there are, or the list is empty.

    >>> kinds_among("head", WIDTH_KINDS)
    ('head',)
    """
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    wrong = [f"'{kind}'" for kind in kinds if kind not in among]
    if wrong or (some and not kinds):
        raise ValueError(f"Expected kinds among {', '.join(among)}{where}, but got {', '.join(wrong) or 'none'}.")
    return kinds


def plural(kind: str) -> str:
    """Return what several units of a kind are called.

    >>> plural("head"), plural("hidden"), plural("head_dim")
    ('heads', 'hidden features', 'head dimensions')
    """
    return {"hidden": "hidden features", "head_dim": "head dimensions"}.get(kind, f"{kind}s")


def holders_first(kind: str) -> tuple[int, int]:
    """Return a sort key by which kinds that hold others come before what they hold.

    >>> sorted(("activation", "attention", "mlp", "block"), key=holders_first)
    ['block', 'mlp', 'attention', 'activation']
    """
    return -len(TRAITS[kind].holds), KINDS.index(kind)
