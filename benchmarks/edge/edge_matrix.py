"""Pruned networks in five runtimes of small devices: outputs, size, time against MACs, and int8, by task.

    pip install onnxruntime openvino nncf executorch coremltools litert-torch ai-edge-quantizer
    PRUNERECOVER_DATA=... python -m benchmarks.edge.edge_matrix

The runtimes want various versions of their own dependencies: give each an environment, and one command there with
`--runtimes`. Rows of a runtime that is not installed say so. Each network is exported before and after pruning,
converted, compared with the program in PyTorch, timed on one thread in interleaved pairs, and scored on held-out data,
in floating point and in int8. About an hour on a core.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.edge.runtimes import BY_NAME, Arrays, Exported, Run, Runtime, size_of
from benchmarks.edge.subjects import BY_TASK, Subject
from benchmarks.runner.benchmark import Axis, Benchmark
from benchmarks.runner.page import Column, Line, Table, figure, signed, text
from benchmarks.runner.rows import Figure
from prunerecover.cost.latency import latency_ratio

PAIRS, WARMUP, COMPARED = 30, 3, 4
MEGABYTE = 1e6


class Running(nn.Module):
    """Run of a file as a module, for interleaved timing."""

    def __init__(self, run: Callable[[Arrays], Arrays], given: Arrays) -> None:
        super().__init__()
        self.run, self.given = run, given

    def forward(self, example: Any) -> Arrays:
        """Return the outputs of the given inputs, whatever the example."""
        return self.run(self.given)


def measure(task: str, runtime: str) -> dict[str, Any]:
    """Convert the dense and the pruned network, and measure both."""
    subject, own = BY_TASK[task], BY_NAME[runtime]
    named = {"model": subject.model, "removed": subject.removed, "metric": subject.metric}
    if not own.versions:
        return {**named, "state": "not installed"}
    found: dict[str, Any] = {**named, "installed": own.versions}
    files = {which: subject.files(which) for which in ("dense", "pruned")}
    found["macs_share"] = subject.macs_share
    dense, why = attempt(own, files["dense"], int8=False)
    pruned, why = attempt(own, files["pruned"], int8=False) if dense else (None, why)
    if not dense or not pruned:
        return {**found, "state": f"no: {why}"}
    found |= {"state": "yes", "megabytes": pruned[0] / MEGABYTE, "size_share": pruned[0] / dense[0]}
    small, why = attempt(own, files["pruned"], int8=True)
    found |= {"int8": "yes", "int8_size": small[0] / pruned[0]} if small else {"int8": f"no: {why}"}
    if pruned[1] is None or dense[1] is None:
        return found
    return {**found, **in_floating_point(subject, files["pruned"], dense[1], pruned[1], small[1] if small else None)}


def attempt(runtime: Runtime, files: Exported, int8: bool) -> tuple[tuple[int, Run] | None, str]:
    """Convert and run once; return the size and the run, or the reason against it."""
    copied = Exported(files.folder / runtime.name, files.onnx, files.program, files.calibration, files.convolutional)
    if not int8:
        shutil.rmtree(copied.folder, ignore_errors=True)
    copied.folder.mkdir(exist_ok=True)
    try:
        path, run = runtime.convert(copied, int8)
        if run is not None:
            run(files.calibration[0])
    except Exception as error:
        reason = next(filter(None, map(str.strip, str(error).splitlines())), "")
        return None, f"{type(error).__name__}: {reason[:120].replace(chr(124), chr(47))}"
    return (size_of(path), run), ""


def in_floating_point(subject: Subject, files: Exported, dense: Any, pruned: Any, small: Any) -> dict[str, Any]:
    """Return difference, times and scores of the runs."""
    module = files.opened.module()
    given = files.calibration[:COMPARED]
    with torch.inference_mode():
        wanted = [next(iter(module(*map(torch.from_numpy, arrays)).values())).numpy() for arrays in given]
    apart = max(
        float(abs(pruned(one)[0] - right).max() / abs(right).max()) for one, right in zip(given, wanted, strict=True)
    )
    ratio = timed(dense, pruned, given[0])
    promised = 1 - subject.macs_share
    gained = Figure(*((1 - end) / promised for end in (ratio.value, ratio.high, ratio.low)), PAIRS)
    outputs = {
        name: scored(subject, run) for name, run in (("dense", dense), ("quality", pruned), ("int8", small)) if run
    }
    found = {name: subject.score(outputs[name], None) for name in ("dense", "quality")}
    if small:
        found |= {"int8_change": subject.score(outputs["quality"], outputs["int8"])}
        found |= {"int8_time": timed(pruned, small, given[0])}
    return {"apart": apart, "time": ratio, "gained": gained, **found}


def scored(subject: Subject, run: Callable[[Arrays], Arrays]) -> list[Arrays]:
    """Return the outputs of the scored samples."""
    return [[run([sample.numpy()])[0].copy()] for sample in subject.scored().contiguous().split(1)]


def timed(first: Callable[[Arrays], Arrays], second: Callable[[Arrays], Arrays], given: Arrays) -> Figure:
    """Return the time of the second run as a share of the first's."""
    runs = Running(first, given), Running(second, given)
    found = latency_ratio(*runs, torch.zeros(1), pairs=PAIRS, warmup=WARMUP, threads=1, stopwatch=process_seconds)
    return Figure.within(found.ratio, PAIRS)


def process_seconds(run: Callable[[], object]) -> float:
    """Return the processor time of all threads, without other work of the machine."""
    begun = time.process_time()
    run()
    return time.process_time() - begun


def converts(line: Line) -> str:
    """Return whether a network converts, and the largest difference of the outputs."""
    state, apart = line.first["state"], line.first.get("apart")
    return state if state != "yes" else "yes" if apart is None else f"yes, {apart:.0e}"


def int8(line: Line) -> str:
    """Return the size in int8, or the reason against it."""
    state = line.first.get("int8", "")
    return f"{line.first['int8_size']:.2f}" if state == "yes" else state


def above(rows: Any) -> str:
    """Return the network, and the removed units, of a task."""
    first = next((row for row in rows if row.get("macs_share")), rows[0])
    share = f", {first['macs_share']:.2f} of the MACs left" if first.get("macs_share") else ""
    return f"{first['model']}, without {first['removed']}{share}. Quality: {first['metric']}."


BENCHMARK = Benchmark(
    title="Pruned networks on small devices",
    text=f"""Each network is exported by `export` with a batch of one, and converted by the runtime's own tools.
    **Converts**: the largest difference of the outputs from PyTorch's over {COMPARED} samples, as a share of the
    largest output. **Size** of the pruned network's file, and as a share of the dense one's. **Time** as a share of the
    dense network's in the same runtime: processor time of one thread on a server (x86), the median of {PAIRS}
    interleaved pairs with its 95% interval; a phone's ratios will differ. **Gained**: the saved share of the time
    over the saved share of the MACs. **int8**: the pruned network after quantisation; size and time as shares of the
    pruned network's in floating point, and the change of the quality on the same samples. Scales of int8 follow each
    input, except for convolutional networks in ONNX Runtime and ExecuTorch, and for all in OpenVINO: from calibration
    inputs; Core ML quantises weights alone. Nothing is trained after pruning: convolutional networks are
    reconstructed. Core ML's files run on Apple's systems alone.""",
    measure=measure,
    axes={"task": Axis(tuple(BY_TASK)), "runtime": Axis(tuple(BY_NAME))},
    threads=1,
    tables=(
        Table(
            [
                text("runtime"),
                Column("converts", converts),
                text("megabytes", "size, MB", "{:.2f}"),
                text("size_share", "of dense", "{:.2f}"),
                figure("time", "time", 2),
                figure("gained", "gained", 2),
                figure("dense", "quality, dense", 2, ends=False),
                figure("quality", "pruned", 2),
                Column("int8: size", int8),
                figure("int8_time", "time", 2),
                signed("int8_change", "change of quality", 2),
            ],
            title="{task}",
            by=("task",),
            line=("runtime",),
            text=above,
        ),
        Table([text("runtime"), text("installed", "versions", "{}")], "Versions", line=("runtime",)),
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
