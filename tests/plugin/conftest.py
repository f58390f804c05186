"""A kubelet's directory, and a kubelet."""

import tempfile
from pathlib import Path

import pytest

from testing.fake_kubelet import Kubelet


@pytest.fixture
def directory():
    """The kubelet's directory, with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="hami") as found:
        yield Path(found)


@pytest.fixture
def kubelet(directory):
    """A kubelet that has not registered anything."""
    found = Kubelet(directory)
    yield found
    found.stop()
