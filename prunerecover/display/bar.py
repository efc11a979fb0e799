"""Bar of a long search: a line at the bottom of the terminal, below further running displays."""

from __future__ import annotations

import time

from rich import get_console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from prunerecover.display.messages import in_words
from prunerecover.display.stages import Stages

WIDTH = 20


class Bar(Live):
    """Display of stages with a bar, the steps of a stage, and the time.

    Args:
        stages: Running stages.
    """

    def __init__(self, stages: Stages) -> None:
        self._stages, self._begun = stages, time.monotonic()
        super().__init__(console=get_console(), get_renderable=self._line, transient=True)

    def stop(self) -> None:
        """Leave the terminal, even after another display has taken the place of this one."""
        running = getattr(self.console, "_live_stack", [self])  # rich before 14.1 has room for a single display
        if self.is_started and self not in running:
            self.console.set_live(self)
        if self.is_started and not self._nested and self not in self.console._render_hooks:
            self.console.push_render_hook(self)
        super().stop()

    def _line(self) -> Table:
        line, stages = Table.grid(padding=(0, 1, 0, 0)), Stages(list(self._stages.under_way))
        if not stages.under_way:  # the thread of an outer display may still draw
            return line
        stage, (_, spent, left) = stages.counted, stages.state()
        seconds = int(time.monotonic() - self._begun)
        beside = [stage.count, f"{seconds // 60}:{seconds % 60:02}"]
        beside += [] if left is None else [f"{in_words(left)} left"]
        room = max(self.console.width - WIDTH - sum(len(cell) + 1 for cell in beside) - 1, 0)
        text = Text(stages.said if len(stages.said) <= room else stage.description)
        text.truncate(room, overflow="ellipsis")
        share = None if left is None else spent / (spent + left or 1)
        bar = ProgressBar(total=None if share is None else 1, completed=share or 0, width=WIDTH)
        line.add_row(text, bar, *beside)
        return line
