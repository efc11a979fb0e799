"""Routed language model: for each prompt the least needed blocks are left out.

Networks without the blocks of each set share all weights with the dense model: a set costs only a structure. A prompt
is routed once, before the generation; a conversation keeps its set, as keys and values of one network are wrong for
another.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.apply import apply_plan
from prunerecover.families.describe import container_of
from prunerecover.model.batches import logits_of
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import device_of, evaluating
from prunerecover.model.key_values import CACHES
from prunerecover.model.paths import get_module, unwrap
from prunerecover.routing.conversations import Conversations
from prunerecover.routing.host_memory import HostMemory
from prunerecover.routing.plan_set import PlanSet
from prunerecover.routing.prompt_states import BlockStates, handed_on, of_prompts, recorded
from prunerecover.routing.router import PrefixRouter, Router
from prunerecover.routing.rows import check_tokens, in_order, of_rows, padding_token

# One prompt is routed at a time: a router reads with hooks, and blocks move between devices. The lock belongs to no
# object, so that routed models can be copied and pickled.
_ALONE = threading.RLock()
# Arguments of `generate` that report outputs of blocks, or change inputs of blocks.
REPORTED = {"return_dict_in_generate", "position_ids", "inputs_embeds", *CACHES}
_DENSE = -1  # set number for the twin of the dense network, which routers read with


class RoutedCausalLM(nn.Module):
    """Language model that answers each prompt with the set of blocks from the router, or with the default set.

    Args:
        model: Dense language model; neither changed nor copied.
        sets: Plans for the model.
        router: Router to choose a set; None: always the default.
        tokenizer: Tokenizer of the model, for routers that read text.
        default: Name of the set without routing, and with `routed` off; None: the first.
        routed: Whether to use the router. `compare_routes` tells the gain.
        device: Device for the blocks that a prompt runs through; the rest wait in host memory, where the model is.
            None: all blocks stay in place.

    Raises:
        ValueError: If the router was made for another number of sets, or reads blocks removed by a set, or the plans
            are for another model.
    """

    def __init__(
        self,
        model: nn.Module,
        sets: PlanSet,
        router: Router | None = None,
        *,
        tokenizer: Any = None,
        default: str | None = None,
        routed: bool = True,
        device: str | torch.device | None = None,
    ) -> None:
        super().__init__()
        self.model, self.sets, self.tokenizer = unwrap(model), sets, tokenizer
        if router is not None and router.n_sets != len(sets.plans):
            raise ValueError(
                f"Expected a router for {len(sets.plans)} sets, but it was trained for {router.n_sets}. Train it on "
                "these sets."
            )
        if isinstance(router, PrefixRouter) and router.blocks > sets.shared_prefix:
            raise ValueError(
                f"Expected a router that reads no more than the {sets.shared_prefix} first blocks that all sets keep, "
                f"but it reads {router.blocks}. Train one with fewer, or plan sets with shared_prefix={router.blocks}."
            )
        self.router, self.routed = router, routed and router is not None
        self.default = 0 if default is None else sets.number(default)
        self._networks: dict[int, nn.Module] = {}
        self._shared: list[int] = []  # ids of the shared tensors
        self._conversations = Conversations()
        self._active: int | None = None  # the set whose blocks are on the device
        self._waiting = None if device is None else HostMemory(torch.device(device))
        for number in range(len(sets.plans)):
            self.network(number)  # tells at once if a plan is for another model

    @property
    def config(self) -> Any:
        """Configuration of the dense model."""
        return self.model.config

    @property
    def generation_config(self) -> Any:
        """Generation settings of the dense model, shared by all sets."""
        return self.model.generation_config

    @property
    def device(self) -> torch.device:
        """Device of prompts."""
        return device_of(self.model) if self._waiting is None else self._waiting.device

    def network(self, number: int) -> nn.Module:
        """Return the model without the blocks of a set: an ordinary model on the weights of the dense model."""
        with _ALONE:
            held = [id(tensor) for tensor in _tensors(self.model)]
            if held != self._shared:  # the model was cast, moved or loaded anew
                self._networks, self._shared = {}, held
            if number not in self._networks:
                twin = share_copy(self.model)
                if number != _DENSE:
                    apply_plan(twin, self.sets.plans[number])
                self._networks[number] = twin
            network = self._networks[number]
            return network if network.training == self.model.training else network.train(self.model.training)

    @torch.no_grad()
    def route(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> list[int]:
        """Return the number of the set for each prompt, `(N,)`.

        Args:
            input_ids: Tokens of the prompts, `(N, T)`.
            attention_mask: Mask, `(N, T)`, 0 for padding on either side.

        Raises:
            ValueError: If a prompt is empty or longer than the context of the model, or a router needs text and has no
                tokenizer.
        """
        return self._read(input_ids, attention_mask)[0]

    def _read(self, input_ids: Tensor, attention_mask: Tensor | None) -> tuple[list[int], list[BlockStates]]:
        """Return the number of the set for each prompt, and the states of prompts behind the common first blocks."""
        check_tokens(input_ids, attention_mask, self._context)
        if not self.routed or self.router is None:
            return [self.default] * len(input_ids), []
        masks = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        prompts = [row[mask.bool()].tolist() for row, mask in zip(input_ids, masks, strict=True)]
        texts = [] if self.tokenizer is None else self.tokenizer.batch_decode(prompts, skip_special_tokens=True)
        with _ALONE, evaluating(*(module for module in (self.router,) if isinstance(module, nn.Module))):
            if self._waiting is not None:
                self._ready(self.default if self._active is None else self._active)  # any set has the router's blocks
            network = self.network(_DENSE)
            with recorded(network, self.sets.shared_prefix) as found:
                features = self.router.features(network, prompts, texts)
            numbers: list[int] = self.router(features).argmax(1).tolist()
        return numbers, of_prompts([runs for runs in found if runs], prompts) if masks.all() else []

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        routes: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Return logits `(N, T, V)`, of each sample by its set.

        Args:
            input_ids: Tokens, `(N, T)`.
            attention_mask: Mask, `(N, T)`, or None.
            routes: Numbers of the sets; None: each sample is routed by all its tokens. To score answers, pass the
                result of `route` for the prompts alone, as in `prunerecover.language`.
            kwargs: Arguments of the forward of the model; tensors with a row per sample are cut to the rows of each
                set.
        """
        found: dict[tuple[int, ...], Tensor] = {}
        given = {"input_ids": input_ids, "attention_mask": attention_mask, **kwargs}
        with self._holding_blocks():
            for number, rows in self._grouped(input_ids, attention_mask, routes).items():
                found[rows] = logits_of(self._ready(number)(**of_rows(given, rows, len(input_ids))))
        return in_order(found)

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        conversations: Sequence[str] | None = None,
        routes: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Return tokens from `generate` of the model, `(N, T + new)`, shorter rows padded on the right.

        Several sequences per prompt stand one below the other, prompt by prompt.

        Args:
            input_ids: Prompts, padded on the left, `(N, T)`.
            attention_mask: Mask, `(N, T)`, or None.
            conversations: Name of the conversation of each prompt: known conversations keep their set.
            routes: Numbers of the sets; None: see `route`.
            kwargs: Arguments of `generate` of the model, including `inputs`, another name for prompts; tensors with a
                row per prompt are cut to the rows of each set.

        Raises:
            TypeError: If prompts are no tensor, or `conversations` is a single text.
            ValueError: If more than tokens is requested (`return_dict_in_generate`) for prompts of several sets; also
                see `route`.
        """
        prompts = check_tokens(kwargs.pop("inputs", None) if input_ids is None else input_ids)
        if conversations is not None and routes is None:

            def route(rows: list[int]) -> list[int]:
                return self.route(prompts[rows], None if attention_mask is None else attention_mask[rows])

            routes = self._conversations.sets_of(conversations, len(prompts), route)
        found: dict[tuple[int, ...], Tensor] = {}
        known: list[BlockStates] = []
        given = {"input_ids": prompts, "attention_mask": attention_mask, **kwargs}
        with self._holding_blocks():
            if routes is None:
                routes, known = self._read(prompts, attention_mask)
            groups = self._grouped(prompts, attention_mask, routes)
            for number, rows in groups.items():
                network: Any = self._ready(number)
                with handed_on(network, [] if REPORTED & kwargs.keys() else [block.rows(rows) for block in known]):
                    answers = network.generate(**of_rows(given, rows, len(prompts)))
                if isinstance(answers, Tensor):
                    found[rows] = answers
                elif len(groups) == 1:
                    return answers  # type: ignore[no-any-return]
                else:
                    raise ValueError(
                        f"Expected prompts of one set with return_dict_in_generate=True, but got {len(groups)} sets. "
                        "Group the prompts by what `route` gives, or ask for tokens alone."
                    )
        return in_order(found, padding_token(kwargs, self.model))

    def forget(self, conversation: str) -> None:
        """Have a conversation routed anew."""
        self._conversations.forget(conversation)

    def _grouped(
        self, input_ids: Tensor, mask: Tensor | None, routes: Sequence[int] | None
    ) -> dict[int, tuple[int, ...]]:
        """Return the samples of each set."""
        check_tokens(input_ids, mask if mask is not None and mask.ndim == 2 else None, self._context)
        routes = self.route(input_ids, mask) if routes is None else routes
        if len(routes) != len(input_ids) or not all(number in range(len(self.sets.plans)) for number in routes):
            raise ValueError(
                f"Expected the number of a set, from 0 to {len(self.sets.plans) - 1}, for each of {len(input_ids)} "
                f"samples, but got {list(routes)[:8]}."
            )
        numbers = [int(number) for number in routes]
        return {n: tuple(i for i, number in enumerate(numbers) if number == n) for n in dict.fromkeys(numbers)}

    def _holding_blocks(self) -> AbstractContextManager[Any]:
        """Keep other threads from moving blocks away, where blocks move."""
        return _ALONE if self._waiting is not None else nullcontext()

    @contextmanager
    def running(self, number: int) -> Iterator[nn.Module]:
        """Give `network` inside a `with` block, with the blocks on the device."""
        with self._holding_blocks():
            yield self._ready(number)

    def _ready(self, number: int) -> nn.Module:
        """Return the network of a set with the needed blocks on the device."""
        network = self.network(number)
        if self._waiting is not None:
            gone = self._ids_in_blocks(self.sets.blocks[number])
            sometimes = self._ids_in_blocks(chain.from_iterable(self.sets.blocks))
            for tensor in _tensors(self.model):
                if id(tensor) in gone:
                    self._waiting.back(tensor)
                elif id(tensor) in sometimes:
                    self._waiting.to_device(tensor)
                elif not self._waiting.holds(tensor):
                    tensor.data = tensor.data.to(self._waiting.device)
            self._active = number
        return network

    def _ids_in_blocks(self, numbers: Iterable[int]) -> set[int]:
        """Return the ids of the tensors of blocks."""
        blocks = list(get_module(self.model, container_of(self.model)).children())
        return {id(tensor) for i in set(numbers) for tensor in _tensors(blocks[i])}

    @property
    def _context(self) -> int | None:
        """Maximum number of tokens of the model; None: not in the config."""
        said = getattr(getattr(self.model, "config", None), "max_position_embeddings", None)
        return said if isinstance(said, int) else None


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Yield parameters and buffers, shared by the networks of all sets."""
    yield from module.parameters()
    yield from module.buffers()
