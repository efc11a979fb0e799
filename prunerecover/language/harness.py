"""Tasks of lm-evaluation-harness on a live model: dense, pruned or routed, without saving the model first.

Needs `pip install "prunerecover[lm-eval]"`. On multiple choice `choice_accuracy` counts the same: with lm_eval 0.4.13,
`acc` and `acc_norm` of the same items agree exactly, with and without a chat template, and log-likelihoods up to
rounding (float32, where the harness keeps the precision of the model). A routed model is routed by the context of each
request, never by scored text: see `routed_harness`. Not covered: vLLM, several GPUs, and encoder-decoders.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from prunerecover.language.prompt_routes import Routed
from prunerecover.model.evaluation import evaluating


def evaluate_with_harness(
    model: nn.Module,
    tokenizer: Any,
    tasks: Sequence[str],
    *,
    task_folder: str | Path | None = None,
    num_fewshot: int | None = None,
    limit: int | float | None = None,
    batch_size: int = 8,
    chat: bool = False,
) -> dict[str, dict[str, float]]:
    """Return the metrics of each task and group, such as `{"arc_easy": {"acc": 0.61, "acc_norm": 0.56, ...}}`.

    Args:
        model: Causal language model of transformers, such as `module.model` of a CausalLM, or a RoutedCausalLM, on its
            device; not changed.
        tokenizer: Tokenizer of transformers; not changed.
        tasks: Names of tasks, groups or tags of the harness, or patterns (`"mmlu_*"`).
        task_folder: Folder with custom tasks, in the YAML format of the harness.
        num_fewshot: Number of examples in the prompt; None: the default of each task.
        limit: Number of samples of each task, or a share below 1; None: all samples.
        batch_size: Rows per batch.
        chat: Whether prompts are messages in the tokenizer's chat template.

    Raises:
        ModuleNotFoundError: If lm_eval is not installed.
        TypeError: If the model is neither from transformers nor routed.
        ValueError: If a task is unknown, or the tokenizer has neither an end-of-text nor a beginning-of-text token.
    """
    try:
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager

        from prunerecover.language.routed_harness import RoutedHFLM
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'Expected lm-evaluation-harness, but {error.name} is not installed. `pip install "prunerecover[lm-eval]"`.'
        ) from error
    _check(model, tokenizer, tasks)
    manager = TaskManager(include_path=None if task_folder is None else str(task_folder))
    _check_known(tasks, manager)
    with evaluating(model), _random_state_kept():
        how: dict[str, Any] = {"tokenizer": copy.deepcopy(tokenizer), "batch_size": batch_size}
        found = simple_evaluate(
            RoutedHFLM(model, **how) if isinstance(model, Routed) else HFLM(pretrained=model, **how),
            tasks=list(tasks),
            task_manager=manager,
            num_fewshot=num_fewshot,
            limit=limit,
            apply_chat_template=chat,
            log_samples=False,
        )
    results = {**found["results"], **found.get("groups", {})}
    return {task: _metrics(values) for task, values in results.items()}


def _check(model: nn.Module, tokenizer: Any, tasks: Sequence[str]) -> None:
    if isinstance(tasks, str) or not tasks:
        raise ValueError(f"Expected a list of one task or more, but got {tasks!r}. Pass tasks=['arc_easy'].")
    if not isinstance(model, Routed) and not (hasattr(model, "config") and hasattr(model, "tie_weights")):
        raise TypeError(
            f"Expected a model of transformers, or a RoutedCausalLM, but got {type(model).__name__}. Pass the network "
            "itself, such as module.model."
        )
    if tokenizer.eos_token_id is None and tokenizer.bos_token_id is None:
        raise ValueError(
            "Expected a tokenizer with an end-of-text or beginning-of-text token, which empty prompts begin with, but "
            f"{tokenizer.name_or_path or type(tokenizer).__name__} has neither. Set tokenizer.eos_token."
        )


def _check_known(tasks: Sequence[str], manager: Any) -> None:
    unknown = [task for task in tasks if not manager.match_tasks([task])]
    if unknown:
        raise ValueError(
            f"Expected tasks that lm-evaluation-harness knows, but got {', '.join(unknown)}. `lm_eval ls tasks` lists "
            "them; name the folder of your own by task_folder."
        )


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Restore the random states of Python and numpy, which the harness seeds, afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _metrics(values: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a task, without the name of the empty filter."""
    return {
        name.removesuffix(",none"): float(value)
        for name, value in values.items()
        if "," in name and isinstance(value, int | float)
    }
