"""The solvers that lead from noise to an image, as plain values: listing them does not import torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SolverEntry:
    """A named solver; which processes it can generate from is `NoiseProcess.solvers`."""

    summary: str
    steps: int | None
    """By default; None for every timestep of training."""
    source: str
    evaluations_per_step: int = 1
    """Network evaluations; the last step has one in any case."""
    discrete: bool = True
    """Whether it can generate from processes of T timesteps: linear, cosine, ..."""

    def default_steps(self, timesteps: int) -> int:
        """The default number of steps on a process with so many timesteps."""
        return min(self.steps or timesteps, timesteps)

    def evaluations(self, steps: int, guided: bool = False) -> int:
        """Network evaluations per image; guidance doubles them."""
        return (self.evaluations_per_step * (steps - 1) + 1) * (2 if guided else 1)


SOLVERS = {
    "ddpm": SolverEntry("the chain of training backwards", None, "Ho et al. 2020"),
    "ddim": SolverEntry("first order; eta adds noise", 50, "Song et al. 2021; Kim et al. 2025 use 200 steps"),
    "heun": SolverEntry("second order, EDM's noise levels", 50, "Karras et al. 2022, Algorithm 1", 2),
    "dpm-solver++": SolverEntry("second order, two steps together (2M)", 25, "Lu et al. 2022"),
    "unipc": SolverEntry("second order, predicts and corrects", 25, "Zhao et al. 2023"),
    "euler": SolverEntry("first order", 50, "Song et al. 2021, probability flow", discrete=False),
    "ancestral": SolverEntry("the SDE backwards", 200, "Song et al. 2021, Appendix F", discrete=False),
    "predictor-corrector": SolverEntry(
        "ancestral, and a Langevin step at every level",
        200,
        "Song et al. 2021, Algorithms 2 and 4",
        evaluations_per_step=2,
        discrete=False,
    ),
}
