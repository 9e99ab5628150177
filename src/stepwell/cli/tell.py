"""Prints an error of ours as one line; of a mistake that all ranks share, rank 0 alone."""

from __future__ import annotations

import os
import sys
import time

from stepwell.core.errors import RankLost, StepwellError, quoted

RANK_0_FIRST = 10.0
"""Seconds that other ranks wait: if rank 0 made the same mistake, its launcher ends them meanwhile."""


def tell(verb: str, error: StepwellError) -> None:
    """Print an error to stderr, with the rank if it is not that of rank 0."""
    rank = os.environ.get("RANK", "0")
    if rank == "0":
        print(f"stepwell {verb}: {error}", file=sys.stderr, flush=True)
        return
    # That another one is gone is no mistake of rank 0, and nobody may be left to end this process.
    if not isinstance(error, RankLost):
        time.sleep(RANK_0_FIRST)
    print(f"stepwell {verb} (rank {rank}): {error}", file=sys.stderr, flush=True)


def from_system(error: OSError) -> StepwellError:
    """What the operating system refused, as an error of ours that names the file."""
    where = "" if error.filename is None else f"{quoted(str(error.filename))}: "
    return StepwellError(f"{where}{error.strerror or error}.")
