"""The counter-based uniforms: SplitMix64 to the bit, and uniform and independent to a stated rate."""

from __future__ import annotations

import pytest
import torch
from accelerator import DEVICE
from hypothesis import given, settings
from hypothesis import strategies as st
from odds import assert_follows_masses, assert_uniform
from scipy import stats
from torch import Tensor

from stepwell.core.tick import stream_key, uniforms

RATE = 1e-6
WORD = (1 << 64) - 1
KEYS = st.integers(-(1 << 63), (1 << 63) - 1)


def _splitmix64(key: int, count: int) -> list[int]:
    """Steele, Lea and Flood 2014, in whole numbers."""
    state, out = key & WORD, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & WORD
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
        out.append(z ^ (z >> 31))
    return out


def test_the_reference_gives_the_published_numbers() -> None:
    # Rosetta Code's first numbers for the seed 1234567.
    assert _splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(key=KEYS, count=st.integers(1, 40))
@settings(deadline=None, max_examples=100)
def test_uniforms_are_the_top_bits_of_splitmix64(key: int, count: int) -> None:
    expected = [((z >> 41) + 0.5) / 2**23 for z in _splitmix64(key, count)]
    assert uniforms(key, count).tolist() == expected


@pytest.mark.parametrize("key", [0, -1, 1 << 62, -(1 << 63), (1 << 63) - 1])
def test_the_corners_of_the_key_are_right_too(key: int) -> None:
    expected = [((z >> 41) + 0.5) / 2**23 for z in _splitmix64(key, 100)]
    assert uniforms(key, 100).tolist() == expected


@pytest.mark.parametrize("key", [0, 1, -1, stream_key(0, "timestep")])
def test_uniforms_are_uniform(key: int) -> None:
    v = uniforms(key, 100_000)
    assert_uniform(v, failure_rate=RATE)
    assert_follows_masses((v.double() * 1000).long(), torch.ones(1000), failure_rate=RATE)
    # The lowest bits that a float32 keeps are as even as the highest.
    assert_follows_masses((v.double() * 2**23).long() % 256, torch.ones(256), failure_rate=RATE)


def test_uniforms_never_reach_an_end() -> None:
    v = uniforms(3, 2_000_000)
    assert v.min() >= 2**-24
    assert v.max() <= 1 - 2**-24
    assert v.dtype == torch.float32


def _assert_uncorrelated(one: Tensor, other: Tensor, tests: int) -> None:
    """The correlation of n independent pairs is normal with deviation 1 / sqrt(n); RATE over all tests."""
    correlation = float(torch.corrcoef(torch.stack([one.double(), other.double()]))[0, 1])
    bound = float(stats.norm.isf(RATE / tests / 2)) / len(one) ** 0.5
    assert abs(correlation) < bound


@pytest.mark.parametrize("lag", [1, 2, 3, 7, 64])
def test_neighbours_in_a_stream_are_uncorrelated(lag: int) -> None:
    v = uniforms(stream_key(5, "x"), 100_000)
    _assert_uncorrelated(v[:-lag], v[lag:], 5)


def test_pairs_of_neighbours_fill_the_square() -> None:
    v = uniforms(stream_key(6, "x"), 200_000).double().view(-1, 2)
    cell = (v * 20).long()
    assert_follows_masses(cell[:, 0] * 20 + cell[:, 1], torch.ones(400), failure_rate=RATE)


@pytest.mark.parametrize("difference", [1, 2, 1 << 32, 0x9E3779B97F4A7C15 - (1 << 64)])
def test_streams_of_keys_that_resemble_each_other_are_uncorrelated(difference: int) -> None:
    # Keys a multiple of SplitMix64's step apart share a stream, moved by one: stream_key hashes, so that
    # no two ticks are ever related like this. Only values at the same place are compared here.
    _assert_uncorrelated(uniforms(10, 100_000), uniforms(10 + difference, 100_000), 4)


def test_a_longer_draw_begins_like_a_shorter_one() -> None:
    assert torch.equal(uniforms(7, 1000)[:10], uniforms(7, 10))


def test_no_uniforms_are_none() -> None:
    assert uniforms(7, 0).shape == (0,)


def test_uniforms_are_made_on_the_device() -> None:
    v = uniforms(7, 10, DEVICE)
    assert (v.shape, v.dtype, v.device) == ((10,), torch.float32, DEVICE)


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        ((0, 0, 0, 0, "timestep"), -1808152705803717823),
        ((1, 1000, 3, 1, "timestep"), 5682475612488919517),
        ((-7, "a name"), -6086391697241493177),
    ],
)
def test_keys_stay_what_they_are(parts: tuple[int | str, ...], key: int) -> None:
    # A change here changes every draw of every run: no seed of a published result would repeat it, and
    # no checkpoint would resume in the stream that it left. Never update these numbers in passing.
    assert stream_key(*parts) == key


def test_the_first_uniforms_stay_what_they_are() -> None:
    # As above: this pins key and hash together.
    assert uniforms(stream_key(0, 0, 0, 0, "timestep"), 3).tolist() == [
        0.8786125779151917,
        0.16423720121383667,
        0.1938989758491516,
    ]


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4, unique=True))
@settings(deadline=None, max_examples=50)
def test_the_order_of_the_parts_matters(parts: list[int]) -> None:
    assert stream_key(*parts) != stream_key(*reversed(parts))


def test_keys_do_not_meet() -> None:
    keys = {
        stream_key(0, step, micro, rank, "x")
        for step in range(50)
        for micro in range(10)
        for rank in range(10)
    }
    assert len(keys) == 5000
