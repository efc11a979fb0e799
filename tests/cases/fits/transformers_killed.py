"""A pruned fit of transformers' Trainer, begun anew or gone on with: transformers_killed.py FOLDER [MOMENT CALL].

With a moment, the process kills itself at a call there: "planning" (after the decision), "surgery" (after the change of
the network), or "saving" (before the weights of a checkpoint are written).
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from cases.fits.transformers_fits import depth, fit

from prunerecover import DistillRecover
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.planning.depth import DepthPlanning

MOMENTS = {"planning": (DepthPlanning, "decide"), "surgery": (Ledger, "apply"), "saving": (Ledger, "present")}


def kill_in(moment: str, call: int) -> None:
    """Kill the process at the end of a call of a method, counted from 0."""
    cls, name = MOMENTS[moment]
    own, calls = getattr(cls, name), itertools.count()

    def method(*args: Any, **kwargs: Any) -> Any:
        found = own(*args, **kwargs)
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(cls, name, method)


def newest(folder: Path) -> Path | None:
    """Return the newest complete checkpoint, with the Trainer's state, written last."""
    complete = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, moment = Path(sys.argv[1]), sys.argv[2:]
    if moment:
        kill_in(moment[0], int(moment[1]))
    trainer = fit(folder, depth(importance="output_divergence"), DistillRecover(), resume=newest(folder))
    torch.save(trainer.model.state_dict(), folder / "end.pt")
