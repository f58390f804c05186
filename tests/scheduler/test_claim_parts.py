"""What the scheduler runs for pods that get their cards by claims."""

import pytest

from hami.runtime.settings import ALLOCATE, OPTIONAL, SHOW
from hami.scheduler.claims import ClaimParts
from hami.scheduler.settings import Settings
from tests.fake_cluster import FakeCluster

DEVICES = {"resourceslices", "resourceclaims"}


@pytest.mark.parametrize(
    "dra, watched",
    [(SHOW, DEVICES), (OPTIONAL, {*DEVICES, "resourceclaimtemplates"}), (ALLOCATE, set())],
)
def test_a_scheduler_that_allocates_all_claims_watches_none(dra, watched):
    parts = ClaimParts(
        None, FakeCluster(), None, None, lambda: True, Settings(dra=dra), clock=lambda: 0.0
    )
    assert {task.name for task in parts.tasks} & {*DEVICES, "resourceclaimtemplates"} == watched
