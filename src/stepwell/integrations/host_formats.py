"""The files that trainers read timesteps from, and files for scripts of your own. Imports no torch.

Which formats exist was read in the hosts' sources: docs/integrations/without-code.md names the commits.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from stepwell.core.errors import Unsupported

if TYPE_CHECKING:
    from torch import Tensor

    from stepwell.core.process import NoiseProcess
    from stepwell.integrations.timestep_lists import TimestepDensity

Models = Literal["any", "flow", "ddpm"]
"""The models that a host's setting is for."""


@dataclass(frozen=True)
class Format:
    """A way to write a density or a list of timesteps down."""

    name: str
    host: str
    """Who reads it."""
    units: str
    """What the numbers are, and which end of time is data."""
    models: Models
    writer: str
    """The function of `stepwell.integrations.timestep_files`."""

    has_weight: bool = True
    """Whether its reader can multiply losses: only scripts of your own can."""

    one_per_step: bool = False
    """Whether all examples of a step share its entry."""

    def text(self, density: TimestepDensity, u: Tensor, batch: int = 1) -> str:
        """The file's content, of a density and of a list of unit times u [steps x batch] drawn from it."""
        require_models(self.name, self.models, density.process)
        if self.one_per_step and batch != 1:
            raise Unsupported(
                f"{self.name} has one range for all examples of a step: leave out --batch {batch}."
            )
        text: str = getattr(import_module("stepwell.integrations.timestep_files"), self.writer)(density, u)
        return text


def require_models(name: str, models: Models, process: NoiseProcess) -> None:
    """Raise Unsupported if a host's setting is not for models of this process."""
    if models == "flow" and not process.interpolates:
        raise Unsupported(f"{name} is for flow matching, and {process} is no flow: give --process flow.")
    if models == "ddpm" and not process.is_ddpm:
        raise Unsupported(
            f"{name} is for models with DDPM's timesteps, and {process} has none: give --process linear, "
            "scaled-linear (Stable Diffusion) or cosine."
        )


_TIMES = (
    "the network's time input: 0 is data; whole numbers 0 to T - 1 on DDPM's chain, 1000 x sigma on a flow"
)

FORMATS = (
    Format(
        "csv",
        "scripts of your own",
        f"one row per example: timestep ({_TIMES}), sigma (the factor on the noise), u (0 data, 1 noise) "
        "and the weight on the loss that keeps the objective",
        "any",
        "as_csv",
    ),
    Format("json", "scripts of your own", "the columns of csv and those of density", "any", "as_json"),
    Format("list", "scripts of your own", f"one timestep per line, {_TIMES}", "any", "as_list"),
    Format("sigmas", "scripts of your own", "one sigma per line: 0 is data, 1 is noise", "flow", "as_sigmas"),
    Format(
        "density",
        "torch.multinomial",
        "one row per timestep, or per thousandth of continuous time: its probability, 0 is data, and the "
        "weight on the loss that keeps the objective",
        "any",
        "as_density",
    ),
    Format(
        "simpletuner",
        "SimpleTuner, --flow_custom_timesteps (flow matching)",
        "sigmas in [0, 1], 0 is data; taken in this order, once around, and then again",
        "flow",
        "as_simpletuner",
        has_weight=False,
    ),
    Format(
        "simpletuner-cubic",
        "SimpleTuner, --flow_cubic_schedule_weights (flow matching)",
        "the density at evenly spaced sigmas from 0 (data) to 1 (noise), with a cubic between them",
        "flow",
        "as_simpletuner_cubic",
        has_weight=False,
    ),
    Format(
        "kohya-dynamic",
        "67372a/sd-scripts, --dynamic_timestep_schedule (a fork of kohya's; SD 1.5, SDXL)",
        "(step, first timestep, end): timesteps of this range from that step on; 0 is data, the end excluded",
        "ddpm",
        "as_kohya_dynamic",
        has_weight=False,
        one_per_step=True,
    ),
)
