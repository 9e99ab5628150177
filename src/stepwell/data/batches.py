"""The order of training examples: a function of the seed and the tick, so a resume needs no state."""

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
    """Examples as the network gets them, their labels, and their indices in the source."""

    x0: Tensor
    labels: Tensor | None
    indices: Tensor


class Batches:
    """Endless epochs, each a new permutation of the source, dealt to ranks and micro-batches.

    All ranks together see every image once an epoch, also where an epoch ends inside a batch.
    """

    def __init__(self, source: ExampleSource, batch: int, seed: int) -> None:
        if not len(source):
            raise BadData(f"{source.name} has no images to train on.")
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
        """The source indices [B] of the images of `at`."""
        require.count("accumulate", accumulate)
        if tick.micro >= accumulate:
            raise InvalidParameter(
                f"there is no micro-batch {tick.micro} with accumulate={accumulate}: they are numbered 0 to "
                f"{accumulate - 1}; set accumulate to the number of micro-batches in a step."
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


class Prefetched:
    """Batches with one prefetched by a thread while the network works on the last."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stepwell-prefetch")
        self._next: tuple[Tick, Future[Batch]] | None = None

    def at(self, tick: Tick, accumulate: int = 1) -> Batch:
        """The same batch as without prefetching; an error in the thread is raised here."""
        prefetched = self._next is not None and self._next[0] == tick
        batch = self._next[1].result() if prefetched and self._next else self._batches.at(tick, accumulate)
        last = tick.micro + 1 == accumulate
        upcoming = replace(tick, step=tick.step + last, micro=0 if last else tick.micro + 1)
        self._next = upcoming, self._thread.submit(self._batches.at, upcoming, accumulate)
        return batch
