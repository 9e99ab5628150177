"""The plug-in path costs a host torch, and hardly any time."""

from __future__ import annotations

import pytest
from test_public_face import BLOCK, run

LOOP = """
import torch, stepwell
network = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(network.parameters())

class Denoiser(torch.nn.Module):
    def forward(self, sample, timestep):
        return network(sample)

class Scheduler:
    alphas_cumprod = torch.linspace(0.99, 0.01, 20)

losses = stepwell.loss_at.diffusers(Denoiser(), Scheduler)
sampler = stepwell.sampler("neyman", losses.process, every_steps=1, images=2)
pacer = stepwell.Pacer(sampler, Scheduler, "min-snr", loss_at=losses).attach(optimizer)
for _ in range(4):
    x0 = torch.randn(8, 2)
    pace = pacer.draw(x0)
    (losses(x0, torch.randn(8, 2), pace.u) * pace.weight).mean().backward()
    optimizer.step()
assert pacer.state_dict()["counter"]["step"] == 4
assert "effective_sample_share" in pacer.metrics
"""

COST = """
import sys, time
start = time.process_time()
import torch
middle = time.process_time()
import stepwell
stepwell.loss_at
stepwell.Pacer("neyman", "linear", loss_at=lambda x0, noise, u, condition: u)
spent = time.process_time() - middle
assert "torch.distributed.tensor" not in sys.modules
print(spent / (middle - start))
"""


@pytest.mark.full
def test_a_whole_attached_loop_runs_on_torch_alone() -> None:
    # But for numpy: torch's own optimizers look for it, and stumble over how BLOCK hides it.
    done = run(BLOCK.replace('"numpy", ', "") + LOOP)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_the_pacer_imports_in_a_fraction_of_torchs_own_time() -> None:
    done = run(COST)
    assert done.returncode == 0, done.stderr
    # Torch takes more than a second; measured: about 0.05 of it.
    assert float(done.stdout) < 0.2
