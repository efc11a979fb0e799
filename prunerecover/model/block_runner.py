"""Runs of a model from a given block on, with the hidden states before the block stored from an earlier run.

All candidates of a search step share the blocks before the changed block: these are computed once. The runner works for
any supported family without knowledge of the forward: the earlier blocks are skipped, and the first running block gets
the stored hidden state. Embeddings, masks and rotary tables are computed anew each time, at low cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn

from prunerecover.model.batches import ModelInputs, call, predictions_of
from prunerecover.model.hooks import Reached, first_tensor, removed_after, until_reached
from prunerecover.model.paths import get_module


class BlockRunner:
    """Runner of ranges of blocks of a model, in the caller's mode (train, no_grad).

    Args:
        model: Network without wrappers.
        container: Path of the ModuleList or Sequential of blocks.
    """

    def __init__(self, model: nn.Module, container: str) -> None:
        self.model = model
        self.blocks = list(get_module(model, container).children())
        self._in_tuple: bool | None = None  # unknown until a block has returned

    def advance(self, inputs: ModelInputs, start: int, hidden: Tensor | None, stop: int) -> Tensor:
        """Return the hidden state at block `stop`, from the hidden state at block `start`.

        Args:
            inputs: Batch.
            start: First block to run.
            hidden: Input of the first block, `(N, ..., C)`; None runs from the beginning, whatever `start` is.
            stop: First block not to run; the number of blocks returns the output of the last.
        """
        reached: list[Tensor] = []

        def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            reached.append(first_tensor(args, kwargs))
            raise Reached

        def keep_output(_: nn.Module, __: Any, output: Any) -> None:
            reached.append(output[0] if isinstance(output, tuple) else output)
            raise Reached

        with self._from(start, hidden):
            if stop < len(self.blocks):
                handle = self.blocks[stop].register_forward_pre_hook(keep, with_kwargs=True)
            else:
                handle = self.blocks[-1].register_forward_hook(keep_output)
            with until_reached(handle):
                call(self.model, inputs)
        if not reached:
            raise RuntimeError(f"Expected the model to run block {stop}, but its forward pass never reached it.")
        return reached[0]

    def finish(self, inputs: ModelInputs, start: int, hidden: Tensor | None) -> Any:
        """Return the model's output, from the hidden state at block `start`.

        Args:
            inputs: Batch.
            start: First block to run; the number of blocks runs none.
            hidden: Input of the first block, `(N, ..., C)`; None runs from the beginning, whatever `start` is.
        """
        with self._from(start, hidden):
            return predictions_of(call(self.model, inputs))

    @contextmanager
    def _from(self, start: int, hidden: Tensor | None) -> Iterator[None]:
        def inject(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if hidden is None:
                return None
            return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})

        def note(_: nn.Module, __: Any, output: Any) -> None:
            if self._in_tuple is None:  # as in Bloom and Falcon: skipped blocks must return the same
                self._in_tuple = isinstance(output, tuple)

        skipped = 0 if hidden is None else start
        entered = self.blocks[min(skipped, len(self.blocks) - 1)]
        handles = entered.register_forward_pre_hook(inject, with_kwargs=True), entered.register_forward_hook(note)
        with removed_after(*handles), self.skipping(range(skipped)):
            yield

    @contextmanager
    def skipping(self, indices: Iterable[int]) -> Iterator[None]:
        """Make blocks return their first argument instead of computing, inside a `with` block."""

        def handing_on(compute: Callable[..., Any]) -> Callable[..., Any]:
            def hand_on(*args: Any, **kwargs: Any) -> Any:
                if self._in_tuple is None:
                    self._in_tuple = isinstance(compute(*args, **kwargs), tuple)
                hidden = first_tensor(args, kwargs)
                return (hidden,) if self._in_tuple else hidden

            return hand_on

        with ExitStack() as stack:
            for block in (self.blocks[index] for index in indices):
                stack.enter_context(patch.object(block, "forward", handing_on(block.forward)))
            yield
