"""Result of `find_sites`: a list of sites, and refusals with reasons."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from prunerecover.display.markdown import table
from prunerecover.display.summary import MOST, Summarised, Summary, listed
from prunerecover.plan.edits import FreeHeads, Rewrite
from prunerecover.plan.groups import Group
from prunerecover.plan.kinds import DEPTH_KINDS, WIDTH_KINDS, plural
from prunerecover.plan.units import Site
from prunerecover.width.groups.found import CountedGroup, FoundGroups

S = TypeVar("S", bound=Site, covariant=True)
HEADER = ("site", "kind", "units", "parameters", "MACs", "block")
REASONS = 3  # lines of refusals
LONGEST_REASON = 160  # letters


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Sites(Summarised, tuple[S, ...]):
    """Sites of a network, a tuple: units of depth in order of execution, then groups of width in order of depth.

    Attributes:
        refused: Reasons for the refusal of parts, each with a way out, by name.
        found: Groups of width with their edits and relations.
    """

    refused: Mapping[str, str]
    found: FoundGroups

    def __new__(
        cls,
        sites: Iterable[S] = (),
        refused: Mapping[str, str] = MappingProxyType({}),
        found: FoundGroups = FoundGroups(),  # noqa: B008  # frozen
    ) -> Sites[S]:
        """Make a list of sites, with refusals beside it."""
        made = super().__new__(cls, sites)
        object.__setattr__(made, "refused", dict(refused))
        object.__setattr__(made, "found", found)
        return made

    def of_kind(self, *kinds: str) -> Sites[S]:
        """Return the sites of some kinds alone, without refusals.

        Args:
            kinds: Names of kinds, e.g. "attention" and "head".
        """
        return Sites(site for site in self if site.kind in kinds)

    @property
    def units(self) -> Sites[S]:
        """Units of depth."""
        return self.of_kind(*DEPTH_KINDS)

    @property
    def groups(self) -> Sites[S]:
        """Groups of width."""
        return self.of_kind(*WIDTH_KINDS)

    @property
    def linked(self) -> tuple[tuple[Group, ...], ...]:
        """Groups of width in equal parts of a tensor: all groups of a tuple must lose equally many units."""
        return self.found.linked

    @property
    def counted(self) -> tuple[CountedGroup, ...]:
        """Groups of width that stay because an operation counts the units."""
        return self.found.counted

    @property
    def edits(self) -> tuple[Rewrite | FreeHeads, ...]:
        """Edits before any group is narrowed."""
        return self.found.edits

    def __repr__(self) -> str:
        """Return how many sites there are of each kind."""
        refused = f", {len(self.refused)} refused" if self.refused else ""
        return f"<Sites: {self._counts()}{refused}>"

    def summary(self) -> Summary:
        """Return the first sites with costs, and the most frequent reasons of refusals."""
        refused = self._refusals()
        room = MOST - len(refused.text().splitlines()) if self.refused else MOST
        shown = Summary.of_list(f"Sites: {self._counts()}", HEADER, self._rows(), tuple, most=room)
        return replace(shown, below=refused) if self.refused else shown

    def to_markdown(self) -> str:
        """Return all sites and all refusals as tables."""
        parts = [f"# Sites: {self._counts()}", table(HEADER, self._rows(), "llrrrl")] if self else ["# Sites: none"]
        refused = [(f"`{name}`", reason) for name, reason in self.refused.items()]
        parts += ["## Refused", table(("name", "why, and what to do"), refused, "ll")] if refused else []
        return "\n\n".join(parts) + "\n"

    def _rows(self) -> list[tuple[object, ...]]:
        return [(s.name, s.kind, s.size, f"{s.params:,}", f"{s.macs:,}", s.block) for s in self]

    def _counts(self) -> str:
        units: Counter[str] = Counter()
        for site in self:
            units[site.kind] += site.size
        return ", ".join(f"{n:,} {plural(kind) if n > 1 else kind}" for kind, n in units.items()) or "none"

    def _refusals(self) -> Summary:
        names: dict[str, list[str]] = defaultdict(list)
        for name, reason in self.refused.items():
            names[reason].append(name or "the model itself")
        most = sorted(names.items(), key=lambda one: -len(one[1]))
        rows = [(listed(found, 2), len(found), reason) for reason, found in most]
        header = ("refused", "of them", "because")
        made = Summary.of_list(f"Refused: {len(self.refused)}", header, rows, tuple, most=REASONS + 2)
        return replace(made, widest=LONGEST_REASON)
