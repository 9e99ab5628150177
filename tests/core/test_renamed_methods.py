"""Samplers written for version 0.1 work for one more release, with a warning that names the new method."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import stepwell
from stepwell.core.density import Uniform
from stepwell.samplers.one_density import Static

V, TICK = torch.tensor([0.2, 0.7]), stepwell.Tick()


def old_sampler() -> Static:
    """A sampler with the old names, which call those of its base class."""

    class Old(Static):
        def place(self, v: Tensor, x0: Tensor, tick: stepwell.Tick) -> stepwell.Draw:
            drawn: stepwell.Draw = super().place(v / 2, x0, tick)  # type: ignore[misc]
            return drawn

        def reaches(self, u: Tensor) -> Tensor:
            return (u < 0.5) & super().reaches(u)  # type: ignore[misc]

        def portrait(self) -> dict[str, Tensor]:
            return {"matrix": torch.eye(2)}

    return Old(Uniform(), "old")


def test_a_subclass_with_old_names_is_warned() -> None:
    with pytest.warns(DeprecationWarning, match="is called") as caught:
        old_sampler()
    assert [str(warning.message) for warning in caught] == [
        "Old.place: this method is called from_uniform now. Please rename it.",
        "Old.reaches: this method is called support now. Please rename it.",
        "Old.portrait: this method is called diagnostics now. Please rename it.",
    ]
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.filterwarnings("ignore:.*(is called|is deprecated):DeprecationWarning")
def test_a_subclass_with_old_names_works_where_the_new_ones_are_called() -> None:
    sampler = old_sampler()
    assert torch.equal(sampler.from_uniform(V, V, TICK).u, V / 2)
    assert torch.equal(stepwell.stratified(sampler).support(V), torch.tensor([True, False]))
    assert torch.equal(sampler.diagnostics()["matrix"], torch.eye(2))


def test_old_names_can_be_called_on_every_sampler() -> None:
    sampler = stepwell.sampler("neyman", "linear")
    for old, new, arguments in (
        ("place", "from_uniform", (V, V, TICK)),
        ("reaches", "support", (V,)),
        ("portrait", "diagnostics", ()),
    ):
        with pytest.warns(DeprecationWarning, match=rf"\.{old} is deprecated: use \w+\.{new}"):
            before = getattr(sampler, old)(*arguments)
        after = getattr(sampler, new)(*arguments)
        if old == "place":
            before, after = before.u, after.u
        assert before == after if isinstance(after, dict) else torch.equal(before, after)
