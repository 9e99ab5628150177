"""Which examples are trained on when: a pure function of the seed and the tick."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.tick import Tick, stream_key
from stepwell.data.source import BadData, ExampleSource


@dataclass(frozen=True)
class Batch:
    """Examples, as a network sees them, with what belongs to them, and where in their source they are."""

    x0: Tensor
    labels: Tensor | None
    indices: Tensor


class Batches:
    """An endless row of epochs, each its own permutation of the source, dealt to ranks and micro-batches.

    All ranks together see every image once an epoch, also where an epoch ends inside a batch. Nothing is
    kept that a resume would need.
    """

    def __init__(self, source: ExampleSource, batch: int, seed: int) -> None:
        if not len(source):
            raise BadData(f"{source.name} has no images: there is nothing to train on.")
        self.source = source
        self.batch = require.count("batch", batch)
        self.seed = seed
        self._order = lru_cache(maxsize=2)(self._permutation)

    def at(self, tick: Tick, accumulate: int = 1) -> Batch:
        """The batch of one rank and micro-batch; `accumulate` is how many make up a step."""
        indices = self.indices(tick, accumulate)
        labels = self.source.labels
        return Batch(
            self.source.examples(indices, tick),
            None if labels is None else labels.index_select(0, indices),
            indices,
        )

    def indices(self, tick: Tick, accumulate: int = 1) -> Tensor:
        """Where in the source the images of `at` are."""
        require.count("accumulate", accumulate)
        if tick.micro >= accumulate:
            raise InvalidParameter(
                f"micro-batch {tick.micro} does not exist among {accumulate}: they run from 0 to "
                f"{accumulate - 1}; give accumulate the number of micro-batches in a step."
            )
        size = len(self.source)
        start = ((tick.step * accumulate + tick.micro) * tick.world + tick.rank) * self.batch
        end, pieces = start + self.batch, list[Tensor]()
        while start < end:
            epoch, offset = divmod(start, size)
            piece = self._order(epoch)[offset : offset + end - start]
            pieces.append(piece)
            start += len(piece)
        return torch.cat(pieces)

    def _permutation(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(stream_key(self.seed, "order", epoch))
        return torch.randperm(len(self.source), generator=generator)


class Ahead:
    """Batches, the next one decoded by a thread while the network works on this one."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stepwell-ahead")
        self._coming: tuple[Tick, Future[Batch]] | None = None

    def at(self, tick: Tick, accumulate: int = 1) -> Batch:
        """The same batch as without a thread; what went wrong in the thread is raised here."""
        expected = self._coming is not None and self._coming[0] == tick
        batch = self._coming[1].result() if expected and self._coming else self._batches.at(tick, accumulate)
        last = tick.micro + 1 == accumulate
        upcoming = replace(tick, step=tick.step + last, micro=0 if last else tick.micro + 1)
        self._coming = upcoming, self._thread.submit(self._batches.at, upcoming, accumulate)
        return batch
