"""Method `sensitivity` of `prunerecover plan`: costs and importances of each unit and group, before a decision.

No plan is written. `<output>.md` is the table, `<output>.png` the picture, and `<output>.scores.safetensors` the scores
for later plans of the same network: `--method depth --method.scores ...`, and the methods of width alike.
"""

from __future__ import annotations

from pathlib import Path

from prunerecover.callbacks.calibration.surgery import Surgery
from prunerecover.display.style import save_figure
from prunerecover.files.atomic import write_text
from prunerecover.plan.plan import Plan
from prunerecover.recipes.plan_methods.base import TableMethod, beside
from prunerecover.sensitivity_table.sensitivity import Sensitivity, sensitivity_in


class SensitivityTable(TableMethod):
    """Score every unit of depth and every group of width, and measure their savings (`sensitivity`).

    Args:
        kinds: Kinds among `block`, `attention`, `mlp`, `activation` and `layer`, `channel`, `head`, `neuron` and
            `expert`; None: the kinds of the methods of depth and width.
        importance: Importance of channels, heads, neurons and experts.
        replace: Replacement of units of depth: `calibrated`, `zero` or `identity`.
        ignore: Shell patterns of units and groups that stay.
        seed: Seed of all random draws.
    """

    def __init__(
        self,
        kinds: list[str] | None = None,
        importance: str = "gate_taylor",
        replace: str = "calibrated",
        ignore: list[str] | None = None,
        seed: int = 0,
    ) -> None:
        self.kinds, self.importance, self.replace = kinds, importance, replace
        self.ignore, self.seed = tuple(ignore or ()), seed

    def look(self, surgery: Surgery, output: Path) -> Sensitivity:
        """Return the scores."""
        return sensitivity_in(
            surgery.session(surgery.loss),
            kinds=self.kinds,
            importance=self.importance,
            replace=self.replace,
            ignore=self.ignore,
        )

    def write(self, plan: Plan, output: Path) -> None:
        """Write the table, the picture and the scores."""
        write_text(beside(output, ".md"), self.found.to_markdown())
        save_figure(self.found.plot(), beside(output, ".png"))
        self.found.save(beside(output, ".scores.safetensors"))

    def written(self, plan: Plan, output: Path) -> str:
        """Name the files."""
        return f"Wrote {beside(output, '.md')}, its picture, and the scores for --method.scores"
