"""The weights of before an update, to measure with them after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.nn import Parameter


class WeightsBefore:
    """A copy of parameters, made before they move; FSDP's shards are copied as they are."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._parameters = parameters
        self._copies = [parameter.detach().clone() for parameter in parameters]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """The parameters as they were, and afterwards as they are, bit for bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # In place, since DDP, optimizers and compiled graphs hold on to these tensors; one at a time, so that
        # no second copy of all is needed.
        for parameter, copy in zip(self._parameters, self._copies, strict=True):
            now = parameter.detach().clone()
            parameter.copy_(copy)
            copy.copy_(now)
