"""`prunerecover plan --method pudding`: prompt-routed depth of a language model (PuDDing, arXiv 2502.04348).

Writes the plan of the best static set, beside it the folder of the routed model (`<plan>.routed`: sets, router, and
where the base model is) and a page (`<plan>.md`) that says whether routing is worth it. The static set is the one that
makes right answers likeliest on the router's own questions. Where routing is not ahead of it on questions kept apart,
in likelihood and with the whole interval, or is behind in accuracy, the saved model routes only once it is told to.
What is found on the way lies in `<plan>.search` until the plan is written: a command that is interrupted goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prunerecover.files.atomic import write_text
from prunerecover.language.likelihood import Encoding
from prunerecover.language.questions import Question
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.plan import Plan
from prunerecover.recipes.data.language.choice_columns import find_choice_columns
from prunerecover.recipes.data.language.text_source import open_text
from prunerecover.recipes.data.language.tokenizers import context_of, open_tokenizer
from prunerecover.recipes.plan_methods.base import (
    PlanMethod,
    PlanTask,
    beside,
    resumable_search,
    save_found,
    search_store,
)
from prunerecover.recipes.tasks.route_picker import (
    RouterLoss,
    as_written_once,
    held_out,
    prompt_features,
    train_router,
)
from prunerecover.routing.comparison import RouteComparison, compare_routes, should_route
from prunerecover.routing.omission_sets import LOSSES, plan_omission_sets
from prunerecover.routing.plan_set import PlanSet
from prunerecover.routing.route_table import right_table, route_table
from prunerecover.routing.routed_causal_lm import RoutedCausalLM
from prunerecover.routing.routed_folder import save_routed
from prunerecover.routing.router import EncoderRouter, PrefixRouter

APART = 0.4  # of the router's questions: half of them choose its epoch, the other half are reported on


@dataclass(frozen=True)
class Asked:
    """Questions in the parts that they serve; no prompt is in two of them.

    Attributes:
        tasks: To search sets on, by task.
        router: For the router.
        chosen: Which of the router's questions choose its epoch, boolean.
        reported: Which are reported on, boolean.
    """

    tasks: Mapping[str, list[Question]]
    router: list[Question]
    chosen: Tensor
    reported: Tensor


class PuddingPlan(PlanMethod):
    """Search a set of blocks per task and loss, train a router over them, and compare it with the best static set.

    Args:
        tasks: Questions by the name of the task: a hub id or local file, as `ChoiceData` takes it; its training split
            is read.
        names: Of configurations on the hub, or of data sets in a local folder, by the name of the task.
        blocks: How many blocks go.
        model: Path or hub id of the language model in the module, for its tokenizer and for the routed folder.
        router: "prefix", on the output of the model's own first blocks, or the path or hub id of a text encoder.
        calibration_questions: Per task, that sets are searched on.
        router_questions: Per task, for the router.
        losses: Of the sets: likelihood, contrastive, or both.
        router_loss: soft_cross_entropy, cross_entropy or mse, see `RoutePicker`.
        epochs: Of the router.
        chat: Whether prompts are messages in the tokenizer's chat template.
        batch_size: Answers at a time.
        seed: Of everything random.
    """

    def __init__(
        self,
        tasks: dict[str, str],
        blocks: int,
        model: str,
        names: dict[str, str] | None = None,
        router: str = "prefix",
        calibration_questions: int = 128,
        router_questions: int = 1000,
        losses: list[str] | None = None,
        router_loss: RouterLoss = "soft_cross_entropy",
        epochs: int = 30,
        chat: bool = False,
        batch_size: int = 16,
        seed: int = 0,
    ) -> None:
        self.tasks, self.names = tasks, names or {}
        self.blocks, self.model, self.router = blocks, model, router
        self.counts = (calibration_questions, router_questions)
        self.losses, self.router_loss, self.epochs = tuple(losses or LOSSES), router_loss, epochs
        self.chat, self.batch_size, self.seed = chat, batch_size, seed

    def make(self, task: PlanTask) -> Plan:
        """Return the plan of the static set."""
        network = unwrap(get_module(task.module, task.target))
        tokenizer = open_tokenizer(self.model, None)
        encoding = Encoding(tokenizer, context_of(self.model, tokenizer), self.chat)
        asked = self._asked()
        with resumable_search(task.output):
            sets = plan_omission_sets(
                network,
                asked.tasks,
                encoding,
                self.blocks,
                losses=self.losses,
                batch_size=self.batch_size,
                seed=self.seed,
                store=search_store(task.output),
            )
        self._found = self._routed(network, sets, asked, encoding)
        return sets.plans[self._found[0].default]

    def write(self, plan: Plan, output: Path) -> None:
        """Write the plan, the routed model and the page."""
        routed, compared = self._found
        save_found(plan, output)
        save_routed(routed, beside(output, ".routed"), base=self.model)
        write_text(beside(output, ".md"), page(routed.sets, compared))

    def _routed(
        self, network: nn.Module, sets: PlanSet, asked: Asked, encoding: Encoding
    ) -> tuple[RoutedCausalLM, list[RouteComparison]]:
        """Train the router, and compare; a single set needs none."""
        if len(sets.plans) == 1:
            return RoutedCausalLM(network, sets, tokenizer=encoding.tokenizer), []
        torch.manual_seed(self.seed)
        router = self._new_router(network, sets)
        features = prompt_features(router, network, asked.router, encoding)
        likelihoods = route_table(network, sets.blocks, asked.router, encoding, batch_size=self.batch_size)
        used = ~asked.reported
        static = int(likelihoods[used].mean(0).argmax())  # the best set for all prompts, which the router has to beat
        how: dict[str, Any] = {"loss": self.router_loss, "epochs": self.epochs, "seed": self.seed, "static": static}
        how["learning_rate"] = 1e-3 if isinstance(router, PrefixRouter) else 1e-5
        train_router(router, features[used], likelihoods[used], asked.chosen[used], **how)
        with torch.no_grad():
            picked = router(features[asked.reported]).argmax(1).tolist()
        apart = [q for q, out in zip(asked.router, asked.reported, strict=True) if out]
        dense = (frozenset[int](),)
        whole = route_table(network, dense, apart, encoding, batch_size=self.batch_size)
        likely = torch.cat([likelihoods[asked.reported], whole], 1)
        right = right_table(network, (*sets.blocks, *dense), apart, encoding, batch_size=self.batch_size).float()
        compared = [
            compare_routes(scores[:, :-1], picked, sets.names, static=static, dense=scores[:, -1], metric=metric)
            for metric, scores in (("log-likelihood per token", likely), ("accuracy", right))
        ]
        routed = RoutedCausalLM(
            network,
            sets,
            router,
            tokenizer=encoding.tokenizer,
            default=sets.names[static],
            routed=should_route(*compared),
        )
        return routed, compared

    def _new_router(self, network: nn.Module, sets: PlanSet) -> PrefixRouter | EncoderRouter:
        if self.router != "prefix":
            return EncoderRouter(self.router, len(sets.plans))
        config: Any = network.config
        return PrefixRouter(int(config.get_text_config().hidden_size), len(sets.plans), min(2, sets.shared_prefix))

    def _asked(self) -> Asked:
        """Read the tasks."""
        by_task = {name: self._questions(path, self.names.get(name)) for name, path in self.tasks.items()}
        calibrated, routed = self.counts
        searched = {name: found[:calibrated] for name, found in by_task.items()}
        seen = {as_written_once(question.prompt) for found in searched.values() for question in found}
        rest = [q for found in by_task.values() for q in _unseen(found[calibrated:], seen)[:routed]]
        if not rest:
            raise ValueError(
                f"Expected more than {calibrated} questions per task, of which the router learns from the rest, but "
                "there are none left. Lower calibration_questions."
            )
        apart, half = held_out(rest, APART, self.seed), held_out(rest, 0.5, self.seed + 1)
        choosing, reported = apart & half, apart & ~half
        parts = {"to train on": ~apart, "to choose by": choosing, "to report on": reported}
        empty = [name for name, part in parts.items() if not part.any()]
        if empty:
            raise ValueError(
                "Expected questions to train a router on, others to choose by and others to report on, but of "
                f"{len(rest)} besides those that sets are searched on there are none {' and '.join(empty)}. Lower "
                "calibration_questions, or give more questions."
            )
        return Asked(searched, rest, choosing, reported)

    def _questions(self, path: str, name: str | None) -> list[Question]:
        """Return the training questions of a data set, in a seeded order."""
        splits = open_text(path, name)
        rows = splits["train"] if "train" in splits else next(iter(splits.values()))
        columns = find_choice_columns(rows)
        order = np.random.default_rng(self.seed).permutation(len(rows))
        enough = order[: sum(self.counts)].tolist()
        return [columns.read(rows[i]) for i in enough]


def page(sets: PlanSet, compared: Sequence[RouteComparison]) -> str:
    """Return what was found, Markdown."""
    lines = ["# Prompt-routed depth", "", "Blocks that go:", ""]
    lines += [f"- {name}: {', '.join(map(str, sorted(b)))}" for name, b in zip(sets.names, sets.blocks, strict=True)]
    if not compared:
        lines += ["", "All tasks miss the same blocks least: there is nothing to route."]
    for found in compared:
        picked = ", ".join(f"{name} {count}" for name, count in found.picked.items())
        lines += ["", f"## By {found.metric}", "", str(found), "", f"Picked: {picked}."]
    return "\n".join(lines) + "\n"


def _unseen(questions: Sequence[Question], seen: set[str]) -> list[Question]:
    return [question for question in questions if as_written_once(question.prompt) not in seen]
