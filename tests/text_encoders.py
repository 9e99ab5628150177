"""A random CLIP text model of a few kB with a tokenizer of single letters, and pictures with captions."""

from __future__ import annotations

import json
import string
from pathlib import Path

import numpy as np
import torch
from PIL import Image

TOKENS, WIDTH = 16, 16


def saved_text_encoder(folder: Path, flat: bool = False, seed: int = 0) -> Path:
    """As transformers writes it: flat, or with text_encoder/ and tokenizer/ like Stable Diffusion's."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(seed)
    letters = [*string.ascii_lowercase, *string.digits]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = CLIPTokenizer(vocabulary, [], model_max_length=TOKENS)
    config = CLIPTextConfig(
        vocab_size=len(words),
        hidden_size=WIDTH,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=TOKENS,
        bos_token_id=vocabulary["<|startoftext|>"],
        eos_token_id=vocabulary["<|endoftext|>"],
        pad_token_id=vocabulary["<|endoftext|>"],
    )
    model = CLIPTextModel(config)
    # Large beside positions, so that random weights tell texts apart.
    model.get_input_embeddings().weight.data.normal_()
    tokenizer.save_pretrained(folder if flat else folder / "tokenizer")
    model.save_pretrained(folder if flat else folder / "text_encoder")
    return folder


CAPTIONS = ("a dark one", "a light one")


def captioned_images(folder: Path, count: int = 24, metadata: bool = False, size: int = 8) -> Path:
    """Dark and light pictures in turn, each with the caption that says so."""
    (folder / "part").mkdir(parents=True)
    lines = []
    for number in range(count):
        name, light = f"part/{number:03d}.png", number % 2
        noise = np.random.default_rng(number).integers(0, 40, (size, size), dtype=np.uint8)
        Image.fromarray(noise + np.uint8(200 * light)).save(folder / name)
        if metadata:
            lines.append(json.dumps({"file_name": name, "text": CAPTIONS[light]}))
        else:
            (folder / name).with_suffix(".txt").write_text(f" {CAPTIONS[light]}\n")
    if metadata:
        (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return folder
