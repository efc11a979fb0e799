"""Plans in depth: blocks, attentions, MLPs, activations and layers to remove, and their replacements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import nn

from prunerecover.depth.arguments import DepthConfig, budget_of
from prunerecover.depth.planners import planner_for
from prunerecover.display.interrupted import resumable
from prunerecover.display.progress import progress
from prunerecover.divergence.registry import Divergence, comparing_by
from prunerecover.importance.context import Importance
from prunerecover.importance.measuring.losses import Loss
from prunerecover.importance.saved_scores import SavedScores
from prunerecover.model.batches import Batches
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.session.asked import planned_as_asked
from prunerecover.session.session import Session
from prunerecover.store.search_store import results_in


def plan_depth(
    model: nn.Module,
    budget: Budget | None = None,
    *,
    remove: Mapping[str, int] | None = None,
    batches: Batches,
    importance: str | Importance = "output_divergence",
    loss: Loss | None = None,
    replace: str = "calibrated",
    search: str | None = None,
    kinds: str | Sequence[str] | None = None,
    include_strided: bool = False,
    ignore: Sequence[str] = (),
    scores: str | Path | SavedScores | None = None,
    seed: int = 0,
    store: str | Path | None = None,
    divergence: str | Divergence | None = None,
) -> Plan:
    """Choose units of depth to remove within a budget; the model is bit-identical afterwards.

    Args:
        model: Any network, wrapped or not. Models of the supported families are known by their parts; of all other
            networks, and for layers, the computation graph shows the removable units (see `find_sites`).
        budget: Share of the MACs, parameters or latency of the merged model, such as Budget(macs=0.3), or the amount
            left, such as Budget(macs="0.8G") a sample or Budget(latency="5ms") for the first batch. The budget is met;
            a warning names an excess larger than the smallest unit.
        remove: Number of units per kind, short for `Budget(remove=...)`.
        batches: Calibration batches: tensors, tuples with the input first, or mappings. Labels are read by importances
            with a `loss` alone, and to see whether BatchNorm statistics lag behind the weights (see
            `recovery.dense_reference`). Every 4th sample is held out to judge what was fitted to the others.
        importance: Ranking of units within their kind: "output_divergence" (the default), "cross_entropy",
            "gate_gradient", "block_influence", "angular_distance", "block_output_angle", "taylor", "squared_taylor",
            "r_score", "magnitude", "l2_norm", "random", a name given to `register_importance`, or a callable
            `(context) -> {unit name: number}`; see `importance.context`. Gate gradients, block influence and angular
            distance of attentions and MLPs need a supported family.
        loss: `loss(model, batch) -> scalar`, for "cross_entropy" and importances with gradients.
        replace: Replacement of removed units. "calibrated" fits replacements, picks each by its effect on the output
            and tunes all on the output, without labels. Whole blocks of a supported family leave a map in the layer
            before, without new parameters; units known from the graph alone leave a linear map of the channels, a slope
            and bias, or a constant, where that changes the output less for its cost. "zero" and "identity" are there by
            name.
        search: Search by name; None (the default): "greedy" in supported families, "joint" in other networks, where
            divergence ranks, else "one_shot". "joint" removes one unit at a time by divergence per saved cost, ranks
            the others again on the pruned network, and then exchanges chosen units for better ones: units interact.
            "greedy" does so without exchanges, and "exact" judges every unit at each step, instead of promising units
            alone. For a share of a cost in a supported family, all three also search without blocks, without MLPs and
            without activations, and keep the best set. They minimise the output divergence, or, with
            importance="cross_entropy", the `loss`: the likelihood of text (`language.likelihood.next_token_loss`), of
            answers (`answer_loss`), or your own. "run" takes one contiguous run of blocks of a supported family: among
            the runs that turn the residual stream least, the run of least output divergence, or, with
            importance="angular_distance", of least angle at the last token (Gromov et al., arXiv 2403.17887), or, with
            importance="block_influence", of least mean cosine distance. "one_shot" ranks once. "two_to_one" ranks once,
            and takes two other units for each attention; "rounds" ranks again after each removal, by any importance.
        kinds: Kinds of removable units, for a budget in a share of cost; None: all kinds but layers in supported
            families, all in other networks. A budget in units names its kinds itself.
        include_strided: Whether layers that change spatial dimensions may go, too, replaced by a pooling.
        ignore: Shell patterns of unit names that stay, such as "blocks.0.*".
        scores: Scores of this dense network, saved by `sensitivity`: units are not ranked alone again, whatever the
            budget; a search still judges them on top of each other.
        seed: Seed of the held-out split and of everything random.
        store: Folder of intermediate results. A search that was interrupted, by Ctrl-C or a kill, and begun again with
            the same network, samples and arguments continues behind its last result, and gives the same plan.
            Functions, such as a `loss`, count by their names, and by the loss of the first batch. Take another folder
            once code has changed, and delete the folder when the plan is saved: fitted tensors are kept, too, of a
            large model several times the size of linear maps of all its blocks. Damaged results are found anew. None:
            nothing is kept.
        divergence: Comparison of outputs: a name among `divergence.registry.DIVERGENCES`, or a callable `(dense,
            pruned) -> scalar`; None: by the structure of the outputs.

    Returns:
        The plan, with the importance of every unit as evidence, and, for a share of the MACs or parameters, the removed
        share before and after `merge`.

    Raises:
        ValueError: If the budget cannot be met, an argument is unknown, there are no batches, or importances are NaN.
    """
    budget = budget_of(budget, remove)
    config = DepthConfig(
        importance=importance,
        loss=loss,
        replace=replace,
        search=search,
        kinds=kinds,
        include_strided=include_strided,
        ignore=ignore,
        scores=scores,
        seed=seed,
        store=store,
    )
    with comparing_by(divergence):
        return depth_plan(Session.with_dense_reference(model, batches, loss=loss, seed=seed), budget, config)


def depth_plan(session: Session, budget: Budget, config: DepthConfig) -> Plan:
    """Return `plan_depth`'s plan for the network of a session.

    Args:
        session: Network and samples.
        budget: Budget, as in `plan_depth`.
        config: All other arguments of `plan_depth`.
    """
    with progress("planning depth"), resumable(config.store, "result", results_in):
        return planned_as_asked(session, budget, lambda shares: planner_for(session, shares, config).plan(shares))
