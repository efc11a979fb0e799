"""Budget of a plan: units or shares of costs to remove, or amounts of costs left."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prunerecover.cost.units.amounts import amount
from prunerecover.cost.units.clock_names import TORCH, Clock, check_clock, clock_name
from prunerecover.cost.units.cost_names import ALONE, COSTS
from prunerecover.cost.units.serving import Serving
from prunerecover.display.summary import call_text, changed_fields
from prunerecover.plan.kinds import KINDS

ROUNDING = 1e-9  # rounding of shares
SERVICE = ("batch", "tokens", "clock")


@dataclass(frozen=True)
class Budget:
    """Amount to remove: units, by number or ratio, or a share of one cost or of several costs at once.

    A cost may also be given as the amount left: "0.8G" MACs a sample, "100M" parameters, or "5ms" for the first batch.

    Args:
        remove: Number of units per kind.
        ratio: Share of the units per kind, rounded to the nearest count.
        macs: Share of the MACs; or the MACs left per sample, in K, M, G or T.
        params: Share of the parameters; or the parameters left, in K, M, G (or B) or T.
        latency: Share of the latency, measured on the target device; or the latency left for the first batch, in us, ms
            or s. A plan may miss the share by 0.01, since clocks vary.
        memory: Share of the memory of a language model in service: weights and the key-value cache of `batch` sequences
            of `tokens` tokens; or the memory left, in KB, MB, GB, TB or KiB, MiB, GiB, TiB.
        checkpoint: Share of the bytes of the weights file; or the bytes left, in the units of memory.
        active_params: Share of the parameters active per token, of routed experts only the picked ones; or the active
            parameters left, in the units of parameters.
        batch: Number of sequences at once, for `memory`.
        tokens: Number of tokens in each sequence, for `memory`.
        clock: Runtime in which the network will serve, for `latency`: "torch" (also None), "compile", "onnxruntime",
            "onnxruntime_int8" or "openvino", on the CPU; or a callable `(network, inputs) -> seconds`.
        steps: Number of surgeries that share the way to an amount left evenly; set by schedules.

    Raises:
        ValueError: If no argument is given, units come with a cost, or a number is out of range.
        TypeError: If a value is no number, or units are not given per kind.

    >>> Budget(remove={"attention": 3})
    Budget(remove={'attention': 3})
    >>> Budget(macs=0.3, params=0.2).shares
    {'macs': 0.3, 'params': 0.2}
    >>> Budget(macs="0.8G").amounts
    {'macs': 800000000.0}
    """

    remove: Mapping[str, int] | None = None
    ratio: Mapping[str, float] | None = None
    macs: float | str | None = None
    params: float | str | None = None
    latency: float | str | None = None
    memory: float | str | None = None
    checkpoint: float | str | None = None
    active_params: float | str | None = None
    batch: int | None = None
    tokens: int | None = None
    clock: str | Clock | None = None
    steps: int = 1

    def __post_init__(self) -> None:
        """Check the arguments."""
        given = {name: value for name, value in self._given.items() if name not in SERVICE}
        if not given or (len(given) > 1 and self.in_units):
            raise ValueError(
                f"Expected exactly one of remove and ratio, or one or more of {', '.join(COSTS)}, but got "
                f'{sorted(given) or "none"}. For example Budget(remove={{"attention": 3}}), or Budget(macs=0.3).'
            )
        self._check_load()
        for name in ("remove", "ratio"):
            if not isinstance(given.get(name, {}), Mapping):
                raise TypeError(
                    f'Expected {name} as numbers per kind, such as {{"attention": 1}}, but got {given[name]!r}. '
                    "Shares of cost are given by name: Budget(macs=0.3), Budget(params=0.3) or Budget(latency=0.3)."
                )
        for kind in (*(self.remove or ()), *(self.ratio or ())):
            if kind not in KINDS:
                raise ValueError(f"Expected kinds among {', '.join(KINDS)}, but got '{kind}'.")
        for kind, count in (self.remove or {}).items():
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise ValueError(f"Expected a whole number of units >= 0 for '{kind}', but got {count!r}.")
        ratios = {f"ratio of '{kind}'": value for kind, value in (self.ratio or {}).items()}
        for name, value in {**self.costs, **ratios}.items():
            if isinstance(value, str) and name in COSTS:
                amount(name, value)
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(
                    f"Expected argument {name} to be a removed share as a number, but got {value!r}. "
                    "For example Budget(macs=0.3)."
                )
            if not 0 <= value < 1:
                with_unit = f" What may be left has a unit: '{COSTS[name].example}'." if name in COSTS else ""
                raise ValueError(
                    f"Expected argument {name} to be a removed share between 0 and 1 (exclusive), but got {value}."
                    f"{with_unit}"
                )

    def __repr__(self) -> str:
        """Return the call that makes the budget."""
        return call_text("Budget", changed_fields(self))

    @property
    def _given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "steps" and value is not None}

    def _check_load(self) -> None:
        if self.clock is not None:
            check_clock(self.clock)
            if self.latency is None:
                raise ValueError(
                    f"Expected a clock with a latency alone, but got {self}. For example Budget(latency=0.3, "
                    'clock="onnxruntime").'
                )
        load = {name: value for name, value in self._given.items() if name in ("batch", "tokens")}
        if (self.memory is None) != (not load) or len(load) == 1:
            raise ValueError(
                f"Expected batch and tokens with memory, and without it neither, but got {self}. For example "
                "Budget(memory=0.3, batch=8, tokens=4096)."
            )
        for name, value in load.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"Expected argument {name} to be a whole number of at least 1, but got {value!r}.")

    @property
    def serving(self) -> Serving | None:
        """Load at which memory is counted, and clock of the latency; None for a budget with neither."""
        if self.batch is None and self.clock is None:
            return None
        return Serving(self.batch or 0, self.tokens or 0, self.clock or TORCH)

    @property
    def in_units(self) -> bool:
        """Whether the budget counts units, rather than a share of a cost."""
        return self.remove is not None or self.ratio is not None

    @property
    def costs(self) -> dict[str, float | str]:
        """Share or amount of each cost given, by name; empty for a budget in units."""
        return {name: self._given[name] for name in COSTS if name in self._given}

    @property
    def amounts(self) -> dict[str, float]:
        """Amounts left of costs, as numbers by name; without costs given as shares."""
        return {name: amount(name, value) for name, value in self.costs.items() if isinstance(value, str)}

    @property
    def shares(self) -> dict[str, float]:
        """Shares of costs to remove, by name ("macs", "params", "latency", ...); without costs given as amounts."""
        return {name: value for name, value in self.costs.items() if not isinstance(value, str)}

    def in_shares(self, dense: Callable[[str], float]) -> Budget:
        """Return the budget with shares in the place of amounts; 0 for a cost already within its amount.

        >>> Budget(macs="0.75G", params=0.2).in_shares(lambda cost: 1e9).shares
        {'macs': 0.25, 'params': 0.2}

        Args:
            dense: Function from the name of a cost to the cost of the network.
        """
        found: dict[str, Any] = {name: max(0.0, 1 - n / dense(name)) / self.steps for name, n in self.amounts.items()}
        return replace(self, **found, steps=1) if found else self

    @property
    def share(self) -> tuple[str, float] | None:
        """Name and share of the only cost; None for a budget in units.

        Raises:
            ValueError: If several costs or an amount are given.
        """
        self.check_one_cost()
        if self.amounts:
            raise ValueError(f"Expected a share of a cost, but got {self}. Say how much goes, such as 0.3.")
        return next(iter(self.shares.items()), None)

    def each(self) -> list[Budget]:
        """Return a budget for each of the costs.

        >>> Budget(macs=0.3, params="100M").each()
        [Budget(macs=0.3), Budget(params='100M')]
        """
        return [self._of({name: value}) for name, value in self.costs.items()]

    def _of(self, costs: Mapping[str, float | str]) -> Budget:
        """Return the budget of some costs, at the same load."""
        service: dict[str, Any] = {"batch": self.batch, "tokens": self.tokens} if "memory" in costs else {}
        service |= {"clock": self.clock} if "latency" in costs else {}
        given: dict[str, Any] = {**costs, **service}
        return Budget(**given, steps=self.steps)

    def check_one_cost(self) -> None:
        """Raise ValueError if several costs are given, or a cost outside `ALONE`, for planning by one cost."""
        if len(self.costs) > 1 or not set(self.costs) <= set(ALONE):
            raise ValueError(
                f"Expected a budget in one cost among {', '.join(ALONE)}, but got {self}. For other costs, "
                "or several, use plan_pruning or Prune, with kinds of depth or of width alone if you like."
            )

    def kinds(self, available: Sequence[str]) -> tuple[str, ...]:
        """Return the kinds of units to remove; all `available` kinds for a share of cost."""
        named = self.remove if self.remove is not None else self.ratio
        return tuple(available) if named is None else tuple(named)

    def to_dict(self) -> dict[str, Any]:
        """Return the given arguments as JSON primitives.

        >>> Budget(macs=0.3).to_dict()
        {'macs': 0.3}
        """
        found = {name: dict(value) if isinstance(value, Mapping) else value for name, value in self._given.items()}
        return found | ({"clock": clock_name(self.clock)} if self.clock is not None else {})

    def in_steps(self, n: int) -> list[Budget]:
        """Return the total budget after each of `n` equal steps, relative to the first network.

        >>> [step.macs for step in Budget(macs=0.5).in_steps(2)]
        [0.25, 0.5]

        Raises:
            ValueError: For ratios of units.
        """
        steps = range(1, n + 1)
        if self.remove is not None:
            return [Budget(remove={kind: count * i // n for kind, count in self.remove.items()}) for i in steps]
        if self.ratio is not None:
            raise ValueError(f"Expected a budget in a share of cost or a number of units, but got {self.to_dict()}.")
        parts: list[dict[str, Any]] = [{name: total * i / n for name, total in self.shares.items()} for i in steps]
        left = [n - i + 1 for i in steps] if self.amounts else [1] * n
        return [replace(self, **shares, steps=more) for shares, more in zip(parts, left, strict=True)]

    def remaining(self, taken: Iterable[Mapping[str, float]]) -> Budget | None:
        """Return the rest of the budget, relative to the present network; None if earlier steps have removed enough.

        Of several costs, only unmet costs remain. Amounts stay unchanged.

        Args:
            taken: Removals of the earlier steps: units by kind, or shares by cost, relative to the network before the
                step.

        >>> Budget(macs=0.5).remaining([{"macs": 0.25}]).macs  # a quarter of the first model is a third of the rest
        0.3333333333333333
        """
        if self.in_units:
            gone = Counter[str]()
            for step in taken:
                gone.update({kind: int(count) for kind, count in step.items()})
            units = {kind: count - gone[kind] for kind, count in (self.remove or {}).items() if count > gone[kind]}
            return Budget(remove=units) if units else None
        steps = list(taken)
        left = {name: math.prod(1 - step.get(name, 0.0) for step in steps) for name in self.shares}
        missing = {name: (total - (1 - left[name])) / left[name] for name, total in self.shares.items()}
        asked = {name: missing.get(name, value) for name, value in self.costs.items()}
        found = {name: value for name, value in asked.items() if isinstance(value, str) or value > ROUNDING}
        return self._of(found) if found else None

    def counts(self, available: Mapping[str, int]) -> dict[str, int]:
        """Return the number of units of each kind to remove, given the number in the network.

        Raises:
            ValueError: If the budget exceeds the number of units.
            TypeError: For budgets in shares of cost, which need a search and not a count.
        """
        if self.remove is not None:
            counts = dict(self.remove)
        elif self.ratio is not None:
            counts = {kind: round(share * available.get(kind, 0)) for kind, share in self.ratio.items()}
        else:
            raise TypeError("Expected a budget in units, but got one in a share of cost. See plan_depth.")
        for kind, count in counts.items():
            if count > available.get(kind, 0):
                raise ValueError(
                    f"Expected at most {available.get(kind, 0)} units of kind '{kind}' to remove, but got {count}. "
                    "Lower the number, or list what there is with find_sites."
                )
        return counts
