"""Theorem 1 of Kim et al. (2025), checked: does SGD need longer where the gradient's variance is larger?

The argument: with parameters of its own, timestep t is a problem of its own, and SGD needs about
sigma^2 / (mu epsilon) + (L / mu) ln(1 / epsilon) iterations to an excess loss epsilon (e.g. Stich 2019),
where sigma^2 is the variance of the gradient at the optimum. Here every band of time has its own linear
denoiser, so that optimum, excess loss and curvature are known exactly; its constant learning rate is the best
of a grid, chosen on other seeds than those that are reported.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from results import keep
from scipy import stats
from torch import Tensor

import stepwell
from stepwell.data.load import load
from stepwell.data.source import to_unit

BANDS, SIZE, BATCH, EPSILON = 20, 16, 4, 0.005
RATES = 3.2 * 2.0 ** (-0.25 * torch.arange(38))
TUNING_SEEDS, SEEDS = (100, 101, 102), (0, 1, 2, 3, 4)
MOST_STEPS, VARIANCE_DRAWS = 20_000, 400_000
PICTURE = Path(__file__).parent.parent / "docs" / "theorem1.png"


@dataclass(frozen=True)
class Setting:
    """One kind of data and target."""

    title: str
    whitened: bool
    """Every direction of the data has the same variance: the curvature is then the same in all bands."""
    target: str


SETTINGS = (
    Setting("curvature equal in all bands\n(whitened data, noise predicted)", True, "eps"),
    Setting("curvature worse where variance is high\n(data as they are, noise predicted)", False, "eps"),
    Setting("curvature worse where variance is low\n(data as they are, image predicted)", False, "x0"),
)


class Problem:
    """`BANDS` independent least-squares problems: predict the target from x_t with a matrix, in each band."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.data = setting, components(setting.whitened)
        process = stepwell.process("linear")
        u = process.grid().reshape(BANDS, -1)
        signal, noise = (scale.reshape(BANDS, -1) for scale in process.scales(u.flatten()))
        self.signal, self.noise = signal.float(), noise.float()
        covariance = (self.data.T @ self.data / len(self.data)).double()
        identity = torch.eye(SIZE, dtype=torch.float64)
        second = [(scale.double() ** 2).mean(1)[:, None, None] for scale in (signal, noise)]
        self.moment = second[0] * covariance + second[1] * identity
        """[bands, d, d]: E[x x^T]."""
        across = noise if setting.target == "eps" else signal
        of = identity if setting.target == "eps" else covariance
        self.optimum = torch.linalg.solve(self.moment, across.double().mean(1)[:, None, None] * of).float()
        """[bands, d, d]: the best matrix, applied from the right."""

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Inputs and targets [..., bands, batch, d]."""
        full = (*shape, BANDS, BATCH)
        x0 = self.data[torch.randint(len(self.data), full, generator=generator)]
        eps = torch.randn(*full, SIZE, generator=generator)
        step = torch.randint(self.signal.shape[1], full, generator=generator)
        band = torch.arange(BANDS)[:, None].expand(full)
        x = self.signal[band, step][..., None] * x0 + self.noise[band, step][..., None] * eps
        return x, eps if self.setting.target == "eps" else x0

    def excess(self, weights: Tensor) -> Tensor:
        """[..., bands]: the expected loss above the optimum's, for weights [..., bands, d, d]."""
        away = weights - self.optimum
        return (away * (self.moment.float() @ away)).sum((-1, -2)) / SIZE

    def variance(self) -> Tensor:
        """[bands]: of one example's gradient at the optimum, summed over its entries."""
        generator, total = torch.Generator().manual_seed(7), torch.zeros(BANDS)
        rounds = VARIANCE_DRAWS // BATCH // 1000
        for _ in range(rounds):
            x, target = self.draw((1000,), generator)
            error = x @ self.optimum - target
            total += (x.square().sum(-1) * error.square().sum(-1)).mean((0, 2)) * 4 / SIZE**2
        return total / rounds

    def curvature(self) -> Tensor:
        """[bands]: mu, the least curvature of the expected loss."""
        return 2 * torch.linalg.eigvalsh(self.moment)[:, 0] / SIZE


def components(whitened: bool) -> Tensor:
    """[N, d]: fashion16 on its first principal directions, with mean variance 1."""
    source = load("fashion16").train
    images = to_unit(source.fetch(torch.arange(len(source)))).flatten(1)
    images = images - images.mean(0)
    _, _, directions = torch.linalg.svd(images, full_matrices=False)
    found = images @ directions[:SIZE].T
    return found / (found.std(0) if whitened else found.var(0).mean().sqrt())


def iterations(problem: Problem, rates: Tensor, seeds: tuple[int, ...]) -> Tensor:
    """[seeds, bands, rates]: SGD steps until the excess loss is under EPSILON; infinity if never.

    rates [bands, rates]; all rates of a band see the same examples. Looked at every 2 % of the steps.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    count, shape = rates.shape[1], (len(seeds), BANDS, SIZE, rates.shape[1], SIZE)
    first = torch.stack([torch.randn(BANDS, SIZE, 1, SIZE, generator=g) for g in generators])
    weights = (first / SIZE**0.5).expand(shape).reshape(-1, SIZE, count * SIZE).clone()
    step_size = (2 / (SIZE * BATCH) * rates).repeat_interleave(SIZE, 1).repeat(len(seeds), 1)[:, None]
    reached = torch.full((len(seeds), BANDS, count), torch.inf)
    look = 1.0
    for step in range(1, MOST_STEPS + 1):
        drawn = [problem.draw((), generator) for generator in generators]
        x = torch.cat([one for one, _ in drawn])
        target = torch.cat([two for _, two in drawn]).repeat(1, 1, count)
        error = torch.bmm(x, weights) - target
        weights -= step_size * torch.bmm(x.mT, error)
        if step >= look:
            look = max(step + 1.0, step * 1.02)
            apart = weights.view(shape).permute(0, 3, 1, 2, 4)
            excess = problem.excess(apart).permute(0, 2, 1)
            reached = torch.where((excess <= EPSILON) & reached.isinf(), float(step), reached)
            # What diverged stays where it is, instead of slowing everything down with infinities.
            weights.nan_to_num_(1e3, 1e3, -1e3).clamp_(-1e3, 1e3)
            if reached.isfinite().any(2).all() and step > 4 * float(reached.amin(2).max()):
                break
    return reached


@dataclass(frozen=True)
class Found:
    """What one setting gave."""

    setting: Setting
    variance: Tensor
    """[bands]."""
    curvature: Tensor
    """[bands]: the least, mu."""
    own: Tensor
    """[seeds, bands]: iterations, each band at its own best learning rate."""
    shared: Tensor
    """[seeds, bands]: all bands at the one that is best for their sum."""


def study(setting: Setting) -> Found:
    """Tune on some seeds, measure on others."""
    problem = Problem(setting)
    tuned = iterations(problem, RATES.expand(BANDS, -1), TUNING_SEEDS).mean(0)
    best = RATES[tuned.argmin(1)]
    common = RATES[tuned.sum(0).argmin()].expand(BANDS)
    measured = iterations(problem, torch.stack([best, common], 1), SEEDS)
    return Found(setting, problem.variance(), problem.curvature(), measured[..., 0], measured[..., 1])


def correlation(steps: Tensor, of: Tensor) -> str:
    """Spearman's rank correlation over bands: the mean over seeds and its t interval."""
    ranks = [float(stats.spearmanr(row.numpy(), of.numpy()).statistic) for row in steps]
    mean, error = sum(ranks) / len(ranks), float(stats.sem(ranks))
    margin = float(stats.t.ppf(0.975, len(ranks) - 1)) * error
    return f"{mean:.2f} ({mean - margin:.2f} to {min(mean + margin, 1.0):.2f})"


def row(one: Found, rate: str, steps: Tensor) -> list[str]:
    """A line of the table: steps [seeds, bands] against the variance, and 1 / curvature if it differs."""
    median, never = steps.median(0).values, int(steps.isinf().sum())
    reach = f"{median.min():.0f} to {median.max():.0f}" + (f", {never} never" if never else "")
    flat = "equal" if one.setting.whitened else correlation(steps, 1 / one.curvature)
    return [one.setting.title.replace("\n", " "), rate, reach, correlation(steps, one.variance), flat]


def together(found: list[Found]) -> Found:
    """The bands of several settings as if they were one's."""
    return Found(
        Setting("the last two together", False, ""),
        torch.cat([one.variance for one in found]),
        torch.cat([one.curvature for one in found]),
        torch.cat([one.own for one in found], 1),
        torch.cat([one.shared for one in found], 1),
    )


def draw(found: list[Found], path: Path) -> None:
    """Iterations against variance, one panel a setting, one point a band and seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 4.5), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True)
    bands = (torch.arange(BANDS) + 0.5) / BANDS
    for panel, one in zip(panels, found, strict=True):
        shared = one.shared.median(0).values
        panel.plot(one.variance, shared, "s", mfc="none", mec="0.6", ms=4, label="one learning rate for all")
        for steps in one.own:
            points = panel.scatter(one.variance, steps, c=bands, cmap="viridis", s=16, vmin=0, vmax=1)
        if one.setting.whitened:
            grid = one.variance.sort().values
            line = grid * float((one.own.mean(0) / one.variance)[one.variance.argmax()])
            panel.plot(grid, line, color="0.3", lw=1, ls="--", label="in proportion to the variance")
            panel.legend(frameon=False, fontsize=8, loc="upper left")
        panel.set(xscale="log", yscale="log", ylim=(10, MOST_STEPS))
        ranks = [correlation(steps, one.variance) for steps in (one.own, one.shared)]
        title = f"{one.setting.title}\nrank correlation {ranks[0]};\nwith one learning rate {ranks[1]}"
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("variance of the gradient at the optimum")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(f"SGD steps to an excess loss of {EPSILON:g}")
    label = "its own best learning rate\nunit time of the band: 0 is data"
    figure.colorbar(points, ax=panels, label=label, shrink=0.9)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, draw, keep."""
    torch.set_num_threads(1)
    found = []
    for setting in SETTINGS:
        started = time.process_time()
        found.append(study(setting))
        print(f"{setting.title}: {time.process_time() - started:.0f} s of processor time", flush=True)
    rows = [
        row(one, rate, steps)
        for one in found
        for rate, steps in (("its own best", one.own), ("one for all bands", one.shared))
    ]
    pooled = together(found[1:])
    rows.append(row(pooled, "its own best", pooled.own))
    print("\n".join(" | ".join(one) for one in rows))
    draw(found, PICTURE)
    how = (
        f"SGD steps to an excess loss of {EPSILON:g} against the variance of the gradient at the optimum: "
        f"{BANDS} bands of the linear schedule, each with its own linear denoiser of fashion16 on {SIZE} "
        f"principal directions, batch {BATCH}, {len(SEEDS)} seeds; learning rates from a grid by a factor of "
        f"1.2, chosen on {len(TUNING_SEEDS)} other seeds. Rank correlations over bands: mean over seeds and "
        "its 95 % t interval. The theorem is about parameters, and a learning rate, of its own for every "
        "band; networks share both (`benchmarks/theorem1.py`, `docs/theorem1.png`)."
    )
    columns = ["bands", "learning rate", "steps", "rank correlation with the variance", "with 1 / curvature"]
    keep("theorem-1", "Theorem 1: variance and time to converge", how, columns, rows)
    print(f"Drawn: {PICTURE}")


if __name__ == "__main__":
    main()
