"""The plug-in path costs a host hardly any time."""

from __future__ import annotations

from test_public_face import run

COST = """
import sys, time
start = time.process_time()
import torch
middle = time.process_time()
import stepwell
stepwell.Pacer, stepwell.loss_at
spent = time.process_time() - middle
assert "torch.distributed.tensor" not in sys.modules
print(spent / (middle - start))
"""


def test_the_pacer_imports_in_a_fraction_of_torchs_own_time() -> None:
    done = run(COST)
    assert done.returncode == 0, done.stderr
    # Torch takes more than a second; measured: about 0.05 of it.
    assert float(done.stdout) < 0.2
