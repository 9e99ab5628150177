"""LeRobot's own training script (`lerobot.scripts.lerobot_train`) with SmolVLA, on a made-up data set."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from unittest import mock

import hosts.torchvision_without_cuda  # noqa: F401
import torch
from hosts.check import Host, Tape, main, taped_backward
from hosts.patch import diff_of
from hosts.scripts import load
from lerobot.configs.default import DatasetConfig
from lerobot.configs.train import TrainPipelineConfig
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
from lerobot.policies.smolvla.modeling_smolvla import VLAFlowMatching
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)

from stepwell.pacer.pace import Pace

SCRIPT = Path(find_spec("lerobot.scripts.lerobot_train").origin)
DIFF = diff_of("lerobot")
SPECIAL = {
    "image_token": "<image>",
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "end_of_utterance_token": "<end_of_utterance>",
}
SIZE = 32


def write_vlm(folder: Path) -> None:
    """The configuration of a tiny SmolVLM, and a tokenizer of a few words: no weights are loaded."""
    words = ["<pad>", "<unk>", "move", "the", "box", *SPECIAL.values()]
    vocabulary = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", extra_special_tokens=SPECIAL
    )
    SmolVLMProcessor(SmolVLMImageProcessor(), fast, SmolVLMVideoProcessor()).save_pretrained(folder)
    text = {
        "model_type": "llama",
        "vocab_size": len(words),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "pad_token_id": 0,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": SIZE,
        "patch_size": 8,
    }
    SmolVLMConfig(text_config=text, vision_config=vision, scale_factor=2, pad_token_id=0).save_pretrained(
        folder
    )


def write_episodes(folder: Path) -> None:
    """Four episodes of 16 steps of a wandering point, with random pictures."""
    features = {
        "observation.images.front": {
            "dtype": "image",
            "shape": (SIZE, SIZE, 3),
            "names": ["height", "width", "channels"],
        },
        "observation.state": {"dtype": "float32", "shape": (4,), "names": None},
        "action": {"dtype": "float32", "shape": (4,), "names": None},
    }
    data = LeRobotDataset.create("made/up", fps=10, features=features, root=folder, use_videos=False)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        walk = torch.randn(17, 4, generator=generator).cumsum(0) / 4
        for state, action in pairwise(walk):
            picture = torch.randint(0, 256, (SIZE, SIZE, 3), generator=generator).to(torch.uint8)
            data.add_frame(
                {
                    "observation.images.front": picture.numpy(),
                    "observation.state": state.numpy(),
                    "action": action.numpy(),
                    "task": "move the box",
                }
            )
        data.save_episode()
    data.finalize()


PLACE = tempfile.TemporaryDirectory()
FOLDER = Path(PLACE.name)
write_vlm(FOLDER / "vlm")
write_episodes(FOLDER / "data")


def train(updates: int, tape: Tape, diff: str) -> None:
    """The script's `train`, with its configuration."""
    policy = SmolVLAConfig(
        vlm_model_name=str(FOLDER / "vlm"),
        load_vlm_weights=False,
        resize_imgs_with_padding=(SIZE, SIZE),
        chunk_size=8,
        n_action_steps=8,
        max_state_dim=8,
        max_action_dim=8,
        num_vlm_layers=2,
        tokenizer_max_length=8,
        device="cpu",
        push_to_hub=False,
    )
    with tempfile.TemporaryDirectory() as folder, taped_backward(tape):
        config = TrainPipelineConfig(
            dataset=DatasetConfig(repo_id="made/up", root=str(FOLDER / "data")),
            policy=policy,
            output_dir=Path(folder) / "out",
            batch_size=8,
            num_workers=0,
            steps=updates,
            save_checkpoint=False,
            eval_freq=0,
            seed=0,
        )
        load(SCRIPT, diff).train(config)


def published(updates: int, tape: Tape) -> None:
    """As it is."""
    train(updates, tape, "")


def paced(updates: int, tape: Tape) -> None:
    """With the page's diff."""
    train(updates, tape, DIFF)


@contextmanager
def fed(paces: Iterator[Pace]) -> Iterator[None]:
    """`VLAFlowMatching.sample_time`; its times never reach 0."""

    def sample_time(model: VLAFlowMatching, bsize: int, device: torch.device) -> torch.Tensor:
        return 0.001 + 0.999 * next(paces).sigma

    with mock.patch.object(VLAFlowMatching, "sample_time", sample_time):
        yield


logging.disable(logging.INFO)
main(
    Host(
        name="LeRobot, SmolVLA",
        version=f"lerobot {version('lerobot')}",
        ran=(
            "its script `lerobot_train.py`, whole: `SmolVLAPolicy` (width 32, a random SmolVLM of two "
            "layers), `VLAFlowMatching`, `update_policy`, `LeRobotDataset`, processors, optimizer"
        ),
        left_out=(
            "0.4.4 is the newest version for Python 3.11, and was installed without its own limit on torch; "
            "weights, tokenizer and 64 frames are made up; no checkpoints, no robot, no simulation"
        ),
        diff=DIFF,
        published=published,
        paced=paced,
        fed=fed,
    )
)
