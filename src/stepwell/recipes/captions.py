"""Where captions meet their text encoder: embedded once, kept on disk, and looked up by the network."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core.errors import StepwellError, shortened
from stepwell.data.captions import one_line
from stepwell.evaluate.weights import cache_folder
from stepwell.models.denoiser import Denoiser, TextShape
from stepwell.models.text_encoder import TextEncoder, find_text_encoder
from stepwell.recipes.schema import Recipe

NO_TEXT = ""
"""Stands for no caption, in training with dropout and in guidance."""


def text_shape(recipe: Recipe) -> TextShape | None:
    """The shape of a recipe's embedded captions; None without captions."""
    return find_text_encoder(recipe.text_encoder).shape if recipe.captions else None


def encoder_of(recipe: Recipe) -> TextEncoder:
    """The text encoder that a recipe names, if it is still the one that its run began with."""
    encoder = find_text_encoder(recipe.text_encoder)
    if recipe.text_digest not in ("", encoder.digest):
        raise StepwellError(
            f"text_encoder={recipe.text_encoder} has the digest {encoder.digest}, and the run began with "
            f"{recipe.text_digest}: name the encoder that it began with."
        )
    return encoder


def tell_captions(denoiser: Denoiser, encoder: TextEncoder, captions: Sequence[str]) -> list[str]:
    """Give the network the captions of its data; returns notes for the user."""
    table, cut = encoder.embed_once([*captions, NO_TEXT], cache_folder() / "texts")
    denoiser.network.texts = table
    return _notes([captions[row] for row in cut], encoder)


def tell_prompts(denoiser: Denoiser, encoder: TextEncoder, prompts: Sequence[str]) -> list[str]:
    """Give the network other texts, whose numbers are then its labels; returns notes for the user."""
    texts = [one_line(prompt) for prompt in prompts]
    denoiser.network.texts, cut = encoder.embed([*texts, NO_TEXT])
    denoiser.classes = len(texts)
    return _notes([texts[row] for row in cut], encoder)


def _notes(cut: Sequence[str], encoder: TextEncoder) -> list[str]:
    if not cut:
        return []
    tokens = encoder.shape.tokens
    return [
        f"cut to the {tokens} tokens that {encoder.name} reads: {shortened(cut[0], 80)}"
        + (f" and {len(cut) - 1} more" if len(cut) > 1 else "")
    ]
