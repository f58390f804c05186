"""Helm renders the chart, and kubectl the overlays, without a cluster."""

import os

import pytest

from testing import binaries
from testing.helm_chart import Helm


@pytest.fixture(scope="module", autouse=True)
def programs():
    """Skips the tests where Helm and kubectl have not been built: `python -m testing.binaries --chart` does it once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(binaries.BUILD_VARIABLE, "never")
        try:
            binaries.find_for_chart()
        except binaries.BinariesMissing as error:
            if os.environ.get("HAMI_E2E_STRICT"):
                raise
            pytest.skip(str(error))
        yield


@pytest.fixture
def helm(tmp_path):
    return Helm(tmp_path)
