"""diffusers' `examples/dreambooth/train_dreambooth_lora_sd3.py`, whole, on a tiny random SD3."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import hosts.torchvision_without_cuda  # noqa: F401
import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from hosts.check import Host, Stopped, Tape, main, taped_backward
from hosts.patch import diff_of
from hosts.pictures import write_pictures
from hosts.scripts import load
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5TokenizerFast,
)

from stepwell.pacer.pace import Pace

SOURCE = ("huggingface/diffusers", "d035dcd7cc7c88e0a154609b62887d50bba9fdc2")
SCRIPT = Path("source/examples/dreambooth/train_dreambooth_lora_sd3.py")
DIFF = diff_of("diffusers-scripts", "train_dreambooth_lora_sd3.py")
Note = Callable[[torch.Tensor], None]
BATCH, IMAGES = 4, 40
"""Ten updates in an epoch: after a resume within one, the script makes more updates than it was asked for."""


def write_pipeline(folder: Path) -> None:
    """An SD3 pipeline of random weights, with words of one letter."""
    torch.manual_seed(0)
    clip = CLIPTextConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=4,
        projection_dim=32,
        bos_token_id=0,
        eos_token_id=1,
    )
    t5 = T5Config(vocab_size=100, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4)
    transformer = SD3Transformer2DModel(
        sample_size=8,
        patch_size=1,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=64,
        out_channels=4,
        pos_embed_max_size=8,
    )
    vae = AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=16,
        scaling_factor=1.5,
        shift_factor=0.06,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae,
        text_encoder=CLIPTextModelWithProjection(clip),
        tokenizer=clip_tokenizer(),
        text_encoder_2=CLIPTextModelWithProjection(clip),
        tokenizer_2=clip_tokenizer(),
        text_encoder_3=T5EncoderModel(t5),
        tokenizer_3=t5_tokenizer(),
    ).save_pretrained(folder)


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def clip_tokenizer() -> CLIPTokenizer:
    """Letters, inside a word and at its end."""
    words = ["<|startoftext|>", "<|endoftext|>", *LETTERS, *(f"{letter}</w>" for letter in LETTERS)]
    return CLIPTokenizer(vocab={word: place for place, word in enumerate(words)}, merges=[])


def t5_tokenizer() -> T5TokenizerFast:
    """Letters and the mark of a blank."""
    words = [
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<unk>", 0.0),
        ("▁", -1.0),
        *((letter, -2.0) for letter in LETTERS),
    ]
    return T5TokenizerFast(tokenizer_object=Tokenizer(Unigram(words, unk_id=2)), extra_ids=0)


def write_captioned(folder: Path) -> None:
    """Images of 16x16 with a word each, as `datasets` reads them."""
    write_pictures(folder, IMAGES, size=16)
    names = sorted(path.name for path in folder.glob("*.png"))
    lines = [
        json.dumps({"file_name": name, "text": f"a {'red' if place % 2 else 'blue'} box"})
        for place, name in enumerate(names)
    ]
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")


def train(folder: Path, updates: int, note: Note, diff: str, *more: str) -> None:
    """The script's `main`."""
    if not (folder / "model").exists():
        write_pipeline(folder / "model")
        write_captioned(folder / "images")
    module = load(SCRIPT, diff)
    words = [f"--pretrained_model_name_or_path={folder}/model", f"--dataset_name={folder}/images"]
    words += ["--image_column=image", "--caption_column=text", f"--cache_dir={folder}/cache"]
    words += ["--instance_prompt=a box", "--resolution=16", f"--train_batch_size={BATCH}", "--center_crop"]
    words += [f"--output_dir={folder}/out", f"--max_train_steps={updates}", "--checkpointing_steps=30"]
    words += [
        "--seed=0",
        "--rank=4",
        "--learning_rate=0.001",
        "--lr_warmup_steps=0",
        "--max_sequence_length=16",
    ]
    # Some of its functions read the global that it sets when it is started.
    module.args = module.parse_args([*words, *more])
    with taped_backward(note):
        module.main(module.args)


def published(updates: int, tape: Tape) -> None:
    """As it is."""
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder), updates, tape, "")


def paced(updates: int, tape: Tape) -> None:
    """With the page's diff."""
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder), updates, tape, DIFF)


def resumed(updates: int, tape: Tape) -> None:
    """Stopped after the checkpoint in the middle, and begun again with --resume_from_checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            train(Path(folder), updates, tape.until(updates // 2), DIFF)
        except Stopped:
            train(Path(folder), updates, tape, DIFF, "--resume_from_checkpoint=latest")


@contextmanager
def fed(paces: Iterator[Pace]) -> Iterator[None]:
    """`compute_density_for_timestep_sampling`, where the script imports it from."""

    def density(**kwargs: object) -> torch.Tensor:
        # The middle of the place: the script multiplies by 1000 and rounds down.
        return (next(paces).indices + 0.5) / 1000

    with mock.patch("diffusers.training_utils.compute_density_for_timestep_sampling", density):
        yield


main(
    Host(
        name="diffusers, SD3 LoRA",
        version=f"diffusers {version('diffusers')}, peft {version('peft')}",
        ran=(
            "its script `train_dreambooth_lora_sd3.py`, whole: `SD3Transformer2DModel` (2 blocks, width 32) "
            "with a LoRA, `AutoencoderKL`, two CLIP and a T5 encoder, `FlowMatchEulerDiscreteScheduler`, "
            "accelerate, checkpoints"
        ),
        left_out="nothing of the script; weights, tokenizers and 40 images of 16x16 are random",
        diff=DIFF,
        published=published,
        paced=paced,
        fed=fed,
        resumed=resumed,
    )
)
