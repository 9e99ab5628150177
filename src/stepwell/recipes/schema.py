"""What a recipe says: one flat list of settings, each with a default and a sentence."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


def setting(default: Any, meaning: str) -> Any:
    """A field of Recipe with its sentence."""
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Recipe:
    """One training run, resolved."""

    data: str = setting(
        "fashion16", "fashion16, a folder of images or latents, an .npz, CIFAR-10's folder, or hub:NAME"
    )
    method: str = setting("uniform", "a sampler, a weighting, sampler+weighting, or a method file")
    process: str = setting("linear", "a noise process, as NAME or NAME:key=value,...")
    model: str = setting("tiny", "a network that `stepwell ls models` lists")
    steps: int = setting(2000, "optimizer steps")
    batch: int = setting(64, "examples per rank and micro-batch")
    lr: float = setting(1e-3, "learning rate")
    seed: int = setting(0, "of everything random")
    out: str = setting(
        "", "run directory; by default runs/WORKLOAD-METHOD-SEED, with -from-START if it starts elsewhere"
    )

    start: str = setting(
        "", "fine-tune these weights, a run, a checkpoint or an exported folder; from=... means the same"
    )
    start_digest: str = setting("", "of those weights; the first start fills it in")
    lora: int = setting(0, "rank of the adapters that are fine-tuned; 0: the whole network is")

    seconds: float | None = setting(None, "stop after this much training time, evaluation excluded")
    accumulate: int = setting(1, "micro-batches per optimizer step")
    optimizer: str = setting("adamw", "adamw or adam, fused")
    beta1: float = setting(0.9, "of Adam")
    beta2: float = setting(0.999, "of Adam")
    weight_decay: float = setting(0.0, "of AdamW")
    clip: float | None = setting(1.0, "largest gradient norm; none: no clipping")
    warm_up_steps: int = setting(0, "linear warm-up of the learning rate")
    ema: float = setting(0.999, "decay of the averaged weights, or exponent with ema_kind=power")
    ema_kind: str = setting("constant", "constant or power")

    size: int | None = setting(None, "resize and crop images to this")
    channels: int | None = setting(None, "1 (grey) or 3 (colour); by default what the data have")
    labels: bool = setting(False, "condition on class labels")
    classes: int | None = setting(None, "how many classes there are; by default what the data say")
    only_classes: str = setting("", "train on these classes alone, such as 5,7,9; by default on all")
    super_resolution: int = setting(
        0, "make images from ones that are smaller by this factor, shown to the network; 0: from noise alone"
    )
    label_dropout: float = setting(0.1, "share of labels hidden in training, for guidance")
    flips: bool | None = setting(None, "mirror images at random; by default where the data allow")
    strict: bool = setting(False, "refuse folders with files that are not images")
    workers: int = setting(2, "threads that decode images which do not fit in memory")

    autoencoder: str = setting("", "decodes latents: a folder or hub:NAME; by default what their cache names")
    dropout: float = setting(0.0, "of the network")
    learned_variance: bool = setting(False, "the network also predicts the reverse variance")
    precision: str = setting("no", "no (float32), bf16 or fp16")
    channels_last: bool = setting(False, "memory format of images")
    compile: bool = setting(False, "torch.compile the network")

    record_every: int = setting(50, "steps between lines of metrics")
    evaluate_every: int = setting(500, "steps between evaluations; 0: never")
    evaluate_images: int = setting(256, "held-out images per evaluation")
    bands: int = setting(20, "bands of unit time that held-out losses are told for")
    checkpoint_every: int = setting(500, "steps between checkpoints")
    keep: int = setting(2, "checkpoints kept")
    samples: int = setting(64, "images generated at the end; 0: none")
    solver: str = setting(
        "ddim",
        "of generation: ddpm, ddim, heun, dpm-solver++ or unipc; where time is continuous heun (which ddim "
        "means there), euler, ancestral or predictor-corrector",
    )
    sample_steps: int = setting(50, "denoising steps of generation")
    guidance: float = setting(1.0, "classifier-free guidance of generation; 1: none")
    extractor: str = setting(
        "", "features for distances: inception, resnet20-cifar10 or fashion16; by default only the last"
    )
    tracker: str = setting("none", "none, tensorboard, or any tracker of accelerate")


MEANINGS: dict[str, str] = {f.name: f.metadata["meaning"] for f in fields(Recipe)}

MAY_CHANGE = frozenset(
    {
        "steps",
        "seconds",
        "out",
        "record_every",
        "keep",
        "samples",
        "solver",
        "sample_steps",
        "guidance",
        "autoencoder",
        "extractor",
        "tracker",
        "workers",
    }
)
"""Settings that a resumed run may change without becoming another run."""
