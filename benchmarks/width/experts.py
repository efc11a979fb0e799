"""Choice of routed experts: a mixture-of-experts language model, trained here, at matched expert budgets.

    PRUNERECOVER_DATA=... python -m benchmarks.width.experts

A Qwen3-MoE of 4 layers with 16 experts each, 2 per token, learns stories and encyclopedia articles (TinyStories and
WikiText-2, 512 tokens of vocabulary) for some minutes. Then each rule removes 25, 50 and 75% of the experts, at once
and without training, on the same 256 training sequences. By default, and where a row says so, the kept experts are
refitted by least squares. Scores are the loss per token on unseen text; intervals are
paired over sequences. About 8 minutes a seed on a core, most of it training; a seed with missing rows is trained again.
"""

from __future__ import annotations

import copy
import json
from functools import lru_cache
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn
from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

from benchmarks.data.real import data_root
from benchmarks.data.text import losses, next_token_loss
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.fits import train
from benchmarks.runner.page import Table, across, ahead, figure, text
from benchmarks.runner.rows import Figure
from benchmarks.width.ream import merge_experts
from prunerecover import Budget, apply_plan
from prunerecover.session.session import Session
from prunerecover.width.allocator import WidthAllocator
from prunerecover.width.arguments import WidthConfig, WidthRule

SHARES, SEEDS = (0.25, 0.5, 0.75), (0, 1, 2)
LAYERS, EXPERTS = 4, 16
LENGTH, BATCH, STEPS, CALIBRATION = 128, 16, 800, 256
COMPARED = 32  # sequences for REAM's similarities
OURS = "prunerecover, per cost (default)"
ALONE = {"replace": "zero"}  # other experts do not take over
REAM = "REAM, uniform"
METHODS: dict[str, dict[str, Any]] = {
    OURS: {},
    "per cost, nothing refitted": ALONE,
    "Tolerance of Difference": {"allocation": "fair_pruner", **ALONE},
    "gate-Taylor, uniform": {"allocation": "uniform", **ALONE},
    REAM: {"allocation": "uniform", "importance": "reap", **ALONE},
    "REAP, uniform, refitted": {"allocation": "uniform", "importance": "reap"},
    "REAP, per cost": {"importance": "reap", **ALONE},
    "REAP, uniform": {"allocation": "uniform", "importance": "reap", **ALONE},
    "routing frequency, global": {"allocation": "global", "importance": "routing", **ALONE},
    "routing frequency, uniform": {"allocation": "uniform", "importance": "routing", **ALONE},
    "magnitude, uniform": {"allocation": "uniform", "importance": "l2_norm", **ALONE},
    "random, uniform": {"allocation": "uniform", "importance": "random", **ALONE},
}


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
    steps = track(range(STEPS), f"training, seed {seed}")
    batches = (training[torch.randint(len(training), (BATCH,))] for _ in steps)
    train(network, batches, next_token_loss, optimizer, scheduler, clip=1.0)
    network.config.output_router_logits = False
    return network


@lru_cache(maxsize=1)
def model(seed: int) -> tuple[nn.Module, WidthAllocator, Tensor]:
    """Train a model; return it, its planner, and unseen sequences."""
    training, unseen = (torch.cat([sequences(*source) for source in sources]) for sources in (TRAINING, UNSEEN))
    network = trained(training, seed)
    order = torch.randperm(len(training), generator=torch.Generator().manual_seed(seed))[:CALIBRATION]
    batches = [{"input_ids": ids, "labels": ids} for ids in training[order].split(BATCH)]
    config = WidthConfig(kinds=("expert",), seed=seed)
    return network, WidthAllocator(Session(network, batches, seed=seed), config), unseen


def measure(seed: int, budget: float, method: str) -> dict[str, Any]:
    """Narrow by a rule and score."""
    dense, planner, unseen = model(seed)
    network: Any = copy.deepcopy(dense)
    if method != "dense":
        plan = planner.plan(Budget(ratio={"expert": budget}), WidthRule(**METHODS[method]))
        apply_plan(network, plan)
        if method == REAM:
            ids = torch.cat([batch.kwargs["input_ids"] for batch in planner.session.samples.whole])[:COMPARED]
            merge_experts(network, dense, plan, planner.scores("reap")[0], ids)
    left = [layer.mlp.experts.num_experts for layer in network.model.layers]
    return {"loss": Figure.of(losses(network, unseen, BATCH)), "experts_left": left}


BENCHMARK = Benchmark(
    title="Routed experts at matched budgets, prune-only",
    text=f"""A Qwen3-MoE of {LAYERS} layers with {EXPERTS} experts each. Loss per token on unseen text, mean over seeds
    (each in brackets); the default lower by: on the same sequences and seeds, with the paired 95% interval over
    sequences. By default the kept experts are refitted by least squares. REAP is arXiv 2510.13999, which takes the same
    share of every layer (uniform); routing weights add up to one here, so "reap_normalised" scores alike. REAM is arXiv
    2604.04356: removed experts are merged into kept experts, in groups of at most 4.""",
    measure=measure,
    axes={
        "seed": Axis(SEEDS, open=True),
        "budget": Axis(SHARES, open=True),
        "method": Axis(tuple(METHODS)),
    },
    references=[{"seed": seed, "budget": 0.0, "method": "dense"} for seed in SEEDS],
    threads=0,
    tables=(
        Table([text("method"), figure("loss", "loss", 3)], where=lambda row: row.method == "dense"),
        Table(
            [
                text("method"),
                *across(
                    "budget",
                    SHARES,
                    [
                        figure("loss", "{} gone", 3),
                        ahead("loss", "default lower by", 3, -1, same=("budget",), method=OURS),
                    ],
                    "{:.0%}",
                ),
            ],
            where=lambda row: row.method != "dense",
        ),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
