"""What all tests share: one thread for each of two workers on two cores, and the order of tests."""

import os

# Some virtual machines announce AMX and then refuse it: bf16 would end the process with SIGILL.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long tests first: at the end, no worker waits for the other's."""
    items.sort(key=lambda item: item.get_closest_marker("full") is None)
