"""Every example of an integration: few lines change, it trains and learns, and its host is left alone."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from cases import case
from hosts import EXAMPLES, Host, recorded

HOSTS: list[Host] = [
    host
    for path in sorted(Path(__file__).parent.glob("*_hosts.py"))
    for host in import_module(path.stem).HOSTS
]
MOST_CHANGED_LINES = 5
FEW = 6
"""Updates that have a probe: a hurried round has one in four steps."""

QUICK = ("dit_loop", "k_diffusion_loop")
"""A process that counts and a continuous one; `make test-all` trains all of them."""

each_host = pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
each_trained = pytest.mark.parametrize(
    "host", [case(host, quick=host.name in QUICK, id=host.name) for host in HOSTS]
)


def test_every_example_is_tried() -> None:
    paced = {path.stem.removesuffix("_paced") for path in EXAMPLES.glob("*_paced.py")}
    assert paced == {host.name for host in HOSTS}


@each_host
def test_few_lines_change(host: Host) -> None:
    changed = host.changed_lines()
    assert 0 < len(changed) <= MOST_CHANGED_LINES, "\n".join(changed)


@each_trained
def test_it_trains_and_learns_where_to_look(host: Host) -> None:
    with recorded() as kept:
        outcome = host.module(paced=True).main(host.steps)
    assert outcome.after < host.falls_to * outcome.before
    # Without knowledge it is the process's own density exactly.
    assert kept.moved() > 0.05
    assert kept.pacers[0].state_dict()["counter"]["step"] == host.steps


@each_trained
def test_the_unmodified_loop_has_the_same_losses(host: Host) -> None:
    with recorded(corrected=False) as kept:
        paced = host.module(paced=True).main(FEW)
    with recorded() as none, pytest.MonkeyPatch.context() as patch:
        module = host.module(paced=False)
        paces = iter(kept.paces)
        host.feed(patch, module, paces)
        plain = module.main(FEW)
    assert not none.pacers
    assert next(paces, None) is None, "every pace was used"
    assert all(bool((pace.weight == 1).all()) for pace in kept.paces)
    # Bit for bit: batches and images are powers of two, so that the order of the means does not matter.
    assert plain.losses == paced.losses
    assert plain == paced
