"""Planner of budgets over depth and width together: the library of a network's variants, solved and refined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial

from prunerecover.cost.units.cost_names import ALONE
from prunerecover.depth.arguments import kinds_of
from prunerecover.depth.depth_search import DepthSearch
from prunerecover.depth.removable import units_that_may_go
from prunerecover.display.interrupted import resumable
from prunerecover.library.costs import VariantCosts
from prunerecover.library.edits import Chosen
from prunerecover.library.library import Library
from prunerecover.library.moments import RIDGE
from prunerecover.library.tuning import tuned
from prunerecover.library.variants import holders
from prunerecover.model.arguments import matches
from prunerecover.model.evaluation import ordinary_arithmetic
from prunerecover.plan.edits import Edit
from prunerecover.plan.groups import Group
from prunerecover.plan.plan import Plan
from prunerecover.plan.units import Unit
from prunerecover.planning.arguments import PruningConfig, budget_alone
from prunerecover.planning.ignored import groups_that_stay, patterns_of_depth, possible
from prunerecover.planning.judge import PlanJudge
from prunerecover.planning.plan_of_choice import plan_of
from prunerecover.recovery.reconstruction import made_for
from prunerecover.refusal import Refusal
from prunerecover.session.removed_share import measured_share
from prunerecover.session.session import Session
from prunerecover.solvers.library_program import library_program
from prunerecover.solvers.program import Program
from prunerecover.solvers.refine import ROUNDS, Refiner, Start
from prunerecover.solvers.state import State
from prunerecover.store.search_store import SearchStore, results_in
from prunerecover.width.allocator import WidthAllocator
from prunerecover.width.groups.discovery import look_for_groups
from prunerecover.width.groups.rounding import rounded

SAMPLES = 256  # to choose variants by: more cost time, and serve the tuning better


class Planner:
    """Planner of budgets over depth and width for a network; shared work is done once.

    Args:
        session: Network and samples; the first 256 choose, the rest serve the tuning.
        costs: Name of the cost of the budgets, or names of several.
        config: All other arguments of `plan_pruning`.
        width: Groups with scores; None: found and scored here.

    Attributes:
        session: Network, and the samples to choose by.
        budgeted: Names of the costs.
        why_no_depth: Reason why no unit of depth can go, or "".
        why_no_width: Reason why no unit of width can go, or "".
        depth_config: Arguments of planning in depth alone.
        width_config: Arguments of planning in width alone.

    Raises:
        ValueError: If no unit can go, or a pattern in `ignore` matches no name.
    """

    def __init__(
        self,
        session: Session,
        costs: str | Sequence[str],
        config: PruningConfig,
        width: WidthAllocator | None = None,
    ) -> None:
        self.budgeted = (costs,) if isinstance(costs, str) else tuple(costs)
        session = session.on_first(SAMPLES)
        self.session, self.config = session, config
        self.store, self._begun = SearchStore(config.store, session.device), False
        kinds = config.width_kinds(session.model, self.budgeted)
        ignored = patterns_of_depth(session.model, session.example, config, kinds)
        self.depth_config = config.depth(config.depth_kinds(), ignored)
        if width is None:
            stay, _ = possible(lambda: groups_that_stay(session.model, session.example, config, kinds))
            self.width_config = config.width(kinds, stay or ())
            self._width, self.why_no_width = possible(self._width_allocator)
        else:
            self.width_config, self._width, self.why_no_width = width.config, width, ""
        self._units, self.why_no_depth = possible(self._depth_units)
        if self.why_no_depth and self.why_no_width:
            raise Refusal(
                f"{type(session.model).__name__} to have units of depth or width that may go",
                f"there are none. Depth: {self.why_no_depth} Width: {self.why_no_width}".removesuffix("."),
                "Follow what one of these says, or prune another part of the network.",
            )

    @contextmanager
    def searching(self) -> Iterator[None]:
        """Keep results, and share them with further ranks of the same planning, inside a `with` block."""
        said = {name: value for name, value in vars(self.config).items() if name not in ("store", "score")}
        with resumable(self.config.store, "result", results_in):
            if not self._begun:
                self.session.begin(self.store, type(self).__name__, said, self.width_config.kinds, {"ridge": RIDGE})
                self._begun = True
            with self.store.shared():
                yield

    def score_width(self) -> None:
        """Score the units of width early, before errors are taken for a budget too large.

        Raises:
            ValueError: If labels are missing.
        """
        if self._width is not None:
            self._width.ranking()

    @property
    def has_library(self) -> bool:
        """Whether budgets are planned out of the library: of depth and width together, or of either alone.

        Width alone gains from the library without BatchNorm and channels of convolutions (see `plan_width`). Budgets
        refused by the planners of depth or width alone need the library for either. Outputs have to be comparable.
        """
        units = {} if self._width is None else self._width.units
        depth, width = bool(self._chosen_among()), bool(units)
        better = width and "channel" not in units and not self.is_reconstructed
        either = better or self.budgeted not in [(cost,) for cost in ALONE]
        return self.session.output.comparable and ((width and depth) or (either and (width or depth)))

    def _chosen_among(self) -> tuple[Unit, ...]:
        """Return the units of depth to choose among: no layers, whose widths follow, together with groups."""
        units, alone = self._units or (), self._width is None
        if self.config.kinds is None:
            return holders(units)
        return units if alone else tuple(unit for unit in units if unit.kind != "layer")

    @property
    def is_reconstructed(self) -> bool:
        """Whether the network is reconstructed after pruning: plans are compared after reconstruction then."""
        return made_for(self.session.model)

    @cached_property
    def library(self) -> Library:
        """The library, scored."""
        self.unscored.score()
        return self.unscored

    @cached_property
    def unscored(self) -> Library:
        """The library before it is scored."""
        width = self._width
        scores = {} if width is None else width.ranking()
        groups = () if width is None else rounded(width.groups, self.config.round_to)
        sizes = self._head_sizes() if any(group.kind == "head" for group in groups) else ()
        network = None if width is None else width.network
        return Library(self.session, self._chosen_among(), network, scores, (*groups, *sizes), sizes, self.store)

    def _head_sizes(self) -> tuple[Group, ...]:
        """Return the groups of head dimensions that may be narrowed."""
        if not self.config.smaller_heads:
            return ()
        found = look_for_groups(self.session.model, self.session.traced, ("head", "head_dim")).of_kinds(("head_dim",))
        return tuple(group for group in found.groups if not matches(group.name, self.config.ignore))

    @cached_property
    def costs(self) -> VariantCosts:
        """Costs of the library's variants."""
        return VariantCosts(self.session, self.library.maker, self.store)

    def program(self, costs: tuple[str, ...], *, exact: bool = False, depth_alone: bool = False) -> Program:
        """Return the integer program over the library.

        Args:
            costs: Names of the costs of the budgets, or kinds of depth.
            exact: Whether exactly the budget is to go.
            depth_alone: Whether nothing is narrowed.
        """
        found = library_program(self.library, self.costs, costs, self.config.equal_layers, exact=exact)
        return found.of_whole_sites() if depth_alone else found

    @ordinary_arithmetic()
    def in_units(self, numbers: Mapping[str, int]) -> State:
        """Return the choice without so many units of each kind of depth, fitted in order; see `finished`.

        Args:
            numbers: Numbers of units by kind.

        Raises:
            ValueError: If so many cannot go.
        """
        with self.session.evaluating():
            program = self.program(tuple(numbers), exact=True)
            return Refiner(self.library, program, {kind: float(n) for kind, n in numbers.items()}).run()

    @ordinary_arithmetic()
    def together(
        self,
        need: Mapping[str, float],
        rounds: int = ROUNDS,
        start: Start | None = None,
        *,
        depth_alone: bool = False,
        met: Callable[[State], None] = lambda _: None,
    ) -> State:
        """Return the choice of depth and width that saves shares of costs, fitted in order; see `finished`.

        Args:
            need: Shares to remove, by cost, as counted or, of the latency, as the clock says.
            rounds: Rounds of refinement at most.
            start: Choice for about as much, and the shares that go with this choice, by the final clock.
            depth_alone: Whether nothing is narrowed.
            met: Function called with each choice compared on the way.

        Raises:
            ValueError: If so much cannot go.
        """
        with self.session.evaluating():
            program = self.program(tuple(need), depth_alone=depth_alone)
            measure = partial(self.costs.together, self.budgeted)
            found = Refiner(self.library, program, need, measure, met).run(rounds, start)
            assert found.chosen is not None, "fitted here, where the network is in evaluation mode"
            return found

    def removed_shares(self, edits: Sequence[Edit]) -> dict[str, float]:
        """Return the share of each cost that goes with edits, once merged; latency is measured."""
        return {cost: measured_share(self.session, self.store, cost, edits) for cost in self.budgeted}

    @ordinary_arithmetic()
    def alone(self, depth: bool, cost: str, share: float) -> Plan:
        """Return the plan of depth or of width alone, for one cost.

        Args:
            depth: Whether it is depth.
            cost: Name of the cost.
            share: Share of the cost to remove.

        Raises:
            ValueError: If the budget cannot be met.
        """
        budget = budget_alone(cost, share)
        if depth:
            return self._depth_search.plan(budget)
        if self._width is None:
            raise ValueError(self.why_no_width)
        return self._width.plan(budget)

    @ordinary_arithmetic()
    def finished(self, state: State) -> tuple[Chosen, float]:
        """Return a choice fitted on all samples and tuned on the output, and the held-out divergence in between."""
        with self.session.evaluating():
            chosen = self.library.fitted(state.chosen)
            divergence = state.divergence if chosen is state.chosen else self.library.scorers.divergence(chosen)
            return tuned(self.session, self.library.maker, chosen, self.store.spread), divergence

    def edits(self, chosen: Chosen, *, in_place: bool = False) -> tuple[Edit, ...]:
        """Return the edits of a choice."""
        return self.library.maker.edits(chosen, in_place=in_place)[0]

    def plan(self, chosen: Chosen, divergence: float) -> Plan:
        """Return the plan of a choice.

        Args:
            chosen: Variants with what is fitted.
            divergence: Divergence of the output on held-out samples.
        """
        groups = () if self._width is None else self._width.groups
        return plan_of(self.library, chosen, divergence, groups, self.config.seed)

    @cached_property
    def judge(self) -> PlanJudge:
        """Judge of whole plans."""
        return PlanJudge(self.session, self.store)

    def _width_allocator(self) -> WidthAllocator:
        if not self.width_config.kinds:
            raise ValueError(f"Expected kinds of width, but got kinds={self.config.kinds}.")
        return WidthAllocator(self.session, self.width_config, self.store)

    def _depth_units(self) -> tuple[Unit, ...]:
        if self.depth_config.kinds == ():
            raise ValueError(f"Expected kinds of depth, but got kinds={self.config.kinds}.")
        kinds = kinds_of(self.session.model, None, self.depth_config.kinds)
        self.depth_config.check_ready(kinds)
        with self.session.evaluating():
            return units_that_may_go(self.session.model, self.session.traced, kinds, self.depth_config)[1]

    @cached_property
    def _depth_search(self) -> DepthSearch:
        return DepthSearch(self.session, self.depth_config.kinds, self.depth_config)
