"""Arguments of planning in depth, checked before all computation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from torch import nn

from prunerecover.families.describe import is_supported
from prunerecover.former import warn_of
from prunerecover.importance.context import Importance
from prunerecover.importance.measuring.losses import Loss
from prunerecover.importance.registry import RegisteredImportance, importance_of
from prunerecover.importance.saved_scores import SavedScores, scores_from
from prunerecover.model.arguments import check_flag, check_seed, patterns_of
from prunerecover.plan.budget import Budget
from prunerecover.plan.kinds import DEPTH_KINDS, FAMILY_KINDS, kinds_among
from prunerecover.store.search_store import store_folder

SEARCHES = ("program", "one_shot", "greedy", "exact", "run", "two_to_one", "rounds")
SET_SEARCHES = ("greedy", "exact")  # searches over sets of units
SET_IMPORTANCES = ("output_divergence", "cross_entropy")  # importances of sets
RUN_IMPORTANCES = ("output_divergence", "angular_distance", "block_influence")  # importances of runs
IN_DEPTH = " for a plan in depth"
REPLACEMENTS = ("calibrated", "zero", "identity")


class DepthArguments(TypedDict, total=False):
    """Types of the arguments of `DepthConfig`, for functions with `**arguments: Unpack[DepthArguments]`."""

    importance: Importance | str
    loss: Loss | None
    replace: str
    search: str | None
    kinds: str | Sequence[str] | None
    include_strided: bool
    ignore: Sequence[str]
    scores: str | Path | SavedScores | None
    seed: int
    store: str | Path | None


@dataclass(frozen=True, kw_only=True)
class DepthConfig:
    """Arguments of planning in depth, described at length in `plan_depth`; checked on construction.

    Args:
        importance: Ranking of the units, by name or as a callable; the default needs no labels.
        loss: Function `loss(network, batch) -> scalar` for importances that need a loss. In a fit, `batch` is the batch
            of the training step; None: the loss of the training step.
        replace: Replacement of removed units: "calibrated", "zero" or "identity".
        search: "program", "greedy", "exact", "run", "one_shot", "two_to_one" or "rounds"; None: the best available.
        kinds: Kinds of removable units, for a share of a cost; None: all but "layer" in supported families, all
            elsewhere.
        include_strided: Whether layers that change spatial dimensions may go, too.
        ignore: Shell patterns of units that stay.
        scores: Scores of the present network, saved by `sensitivity`: units are not ranked alone again.
        seed: Seed of the samples and of everything random in planning.
        store: Folder of intermediate results; None: nothing is kept.

    Raises:
        ValueError: If an importance, replacement or search is unknown, or the search ranks by another importance.
        TypeError: If an argument is of another type, as an importance that is neither a name nor a callable.
    """

    importance: str | Importance = "output_divergence"
    loss: Loss | None = None
    replace: str = "calibrated"
    search: str | None = None
    kinds: Sequence[str] | None = None
    include_strided: bool = False
    ignore: Sequence[str] = ()
    scores: str | Path | SavedScores | None = None
    seed: int = 0
    store: str | Path | None = None

    def __post_init__(self) -> None:
        """Check the arguments, and put a single pattern into a list."""
        importance_of(self.importance, "depth")
        if self.search == "joint":
            warn_of("search='joint'", level=5)
            object.__setattr__(self, "search", None if self.importance == "output_divergence" else "greedy")
        if self.loss is not None and not callable(self.loss):
            raise TypeError(
                f"Expected argument loss to be a callable f(model, batch), but got {type(self.loss).__name__}. "
                "Pass the function itself."
            )
        if self.loss is not None and not self.reads_loss:
            raise ValueError(
                f"Expected no loss for importance='{self.registered.name}', which reads none, but got one. Leave it "
                "out, or set importance='cross_entropy' to keep the loss low."
            )
        check_seed(self.seed)
        check_flag("include_strided", self.include_strided)
        if self.kinds is not None:
            object.__setattr__(self, "kinds", kinds_among(self.kinds, DEPTH_KINDS, IN_DEPTH, some=False))
        for name, value, allowed in (
            ("replace", self.replace, REPLACEMENTS),
            ("search", self.search or SEARCHES[0], SEARCHES),
        ):
            if value not in allowed:
                raise ValueError(f"Expected argument {name} to be one of {', '.join(allowed)}, but got '{value}'.")
        if self.search in SET_SEARCHES and self.registered.name not in SET_IMPORTANCES:
            raise ValueError(
                f"Expected importance to be one of {', '.join(SET_IMPORTANCES)} for search='{self.search}', which "
                f"judges sets of units, but got '{self.registered.name}'. Use search='one_shot'."
            )
        if self.search == "run":
            self._check_run()
        object.__setattr__(self, "ignore", patterns_of(self.ignore))
        object.__setattr__(self, "scores", scores_from(self.scores))
        object.__setattr__(self, "store", store_folder(self.store))

    @property
    def registered(self) -> RegisteredImportance:
        """The importance, with facts for planning."""
        return importance_of(self.importance, "depth")

    @property
    def reads_loss(self) -> bool:
        """Whether the importance reads a loss; a callable may."""
        return self.registered.needs_loss or not isinstance(self.importance, str)

    @property
    def by_loss(self) -> bool:
        """Whether sets of units are judged by the loss."""
        return self.search in SET_SEARCHES and self.registered.name == "cross_entropy"

    def _check_run(self) -> None:
        """Check the importance for runs, and restrict removal to whole blocks."""
        if self.registered.name not in RUN_IMPORTANCES:
            raise ValueError(
                f"Expected importance to be one of {', '.join(RUN_IMPORTANCES)} for search='run', which compares runs "
                f"of blocks, but got '{self.registered.name}'. Use search='one_shot'."
            )
        object.__setattr__(self, "kinds", self.kinds or ("block",))

    def check_ready(self, kinds: Sequence[str]) -> None:
        """Raise ValueError if a kind cannot be removed by the search, or the importance lacks a loss."""
        kinds_among(kinds, DEPTH_KINDS, IN_DEPTH, some=False)
        if self.search == "run" and set(kinds) != {"block"}:
            raise ValueError(
                f"Expected blocks alone for search='run', but got {', '.join(kinds)}. Give a budget in blocks, or in a "
                "share of a cost."
            )
        if self.registered.needs_loss and self.loss is None:
            raise ValueError(
                f"Expected argument loss=f(model, batch) for importance='{self.registered.name}', but got none. "
                "The default, 'output_divergence', needs no labels."
            )


def kinds_of(model: nn.Module, budget: Budget | None, kinds: Sequence[str] | None) -> tuple[str, ...]:
    """Return the kinds of removable units: the kinds of a budget in units, the requested kinds, or the default kinds.

    Args:
        model: Network, unwrapped.
        budget: Budget; a budget in units names the kinds.
        kinds: Requested kinds; None: the default kinds.
    """
    usual = tuple(kinds or (FAMILY_KINDS if is_supported(model) else DEPTH_KINDS))
    return usual if budget is None else budget.kinds(usual) or usual


def budget_of(budget: Budget | None, remove: Mapping[str, int] | None) -> Budget:
    """Return the budget, from a `Budget` or from units per kind.

    Raises:
        ValueError: If none or both are given, or a budget in several costs.
        TypeError: If `budget` is no `Budget`.
    """
    if (budget is None) == (remove is None):
        raise ValueError('Expected either a budget or remove={"attention": 3, ...}, and not both.')
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(
            f"Expected argument budget to be a Budget, but got {type(budget).__name__}. "
            "Use remove={...} for units per kind."
        )
    given = Budget(remove=remove) if budget is None else budget
    given.check_one_cost()
    return given
