"""Two real processes: what a group reduces and gathers, and learners that stay equal on every rank."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from gloo import leave
from synthetic import profile
from torch import distributed as dist
from torch import multiprocessing
from torch.utils._pytree import tree_leaves

import stepwell
from stepwell.core.errors import Unsupported
from stepwell.core.feedback import DecreaseSignal, Feedback
from stepwell.core.ranks import Alone, Distributed, worker_group
from stepwell.core.tick import Tick

WORLD, BATCH = 2, 8
LEARNERS = {
    "loss-second-moment": {"bins": 4, "history": 3, "stratified": True},
    "loss-ema": {"bins": 10, "decay": 0.9},
    "info-noise": {"bins": 10, "decay": 0.9, "floor": 0.1},
}


def _told(rank: int) -> Feedback:
    """Feedback of one rank, with everything in it."""
    values = torch.arange(3.0) + 10 * rank
    return Feedback(
        Tick(step=4, rank=rank, world=WORLD),
        u=values / 100,
        # As a loop hands them over: half precision in one, a graph behind the other.
        plain=values.half(),
        weighted=(2 * values).requires_grad_(),
        action=torch.full((3, 2), float(rank)),
        signal=DecreaseSignal(row=torch.tensor([1.0, 2.0]), rewards=torch.ones(6, 2)),
    )


def _trained(name: str, group: Distributed) -> dict[str, Any]:
    """Draws and state of a learner whose losses depend on the rank."""
    sampler, x0 = stepwell.sampler(name, "flow", **LEARNERS[name]), torch.zeros(BATCH, 1)
    drawn = []
    for step in range(12):
        tick = Tick(seed=1, step=step, rank=group.rank, world=group.world)
        u = sampler.draw(x0, tick).u
        losses = profile(u) * (1 + group.rank)
        sampler.learn(Feedback(tick, u, losses, losses).gathered(group))
        drawn.append(u)
    density = sampler.density(torch.linspace(0.01, 0.99, 50))
    return {"drawn": torch.stack(drawn), "state": sampler.state_dict(), "density": density}


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    # A file to meet at, not a port: nothing else on the machine can take it first.
    meeting = f"file://{folder}/meeting"
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    group = worker_group()
    own = torch.tensor([1.0, 2.0]) + 10 * rank
    gathered = _told(rank).gathered(group)
    results = {
        "kind": type(group).__name__,
        "place": (group.rank, group.world),
        "mean": group.mean(own),
        "own": own,
        "rows": group.gather(torch.full((2, 3), rank)),
        "strided": group.gather(torch.arange(6).view(2, 3).t() + 10 * rank),
        "feedback": {name: getattr(gathered, name).detach() for name in ("u", "plain", "weighted", "action")},
        "step": gathered.tick.step,
        "row": gathered.signal.row,
        "learners": {name: _trained(name, group) for name in LEARNERS},
    }
    torch.save(results, Path(folder) / f"{rank}.pt")
    leave()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("group")
    multiprocessing.spawn(_work, (str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.full
def test_the_group_of_a_process_group_knows_its_place(ranks: list[dict[str, Any]]) -> None:
    assert [found["kind"] for found in ranks] == ["Distributed"] * 2
    assert [tuple(found["place"]) for found in ranks] == [(0, 2), (1, 2)]


@pytest.mark.full
def test_the_mean_is_over_ranks_and_leaves_the_value_alone(ranks: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(ranks):
        assert found["mean"].tolist() == [6.0, 7.0]
        assert found["own"].tolist() == [1.0 + 10 * rank, 2.0 + 10 * rank]


@pytest.mark.full
def test_gather_is_in_rank_order(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found["rows"].tolist() == [[0] * 3] * 2 + [[1] * 3] * 2
        assert found["strided"].tolist() == [[0, 3], [1, 4], [2, 5], [10, 13], [11, 14], [12, 15]]


@pytest.mark.full
def test_gathered_feedback_is_the_same_on_both_ranks(ranks: list[dict[str, Any]]) -> None:
    values = torch.tensor([0.0, 1, 2, 10, 11, 12])
    for found in ranks:
        told = found["feedback"]
        assert torch.allclose(told["u"], values / 100)
        assert torch.equal(told["plain"], values)
        assert torch.equal(told["weighted"], 2 * values)
        assert told["action"].tolist() == [[0.0, 0.0]] * 3 + [[1.0, 1.0]] * 3
        assert found["row"].tolist() == [1.0, 2.0], "probes reduce their own signals"
        assert found["step"] == 4


@pytest.mark.full
@pytest.mark.parametrize("name", LEARNERS)
def test_learners_stay_equal_while_their_draws_differ(name: str, ranks: list[dict[str, Any]]) -> None:
    one, other = (found["learners"][name] for found in ranks)
    leaves = [tree_leaves(found["state"]) for found in (one, other)]
    for mine, theirs in zip(*leaves, strict=True):
        assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs
    assert torch.equal(one["density"], other["density"])
    assert not torch.equal(one["density"], torch.ones(50))
    assert not (one["drawn"] == other["drawn"]).any()


@pytest.mark.full
@pytest.mark.parametrize("name", LEARNERS)
def test_two_ranks_learn_what_one_would_from_all_examples(name: str, ranks: list[dict[str, Any]]) -> None:
    sampler = stepwell.sampler(name, "flow", **LEARNERS[name])
    drawn = [found["learners"][name]["drawn"] for found in ranks]
    for step in range(12):
        u = torch.cat([of_rank[step] for of_rank in drawn])
        losses = torch.cat([profile(of_rank[step]) * (1 + rank) for rank, of_rank in enumerate(drawn)])
        sampler.draw(torch.zeros(1), Tick(step=step))
        sampler.learn(Feedback(Tick(step=step), u, losses, losses))
    density = sampler.density(torch.linspace(0.01, 0.99, 50))
    assert torch.equal(density, ranks[0]["learners"][name]["density"])


def test_a_group_of_one_does_nothing() -> None:
    group, value, told = Alone(), torch.arange(3.0), _told(0)
    assert (group.rank, group.world) == (0, 1)
    assert group.mean(value) is value
    assert group.gather(value) is value
    assert told.gathered(group) is told


def test_without_a_process_group_there_is_one_worker() -> None:
    assert isinstance(worker_group(), Alone)


def test_a_distributed_group_needs_a_process_group() -> None:
    with pytest.raises(Unsupported, match="init_process_group"):
        Distributed()
