"""The ways from noise to an image. Plain values: listing them imports nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Solver:
    """What a user should know about a solver before choosing it."""

    summary: str
    steps: int | None
    """By default; None for every timestep of training."""
    source: str
    evaluations_per_step: int = 1
    """Of the network; the last step has one in any case."""
    discrete: bool = True
    """Whether it serves linear, cosine, ...: processes of T timesteps."""
    continuous: bool = False
    """Whether it serves flow, edm, vp and ve."""

    def steps_of(self, timesteps: int) -> int:
        """The default number of steps, of a process with so many timesteps."""
        return min(self.steps or timesteps, timesteps)

    def evaluations(self, steps: int, guided: bool = False) -> int:
        """How often the network sees each image; guidance shows it twice."""
        return (self.evaluations_per_step * (steps - 1) + 1) * (2 if guided else 1)


_CONTINUOUS = {"discrete": False, "continuous": True}

CATALOGUE = {
    "ddpm": Solver("the chain of training backwards", None, "Ho et al. 2020"),
    "ddim": Solver("first order; eta adds noise", 50, "Song et al. 2021; Kim et al. 2025 use 200 steps"),
    "heun": Solver(
        "second order, EDM's noise levels", 50, "Karras et al. 2022, Algorithm 1", 2, continuous=True
    ),
    "dpm-solver++": Solver("second order, two steps together (2M)", 25, "Lu et al. 2022"),
    "unipc": Solver("second order, predicts and corrects", 25, "Zhao et al. 2023"),
    "euler": Solver("first order", 50, "Song et al. 2021, probability flow", **_CONTINUOUS),
    "ancestral": Solver("the SDE backwards", 200, "Song et al. 2021, Appendix F", **_CONTINUOUS),
    "predictor-corrector": Solver(
        "ancestral, and a Langevin step at every level",
        200,
        "Song et al. 2021, Algorithms 2 and 4",
        2,
        **_CONTINUOUS,
    ),
}
SOLVERS = tuple(CATALOGUE)
