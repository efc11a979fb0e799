"""Conversations that stay with the set of blocks that their first prompt was routed to."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Conversations:
    """The set of each conversation, by its name."""

    def __init__(self) -> None:
        self._sets: dict[str, int] = {}

    def sets_of(self, names: Sequence[str], prompts: int, route: Callable[[list[int]], list[int]]) -> list[int]:
        """Return the set of each conversation.

        Args:
            names: Of the conversation of each prompt.
            prompts: How many there are.
            route: Returns the sets of prompts by their numbers; it is asked for those of new conversations alone.

        Raises:
            TypeError: If the names are one text.
            ValueError: If there is not one for each prompt.
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
        """Let a conversation be routed anew."""
        self._sets.pop(name, None)
