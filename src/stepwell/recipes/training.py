"""From an experiment to its training: optimizer, EMA and pacer around the network, and its evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
from torch import Tensor, nn

from stepwell.core.errors import Unsupported
from stepwell.core.ranks import PATIENCE, join_restarted, worker_group
from stepwell.core.tick import Tick, stream_key
from stepwell.data.batches import Batches, Prefetched
from stepwell.evaluate.bands import HeldOutLoss
from stepwell.evaluate.quadrature import RULE
from stepwell.pacer import Pacer
from stepwell.pacer.gradient_noise import LEAST_EXAMPLES
from stepwell.recipes.experiment import Experiment
from stepwell.recipes.schema import Recipe
from stepwell.runs.metrics import QUADRATURE, loss
from stepwell.train.ema import Ema
from stepwell.train.learning_rate import LearningRate
from stepwell.train.optimizers import build_optimizer
from stepwell.train.recorder import LoopSettings
from stepwell.train.sharding import shard
from stepwell.train.step import Training


def on_cpu(device: str = "auto") -> bool:
    """Whether the CPU is asked for, or no accelerator is available."""
    available = torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available()
    return device == "cpu" or not available


def accelerator_of(recipe: Recipe, **more: Any) -> Accelerator:
    """accelerate's view of this machine, in the recipe's precision."""
    # Otherwise DDP puts gradients in another order after its first step: from three ranks on sums then round
    # differently, and a resumed run, whose first step is another one, would not be the same bit for bit.
    ddp = DistributedDataParallelKwargs(find_unused_parameters=True)
    # No rank is given up because another one evaluates for hours: core/neighbours.py knows who is alive.
    patient = InitProcessGroupKwargs(timeout=PATIENCE)
    cpu = on_cpu(recipe.device)
    join_restarted("gloo" if cpu else "nccl")
    accelerator = Accelerator(
        cpu=cpu, mixed_precision=recipe.precision, kwargs_handlers=[ddp, patient], **more
    )
    if recipe.device not in ("auto", accelerator.device.type):
        raise Unsupported(
            f"device={recipe.device} is not to be had: this machine and its torch {torch.__version__} offer "
            f"{accelerator.device.type}. Write device={accelerator.device.type} or leave it out."
        )
    return accelerator


def training_of(experiment: Experiment, accelerator: Accelerator) -> Training:
    """Everything a training step needs, on the accelerator's device and ranks."""
    recipe, objective = experiment.recipe, experiment.plan.objective()
    network: nn.Module = experiment.denoiser
    if recipe.channels_last:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if recipe.gradient_checkpointing:
        experiment.denoiser.network.enable_gradient_checkpointing()
    sharded = recipe.sharding == "full"
    if sharded:
        # For its device and autocast only: accelerate would wrap it in DDP.
        network = accelerator.prepare_model(network, evaluation_mode=True)
        shard(network, accelerator.device.type, accelerator.num_processes)
    optimizer = build_optimizer(
        recipe.optimizer,
        [parameter for parameter in network.parameters() if parameter.requires_grad],
        recipe.lr,
        (recipe.beta1, recipe.beta2),
        recipe.weight_decay,
    )
    if sharded:
        prepared, optimizer = network, accelerator.prepare_optimizer(optimizer)
    else:
        prepared, optimizer = accelerator.prepare(network, optimizer)
    bare = accelerator.unwrap_model(prepared)

    def loss_at(x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        # The bare network: a probe on one rank must not start a collective of DDP.
        return objective(bare, x0, noise, u, condition).plain

    batches = Batches(experiment.data.train, recipe.batch, recipe.seed)
    pacer = Pacer(
        experiment.plan.sampler(),
        experiment.process,
        objective.weighting,
        loss_at=loss_at,
        optimizer=optimizer,
        network=bare,
        group=worker_group(),
        noise=recipe.noise,
        updates=recipe.steps,
    )
    return Training(
        accelerator=accelerator,
        denoiser=torch.compile(prepared) if recipe.compile else prepared,  # type: ignore[arg-type]
        objective=objective,
        pacer=pacer,
        batches=batches if experiment.data.train.in_memory else Prefetched(batches),
        optimizer=optimizer,
        learning_rate=LearningRate(recipe.lr, recipe.warm_up_steps, recipe.lr_schedule, recipe.steps),
        ema=Ema(bare.parameters(), recipe.ema, recipe.ema_kind),
        seed=recipe.seed,
        accumulate=recipe.accumulate,
        clip=recipe.clip,
        channels_last=recipe.channels_last,
        conditioning=experiment.conditioning,
        sharded=sharded,
    )


def loop_settings(experiment: Experiment, world: int, inexact: bool = False) -> LoopSettings:
    """How long the loop runs, and how often it records, evaluates and saves."""
    recipe, source = experiment.recipe, experiment.data.train
    return LoopSettings(
        limit=recipe.limit,
        batch_images=recipe.batch * recipe.accumulate * world,
        data_images=len(source),
        example_shape=source.shape,
        record_every=recipe.record_every,
        evaluate_every=recipe.evaluate_every,
        checkpoint_every=recipe.checkpoint_every,
        keep=recipe.keep,
        keep_best=loss("simple").key if recipe.keep_best else "",
        sample_every=recipe.sample_every if recipe.samples else 0,
        inexact=inexact,
    )


PASS_EXAMPLES = 8
"""Examples of one backward pass of a measurement of the gradient's noise, unless the batch is smaller."""


def measurement_of(experiment: Experiment, training: Training) -> Callable[[int], None]:
    """Measures the gradient's noise at a step on training images, as the loop does with its evaluations."""
    source, seed = experiment.data.train, stream_key(experiment.recipe.seed, "gradient noise")
    # Never more at once than a training step: memory was planned for that.
    count = LEAST_EXAMPLES * min(PASS_EXAMPLES, experiment.recipe.batch)
    batches = Batches(source, min(count, len(source)), seed)
    rank, world = training.accelerator.process_index, training.accelerator.num_processes

    def measure(step: int) -> None:
        # The EMA puts its weights in place without gradients.
        with torch.enable_grad():
            x0, condition = training.encode(batches.at(Tick(seed, step, 0, rank, world)))
            if len(x0) >= LEAST_EXAMPLES:
                training.pacer.measure(x0, condition)

    return measure


def evaluation_of(experiment: Experiment, device: torch.device) -> Callable[[nn.Module], dict[str, Any]]:
    """The held-out losses of a network, as the loop records them."""
    recipe, held_out = experiment.recipe, experiment.data.held_out
    count = min(recipe.evaluate_images, len(held_out))
    # Every run of a workload must see the same held-out images, whatever its seed.
    chosen = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(0))[:count]
    x0 = held_out.examples(chosen).to(device)
    condition = experiment.condition(held_out, chosen, x0)
    losses = HeldOutLoss(experiment.process, x0, condition, bands=recipe.bands, seed=0)

    def evaluate(network: nn.Module) -> dict[str, Any]:
        measured = losses(network)
        objectives = {loss(name).key: value for name, value in measured.objectives.items()}
        return {QUADRATURE: RULE, "bands": measured.plain.tolist(), **objectives}

    return evaluate
