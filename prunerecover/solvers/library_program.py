"""Integer program over a library, with variants as options and their shares of costs."""

from __future__ import annotations

from collections.abc import Sequence

from prunerecover.library.costs import VariantCosts
from prunerecover.library.library import Library
from prunerecover.library.variants import LibrarySite, containment
from prunerecover.solvers.program import Option, Program
from prunerecover.width.allocation.equal_layers import alike


def library_program(
    library: Library, variant_costs: VariantCosts, costs: Sequence[str], equal_layers: bool, *, exact: bool = False
) -> Program:
    """Return the integer program over a library.

    Args:
        library: Scored library.
        variant_costs: Costs of the library's variants.
        costs: Names of the costs of a budget; options are sorted by the first.
        equal_layers: Whether alike layers keep one size.
        exact: Whether exactly the budget is to go, in units: cheap replacements are better then.
    """
    shares = {cost: variant_costs.shares(cost) for cost in costs}
    options = {
        site: [
            Option(
                name,
                library.price(site, name) if exact else one.divergence,
                {cost: shares[cost][site][name] for cost in costs},
                bool(one.variant.leaves),
            )
            for name, one in own.items()
        ]
        for site, own in library.scored.items()
    }
    for own in options.values():  # options of similar costs become neighbours
        own.sort(key=lambda option: (option.gone, option.saved[costs[0]]))
    sites = tuple(library.sites.values())
    return Program(options, containment(sites), _alike(sites) if equal_layers else (), library.lists, exact)


def _alike(sites: Sequence[LibrarySite]) -> list[list[str]]:
    """Return the names of sites that must keep equal sizes."""
    holder = {(group.kind, group.name): site.name for site in sites for group in site.groups}
    own = [group for site in sites for group in site.groups]
    return [[holder[group.kind, group.name] for group in layers] for layers in alike(own)]
