"""Profiles as a picture (needs matplotlib, from the `report` extra)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stepwell.cli.profile import Profile
from stepwell.compare.colours import COLOURS
from stepwell.core.errors import StepwellError


class MissingExtra(StepwellError, ImportError):
    """An optional dependency that this command needs."""


def save(profiles: Sequence[Profile], path: Path) -> None:
    """Density above, effective weight below, one line a profile."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra(
            "--save needs matplotlib, which is not installed: pip install 'stepwell[report]'."
        ) from None
    figure = Figure(figsize=(8, 6.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    common, labels = _labels([profile.parts for profile in profiles])
    figure.suptitle(common, fontsize=11)
    for index, (profile, label) in enumerate(zip(profiles, labels, strict=True)):
        colour = COLOURS[index % len(COLOURS)]
        style = "-" if index < len(COLOURS) else "--"
        above.plot(profile.u, profile.density, style, color=colour, label=label, lw=1.6)
        below.plot(profile.u, profile.effective, style, color=colour, lw=1.6)
    above.set_ylabel("density\n(uniform = 1)")
    below.set_ylabel("effective weight on the loss\n(mean = 1)")
    below.set_xlabel("unit time u: 0 is data, 1 is noise")
    for axes in (above, below):
        axes.set_xlim(0, 1)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    if any(labels):
        above.legend(frameon=False, fontsize=8, loc="upper right")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise StepwellError(f"could not write {path}: {error.strerror}.") from error


def _labels(parts: Sequence[tuple[str, ...]]) -> tuple[str, list[str]]:
    """What all profiles have in common, and what sets each apart."""
    same = [len(set(column)) == 1 for column in zip(*parts, strict=True)]
    common = " · ".join(part for part, shared in zip(parts[0], same, strict=True) if shared)
    apart = [" · ".join(p for p, shared in zip(row, same, strict=True) if not shared) for row in parts]
    return common, apart
