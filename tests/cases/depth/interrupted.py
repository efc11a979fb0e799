"""Interrupts a search at one of its results, as a kill would."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
        patch.setattr(SearchStore, "result", self._watched(SearchStore.result))

    def begin(self, until: int | None = None) -> None:
        """Count from none again."""
        self.computed, self.until = 0, until

    def _watched(self, result: Callable[..., Any]) -> Callable[..., Any]:
        def watched(store: SearchStore, what: str, names: Iterable[str], compute: Callable[[], Any]) -> Any:
            def counted() -> Any:
                if self.computed == self.until:
                    raise KeyboardInterrupt
                self.computed += 1
                return compute()

            return result(store, what, names, compute if store._computing else counted)

        return watched
