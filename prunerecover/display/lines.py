"""Lines about a long search, where there is no terminal for a bar: one every half minute."""

from __future__ import annotations

import threading

from prunerecover.display.messages import in_words, say
from prunerecover.display.stages import Stages

EVERY = 30.0  # seconds between two lines; what takes less says nothing


class Lines:
    """Says once how long a search is expected to take, and then every half minute how far it is.

    Args:
        stages: What is going on.
    """

    def __init__(self, stages: Stages) -> None:
        self._stages, self._over, self._announced = stages, threading.Event(), False
        self._thread = threading.Thread(target=self._keep_saying, daemon=True)

    def start(self) -> None:
        """Begin with the first half minute."""
        self._thread.start()

    def stop(self) -> None:
        """Say nothing from now on."""
        self._over.set()
        self._thread.join()

    def refresh(self) -> None:
        """Say what the innermost stage is expected to take, if it is the first one of which that is known."""
        stage = self._stages.under_way[-1]
        if not self._announced and stage.expected is not None:
            self._announced = True
            if stage.expected >= EVERY:
                say(f"{stage.description} takes about {in_words(stage.expected)}.")

    def _keep_saying(self) -> None:
        while not self._over.wait(EVERY):
            say(f"{self._stages}.")
