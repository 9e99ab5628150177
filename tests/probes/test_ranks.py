"""Two gloo processes learn the density that one would on the batch of both, with DDP and with FSDP."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from gloo import leave
from small_context import examples, network
from torch import Tensor, multiprocessing, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

import stepwell
from stepwell.core.condition import select
from stepwell.core.ranks import Alone, Distributed, WorkerGroup
from stepwell.core.tick import Tick
from stepwell.objective import Objective
from stepwell.probes.gradients import Sketch

pytestmark = pytest.mark.full

WORLD, IMAGES, PROBES = 2, 8, 20
LINEAR, WEIGHTING = stepwell.process("linear"), stepwell.weighting("min-snr")
SAMPLERS: dict[str, dict[str, Any]] = {
    "neyman": {"strata": 4},
    "alignment": {"strata": 5, "target": "vlb"},
}
U = torch.linspace(0.005, 0.995, 100)


def _trained(name: str, model: nn.Module, bare: nn.Module, group: WorkerGroup) -> dict[str, Any]:
    """What 20 probes taught in a run at times that depend on an example's number alone."""
    optimizer, objective = torch.optim.Adam(model.parameters(), lr=1e-3), Objective(LINEAR, WEIGHTING)
    pacer = stepwell.Pacer(
        stepwell.sampler(name, LINEAR, every_steps=1, images=IMAGES, **SAMPLERS[name]),
        LINEAR,
        WEIGHTING,
        loss_at=lambda x0, noise, u, condition: objective(bare, x0, noise, u, condition).plain,
        optimizer=optimizer,
        network=bare,
        group=group,
    )
    # A batch is both halves: then two ranks probe the images that one process would.
    batch = 2 * IMAGES
    mine = slice(group.rank * batch // group.world, (group.rank + 1) * batch // group.world)
    for step in range(PROBES):
        (x0, condition), tick = examples(batch, seed=step), Tick(3, step, 0, group.rank, group.world)
        u, noise = tick.shared().uniform("u", batch), torch.randn(x0.shape, generator=_generator(step))
        pacer.draw(x0[mine], tick, select(condition, mine))
        losses = objective(model, x0[mine], noise[mine], u[mine], select(condition, mine))
        optimizer.zero_grad()
        losses.weighted.mean().backward()
        pacer.before_update()
        optimizer.step()
        grads = [parameter.grad for parameter in model.parameters()]
        pacer.after_update()
        assert all(p.grad is grad for p, grad in zip(model.parameters(), grads, strict=True))
    learned = [leaf for leaf in tree_leaves(pacer.sampler.state_dict()) if isinstance(leaf, Tensor)]
    return {"density": pacer.sampler.density(U), "learned": learned}


def _generator(step: int) -> torch.Generator:
    return torch.Generator().manual_seed(step)


def _wrapped(kind: str) -> tuple[nn.Module, nn.Module]:
    """A model as it is trained, and as a probe calls it."""
    bare = network(dropout=0.0)
    if kind == "ddp":
        # The bare one: DDP would wait for ranks that have nothing to add.
        return DistributedDataParallel(bare), bare
    mesh = init_device_mesh("cpu", (WORLD,))
    fully_shard(bare.body, mesh=mesh)
    fully_shard(bare, mesh=mesh)
    return bare, bare


SHAPES = ((5, 3), (1,), (2, 2), (4, 3, 2), (3,))


def _tensors() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def _shards(group: WorkerGroup) -> dict[int, Tensor]:
    """The sum over ranks of sketches of shards, some of them of no rows."""
    mesh = init_device_mesh("cpu", (WORLD,))
    sharded = [nn.Parameter(distribute_tensor(tensor, mesh, [Shard(0)])) for tensor in _tensors()]
    # Integers in floats add up exactly in any order.
    found = {}
    for dimensions in (7, 4093):
        sketch = Sketch(sharded, dimensions)
        found[dimensions] = group.mean(sketch([(64 * tensor).round() for tensor in sharded])) * WORLD
    return found


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    group = Distributed()
    found: dict[str, Any] = {"shards": _shards(group)}
    for kind in ("ddp", "fsdp"):
        found[kind] = {name: _trained(name, *_wrapped(kind), group) for name in SAMPLERS}
    torch.save(found, Path(folder) / f"{rank}.pt")
    leave()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("gradients")
    multiprocessing.spawn(_work, (str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks_learn_the_density_of_one(kind: str, name: str, ranks: list[dict[str, Any]]) -> None:
    one, other = (found[kind][name] for found in ranks)
    model = network(dropout=0.0)
    alone = _trained(name, model, model, Alone())
    assert torch.equal(one["density"], other["density"]), "equal on every rank"
    assert (alone["density"] - 1).abs().max() > 0.1, "it has learned something"
    assert (one["density"] - alone["density"]).abs().max() < 1e-3
    # A density does not show the scale of what was measured.
    for mine, whole in zip(one["learned"], alone["learned"], strict=True):
        torch.testing.assert_close(mine, whole, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dimensions", [7, 4093])
def test_the_sketches_of_shards_add_up_to_the_whole(dimensions: int, ranks: list[dict[str, Any]]) -> None:
    whole = [nn.Parameter(tensor) for tensor in _tensors()]
    wanted = Sketch(whole, dimensions)([(64 * tensor).round() for tensor in whole])
    for found in ranks:
        assert torch.equal(found["shards"][dimensions], wanted)
