"""Losses that wait to be taken in together: a dozen small operations cost as much for one batch as for 32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stepwell.core import saved_state
from stepwell.core.tensors import PerExample, State

TOGETHER = 32
"""Batches that wait at most."""
MOST = 4096
"""Losses that wait at most, over all of them: large batches are not kept for long."""

_OWNER = "the losses that wait"


class Pending:
    """Some values for every example of the last batches, in the order they came, under `names`."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._batches: list[Sequence[PerExample]] = []
        self._losses = 0
        """In all batches."""

    @property
    def full(self) -> bool:
        """Whether it is time to take them in."""
        return len(self._batches) >= TOGETHER or self._losses >= MOST

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, *values: PerExample) -> None:
        """One more batch: a tensor [B] for each name."""
        self._batches.append(values)
        self._losses += len(values[0])

    @property
    def device(self) -> torch.device:
        """Where the last batch lies; those of a checkpoint lie on the CPU."""
        return self._batches[-1][0].device

    def joined(self) -> list[Tensor]:
        """The values [n] of all batches, one tensor for each name."""
        device = self.device
        batches = self._batches
        if any(value.device != device for batch in batches for value in batch):
            batches = [[value.to(device) for value in batch] for batch in batches]
        return [torch.cat(column) for column in zip(*batches, strict=True)]

    def clear(self) -> None:
        """They were taken in."""
        self._batches, self._losses = [], 0

    def state_dict(self) -> State:
        """All values, and how many belong to each batch."""
        values = self.joined() if self._batches else [torch.zeros(0) for _ in self._names]
        sizes = torch.tensor([len(batch[0]) for batch in self._batches], dtype=torch.long)
        return {**dict(zip(self._names, values, strict=True)), "sizes": sizes}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken; states of before `auto` waited have no losses that wait."""
        self.clear()
        if "sizes" not in state:
            return
        sizes = saved_state.tensor(state, "sizes", _OWNER, (None,)).tolist()
        # Losses that wait may be NaN: whoever takes them in leaves those out.
        shape = (int(sum(sizes)),)
        columns = [saved_state.tensor(state, name, _OWNER, shape, finite=False) for name in self._names]
        if sizes:
            for batch in zip(*(column.split(sizes) for column in columns), strict=True):
                self.add(*batch)
