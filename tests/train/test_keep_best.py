"""keep_best: the checkpoint with the lowest held-out loss outlives newer ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import small_run

from stepwell.recipes import run as recipes_run
from stepwell.train.checkpoint import steps


@pytest.mark.parametrize(("keep_best", "kept"), [(True, {6, 12}), (False, {12})])
def test_the_best_is_kept_beside_the_newest(
    keep_best: bool, kept: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([9.0, 3.0, 1.0, 2.0, 4.0])  # steps 0, 3, 6, 9, 12
    real = recipes_run.evaluation_of

    def planted(*args: object) -> object:
        evaluate = real(*args)  # type: ignore[arg-type]
        return lambda network: {**evaluate(network), "objective/simple": next(losses)}

    monkeypatch.setattr(recipes_run, "evaluation_of", planted)
    small_run(
        tmp_path / "run", keep=1, keep_best=str(keep_best).lower(), evaluate_every=3, checkpoint_every=3
    )
    assert set(steps(tmp_path / "run" / "checkpoints")) == kept
