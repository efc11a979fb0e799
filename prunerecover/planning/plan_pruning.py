"""Plans of depth and width together for a budget: a choice out of the library of variants, or depth or width alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from prunerecover.boundary.search import Evaluate
from prunerecover.display.progress import beside_other_displays, progress
from prunerecover.divergence.registry import Divergence, comparing_by
from prunerecover.importance.measuring.losses import Loss
from prunerecover.model.batches import Batches
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.planning.arguments import PruningConfig, check_costs
from prunerecover.planning.budget_search import BudgetSearch
from prunerecover.planning.kept import kept_budget
from prunerecover.planning.planner import Planner
from prunerecover.planning.score import Score
from prunerecover.session.asked import planned_as_asked
from prunerecover.session.session import Session
from prunerecover.width.groups.rounding import RoundTo


def plan_pruning(
    model: nn.Module,
    budget: Budget,
    *,
    batches: Batches,
    loss: Loss | None = None,
    kinds: str | Sequence[str] | None = None,
    equal_layers: bool = False,
    round_to: RoundTo | None = None,
    ignore: Sequence[str] = (),
    evaluate: Evaluate | None = None,
    score: Score | None = None,
    seed: int = 0,
    store: str | Path | None = None,
    divergence: str | Divergence | None = None,
) -> Plan:
    """Choose removals in depth and in width within one budget; the model is bit-identical afterwards.

    Every site may stay, get smaller by several sizes, or go and leave a replacement. Each variant is fitted and scored
    alone by the output divergence on held-out samples; an integer program chooses a variant for each site, and the
    choice is refined while the divergence falls: alternatives are scored again on top of the choice. Chosen variants
    are fitted in order, on the pruned network towards the dense network, and tuned on the output.
    Where torch.distributed is set up, all ranks have to call the function: each scores a part of the variants, and all
    return the same plan; ranks with different samples plan alone.
    Where depth or width has no removable units, the budget goes to width or depth alone. With `evaluate`, plans of both
    together, width alone and depth alone are recovered for a short while, and the most accurate plan is returned.

    Args:
        model: Any network, wrapped or not; with weights offloaded by accelerate, planned on the CPU.
        budget: A share of the MACs, parameters or latency of the merged model, or shares of several costs, met at once;
            or the remaining amount, such as Budget(params="100M"). Latency is measured again after planning; a plan
            that misses the latency is made anew for more, and a warning reports a second miss.
        batches: Calibration batches, with or without labels; see `plan_width`. The first 256 samples decide: every 4th
            is held out, to judge fits to the others. Further samples serve the tuning alone, until there are 2,560
            outputs to learn from: for a classifier, give 2,400 images more.
        loss: Loss, as in `plan_width`.
        kinds: Kinds of removable units, in depth and width; None: the usual kinds of `plan_depth` and `plan_width`,
            and experts for a share of the parameters.
        equal_layers: Equal sizes of alike layers, as in `plan_width`.
        round_to: Multiple of all sizes, as in `plan_width`.
        ignore: Shell patterns of names of units and groups that stay, such as "blocks.0.*".
        evaluate: Function that recovers the pruned models of some trials, each for a short while, and returns
            accuracies in percent, as in `plan_boundary`; splits are compared by accuracy instead of output. Each call
            gets all trials that are independent of one another.
        score: Metric of your own, `score(network) -> float`, larger is better: mAP, MMLU, or `-wer(network)`. The score
            chooses among at most 4 finished plans: the best by divergence, choices of the refinement that meet the
            budget with up to a tenth more divergence, and depth alone where compared. Each is scored once, on a copy of
            the pruned, fitted and tuned network in evaluation mode, without gradients, with equal random numbers. Ranks
            share the plans: no collectives. A `store` keeps scores by the name of the function. Equal scores, and
            None: the least divergence.
        seed: Seed of the held-out split, of recoveries and of everything random.
        store: Folder of intermediate results: scores of variants, divergences, measured latencies, and compared plans.
            A search interrupted, by Ctrl-C or a kill, and begun again with the same network, samples and arguments
            continues behind the last result, and gives the same plan; a search for another budget finds all variants
            scored. See `plan_depth`, also for when to take another folder. None: nothing is kept.
        divergence: Comparison of outputs: a name among `divergence.registry.DIVERGENCES`, or a callable `(dense,
            pruned) -> scalar`; None: by the structure of the outputs.

    Returns:
        A plan of depth first and width second, with the tried `splits` as evidence.

    Raises:
        ValueError: If the budget is in units or cannot be met, an argument is unknown, nothing can go, both `evaluate`
            and `score` are given, or the score returns several numbers, NaN or infinity.
        TypeError: If an argument is of another type, or the score returns no number.
    """
    check_costs(budget)
    config = PruningConfig(
        loss=loss,
        kinds=kinds,
        equal_layers=equal_layers,
        round_to=round_to,
        ignore=ignore,
        score=score,
        seed=seed,
        store=store,
    )
    evaluate = None if evaluate is None else beside_other_displays()(evaluate)
    with comparing_by(divergence):
        return joint_plan(Session.with_dense_reference(model, batches, loss=loss, seed=seed), budget, config, evaluate)


def joint_plan(session: Session, budget: Budget, config: PruningConfig, evaluate: Evaluate | None = None) -> Plan:
    """Return `plan_pruning`'s plan for the network of a session.

    Args:
        session: Network and samples.
        budget: Budget, as in `plan_pruning`.
        config: All other arguments of `plan_pruning`.
        evaluate: Function that recovers, as in `plan_pruning`.

    Raises:
        ValueError: See `plan_pruning`.
    """
    if evaluate is not None and config.score is not None:
        raise ValueError(
            "Expected evaluate or score, but got both: evaluate compares depth and width after a short recovery, and "
            "score compares plans of nearly the same divergence as planned. Leave one of them out."
        )
    costs = tuple(check_costs(budget).costs)

    def plan(shares: Budget) -> Plan:
        planner = Planner(session, costs, config)
        with planner.searching():
            return BudgetSearch(planner, kept_budget(planner.store, budget, shares), evaluate).run()

    with progress("planning depth and width"):
        return planned_as_asked(session, budget, plan)
