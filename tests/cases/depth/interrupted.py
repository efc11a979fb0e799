"""Interruption of a search at a result, like a kill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prunerecover.store.search_store import SearchStore


class Interrupts:
    """Counts computed results of searches, and ends a search by a KeyboardInterrupt.

    Attributes:
        computed: Number of computed results, without results from the store; in a folder, the number of added results.
        until: Largest number of computed results; None: no limit.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begin()
        patch.setattr(SearchStore, "_found", self._watched(SearchStore._found))

    def begin(self, until: int | None = None) -> None:
        """Count from none again."""
        self.computed, self.until = 0, until

    def _watched(self, found: Callable[..., Any]) -> Callable[..., Any]:
        def watched(store: SearchStore, key: str, compute: Callable[[], Any], everywhere: bool) -> Any:
            if self.computed == self.until:
                raise KeyboardInterrupt
            self.computed += 1
            return found(store, key, compute, everywhere)

        return watched
