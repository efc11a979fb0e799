"""One set of adapters for all sets of blocks, beside adapters of each set's own: stories260K on tinystories.

    PRUNERECOVER_DATA=... python -m benchmarks.language.shared_lora --blocks 1
    PRUNERECOVER_DATA=... python -m benchmarks.language.shared_lora --blocks 2

The four sets of one block, or the four pairs that the model misses least on training stories; the first block stays.
Shared adapters take as many steps as there are sets times the steps of each set. Every way is scored on the same
held-out stories, with the adapters merged. Resumable after each fit. On one thread of a busy machine the first
command takes about 12 minutes, the second one 3.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from benchmarks.data.real import (
    commands_so_far,
    data_root,
    made_by,
    packed_numbers,
    parser,
    stored,
    unpacked_numbers,
    write,
)
from benchmarks.depth.graph_depth_text import calibration
from prunerecover import PlanSet
from prunerecover.callbacks import RoutedLoRARecover
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.cost.statistics import paired_difference
from prunerecover.display.markdown import table
from prunerecover.recipes.data.language.text_data import TextData
from prunerecover.recipes.networks.model_names import from_pretrained
from prunerecover.recipes.tasks.causal_lm import CausalLM
from prunerecover.recovery.shared_lora import WithoutUnits
from prunerecover.routing.routed_causal_lm import RoutedCausalLM
from prunerecover.surgery.merging import block_removals
from prunerecover.surgery.provenance import plan_for

NAME = "shared_lora"
SETS = 4
STEPS, BATCH, LENGTH = 100, 4, 128  # steps of each set
HELD_OUT, CHOSEN_ON = 150, 64  # stories
RANK, LEARNING_RATE = 8, 1e-2
WITHIN = 0.02  # of the loss of a set's own adapters
SHARED, OWN, LONG, ALONE = "shared", "own", "own, as many steps as shared", "shared, no teacher"
ARMS = {1: (SHARED, OWN, ALONE, LONG), 2: (SHARED, OWN)}  # by how many blocks go


@cache
def tokenizer() -> Any:
    """Return the model's tokenizer."""
    from transformers import AutoTokenizer

    return from_pretrained(AutoTokenizer.from_pretrained, _folder())


def stories(split: str, count: int, seed: int) -> Tensor:
    """Return the first tokens of stories drawn with a seed, `(count, LENGTH)`; a split that has fewer is an error."""
    found = calibration(tokenizer(), ("tinystories", f"{split}.jsonl"), count, LENGTH, seed)
    if len(found) != count:
        raise ValueError(f"Expected {count} stories of {LENGTH} tokens in {split}, but there are {len(found)}.")
    return found


@cache
def training_text() -> Any:
    """Return all sequences of the training stories, packed."""
    data = TextData(str(data_root() / "data" / "tinystories"), model=_folder(), length=LENGTH, batch_size=BATCH)
    data.setup("fit")
    return data.train_dataloader().dataset


def _folder() -> str:
    return str(data_root() / "models" / "stories260K")


@torch.inference_mode()
def losses(network: Any, ids: Tensor) -> NDArray[np.float64]:
    """Return the mean loss per token of each story, `(N,)`."""
    found = []
    for some in ids.split(32):
        logits = network.eval()(input_ids=some, use_cache=False).logits[:, :-1]
        found.append(F.cross_entropy(logits.transpose(1, 2), some[:, 1:], reduction="none").mean(1))
    return torch.cat(found).double().numpy()


@cache
def sets(blocks: int) -> PlanSet:
    """Return the sets of so many blocks that are missed least, the first block never among them."""
    network, ids = CausalLM(_folder()).model, stories("train", CHOSEN_ON, seed=1)
    pairs = {}
    for pair in combinations(range(1, len(network.model.layers)), blocks):  # type: ignore[arg-type,union-attr]
        with WithoutUnits(network, block_removals(network, pair)):
            pairs[pair] = float(losses(network, ids).mean())
    best = sorted(sorted(pairs, key=lambda pair: pairs[pair])[:SETS])
    plans = tuple(plan_for(network, block_removals(network, pair), method="least loss") for pair in best)
    return PlanSet(names=tuple("+".join(map(str, pair)) for pair in best), plans=plans)


def recovered(some: PlanSet, steps: int, distill: float) -> tuple[nn.Module, nn.Module]:
    """Return the network with its adapters, and a copy in which they are merged.

    Args:
        some: That share the adapters.
        steps: In all.
        distill: Weight of the teacher.
    """
    pl.seed_everything(0, verbose=False)
    module = CausalLM(_folder(), learning_rate=LEARNING_RATE, warmup_epochs=0.05)
    callback = RoutedLoRARecover(some, rank=RANK, distill=distill)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            max_steps=steps,
            max_epochs=-1,  # as many as that takes
            accelerator="cpu",
            default_root_dir=folder,
            enable_checkpointing=False,
            callbacks=[callback],
            **quiet,
        )
        trainer.fit(module, DataLoader(training_text(), BATCH, shuffle=True, drop_last=True))
    if trainer.global_step != steps:
        raise RuntimeError(f"Expected {steps} steps, but the fit made {trainer.global_step}.")
    return copy.deepcopy(module.model), Ledger.of(module).plain_copy(module, "model")


def groups_of(arm: str) -> list[tuple[int, ...]]:
    """Return the numbers of the sets that share adapters in an arm."""
    return [tuple(range(SETS))] if arm in (SHARED, ALONE) else [(number,) for number in range(SETS)]


def rows_of(arm: str, blocks: int, group: Sequence[int]) -> list[dict[str, Any]]:
    """Return the rows of the sets that share adapters, which are trained."""
    everything, held_out = sets(blocks), stories("validation", HELD_OUT, seed=0)
    steps, distill = STEPS if arm == OWN else STEPS * SETS, 0.0 if arm == ALONE else 0.5
    some = PlanSet(names=tuple(everything.names[i] for i in group), plans=tuple(everything.plans[i] for i in group))
    unmerged, merged = recovered(some, steps, distill)
    routed = RoutedCausalLM(merged, some).eval()
    rows = []
    for number, name in enumerate(some.names):
        scores = losses(routed.network(number), held_out)
        with WithoutUnits(unmerged, some.plans[number].edits):
            apart = float(np.abs(losses(unmerged, held_out[:32]) - scores[:32]).max())
        kept = {"losses": packed_numbers(scores), "merged_apart": apart}
        rows.append({"blocks": blocks, "arm": arm, "set": name, "steps": steps, "stories": len(scores), **kept})
    return rows


def untrained(blocks: int) -> list[dict[str, Any]]:
    """Return the rows of the dense model, and of the sets of so many blocks without any training."""
    network, held_out = CausalLM(_folder()).model, stories("validation", HELD_OUT, seed=0)
    rows = [{"blocks": blocks, "arm": "dense", "set": "", "losses": packed_numbers(losses(network, held_out))}]
    routed = RoutedCausalLM(network, sets(blocks)).eval()
    for number, name in enumerate(sets(blocks).names):
        scores = losses(routed.network(number), held_out)
        rows.append({"blocks": blocks, "arm": "untrained", "set": name, "losses": packed_numbers(scores)})
    return rows


def main() -> None:
    """Make the rows that are missing, and write the page after each fit."""
    options = parser(__doc__)
    options.add_argument("--blocks", type=int, choices=list(ARMS), default=1, help="how many blocks each set removes")
    blocks = options.parse_args().blocks
    torch.set_num_threads(1)
    rows = stored(NAME)
    rows += [] if any(row["blocks"] == blocks for row in rows) else untrained(blocks)
    there = {(row["blocks"], row["arm"], row["set"]) for row in rows}
    names = sets(blocks).names
    missing = [(a, g) for a in ARMS[blocks] for g in groups_of(a) if (blocks, a, names[g[0]]) not in there]
    for arm, group in missing:
        rows += rows_of(arm, blocks, group)
        _write(rows)
    _write(rows)


def _write(rows: list[dict[str, Any]]) -> None:
    commands = commands_so_far(NAME)
    write(NAME, {"commands": commands, **_settings(), "rows": rows}, markdown(rows, commands))


def _settings() -> dict[str, Any]:
    names = ("STEPS", "BATCH", "LENGTH", "HELD_OUT", "RANK", "LEARNING_RATE")
    return {name.lower(): globals()[name] for name in names}


def markdown(rows: list[dict[str, Any]], commands: list[str]) -> str:
    """Render the page."""
    steps = {row["arm"]: row["steps"] for row in rows if "steps" in row}
    dense = next(unpacked_numbers(row["losses"]) for row in rows if row["arm"] == "dense")
    lines = [
        "# One set of adapters for all sets of blocks",
        "",
        *made_by(commands),
        f"stories260K (5 blocks, dense {dense.mean():.4f} nats per token) without the blocks that it misses least; "
        f"adapters of rank {RANK} on the linears of the blocks, {BATCH} sequences of {LENGTH} tokens a step, AdamW at "
        f"{LEARNING_RATE:g} under a cosine, half of the loss from the whole model (none with *{ALONE}*). *{OWN}*: "
        f"{steps.get(OWN)} steps for the adapters of each set. *{SHARED}*: {steps[SHARED]} steps in all, a quarter of "
        f"them for each set: what the own adapters of all sets take together. *{LONG}*: {steps.get(LONG)} for each "
        f"set, {SETS} times the work. Losses on {len(dense)} held-out stories, adapters merged; one seed. A "
        f"fit draws its sequences from {len(training_text())} packed ones and sees none twice. The learning rate was "
        "picked among 0.003, 0.01 and 0.02 on training stories with pairs of blocks out, in fits of 75 steps of 8 "
        "stories, mostly of shared adapters.",
        "",
    ]
    for blocks in sorted({row["blocks"] for row in rows}):
        lines += _section(blocks, [row for row in rows if row["blocks"] == blocks])
    apart = max(row.get("merged_apart", 0.0) for row in rows)
    return "\n".join([*lines, f"Merged and unmerged adapters differ by at most {apart:.1e} in the loss of a story."])


def _section(blocks: int, rows: list[dict[str, Any]]) -> list[str]:
    found = {(row["arm"], row["set"]): unpacked_numbers(row["losses"]) for row in rows}
    names = list(dict.fromkeys(row["set"] for row in rows if row["set"]))
    arms = [arm for arm in ARMS[blocks] if all((arm, name) in found for name in names)]
    for arm in ("untrained", *arms):
        found[arm, "all"] = np.mean([found[arm, name] for name in names], axis=0)
    means = [(name, *(f"{found[arm, name].mean():.4f}" for arm in ("untrained", *arms))) for name in (*names, "all")]
    cells = []
    for other in arms[1:]:
        for name in (*names, "all"):
            apart = paired_difference(found[other, name], found[SHARED, name])
            interval = f"{apart.value:+.4f} ({apart.low:+.4f} to {apart.high:+.4f})"
            cells.append((name, other, interval, f"{100 * apart.value / found[other, name].mean():+.2f}%"))
    shares = {name: _share(found, name) for name in (*names, "all")} if OWN in arms else {}
    share, close = shares.get("all", 0.0), sum(shares[name] <= WITHIN for name in names if name in shares)
    return [
        f"## {blocks} of 5 blocks out",
        "",
        table(("blocks gone", "no training", *arms), means),
        "",
        "Shared less the others, positive where shared is worse: mean over stories, with paired 95% intervals.",
        "",
        table(("blocks gone", "against", "difference", "of the loss"), cells),
        "",
        f"At equal work shared adapters are at most {100 * WITHIN:g}% worse than a set's own in {close} of "
        f"{len(names)} sets; over all sets they differ by {100 * share:+.2f}%, "
        f"{'within' if share <= WITHIN else 'beyond'} that.",
        "",
    ]


def _share(found: Any, name: str) -> float:
    """Return by which part of their loss a set's own adapters are ahead of the shared ones."""
    return float(found[SHARED, name].mean() / found[OWN, name].mean() - 1)


if __name__ == "__main__":
    main()
