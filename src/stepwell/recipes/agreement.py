"""Whether all ranks of a launch train the same thing: recipe, data and versions, compared at the start."""

from __future__ import annotations

from hashlib import blake2b

import torch

from stepwell.core.digest import weights_digest
from stepwell.core.errors import StepwellError
from stepwell.core.ranks import of_every_rank
from stepwell.data.captions import captions_digest
from stepwell.data.source import ExampleSource
from stepwell.recipes.experiment import Experiment
from stepwell.runs.directory import versions

EXAMPLES = 256
"""Examples of each part of the data that are compared, evenly spaced, beside sizes and all labels."""
_SHOWN = 5


class RanksDiffer(StepwellError):
    """Ranks that were started with other settings, data or packages."""


def require_agreement(experiment: Experiment) -> None:
    """Refuse a launch whose ranks differ, with the first rank that differs from rank 0 and in what."""
    facts = of_every_rank(_facts(experiment))
    for rank, other in enumerate(facts):
        differing = [name for name in sorted(facts[0]) if other.get(name) != facts[0][name]]
        if differing:
            shown = [
                f"{name} is {other.get(name)} there and {facts[0][name]} on rank 0" for name in differing
            ]
            more = f"; and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
            raise RanksDiffer(
                f"rank {rank} of {len(facts)} would train something else: {'; '.join(shown[:_SHOWN])}{more}. "
                "Start all ranks with one command, the same data and the same packages."
            )


def _facts(experiment: Experiment) -> dict[str, str]:
    data = experiment.data
    return {
        **{name: repr(value) for name, value in experiment.recipe.values().items()},
        **{f"the version of {name}": str(version) for name, version in versions().items()},
        "the training data": digest_of(data.train),
        "the held-out data": digest_of(data.held_out),
        "the captions": captions_digest(data.captions),
    }


def digest_of(source: ExampleSource) -> str:
    """A digest of a source's sizes, its labels and some of its examples."""
    count = len(source)
    facts = f"{count} examples of {source.shape}"
    total = blake2b(facts.encode(), digest_size=8)
    if not count:
        return facts
    chosen = torch.arange(min(EXAMPLES, count)) * count // min(EXAMPLES, count)
    tensors = {"examples": source.examples(chosen)}
    if source.labels is not None:
        tensors["labels"] = source.labels
    return f"{facts}, digest {weights_digest(tensors, total)}"
