"""A language model that leaves out, for each prompt, the blocks which that prompt needs least.

Networks without the blocks of each set share all weights with the dense one: a set costs its structure alone. A prompt
is routed once, before anything is generated; a conversation stays with its set, as keys and values of one network are
not those of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.apply import apply_plan
from prunerecover.families.describe import describe_blocks
from prunerecover.model.batches import logits_of
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import device_of
from prunerecover.model.paths import get_module, unwrap
from prunerecover.routing.plan_set import PlanSet
from prunerecover.routing.router import Router


class RoutedCausalLM(nn.Module):
    """Answers each prompt with the set of blocks that its router picks, or with the default set.

    Args:
        model: The dense language model; it is neither changed nor copied.
        sets: Plans for it.
        router: Picks among them; None: always the default.
        tokenizer: Of the model, for routers that read text.
        default: Name of the set without routing, and when `routed` is off; None: the first.
        routed: Whether the router is asked at all. `compare_routes` says whether it is worth it.
        device: Where the blocks that a prompt runs through are put; the others wait where the model is, in host memory.
            None: all blocks stay where they are.

    Raises:
        ValueError: If the router was made for another number of sets, or the plans for another model.
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
        self.router, self.routed = router, routed and router is not None
        self.default = 0 if default is None else sets.number(default)
        self._networks: dict[int, nn.Module] = {}
        self._conversations: dict[str, int] = {}
        self._active: int | None = None  # the set whose blocks are on the device
        self._host, self._device = device_of(self.model), None if device is None else torch.device(device)
        self.network(self.default)  # tells at once if the plans are for another model

    def network(self, number: int) -> nn.Module:
        """Return the model without the blocks of a set: an ordinary model that shares the dense one's weights."""
        if number not in self._networks:
            twin = share_copy(self.model)
            apply_plan(twin, self.sets.plans[number])
            self._networks[number] = twin
        return self._networks[number].train(self.model.training)

    @torch.no_grad()
    def route(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> list[int]:
        """Return the number of the set for each prompt, `(N,)`.

        Args:
            input_ids: Tokens of the prompts, `(N, T)`.
            attention_mask: `(N, T)`, 0 for padding on either side.

        Raises:
            ValueError: If a prompt is longer than the model's context, or a router needs text and has no tokenizer.
        """
        if not self.routed or self.router is None:
            return [self.default] * len(input_ids)
        masks = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        prompts = [row[mask.bool()].tolist() for row, mask in zip(input_ids, masks, strict=True)]
        self._check_length(max(map(len, prompts)))
        texts = [] if self.tokenizer is None else self.tokenizer.batch_decode(prompts, skip_special_tokens=True)
        if self._device is not None and self._active is None:
            self._ready(self.default)  # the blocks that the router may read through stay in all sets
        features = self.router.features(self.model, prompts, texts)
        numbers: list[int] = self.router(features).argmax(1).tolist()
        return numbers

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        routes: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Return logits `(N, T, V)`, each sample's by its set.

        Args:
            input_ids: `(N, T)`.
            attention_mask: `(N, T)`, or None.
            routes: Numbers of the sets; None: each sample is routed by all its tokens. To score answers, route on the
                prompts alone, and pass what `route` gave.
            kwargs: Of the model's own forward.
        """
        found: dict[int, Tensor] = {}
        for number, rows in self._grouped(input_ids, attention_mask, routes).items():
            mask = None if attention_mask is None else attention_mask[rows]
            logits = logits_of(self._ready(number)(input_ids=input_ids[rows], attention_mask=mask, **kwargs))
            found |= dict(zip(rows, logits, strict=True))
        return torch.stack([found[i] for i in range(len(input_ids))])

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        conversations: Sequence[str] | None = None,
        routes: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Return tokens as the model's own `generate` does, `(N, T + new)`, shorter ones padded on the right.

        Args:
            input_ids: Prompts, padded on the left, `(N, T)`.
            attention_mask: `(N, T)`, or None.
            conversations: Name of the conversation of each prompt: those heard of before stay with their set.
            routes: Numbers of the sets; None: see `route`.
            kwargs: Of the model's own `generate`.
        """
        if conversations is not None and routes is None:
            routes = self._of_conversations(input_ids, attention_mask, conversations)
        found: dict[int, Tensor] = {}
        for number, rows in self._grouped(input_ids, attention_mask, routes).items():
            mask = None if attention_mask is None else attention_mask[rows]
            network: Any = self._ready(number)
            found |= dict(zip(rows, network.generate(input_ids[rows], attention_mask=mask, **kwargs), strict=True))
        longest = max(len(row) for row in found.values())
        fill = self._padding()
        return torch.stack([F.pad(found[i], (0, longest - len(found[i])), value=fill) for i in range(len(input_ids))])

    def forget(self, conversation: str) -> None:
        """Let a conversation be routed anew."""
        self._conversations.pop(conversation, None)

    def _of_conversations(self, input_ids: Tensor, mask: Tensor | None, names: Sequence[str]) -> list[int]:
        """Return the sets of conversations, those of new ones routed by their first prompt."""
        if len(names) != len(input_ids):
            raise ValueError(f"Expected a conversation for each of {len(input_ids)} prompts, but got {len(names)}.")
        new = [i for i, name in enumerate(names) if name not in self._conversations]
        if new:
            picked = self.route(input_ids[new], None if mask is None else mask[new])
            for i, number in zip(new, picked, strict=True):
                self._conversations.setdefault(names[i], number)
        return [self._conversations[name] for name in names]

    def _grouped(self, input_ids: Tensor, mask: Tensor | None, routes: Sequence[int] | None) -> dict[int, list[int]]:
        """Return which samples go to which set."""
        routes = self.route(input_ids, mask) if routes is None else routes
        if len(routes) != len(input_ids) or not all(0 <= number < len(self.sets.plans) for number in routes):
            raise ValueError(
                f"Expected the number of a set, from 0 to {len(self.sets.plans) - 1}, for each of {len(input_ids)} "
                f"samples, but got {list(routes)[:8]}."
            )
        return {n: [i for i, route in enumerate(routes) if route == n] for n in dict.fromkeys(routes)}

    def _ready(self, number: int) -> nn.Module:
        """Return a set's network with the blocks that it runs through on the device."""
        network = self.network(number)
        if self._device is not None and self._active != number:
            blocks = describe_blocks(self.model).blocks
            gone = {id(t) for i in self.sets.blocks[number] for t in _tensors(get_module(self.model, blocks[i].path))}
            for tensor in _tensors(self.model):
                place = self._host if id(tensor) in gone else self._device
                if tensor.device != place:
                    tensor.data = tensor.data.to(place)
            self._active = number
        return network

    def _check_length(self, tokens: int) -> None:
        context = getattr(getattr(self.model, "config", None), "max_position_embeddings", None)
        if isinstance(context, int) and tokens > context:
            raise ValueError(f"Expected prompts of at most {context} tokens, the model's context, but got {tokens}.")

    def _padding(self) -> int:
        config: Any = getattr(self.model, "generation_config", None) or getattr(self.model, "config", None)
        names = (getattr(config, "pad_token_id", None), getattr(config, "eos_token_id", None))
        found = next((name for name in names if name is not None), 0)
        return int(found[0] if isinstance(found, list | tuple) else found)


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Yield parameters and buffers, which networks of all sets share."""
    yield from module.parameters()
    yield from module.buffers()
