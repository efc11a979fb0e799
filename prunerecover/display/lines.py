"""Lines on a long search without a terminal: a line every half minute."""

from __future__ import annotations

import threading

from prunerecover.display.messages import in_words, say
from prunerecover.display.stages import Stages

EVERY = 30.0  # seconds between two lines; shorter stages log none


class Lines:
    """Log of the expected time of a search, once, and of the progress, every half minute.

    Args:
        stages: Running stages.
    """

    def __init__(self, stages: Stages) -> None:
        self._stages, self._over, self._announced = stages, threading.Event(), False
        self._thread = threading.Thread(target=self._keep_saying, daemon=True)

    def start(self) -> None:
        """Begin with the first half minute."""
        self._thread.start()

    def stop(self) -> None:
        """Log no further lines."""
        self._over.set()
        self._thread.join()

    def refresh(self) -> None:
        """Log the expected time of the innermost stage, for the first stage with a known time."""
        stage = self._stages.under_way[-1]
        if not self._announced and stage.expected is not None:
            self._announced = True
            if stage.expected >= EVERY:
                say(f"{stage.description} takes about {in_words(stage.expected)}.")

    def _keep_saying(self) -> None:
        while not self._over.wait(EVERY):
            say(f"{self._stages}.")
