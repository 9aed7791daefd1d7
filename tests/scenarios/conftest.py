"""The real model, read once for all tests; they are skipped only where its file is not installed."""

import pytest
import torch

from kvsweep.scenarios.demo.bundle import Bundle, load_smollm2
from kvsweep.scenarios.demo.weights import MissingModel


@pytest.fixture(scope="session")
def smollm2() -> Bundle:
    """SmolLM2-135M in fp32."""
    try:
        return load_smollm2("fp32")
    except MissingModel as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Bits are compared below, and they depend on the number of threads."""
    torch.set_num_threads(1)
