"""Support matrix as Markdown: families by columns, messages of refused cells, and runtimes by tasks."""

from __future__ import annotations

from cases.support.checks import COLUMNS
from cases.support.families import FAMILIES

from benchmarks.edge.runtimes import BY_NAME
from benchmarks.edge.subjects import BY_TASK
from benchmarks.runner.rows import Results, Row

COMMAND = "python -m benchmarks.project.support_matrix"
HEAD = f"""\
# What works on which family of models

Written by `{COMMAND}`, which runs every cell on a small model of the family; the tests run a part of them.

- **yes**: it was planned, applied, saved and opened again with the same outputs, and gradients reach what is left.
  from_pretrained: transformers' own class opens the saved folder and computes the same, without prunerecover.
  ONNX: a pruned model runs in onnxruntime and computes the same, to 0.001.
- **no**, with a number: it is refused; the messages are below.
- **-**: a family has no such unit, or (ONNX, from_pretrained) it was not tried.

block, attention, mlp, activation and layer are removed by `plan_depth`, channel, head, neuron, hidden (features of
residual streams that norms or attentions read, a transformer's hidden size) and expert by `plan_width`.

A narrowed network computes what the dense one does with the removed units set to zero, before weights are made to
take over for them. Norms over units take their statistics over the units that stay, as is usual: LayerNorm, RMSNorm and
GroupNorm, and what is written out with `mean`, `var` or `std`, if it meets the units again element by element. Units
that an operation counts in another way stay as they are: those whose mean goes into another layer, whose `prod` or
`logsumexp` is taken, or whose number, read off a shape, divides something; so do those of a norm that divides a sum
by that number (`y.sum(1) / y.shape[1]`). `plan_width` narrows the rest, and its warning names the groups and the
operation.

Some counting is not noticed: by tensors (`torch.ones_like(y).sum(1)`), by numbers that stay the same with a few units
less (`y.shape[1] // 100`) or follow the data as well (`y.max().item() * y.shape[1]`), by a mean over units that gates
these units and so looks like a norm (`y * y.mean(1, keepdim=True).sigmoid()`), and by `amax` or `amin` where zeros
would be the largest or smallest, as they are not for `amax` after a ReLU.
"""
EDGE = """\
## On small devices

A pruned network of each task, exported by `export` and converted by the runtime's own tools: whether the conversion
works, the time as a share of the dense network's in the same runtime, and the change of the quality by int8 (top-1,
mAP50 and mIoU in points, loss per token). [The page](results/edge_matrix.md) has sizes, savings against MACs, outputs,
intervals, versions and the reasons of failures.
"""


def markdown(versions: str) -> str:
    """Return the page; `versions` is a line with the versions of the libraries."""
    notes: list[str] = []
    rows = []
    for name, family in FAMILIES.items():
        cells = [_cell(family.reason(column), column, notes) for column in COLUMNS]
        rows.append(f"| {name} | {family.library} | {' | '.join(cells)} |")
    head = [f"| family | library | {' | '.join(COLUMNS)} |", "|---" * (2 + len(COLUMNS)) + "|"]
    messages = [f'{number}. "{note} ..."' for number, note in enumerate(notes, 1)]
    return "\n".join([HEAD, *head, *rows, "", *messages, "", versions, "", EDGE, *edge_table(), ""])


def edge_table() -> list[str]:
    """Return the lines of the table of runtimes by tasks, from the committed measurement."""
    rows = Results.read("edge_matrix").rows
    tasks, runtimes = BY_TASK, BY_NAME
    by = {(row["runtime"], row["task"]): _edge_cell(row) for row in rows}
    lines = [f"| {name} | {' | '.join(by.get((name, task), 'not measured') for task in tasks)} |" for name in runtimes]
    return [f"| runtime | {' | '.join(tasks)} |", "|---" * (1 + len(tasks)) + "|", *lines]


def _edge_cell(row: Row) -> str:
    state: str = row["state"].partition(":")[0]
    said = [f"time {row.figures['time'].value:.2f}"] if "time" in row.figures else []
    said += [f"int8 {row.figures['int8_change'].value:+.2f}"] if "int8_change" in row.figures else []
    if state == "yes" and row.get("int8") != "yes":
        said += ["no int8"]
    return f"{state}: {', '.join(said)}" if said else state


def _cell(reason: str | None, column: str, notes: list[str]) -> str:
    """Return a cell, and add its message to the notes if new."""
    if reason is None:
        return "-"
    if not reason:
        return "yes"
    if reason not in notes:
        notes.append(reason)
    return f"no ({notes.index(reason) + 1})"
