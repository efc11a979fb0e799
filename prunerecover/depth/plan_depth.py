"""Plan which blocks, attentions, MLPs, activations and layers to remove, and what they leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import nn

from prunerecover.depth.arguments import DepthConfig, budget_of, kinds_of, planned_by_parts
from prunerecover.depth.family_planner import FamilyPlanner
from prunerecover.depth.graph_planner import GraphPlanner
from prunerecover.depth.planner import DepthPlanner
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
    """Decide what to remove within a budget; the model is bit-identical afterwards.

    Args:
        model: Any network, wrapped or not. Models of the supported families are known by their parts; of all others,
            and wherever layers go, the computation graph tells what can go (see `find_sites`).
        budget: How much goes. A share of the MACs, parameters or latency is that of the model once it is merged: it is
            met, and a warning says where it is exceeded by more than the smallest unit. So is what may be left, such as
            Budget(macs="0.8G") a sample or Budget(latency="5ms") for the first batch.
        remove: Short for `Budget(remove=...)`: units per kind.
        batches: Calibration batches: tensors, tuples whose first element is the input, or mappings. No labels are read,
            except by importances that take a `loss`, and to tell whether BatchNorm statistics lag behind the weights
            (see `recovery.dense_reference`). Every 4th sample is held out to judge what was fitted to the
            others.
        importance: What ranks units within their kind: "output_divergence" (the default), "cross_entropy",
            "gate_gradient", "block_influence", "angular_distance", "block_output_angle", "taylor", "squared_taylor",
            "r_score", "magnitude", "l2_norm", "random", one that `register_importance` has named, or a
            callable `(context) -> {unit name: number}`; see `importance.context`. Of attentions and MLPs, gate
            gradients, block influence and angular distance need a supported family.
        loss: `loss(model, batch) -> scalar`, for "cross_entropy" and what reads gradients.
        replace: "calibrated" fits what is left, picks it by its effect on the output and tunes it on the output,
            without labels; "zero" and "identity" are there by name. Whole blocks of a
            supported family leave nothing in their place; "calibrated" folds a linear map for each run of them into the
            linear before it, where that changes the output less: no parameter is added. Units that the
            graph shows leave a linear map of the channels, a slope and a bias, or a constant, where that changes the
            output less for what it saves.
        search: "joint" removes one unit at a time by divergence per saved cost, ranks the others again on the pruned
            network, and then exchanges chosen units for better ones: units interact. "greedy" does so without
            exchanges, and "exact" judges every unit at each step, where the others leave out those that can hardly be
            the best. For a share of cost in a supported family they search without blocks, without MLPs and without
            activations, too, and keep what is best. These three minimise the output divergence, or, with
            importance="cross_entropy", the `loss`: the likelihood of text (`language.likelihood.next_token_loss`), of
            answers (`answer_loss`), or your own. "run" takes one contiguous run of blocks of a supported family: of the
            runs that turn the residual stream least the one that changes the output least, or, with
            importance="angular_distance", the one of least angle at the last token (Gromov et al., arXiv 2403.17887),
            or, with importance="block_influence", of least mean cosine distance. "one_shot" ranks once. "two_to_one"
            ranks once, and takes two units that are no attention for each attention; "rounds" ranks again after each
            removal, by any importance. None: the best that is possible.
        kinds: Of the units that may go, for a budget in a share of cost; None: all but layers in supported families,
            all in other networks. A budget in units names its kinds itself.
        include_strided: Whether layers that change spatial dimensions may go, too: a pooling takes their place.
        ignore: Shell patterns of unit names that stay, such as "blocks.0.*".
        scores: Of this network as it is, that `sensitivity` has saved: units are not ranked alone again, whatever the
            budget; a search still judges them on top of each other.
        seed: Of the held-out split and of everything random.
        store: Folder of what is found on the way. A search that is interrupted, by Ctrl-C or a kill, and begun again
            with the same network, samples and arguments goes on behind its last result, and gives the same plan.
            Functions, such as a `loss`, count by their names, and by what the loss of the first batch is. Take another
            folder once code has changed, and delete it when the plan is saved: fitted tensors are kept, too, of a large
            model several times what linear maps of all its blocks take. Damaged results are found anew. None: nothing
            is kept.
        divergence: How outputs are compared: a name among `divergence.registry.DIVERGENCES`, or a callable `(dense,
            pruned) -> scalar`; None: what their structure asks for.

    Returns:
        The plan, with the importance of every unit as evidence, and, for a share of the MACs or parameters, what goes
        before and after `merge`.

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
        budget: See `plan_depth`.
        config: All other arguments of `plan_depth`.
    """
    with progress("planning depth"), resumable(config.store, "result", results_in):
        return planned_as_asked(session, budget, lambda shares: planner_for(session, shares, config).plan(shares))


def planner_for(session: Session, budget: Budget, config: DepthConfig) -> DepthPlanner:
    """Return what plans a budget: by the parts of a supported family, or by the computation graph.

    Args:
        session: Network and samples.
        budget: Names the kinds of its units, or leaves them to the configuration.
        config: All other arguments of `plan_depth`.
    """
    kinds = kinds_of(session.model, budget, config.kinds)
    by_parts = planned_by_parts(session.model, kinds, config)
    return (FamilyPlanner if by_parts else GraphPlanner)(session, kinds, config)
