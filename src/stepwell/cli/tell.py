"""Prints an error of ours as one line; of a mistake that all ranks share, rank 0 alone."""

from __future__ import annotations

import os
import sys

from stepwell.core.errors import StepwellError, quoted


def tell(verb: str, error: StepwellError) -> None:
    """Print an error to stderr, with the rank if it is not that of rank 0."""
    rank = os.environ.get("RANK", "0")
    if rank == "0":
        print(f"stepwell {verb}: {error}", file=sys.stderr, flush=True)
        return
    # Not at the top: it imports torch, and `stepwell --help` does not.
    from stepwell.core.neighbours import wait_for_rank_0

    wait_for_rank_0(int(rank), str(error))
    print(f"stepwell {verb} (rank {rank}): {error}", file=sys.stderr, flush=True)


def from_system(error: OSError) -> StepwellError:
    """What the operating system refused, as an error of ours that names the file."""
    where = "" if error.filename is None else f"{quoted(str(error.filename))}: "
    return StepwellError(f"{where}{error.strerror or error}.")
