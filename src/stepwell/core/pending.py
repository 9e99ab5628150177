"""Losses that wait to be taken in together: a dozen small operations cost as much for one batch as for 16."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stepwell.core import saved_state
from stepwell.core.tensors import PerExample, State

TOGETHER = 16
"""Batches that wait at most."""

_OWNER = "the losses that wait"


class Pending:
    """Some values for every example of the last batches, in the order they came, under `names`."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._batches: list[Sequence[PerExample]] = []

    @property
    def full(self) -> bool:
        """Whether it is time to take them in."""
        return len(self._batches) >= TOGETHER

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, *values: PerExample) -> None:
        """One more batch: a tensor [B] for each name."""
        self._batches.append(values)

    @property
    def device(self) -> torch.device:
        """Where the last batch lies; those of a checkpoint lie on the CPU."""
        return self._batches[-1][0].device

    def joined(self) -> list[Tensor]:
        """The values [n] of all batches, one tensor for each name."""
        device = self.device
        columns = zip(*self._batches, strict=True)
        return [torch.cat([value.to(device) for value in column]) for column in columns]

    def clear(self) -> None:
        """They were taken in."""
        self._batches = []

    def state_dict(self) -> State:
        """All values, and how many belong to each batch."""
        values = self.joined() if self._batches else [torch.zeros(0) for _ in self._names]
        sizes = torch.tensor([len(batch[0]) for batch in self._batches], dtype=torch.long)
        return {**dict(zip(self._names, values, strict=True)), "sizes": sizes}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken; states of before `auto` waited have no losses that wait."""
        self._batches = []
        if "sizes" not in state:
            return
        sizes = saved_state.tensor(state, "sizes", _OWNER, (None,)).tolist()
        # Losses that wait may be NaN: whoever takes them in leaves those out.
        shape = (int(sum(sizes)),)
        columns = [saved_state.tensor(state, name, _OWNER, shape, finite=False) for name in self._names]
        if sizes:
            self._batches = list(zip(*(column.split(sizes) for column in columns), strict=True))
