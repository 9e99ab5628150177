"""Two gloo processes measure what one would on the batch of both, with whole and with sharded parameters."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from gloo import leave
from small_context import Seen, examples, network
from torch import Tensor, multiprocessing, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from stepwell.core.condition import select
from stepwell.core.probe import DecreaseSpec
from stepwell.core.ranks import Alone, WorkerGroup, worker_group
from stepwell.core.tick import Tick
from stepwell.probes.decrease import Decrease

pytestmark = pytest.mark.full

WORLD, BATCH = 2, 3
STEPS = (40, 80, 120)
# 7 places on 2 ranks: 4 each, one of them padding, in calls of 3.
GRID = tuple((t + 0.5) / 7 for t in range(7))
SPEC = DecreaseSpec(40, "min-snr", subset=(0.05, 0.5), grid=GRID)


LATE = replace(SPEC, late=True, earlier_example=True)
"""As the paper has it: rewards wait for times that are chosen after the update."""


def _signals(model: nn.Module, group: WorkerGroup, spec: DecreaseSpec = SPEC) -> dict[str, Any]:
    """Rows and rewards of three updates whose gradients are those of the whole batch."""
    seen, rows, rewards, probe = Seen(model), [], [], Decrease()
    mine = slice(group.rank * BATCH, (group.rank + 1) * BATCH) if group.world > 1 else slice(None)
    for step in STEPS:
        x0, condition = examples(WORLD * BATCH, seed=step)
        tick = Tick(seed=5, step=step, rank=group.rank, world=group.world)
        view = seen.view(x0[mine], select(condition, mine), tick, group)
        # Of all examples on every rank: the mean over ranks, which FSDP takes, changes nothing.
        u = torch.linspace(0.1, 0.9, WORLD * BATCH)
        view.loss_at(x0, torch.ones_like(x0), u, condition).mean().backward()
        seen.calls.clear()
        probe.before(view, spec)
        seen.optimizer.step()
        seen.optimizer.zero_grad()
        signal = probe.after(view, spec)
        assert signal is not None
        rows.append(signal.row)
        rewards.append(signal.rewards if signal.rewards_at is None else signal.rewards_at(spec.subset))
    shapes = [len(call.x0) for call in seen.calls]
    return {"row": torch.stack(rows), "rewards": torch.stack(rewards), "calls": shapes}


def _sharded() -> nn.Module:
    model, mesh = network(dropout=0.0), init_device_mesh("cpu", (WORLD,))
    fully_shard(model.body, mesh=mesh)
    # The root keeps `into` and `label`: after a forward pass alone, it stays whole.
    sharded: nn.Module = fully_shard(model, mesh=mesh)
    return sharded


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    group = worker_group()
    found = {
        "whole": _signals(network(dropout=0.0), group),
        "sharded": _signals(_sharded(), group),
        "whole, late": _signals(network(dropout=0.0), group, LATE),
        "sharded, late": _signals(_sharded(), group, LATE),
    }
    torch.save(found, Path(folder) / f"{rank}.pt")
    leave()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("decrease")
    multiprocessing.spawn(_work, (str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("kind", ["whole", "sharded", "whole, late", "sharded, late"])
def test_two_ranks_measure_what_one_would(kind: str, ranks: list[dict[str, dict[str, Tensor]]]) -> None:
    alone = _signals(network(dropout=0.0), Alone(), LATE if "late" in kind else SPEC)
    for name, shape in (("row", (3, 7)), ("rewards", (3, WORLD * BATCH, 2))):
        one, other = (found[kind][name] for found in ranks)
        assert one.shape == shape
        assert torch.equal(one, other), "equal on every rank"
        assert one.abs().mean() > 1e-3
        assert torch.allclose(one, alone[name], atol=2e-6)


@pytest.mark.parametrize("kind", ["whole", "sharded", "whole, late", "sharded, late"])
def test_ranks_make_the_same_calls(kind: str, ranks: list[dict[str, dict[str, Tensor]]]) -> None:
    # ceil(4 / 3) calls for the share of the row and 2 for the subset, before and after.
    assert [found[kind]["calls"] for found in ranks] == [[BATCH] * 8] * WORLD
