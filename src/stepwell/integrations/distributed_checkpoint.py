"""A pacer for torch.distributed.checkpoint (torchtitan and others), as one entry of bytes.

That format fills the tensors that are there when it loads. A pacer has some whose size changes while it
learns, so a fresh one has no place for them.
"""

from __future__ import annotations

import io

import torch

from stepwell.core.sampler import State
from stepwell.pacer import Pacer


class PacerEntry:
    """A Stateful for a dictionary of states: `states["pacer"] = PacerEntry(pacer)`.

    Every rank has the same state, so it is saved once.
    """

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer

    def state_dict(self) -> State:
        saved = io.BytesIO()
        torch.save(self._pacer.state_dict(), saved)
        return {"pacer": saved.getvalue()}

    def load_state_dict(self, state: State) -> None:
        self._pacer.load_state_dict(torch.load(io.BytesIO(state["pacer"]), map_location="cpu"))
