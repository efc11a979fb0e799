"""Small networks with recurrent layers, and inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

SEQUENCES = torch.randn(4, 7, 5, generator=torch.Generator().manual_seed(1))
LENGTHS = torch.tensor([7, 5, 3, 2])


class Tagger(nn.Module):
    """Recurrent layer between linears, over whole sequences or the last states.

    Args:
        layer: Class of the recurrent layer.
        states: Whether the last states are read, rather than the output.
        packed: Whether sequences are packed.
        **settings: Settings of the recurrent layer.
    """

    def __init__(
        self, layer: type[nn.RNNBase] = nn.LSTM, *, states: bool = False, packed: bool = False, **settings: object
    ) -> None:
        super().__init__()
        self.states, self.packed = states, packed
        self.first = nn.Linear(5, 8)
        self.rnn = layer(8, 10, batch_first=True, **settings)  # type: ignore[arg-type]
        self.last = nn.Linear(10 * (2 if self.rnn.bidirectional and not states else 1), 3)

    def forward(self, x: Tensor) -> Tensor:
        """Tag each position, or classify the sequence."""
        x = self.first(x).relu()
        given = pack_padded_sequence(x, LENGTHS, batch_first=True) if self.packed else x
        out, states = self.rnn(given)
        if self.states:
            return self.last((states[0] if isinstance(states, tuple) else states)[-1])
        return self.last(pad_packed_sequence(out, batch_first=True)[0] if self.packed else out)


class Attended(nn.Module):
    """Recurrent layer with a norm, attention and pooling of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(5, 8, batch_first=True)
        self.score, self.value, self.last = nn.Linear(8, 1), nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Classify the mean of values, weighed."""
        out, _ = self.rnn(x)
        weights: Tensor = self.score(out).softmax(1)
        return self.last((weights * self.value(out)).sum(1))
