"""What the scheduler runs for pods that get their cards by claims."""

from hami.runtime.settings import ALLOCATE, SHOW
from hami.scheduler.claims import Claims
from hami.scheduler.settings import Settings
from testing.cases import cases

DEVICES = {"resourceslices", "resourceclaims"}


@cases("dra, watched", (SHOW, DEVICES), (ALLOCATE, set()))
def test_a_scheduler_that_allocates_all_claims_watches_none(dra, watched):
    parts = Claims(None, None, lambda: True, Settings(dra=dra), clock=lambda: 0.0)
    assert {task.name for task in parts.tasks} & DEVICES == watched
