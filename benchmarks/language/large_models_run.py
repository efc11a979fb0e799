"""One planning of a large model, with the peaks of memory; large_models runs each in a process of its own."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from prunerecover import Budget, plan_pruning
from prunerecover.files import held_tensors
from prunerecover.library.walk import Walks
from prunerecover.model import checks
from prunerecover.plan.plan import Plan

SIZES = {"30M": (256, 4), "100M": (512, 8), "300M": (1024, 16), "1B": (2048, 32)}  # hidden features and heads
LAYERS, VOCABULARY = 16, 32000
TEXTS, TOKENS = 8, 8
SHARE = 0.2  # of the parameters
KINDS = ("mlp", "neuron")
RESIDENT = 250  # MB of mapped pages beyond those of the libraries, above which all go
EVERY = 0.03  # seconds between two looks
DONT_NEED = 4  # for madvise
STAGES = {
    "ranking": "scores of units",
    "walk": "fits in order",
    "measured": "scores of variants alone",
    "increases": "scores on top of choices",
    "plan_pruning": "all else",
}
Peaks = dict[str, dict[str, float]]


def config_of(size: str) -> LlamaConfig:
    """Return the shape of a size: four neurons for each hidden feature, four heads for each key and value."""
    hidden, heads = SIZES[size]
    return LlamaConfig(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
        vocab_size=VOCABULARY,
        max_position_embeddings=128,
    )


def save(size: str, folder: Path) -> None:
    """Save a model with random weights."""
    torch.manual_seed(0)
    LlamaForCausalLM(config_of(size)).eval().save_pretrained(folder)


def opened(folder: Path, weights: str) -> nn.Module:
    """Return the saved model, with its weights in memory or offloaded to disk."""
    if weights == "on_disk":
        places = dict.fromkeys(("model.embed_tokens", "model.layers", "model.norm", "lm_head"), "disk")
        how = {"device_map": {**places, "model.rotary_emb": "cpu"}, "offload_folder": folder / "offloaded"}
        return AutoModelForCausalLM.from_pretrained(folder, **how).eval()
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()  # not mapped
    return model


def texts() -> list[dict[str, Tensor]]:
    """Return a batch of random texts."""
    return [{"input_ids": torch.randint(VOCABULARY, (TEXTS, TOKENS), generator=torch.Generator().manual_seed(1))}]


def resident() -> dict[str, float]:
    """Return the resident memory of this process in MB: of its own, and of mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    held = {line.partition(":")[0]: int(line.split()[1]) / 1e3 for line in lines if line.startswith("Rss")}
    return {"own": held["RssAnon"], "mapped": held["RssFile"] + held["RssShmem"]}


def drop(folder: Path) -> None:
    """Give all resident pages of weights and of temporary files back to the operating system; the files stay."""
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and (str(folder) in parts[5] or "(deleted)" in parts[5]):
            start, stop = (int(end, 16) for end in parts[0].split("-"))
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), DONT_NEED)


def stage_of(frame: FrameType | None) -> str:
    """Return the innermost stage of planning in a stack."""
    while frame is not None:
        if frame.f_code.co_name in STAGES and "/prunerecover/" in frame.f_code.co_filename:
            return STAGES[frame.f_code.co_name]
        frame = frame.f_back
    return "all else"


@contextmanager
def watched(folder: Path) -> Iterator[Peaks]:
    """Note the peaks of memory by stage, and drop mapped pages when there are many.

    Both happen on a clock, before each linear runs, and before each check of a tensor for numbers that are not finite.
    """
    begun, over, main = resident(), threading.Event(), threading.get_ident()
    peaks: Peaks = defaultdict(lambda: {"own": 0.0, "mapped": 0.0, "minutes": 0.0})
    looking, clock = threading.Lock(), [time.process_time()]

    def look() -> None:
        with looking:
            stage, now = stage_of(sys._current_frames().get(main)), resident()
            then, clock[0] = clock[0], time.process_time()
            peaks[stage]["minutes"] += (clock[0] - then) / 60
            for kind, value in now.items():
                peaks[stage][kind] = max(peaks[stage][kind], value - begun[kind])
            if now["mapped"] - begun["mapped"] > RESIDENT:
                drop(folder)

    def checked(tensor: Tensor, finite: Callable[[Tensor], bool] = checks.is_finite) -> bool:
        look()
        return finite(tensor)

    def watch() -> None:
        while not over.wait(EVERY):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    at_linears = register_module_forward_pre_hook(lambda module, _: look() if isinstance(module, nn.Linear) else None)
    thread.start()
    try:
        with patch.object(checks, "is_finite", checked):
            yield peaks
    finally:
        over.set()
        thread.join()
        at_linears.remove()


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count samples through blocks, walks, and bytes of the moments that walks hold."""
    found, forward, walk, held = Counter[str](), LlamaDecoderLayer.forward, Walks.walk, held_tensors.held

    def block(own: LlamaDecoderLayer, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        found["samples"] += len(hidden)
        return forward(own, hidden, *args, **kwargs)

    def walks(own: Walks, chosen: Any, **how: bool) -> Any:
        found["walks"] += 1
        return walk(own, chosen, **how)

    def hold(tensor: Tensor) -> Tensor:
        found["moments"] += tensor.nbytes if tensor.dtype == torch.float64 else 0
        return held(tensor)

    with (
        patch.object(LlamaDecoderLayer, "forward", block),
        patch.object(Walks, "walk", walks),
        patch.object(held_tensors, "held", hold),
    ):
        yield found


def said(plan: Plan) -> str:
    """Return a hash of a plan's edits and of all bits of its tensors."""
    digest = hashlib.sha256(repr([edit.model_dump() for edit in plan.edits]).encode())
    for name in sorted(plan.tensors):
        digest.update(plan.tensors[name].contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()[:12]


def planned(weights: str, folder: Path) -> dict[str, Any]:
    """Plan for a saved model, and return the figures."""
    with counted() as found:  # before accelerate takes the blocks' calls
        model = opened(folder, weights)
        gc.collect()
        clock = time.process_time()
        with watched(folder) as peaks:
            plan = plan_pruning(model, Budget(params=SHARE), batches=texts(), kinds=KINDS)
    return {
        "plan": said(plan),
        "minutes": (time.process_time() - clock) / 60,
        "passes": found["samples"] / (LAYERS * TEXTS),
        "walks": found["walks"],
        "moments": found["moments"] / max(1, found["walks"]) / 1e6,
        "removed": {kind: len(names) for kind, names in plan.removed.items()},
        "peaks": {stage: dict(own) for stage, own in peaks.items()},
    }


def run() -> None:
    """Print the figures of the planning that the command line names: size, place of the weights, and folder."""
    size, weights, folder = sys.argv[1:]
    torch.set_num_threads(1)
    if weights == "save":
        save(size, Path(folder))
    else:
        print(json.dumps(planned(weights, Path(folder))))
