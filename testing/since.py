"""A plugin of pytest: tests of what an older Kubernetes lacks are left out there. They are not skipped, since nothing
is missing on the machine, and so they may be left out where nothing may be skipped.

``pytest.mark.since(1, 37)`` names the first version. Only one that ``HAMI_E2E_KUBERNETES`` selects is known before the
tests begin; on other programs such a test skips itself.
"""

from __future__ import annotations

import os

import pytest

from testing.binaries import MINOR_VARIABLE


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests of later versions."""
    if not (selected := os.environ.get(MINOR_VARIABLE)):
        return
    minor = tuple(map(int, selected.split(".")))
    later = [
        item for item in items if (mark := item.get_closest_marker("since")) and minor < mark.args
    ]
    config.hook.pytest_deselected(items=later)
    items[:] = [item for item in items if item not in later]
