"""`stepwell table`: write a density in a format that trainers read."""

from __future__ import annotations

import argparse
from typing import Any

from stepwell.catalogue.spec import Spec, add_pair
from stepwell.cli.options import SPEC, add_command, shape_of
from stepwell.cli.timestep_output import add_timestep_output, nearest_table, save, say, written
from stepwell.core.errors import InvalidParameter
from stepwell.integrations.host_formats import FORMATS

_EXAMPLES = """examples:
  stepwell table logit-normal mean=0.5 --steps 4000 --format simpletuner -o timesteps.json
  stepwell table flux --shape 16,128,128 --nearest
  stepwell table logit-normal shift=3 within=0.2,0.9 --format musubi
  stepwell table speed --process scaled-linear --format timestep-bias
  stepwell table table masses=1,2,4,1 --steps 500 --batch 8 --format csv -o timesteps.csv

A list has steps x batch timesteps, each with the same share of the density around it, in an order that the
seed shuffles; each batch of neighbours in it is spread over all of the density.
"""


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = add_command(
        verbs,
        "table",
        run,
        help="write a density as a list or setting that other trainers read",
        description="Write a sampler's density for trainers whose code you cannot change. The formats:\n\n"
        + "\n".join(f"  {each.name:18} {each.host}" for each in FORMATS)
        + "\n\nTrainers that read no list get the nearest of their own densities.",
        examples=_EXAMPLES,
    )
    verb.add_argument("sampler", metavar="NAME", help="a sampler that does not learn")
    verb.add_argument("settings", nargs="*", metavar="key=value", help="its parameters")
    verb.add_argument("-p", "--process", default="flow", metavar=SPEC, help="the process (flow)")
    verb.add_argument(
        "--shape", type=shape_of, metavar="C,H,W", help="of one example, for densities that depend on it"
    )
    add_timestep_output(verb)


def run(options: argparse.Namespace) -> None:
    """Write the format to standard output or a file; what it means goes to standard error."""
    from stepwell.catalogue import build
    from stepwell.integrations.timestep_lists import density_of

    spec = _spec(options.sampler, options.settings, options.shape)
    density = density_of(spec, build.process(options.process))
    if options.nearest:
        print(nearest_table(density))
        if options.format is None:
            return
    content, note = written(options, density, options.format or "csv")
    if options.out is None:
        print(content, end="")
    else:
        save(options.out, content)
        say(f"Wrote {options.out}.")
    say(note)


def _spec(name: str, pairs: list[str], shape: tuple[int, ...] | None) -> Spec:
    spec = Spec.parse("sampler", name)
    parameters = dict(spec.parameters)
    for pair in pairs:
        add_pair(parameters, pair, spec.name)
    if shape is not None:
        if "shape" not in (parameter.name for parameter in spec.entry.parameters):
            raise InvalidParameter(f"--shape: the density of {spec.name} does not depend on the shape.")
        parameters["shape"] = shape
    return Spec("sampler", spec.name, parameters)
