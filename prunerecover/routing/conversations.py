"""Conversations: each keeps the set of blocks of the first prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Conversations:
    """Set numbers of conversations, by name."""

    def __init__(self) -> None:
        self._sets: dict[str, int] = {}

    def sets_of(self, names: Sequence[str], prompts: int, route: Callable[[list[int]], list[int]]) -> list[int]:
        """Return the set of each conversation.

        Args:
            names: Name of the conversation of each prompt.
            prompts: Number of prompts.
            route: Function from numbers of prompts to sets, called with prompts of new conversations only.

        Raises:
            TypeError: If `names` is a single text.
            ValueError: If the number of names differs from the number of prompts.
        """
        if isinstance(names, str):
            raise TypeError(
                f"Expected a list of names, one for each conversation, but got the text {names!r}. Pass "
                f"conversations=[{names!r}]."
            )
        if len(names) != prompts:
            raise ValueError(f"Expected a conversation for each of {prompts} prompts, but got {len(names)}.")
        new = [i for i, name in enumerate(names) if name not in self._sets]
        for i, number in zip(new, route(new) if new else [], strict=True):
            self._sets.setdefault(names[i], number)
        return [self._sets[name] for name in names]

    def forget(self, name: str) -> None:
        """Have a conversation routed anew."""
        self._sets.pop(name, None)
