"""Questions of the words of `language`, as rows and as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prunerecover.language.questions import Question

TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
output_type: multiple_choice
test_split: test
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: answer
doc_to_choice: choices
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
"""


def question_rows(count: int) -> list[dict[str, Any]]:
    """Return questions of two or three choices, with varying right answers."""
    return [
        {
            "question": f"w{3 + i % 20} w{7 + 2 * i % 40} w{20 + i % 30}",
            "choices": [f"w{9 + i % 40}", f"w{10 + i % 40} w{30 - i % 20} w12", "w4 w5"][: 2 + i % 2],
            "answer": i % 2,
        }
        for i in range(count)
    ]


@torch.no_grad()
def answer_by_hand(model: nn.Module, question: Question, choice: str) -> list[float]:
    """The log-likelihood of each token of an answer: no padding, a run of the model for each."""
    ids = [int(word[1:]) for word in f"{question.prompt} {choice}".split()]
    logs = []
    for place in range(len(question.prompt.split()), len(ids)):
        logits = model(input_ids=torch.tensor([ids[:place]])).logits[0, -1]
        logs.append(float(logits.log_softmax(-1)[ids[place]]))
    return logs


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_task(folder: Path, rows: list[dict[str, object]], name: str = "words") -> Path:
    write_rows(folder / "rows.jsonl", rows)
    (folder / "tasks").mkdir()
    (folder / "tasks" / "task.yaml").write_text(TASK.format(name=name, file=folder / "rows.jsonl"))
    return folder / "tasks"
