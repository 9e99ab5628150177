"""Two workers share two cores: one thread each."""

import os

# Some virtual machines announce AMX and then refuse it: bf16 would end the process with SIGILL.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch

torch.set_num_threads(1)
