"""Removable units of depth of a network of any architecture, and the edits of the removals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property

from torch import nn

from prunerecover.calibration.places import Fit, with_fit
from prunerecover.cost.macs import macs_by_module
from prunerecover.depth.layers.family_units import activation_unit, family_units, parameters_of, unit_of
from prunerecover.depth.layers.patching import Dropped, patches
from prunerecover.depth.layers.pruned_graph import NotRemovable, PrunedGraph
from prunerecover.depth.layers.trials import Companions, TrainingTrials, bypass, failure, joinable, merge_edit, trying
from prunerecover.depth.layers.widths import Widths
from prunerecover.families.describe import describe, is_supported
from prunerecover.graph.activations import LinearPair, find_linear_pairs
from prunerecover.graph.block_lists import block_lists, why_emptied
from prunerecover.graph.branches import BranchFinder, GraphUnit
from prunerecover.graph.coupling import coupled_nodes, whole_modules
from prunerecover.graph.layers import list_layers
from prunerecover.graph.trace import Traced
from prunerecover.model.paths import is_within
from prunerecover.plan.edit_parts import StandIn
from prunerecover.plan.edits import Bypass, Edit, Remove, Replace, Rewrite
from prunerecover.plan.units import Unit
from prunerecover.surgery.merging import block_removals
from prunerecover.width.groups.discovery import FOUND_KINDS, look_for_groups
from prunerecover.width.groups.found import FoundGroups, without

BRANCHES = ("block", "attention", "mlp")


class Removals:
    """Removable units, and the edits of their removal.

    Args:
        model: Unwrapped model; never changed.
        traced: Trace of a copy of the model, on a batch; a sample is enough.
        kinds: Kinds of units to look for.
        include_strided: Whether layers that change spatial dimensions are units, too.

    Attributes:
        traced: The given trace.
        graph: Graph of the trace.
        example: Inputs of the trace.
        kinds: The given kinds.
        units: Units in order of execution.
        refused: Reasons why layers, branches and blocks are no units, by path.
        block_lists: Lists of blocks by container; each list keeps a block.
        fits: Fitted replacements of units, by name; all further units leave an identity or zero.
    """

    def __init__(
        self, model: nn.Module, traced: Traced, kinds: Sequence[str], *, include_strided: bool = False
    ) -> None:
        self.model, self.traced, self.kinds = model, traced, tuple(kinds)
        self.graph, self.example, self._twin = traced.graph, traced.inputs, traced.model
        self.refused: dict[str, str] = {}
        self.fits: dict[str, Fit] = {}
        self._branches: dict[str, GraphUnit] = {}
        self._pairs: dict[str, LinearPair] = {}
        self._companions = Companions(self._twin, self.example, self.graph)
        self._pruned: dict[tuple[tuple[str, ...], tuple[str, ...]], PrunedGraph] = {}
        macs = macs_by_module(model, self.example)
        units: list[Unit] = []
        if is_supported(model):
            units += family_units(model, [kind for kind in kinds if kind != "layer"], macs)
            layout = describe(model)
            blocks = [block.path for block in layout.blocks]
            self.refused |= {block.path: block.stays for block in layout.blocks if block.stays and "block" in kinds}
        else:
            finder = BranchFinder(model, self.graph)
            found = [unit for unit in finder.find() if self._can_do_without(unit)]
            blocks = [unit.name for unit in found if unit.kind == "block"]
            self._branches = {unit.name: unit for unit in found if unit.kind in kinds}
            self.refused |= finder.refused
            units += [self._unit(unit, macs) for unit in self._branches.values()]
            if "activation" in kinds:
                self._pairs, apart = joinable(self._twin, self.example, find_linear_pairs(model, self.graph))
                self.refused |= apart
            for pair in self._pairs.values():
                targets = (pair.activation, pair.first, pair.second)
                units.append(activation_unit(model, targets, macs, _home(pair.first, blocks)))
        self.block_lists = block_lists(model, self.graph, blocks)
        if "layer" in kinds:
            listed = list_layers(model, self.graph, include_strided=include_strided)
            self.refused |= listed.refused
            named = {unit.name: unit.kind for unit in units}
            self.refused |= {
                path: f"the {named[path]} that begins with it goes by its name; look for layers alone"
                for path in listed.offered
                if path in named
            }
            offered = [path for path in listed.offered if path not in named and self._code_allows(path)]
            units += [self._layer(path, blocks, macs) for path in offered]
        self.units = tuple(sorted(units, key=self._order))

    def edits(self, units: Sequence[Unit], *, in_place: bool = False) -> tuple[Edit, ...]:
        """Return the edits that remove units, in an order in which each edit finds the named modules.

        Args:
            units: Units, none inside another; layers are removed in the given order.
            in_place: Whether blocks leave an identity, all paths stay the same, and linears around a removed
                activation stay two.

        Raises:
            NotRemovable: If the widths around a layer cannot be reconciled, no block would stay, or remaining
                parameters would get no gradient any more.
        """
        layers = tuple(unit.name for unit in units if unit.kind == "layer")
        branches = [unit for unit in units if unit.kind != "layer"]
        graph_units = [self._branches[unit.name] for unit in branches if unit.name in self._branches]
        blocks = tuple(unit.name for unit in graph_units if unit.kind == "block")
        if reason := why_emptied(self.block_lists, blocks):
            raise NotRemovable(reason)
        state = self.after(layers, blocks)
        pairs = [self._pairs[unit.name] for unit in branches if unit.name in self._pairs]
        family = [unit for unit in branches if unit.name not in self._branches and unit.name not in self._pairs]
        own, taken, activations = (
            [with_fit(edit, self.fits, state.edits) for edit in edits]
            for edits in (state.edits, (unit.bypass for unit in graph_units), map(bypass, pairs))
        )
        computing = {edit.unit for edit in (*own, *taken) if isinstance(edit, Bypass) and edit.tensors}
        merged = [] if in_place else [merge_edit(pair) for pair in pairs]
        taken_out = tuple(f"{path}." for unit in graph_units for path in unit.modules)
        taken_out += tuple(f"{unit.name}." for unit in family if unit.kind == "block")
        dropped = Dropped.of(self.graph, [unit for unit in graph_units if unit.name not in computing])
        finishing = state.finishing(dropped, taken_out, computing)
        finishing = (*finishing, *self._companions.patch(graph_units, (*own, *finishing)))
        removed = [with_fit(self._family_edit(unit), self.fits) for unit in family if unit.kind != "block"]
        if in_place:
            whole = [unit for unit in family if unit.kind == "block"]
            taken += [Bypass(unit=unit.name, kind="block", modules=self._identity(unit.name)) for unit in whole]
            family = [unit for unit in family if unit.kind != "block"]
        numbers = [describe(self.model).block_of(unit.name) for unit in family if unit.kind == "block"]
        rewrites = self._rewrites if any(edit.op == "narrow" for edit in own) else ()
        try:
            gone = block_removals(self.model, numbers) if numbers else []
        except ValueError as error:  # no block would stay
            raise NotRemovable(str(error)) from error
        return (*removed, *rewrites, *own, *taken, *activations, *finishing, *merged, *gone)

    @contextmanager
    def fitted(self, fits: Mapping[str, Fit]) -> Iterator[None]:
        """Have other fitted replacements, by unit, inside a `with` block; empty: none."""
        before, self.fits = self.fits, dict(fits)
        try:
            yield
        finally:
            self.fits = before

    def units_on_graph(self) -> tuple[GraphUnit, ...]:
        """Return the blocks and branches seen in the graph, in order of execution."""
        return tuple(self._branches.values())

    def why_not(self, units: Sequence[Unit], *, run: bool = False) -> str:
        """Return why units cannot be removed together, in the given order; empty if removable.

        Args:
            units: Units, none inside another.
            run: Whether the network without the units is run, too.
        """
        try:
            edits = self.edits(units)
        except NotRemovable as error:
            return str(error)
        reason = failure(self._twin, self.example, edits) if run else ""
        return f"Expected units that can go together, but {reason}." if reason else ""

    def trying(self, units: Sequence[Unit]) -> AbstractContextManager[None]:
        """Make an error inside a `with` block NotRemovable if the network does not run without the units."""
        return trying(self._twin, self.example, lambda: self.edits(units, in_place=True))

    def after(self, layers: tuple[str, ...], blocks: tuple[str, ...] = ()) -> PrunedGraph:
        """Return the network's graph without some layers, removed in the given order.

        Args:
            layers: Paths of the layers.
            blocks: Paths of blocks to be removed as well, whose input and output keep equal widths.
        """
        key = (layers, blocks if layers else ())
        if key not in self._pruned:
            if not layers:
                self._pruned[key] = self._dense
            else:
                state = self.after(layers[:-1], blocks).copy()
                if len(layers) == 1:
                    for block in blocks:
                        state.tie_ends(self._branches[block])
                state.prune(layers[-1])
                self._pruned[key] = state
        return self._pruned[key]

    @cached_property
    def _dense(self) -> PrunedGraph:
        found = self._groups
        widths = Widths.of(self.model, found.groups, self._rewrites, found.linked)
        return PrunedGraph(self.model, self.graph, widths)

    @cached_property
    def _groups(self) -> FoundGroups:
        found = look_for_groups(self.model, self.traced, FOUND_KINDS).of_kinds(FOUND_KINDS)
        return without(found, ()).without_freed_heads()

    @cached_property
    def _rewrites(self) -> tuple[Rewrite, ...]:
        """Shortcuts that become convolutions before the modules around are narrowed."""
        return tuple(edit for edit in self._groups.edits if isinstance(edit, Rewrite))

    def _layer(self, path: str, blocks: Sequence[str], macs: Mapping[str, int]) -> Unit:
        node = self.graph.by_module[path][0]
        targets = (path, *whole_modules(self.graph, coupled_nodes(self.graph, node, frozenset()))[0])
        return unit_of(self.model, path, "layer", targets, macs, _home(path, blocks))

    def _unit(self, unit: GraphUnit, macs: Mapping[str, int]) -> Unit:
        targets = tuple(unit.modules)
        emptied = patches(self.graph, frozenset(), Dropped.of(self.graph, [unit]))
        params = parameters_of(self.model, (*targets, *emptied, *self._companions.of([unit])))
        return Unit(unit.name, unit.kind, targets, params, sum(macs.get(path, 0) for path in targets), unit.block)

    def _can_do_without(self, unit: GraphUnit) -> bool:
        """Whether the network runs without a unit, where in doubt, and all remaining parameters train."""
        edits: list[Edit] = [unit.bypass]
        try:
            alone = self._companions.of([unit])
            reason = failure(self._twin, self.example, edits) if unit.doubtful else ""
            edits += self._companions.patch([unit], edits)
            reason = reason or self._training.why_not((*unit.modules, *alone), lambda: edits)
        except NotRemovable as error:
            reason = str(error)
        self.refused |= {unit.name: reason} if reason else {}
        return not reason

    @cached_property
    def _whole(self) -> PrunedGraph:
        """The network before the widths are known."""
        return PrunedGraph(self.model, self.graph, Widths.of(self.model, ()))

    @cached_property
    def _training(self) -> TrainingTrials:
        return TrainingTrials(self.model, self.example, self.graph)

    def _code_allows(self, path: str) -> bool:
        """Whether the surrounding code lets go of a layer's coupled operations, and the network trains without."""
        unit = Unit(path, "layer", (path,), 0)
        try:
            self._whole.check_code(path)
            reason = self._training.why_not((path,), lambda: self.edits([unit]))
        except NotRemovable as error:
            reason = str(error)
        self.refused |= {path: reason} if reason else {}
        return not reason

    def _order(self, unit: Unit) -> tuple[int, int]:
        """Order of units, by the first node inside the targets; larger units come first."""
        first, last = self.graph.first_in, len(self.graph.nodes)
        kinds = ("block", "attention", "mlp", "layer", "activation")
        return min((first.get(target, last) for target in unit.targets), default=last), kinds.index(unit.kind)

    def _identity(self, block: str) -> dict[str, StandIn]:
        returns = next(call.returns for call in self.graph.calls if call.path == block)
        return {block: StandIn(returns=returns)}

    def _family_edit(self, unit: Unit) -> Edit:
        if unit.kind == "activation":
            return Replace(unit=unit.name, kind="activation", leaves="identity")
        return Remove(unit=unit.name, kind=unit.kind)  # type: ignore[arg-type]


def _home(path: str, blocks: Sequence[str]) -> str:
    """Return the block around a module; empty if there is none."""
    return next((block for block in blocks if is_within(path, block)), "")
