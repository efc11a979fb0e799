"""Requests of lm-evaluation-harness to a routed language model, each routed by the context.

Log-likelihoods and generation are the harness' own, on the routed network. The router reads, for answers and
generation, the prompt as the network reads it, truncated if too long; for whole texts (rolling log-likelihoods), the
text before each window: the beginning-of-text token, and then the end of the previous window.
"""

from __future__ import annotations

from typing import Any

from lm_eval.models.huggingface import HFLM
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from prunerecover.language.likelihood import padded
from prunerecover.language.prompt_routes import Routed, by_route

INPUTS = ("input_ids", "attention_mask")


class RoutedHFLM(HFLM):  # type: ignore[misc]
    """Model of the harness that runs the network of the route of each request.

    Args:
        routed: Routed model.
        arguments: Arguments of `HFLM`, without the model.
    """

    def __init__(self, routed: Routed, **arguments: Any) -> None:
        with routed.running(0) as network:  # for its configuration
            super().__init__(pretrained=network, **arguments)
        self._routed = routed

    def _loglikelihood_tokens(self, requests: Any, *arguments: Any, **named: Any) -> list[tuple[float, bool]]:
        """Return log-likelihoods of continuations, and whether greedy decoding writes the same tokens."""
        contexts = [tuple(before[-(self.max_length + 1 - len(after)) :]) for _, before, after in requests]
        routes, found = self._routes(contexts), dict[int, tuple[float, bool]]()
        for number, rows in by_route([routes[context] for context in contexts]).items():
            with self._routed.running(number) as self._model:
                some = super()._loglikelihood_tokens([requests[i] for i in rows], *arguments, **named)
            found |= zip(rows, some, strict=True)
        return [found[i] for i in range(len(requests))]

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **how: Any) -> Tensor:
        """Return prompts with their continuations."""
        mask, found = how.pop("attention_mask"), dict[int, Tensor]()
        for number, rows in by_route(self._routed.route(context, mask)).items():
            with self._routed.running(number) as self._model:
                some = super()._model_generate(context[rows], max_length, stop, attention_mask=mask[rows], **how)
            found |= zip(rows, some, strict=True)
        return pad_sequence([found[i] for i in range(len(context))], True, self.tokenizer.pad_token_id)

    def _routes(self, contexts: list[tuple[int, ...]]) -> dict[tuple[int, ...], int]:
        """Return the route of each context; answers of a question share a route."""
        different, found = list(dict.fromkeys(contexts)), dict[tuple[int, ...], int]()
        for start in range(0, len(different), self.batch_size):
            some = different[start : start + self.batch_size]
            inputs = padded(some, self.tokenizer)
            routes = self._routed.route(*(inputs[name].to(self._routed.device) for name in INPUTS))
            found |= zip(some, routes, strict=True)
        return found
