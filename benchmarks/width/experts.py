"""Which routed experts go: a mixture-of-experts language model, trained here, at matched expert budgets.

    PRUNERECOVER_DATA=... python -m benchmarks.width.experts

A Qwen3-MoE of 4 layers with 16 experts each, 2 per token, learns stories and encyclopedia articles (TinyStories and
WikiText-2, 512 tokens of vocabulary) for some minutes. Then 25, 50 and 75% of its experts go, at once and without any
training, by each rule on the same 256 training sequences. Scored by the loss per token on text it has not seen; the
intervals are paired over sequences. About 8 minutes a seed on a core, most of it training. Resumable: a seed that lacks
rows is trained again, and only what is missing is made if its dense network scores as before; otherwise all of it.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor, nn
from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

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
from prunerecover import Budget, apply_plan
from prunerecover.cost.statistics import paired_difference
from prunerecover.display.markdown import table
from prunerecover.session.session import Session
from prunerecover.width.arguments import WidthConfig, WidthRule
from prunerecover.width.planner import WidthPlanner

NAME = "experts"
SHARES, SEEDS = (0.25, 0.5, 0.75), (0, 1, 2)
LAYERS, EXPERTS = 4, 16
LENGTH, BATCH, STEPS, CALIBRATION = 128, 16, 800, 256
OURS = "prunerecover, per cost (default)"
METHODS: dict[str, dict[str, Any]] = {
    OURS: {},
    "Tolerance of Difference": {"allocation": "tolerance"},
    "gate-Taylor, uniform": {"allocation": "uniform"},
    "REAP, per cost": {"importance": "reap"},
    "REAP, uniform": {"allocation": "uniform", "importance": "reap"},
    "routing frequency, global": {"allocation": "global", "importance": "routing"},
    "routing frequency, uniform": {"allocation": "uniform", "importance": "routing"},
    "magnitude, uniform": {"allocation": "uniform", "importance": "l2_norm"},
    "random, uniform": {"allocation": "uniform", "importance": "random"},
}
Row = dict[str, Any]


def main() -> None:
    """Make the rows that are missing, seed by seed; the page tells of seeds that have all."""
    command_line = parser(__doc__)
    command_line.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    options = command_line.parse_args()
    rows = stored(NAME)
    for seed in options.seeds:
        done = [row for row in rows if row["seed"] == seed]
        if not complete(done):
            rows = [row for row in rows if row["seed"] != seed] + rows_of(seed, done)
            commands = commands_so_far(NAME)
            whole = {row["seed"] for row in rows if complete([r for r in rows if r["seed"] == row["seed"]])}
            told = [row for row in rows if row["seed"] in whole]
            write(NAME, {"commands": commands, "rows": rows}, markdown(told, commands))


def complete(rows: list[Row]) -> bool:
    """Whether there is a row for every method and budget."""
    return all(of(rows, method, share) for share in SHARES for method in METHODS)


def rows_of(seed: int, done: list[Row]) -> list[Row]:
    """Train one model and narrow it by every rule; rows that are done stay if its dense network scores as theirs."""
    training, unseen = (torch.cat([sequences(*source) for source in sources]) for sources in (TRAINING, UNSEEN))
    network = trained(training, seed)
    order = torch.randperm(len(training), generator=torch.Generator().manual_seed(seed))[:CALIBRATION]
    batches = [{"input_ids": ids, "labels": ids} for ids in training[order].split(BATCH)]
    planner = WidthPlanner(Session(network, batches, seed=seed), WidthConfig(kinds=("expert",), seed=seed))
    rows = [row_of("dense", 0.0, seed, network, unseen)]
    if of(done, "dense", 0.0) == rows:
        rows = done
    for share in SHARES:
        for method, how in METHODS.items():
            if of(rows, method, share):
                continue
            narrowed = copy.deepcopy(network)
            apply_plan(narrowed, planner.plan(Budget(ratio={"expert": share}), WidthRule(**how)))
            rows.append(row_of(method, share, seed, narrowed, unseen))
    return rows


TRAINING = (("tinystories", "train.jsonl"), ("wikitext2", "valid.txt"))
UNSEEN = (("tinystories", "validation.jsonl"), ("wikitext2", "test.txt"))


def sequences(folder: str, file: str) -> Tensor:
    """Return a text as sequences of tokens `(N, LENGTH)`; at most 120,000 characters of unseen text."""
    text = (data_root() / "data" / folder / file).read_text()
    if file.endswith(".jsonl"):
        text = "\n".join(json.loads(line)["text"] for line in text.splitlines())
    text = text if (folder, file) in TRAINING else text[:120_000]
    tokenizer = AutoTokenizer.from_pretrained(data_root() / "models" / "stories260K")
    ids = torch.tensor(tokenizer(text)["input_ids"])
    return ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)


def trained(training: Tensor, seed: int) -> nn.Module:
    """Train a small Qwen3-MoE with its balancing loss."""
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=512,
        hidden_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        num_experts=EXPERTS,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        max_position_embeddings=LENGTH,
        norm_topk_prob=True,
        output_router_logits=True,
        router_aux_loss_coef=0.01,
    )
    network: nn.Module = Qwen3MoeForCausalLM(config)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.1, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=STEPS, pct_start=0.1)
    for _ in track(range(STEPS), f"training, seed {seed}"):
        ids = training[torch.randint(len(training), (BATCH,))]
        optimizer.zero_grad()
        network(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    network.config.output_router_logits = False
    return network.eval()


@torch.inference_mode()
def losses(network: nn.Module, unseen: Tensor) -> NDArray[np.float64]:
    """Return the mean loss per token of every sequence, `(N,)`."""
    found = []
    for ids in unseen.split(BATCH):
        logits = network(input_ids=ids).logits[:, :-1]
        found.append(nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1))
    return torch.cat(found).double().numpy()


def row_of(method: str, share: float, seed: int, network: nn.Module, unseen: Tensor) -> Row:
    """Score a network."""
    values = losses(network, unseen)
    left = [layer.mlp.experts.num_experts for layer in network.model.layers]
    return {
        "method": method,
        "budget": share,
        "stage": "prune_only",
        "seed": seed,
        "experts_left": left,
        "loss": float(values.mean()),
        "perplexity": float(np.exp(values.mean())),
        "n": len(values),
        "losses": packed_numbers(values),
    }


def of(rows: list[Row], method: str, share: float) -> list[Row]:
    """Return the rows of a method at a budget, by seed."""
    return [row for row in rows if (row["method"], row["budget"]) == (method, share)]


def better_by(ours: list[Row], theirs: list[Row]) -> str:
    """Return by how much the loss of ours is lower on the same sequences and seeds, with the paired 95% interval."""
    first, second = (np.mean([unpacked_numbers(row["losses"]) for row in rows], axis=0) for rows in (ours, theirs))
    found = paired_difference(first, second, seed=0)
    return f"{found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def markdown(rows: list[Row], commands: list[str]) -> str:
    """Render the mean over seeds."""
    lines = ["# Routed experts at matched budgets, prune-only", "", *made_by(commands)]
    lines += [f"A Qwen3-MoE of {LAYERS} layers with {EXPERTS} experts each.", ""]
    lines += [f"Dense, mean of {len(of(rows, 'dense', 0.0))} seeds: loss {_mean(of(rows, 'dense', 0.0))}.", ""]
    columns = ("method", *(name for share in SHARES for name in (f"{share:.0%} gone", "default lower by")))
    lines += [table(columns, ((method, *_cells(rows, method)) for method in METHODS))]
    lines += ["", "Loss per token on unseen text, mean over seeds; intervals over sequences."]
    lines += ["REAP is arXiv 2510.13999, which takes the same share of every layer (uniform)."]
    return "\n".join(lines)


def _cells(rows: list[Row], method: str) -> list[str]:
    cells = []
    for share in SHARES:
        ours, theirs = of(rows, OURS, share), of(rows, method, share)
        cells += [_mean(theirs), "" if method == OURS else better_by(ours, theirs)]
    return cells


def _mean(rows: list[Row]) -> str:
    return f"{np.mean([row['loss'] for row in rows]):.3f}"


if __name__ == "__main__":
    main()
