"""What every test shares: both async backends, and seeds that are the same in every run."""

import pytest
from hypothesis import settings

# Derandomised: the examples depend on the test alone. A failure prints the example and the blob that repeats it.
settings.register_profile("kvsweep", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("kvsweep")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Every async test runs on both."""
    return str(request.param)
