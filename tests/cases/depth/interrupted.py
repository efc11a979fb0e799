"""Interrupts a search at one of its results, as a kill would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prunerecover.store.search_store import SearchStore


class Interrupts:
    """Counts the results that searches compute, and ends one of them by a KeyboardInterrupt.

    Attributes:
        computed: How many results were computed, and not read: with a folder, what is added to it.
        until: So many may be; None: all.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begin()
        patch.setattr(SearchStore, "_found", self._watched(SearchStore._found))

    def begin(self, until: int | None = None) -> None:
        """Count from none again."""
        self.computed, self.until = 0, until

    def _watched(self, found: Callable[..., Any]) -> Callable[..., Any]:
        def watched(store: SearchStore, key: str, compute: Callable[[], Any]) -> Any:
            if self.computed == self.until:
                raise KeyboardInterrupt
            self.computed += 1
            return found(store, key, compute)

        return watched
