"""Method `pudding` of `prunerecover plan`: prompt-routed depth of a language model (PuDDing, arXiv 2502.04348).

Writes the plan of the best static set; beside the plan the folder of the routed model (`<plan>.routed`: sets, router,
and the place of the base model), and a page (`<plan>.md`) with the value of routing. The static set is the set with the
likeliest right answers on the router's own questions. On separate questions routing must be ahead of the static set in
likelihood, with the whole interval, and not behind in accuracy; otherwise the saved model routes only on demand.
Intermediate results lie in `<plan>.search` until the plan is written, and an interrupted command goes on from there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.files.atomic import write_text
from prunerecover.former import renamed
from prunerecover.language.likelihood import Encoding
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.plan import Plan
from prunerecover.recipes.data.language.tokenizers import context_in, name_of, open_tokenizer
from prunerecover.recipes.plan_methods.base import PlanMethod, PlanTask, beside, save_found, search_store
from prunerecover.recipes.plan_methods.pudding_page import page, routing_of
from prunerecover.recipes.plan_methods.pudding_questions import Asked, ask
from prunerecover.recipes.tasks.route_picker import RouterObjective, prompt_features, train_router
from prunerecover.routing.comparison import RouteComparison, compare_routes, should_route
from prunerecover.routing.omission_sets import OBJECTIVES, plan_omission_sets
from prunerecover.routing.plan_set import PlanSet
from prunerecover.routing.route_table import choice_tables, route_table
from prunerecover.routing.routed_causal_lm import RoutedCausalLM
from prunerecover.routing.routed_folder import save_routed
from prunerecover.routing.router import EncoderRouter, PrefixRouter

METRICS = ("log-likelihood per token", "accuracy")
DENSE = (frozenset[int](),)  # set without blocks


class PuddingPlan(PlanMethod):
    """Search a set of blocks per task and objective, and train a router over the sets: PuDDing (arXiv 2502.04348).

    The router is compared with the best static set. The language model is the
    module's (`--model.model`), with its tokenizer.

    Args:
        tasks: Questions by the name of the task: a hub id or local file, as in `ChoiceData`; the training split is
            read.
        blocks: Number of blocks to remove.
        names: Names of configurations on the hub, or of data sets in a local folder, by the name of the task.
        tokenizer: Path or hub id of another tokenizer; None: the source of the model in transformers.
        router: Kind of router: "prefix", on the output of the model's first blocks, or the path or hub id of a text
            encoder.
        calibration_questions: Number of questions per task to search sets on.
        router_questions: Number of questions per task for the router.
        objectives: Objectives of the sets: likelihood, contrastive, or both.
        router_objective: Loss of the router: soft_cross_entropy, cross_entropy or mse, see `RoutePicker`.
        epochs: Epochs of the router's training.
        chat: Whether prompts are messages in the tokenizer's chat template.
        batch_size: Answers at a time.
        seed: Seed of all random draws.
        losses: Former name of `objectives`.
        router_loss: Former name of `router_objective`.
    """

    def __init__(
        self,
        tasks: dict[str, str],
        blocks: int,
        names: dict[str, str] | None = None,
        tokenizer: str | None = None,
        router: str = "prefix",
        calibration_questions: int = 128,
        router_questions: int = 1000,
        objectives: list[str] | None = None,
        router_objective: RouterObjective = "soft_cross_entropy",
        epochs: int = 30,
        chat: bool = False,
        batch_size: int = 16,
        seed: int = 0,
        losses: list[str] | None = None,
        router_loss: RouterObjective | None = None,
    ) -> None:
        self.tasks, self.names = tasks, names or {}
        self.blocks, self.tokenizer, self.router = blocks, tokenizer, router
        self.counts = (calibration_questions, router_questions)
        self.objectives = tuple(renamed("--method.losses", losses, objectives or list(OBJECTIVES)))
        self.router_objective = renamed("--method.router_loss", router_loss, router_objective)
        self.epochs = epochs
        self.chat, self.batch_size, self.seed = chat, batch_size, seed

    def make(self, task: PlanTask) -> Plan:
        """Return the plan of the static set."""
        network = unwrap(get_module(task.module, task.target))
        config: Any = getattr(network, "config", None)
        if not hasattr(config, "get_text_config"):
            raise ValueError(
                f"Expected a language model of transformers, but got {type(network).__name__}. Name one, such as "
                "--model CausalLM --model.model HuggingFaceTB/SmolLM2-135M, or decide by --method depth."
            )
        base = name_of(network)
        tokenizer = open_tokenizer(base, self.tokenizer)
        encoding = Encoding(tokenizer, context_in(config, tokenizer), self.chat)
        asked = ask(self.tasks, self.names, *self.counts, self.seed)
        sets = plan_omission_sets(
            network,
            asked.tasks,
            encoding,
            self.blocks,
            objectives=self.objectives,
            batch_size=self.batch_size,
            seed=self.seed,
            store=search_store(task.output),
        )
        routed, picked = self._routed(network, sets, asked, encoding)
        compared = self._compared(routed, picked, asked, encoding)
        routed.routed = routed.router is not None and should_route(*compared)
        self._found = routed, compared, asked, base is None or task.checkpoint is not None
        return sets.plans[routed.default]

    def write(self, plan: Plan, output: Path) -> None:
        """Write the plan, the routed model and the page."""
        routed, compared, asked, weights = self._found  # weights: the dense ones are in no file for transformers
        folder = beside(output, ".routed")
        save_found(plan, output)
        save_routed(routed, folder, weights=weights)
        write_text(beside(output, ".md"), page(routed, compared, asked, str(folder)))

    def written(self, plan: Plan, output: Path) -> str:
        """Describe the written files, and whether the saved model routes."""
        folder, about = beside(output, ".routed"), beside(output, ".md")
        return f"{super().written(plan, output)}. {folder} {routing_of(self._found[0])}; see {about}"

    def _routed(
        self, network: nn.Module, sets: PlanSet, asked: Asked, encoding: Encoding
    ) -> tuple[RoutedCausalLM, list[int]]:
        """Train the router, and return its choices for the reported questions; a single set needs no router.

        The default set is the best set for all prompts, the baseline of the router.
        """
        if len(sets.plans) == 1:
            return RoutedCausalLM(network, sets, tokenizer=encoding.tokenizer), [0] * len(asked.reported)
        torch.manual_seed(self.seed)
        router = self._new_router(network, sets)
        features, reported = (
            prompt_features(router, network, some, encoding) for some in (asked.router, asked.reported)
        )
        likelihoods = route_table(network, sets.blocks, asked.router, encoding, batch_size=self.batch_size)
        static = int(likelihoods.mean(0).argmax())
        rate = 1e-3 if isinstance(router, PrefixRouter) else 1e-5
        how: dict[str, Any] = {"objective": self.router_objective, "static": static, "learning_rate": rate}
        train_router(router, features, likelihoods, asked.chosen, epochs=self.epochs, seed=self.seed, **how)
        routed = RoutedCausalLM(network, sets, router, tokenizer=encoding.tokenizer, default=sets.names[static])
        return routed, _picked(router, reported)

    def _compared(
        self, routed: RoutedCausalLM, picked: list[int], asked: Asked, encoding: Encoding
    ) -> list[RouteComparison]:
        """Compare routes by likelihood and by accuracy."""
        sets = routed.sets
        every = (*sets.blocks, *DENSE)
        tables = choice_tables(routed.model, every, asked.reported, encoding, batch_size=self.batch_size)
        how: dict[str, Any] = {"routes": picked, "names": sets.names, "static": routed.default}
        return [
            compare_routes(scores[:, :-1].float(), dense=scores[:, -1].float(), metric=metric, **how)
            for metric, scores in zip(METRICS, tables, strict=True)
        ]

    def _new_router(self, network: nn.Module, sets: PlanSet) -> PrefixRouter | EncoderRouter:
        if self.router != "prefix":
            return EncoderRouter(self.router, len(sets.plans))
        config: Any = network.config
        return PrefixRouter(int(config.get_text_config().hidden_size), len(sets.plans), min(2, sets.shared_prefix))


@torch.no_grad()
def _picked(router: nn.Module, features: Tensor) -> list[int]:
    """Return the number of the router's set for each prompt."""
    picked: list[int] = router(features).argmax(1).tolist()
    return picked
