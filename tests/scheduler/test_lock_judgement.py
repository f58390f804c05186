"""What may be done with a node lock: one row for each case."""

from dataclasses import replace

import pytest
from pytest import param

from hami.model import PodRef
from hami.scheduler.lock_judgement import (
    DELETED_S,
    FINISHED_S,
    INHERITED_S,
    RENEWED_S,
    UNBOUND_S,
    GoneHolder,
    Keep,
    LockFacts,
    NoHolder,
    PodHolder,
    Replace,
    Revoke,
    judge,
)

REF = PodRef("default", "held", "uid")
FRESH = LockFacts(
    node="n1", age_s=0.0, seen_for_s=0.0, inherited_for_s=0.0, allocation_timeout_s=300.0
)
WAITS, BOUND = (
    PodHolder(ref=REF, version="7", node=node, bind_phase="allocating", is_terminated=False)
    for node in ("", "n1")
)
KEEP, REPLACE, REVOKE = Keep(), Replace(), Revoke(REF, "7")


def lock(**facts):
    return replace(FRESH, **facts)


def late(by=0.001):
    return lock(age_s=300.0 + by)


@pytest.mark.parametrize(
    ("facts", "holder", "judgement"),
    [
        param(lock(is_leftover=True), BOUND, REPLACE, id="this process has failed to release it"),
        param(lock(is_readable=False), NoHolder(True), REPLACE, id="unreadable"),
        # a pod holds it
        param(FRESH, BOUND, KEEP, id="allocating"),
        param(late(0), BOUND, KEEP, id="allocating, just in time"),
        param(late(), BOUND, REVOKE, id="allocating, too late"),
        param(late(), replace(BOUND, has_devices=False), REVOKE, id="bound, whatever it has"),
        param(lock(inherited_for_s=1e9), BOUND, KEEP, id="allocating since another leader's term"),
        param(FRESH, replace(BOUND, node="n2"), REPLACE, id="bound elsewhere"),
        param(FRESH, replace(BOUND, is_terminated=True), REPLACE, id="terminated"),
        param(
            FRESH, replace(WAITS, is_terminated=True), REPLACE, id="terminated before it was bound"
        ),
        param(
            lock(seen_for_s=FINISHED_S),
            replace(BOUND, bind_phase="success"),
            KEEP,
            id="finished just now",
        ),
        param(
            lock(seen_for_s=FINISHED_S + 0.1),
            replace(BOUND, bind_phase="success"),
            REPLACE,
            id="finished",
        ),
        param(
            lock(seen_for_s=FINISHED_S + 0.1),
            replace(BOUND, bind_phase="failed"),
            REPLACE,
            id="failed",
        ),
        param(
            late(),
            replace(BOUND, bind_phase="success"),
            KEEP,
            id="finished just now, of an old lock",
        ),
        param(lock(age_s=UNBOUND_S), WAITS, KEEP, id="not bound yet"),
        param(lock(age_s=UNBOUND_S + 0.1), WAITS, REVOKE, id="never bound"),
        param(
            lock(age_s=UNBOUND_S + 0.1),
            replace(WAITS, has_devices=False),
            REPLACE,
            id="never bound, nothing to revoke",
        ),
        param(lock(inherited_for_s=INHERITED_S), WAITS, KEEP, id="not bound yet by another leader"),
        param(
            lock(inherited_for_s=INHERITED_S + 0.1),
            WAITS,
            REVOKE,
            id="never bound by another leader",
        ),
        param(
            lock(age_s=UNBOUND_S - 1),
            replace(WAITS, bind_phase="success"),
            KEEP,
            id="unbound, whatever its phase",
        ),
        # its holder is gone
        param(FRESH, GoneHolder(DELETED_S), KEEP, id="gone just now"),
        param(FRESH, GoneHolder(DELETED_S + 0.1), REPLACE, id="gone"),
        param(late(), GoneHolder(0.0), REPLACE, id="gone, of an old lock"),
        param(late(), GoneHolder(0.0, True), KEEP, id="deleted just now while it was allocating"),
        param(
            FRESH, GoneHolder(DELETED_S + 0.1, True), REPLACE, id="deleted while it was allocating"
        ),
        param(
            FRESH,
            GoneHolder(DELETED_S + 0.1, True, 0.0),
            KEEP,
            id="deleted, and its kubelet stands still",
        ),
        param(
            FRESH,
            GoneHolder(DELETED_S + 0.1, True, RENEWED_S),
            KEEP,
            id="deleted, and its kubelet goes on just now",
        ),
        param(
            FRESH,
            GoneHolder(DELETED_S + 0.1, True, RENEWED_S + 0.1),
            REPLACE,
            id="deleted, and its kubelet goes on",
        ),
        param(
            FRESH,
            GoneHolder(DELETED_S, True, DELETED_S),
            KEEP,
            id="deleted just now, its Lease renewed",
        ),
        param(
            FRESH, GoneHolder(300.1, True, 0.0), REPLACE, id="deleted, and its kubelet is gone, too"
        ),
        param(
            FRESH,
            GoneHolder(DELETED_S + 0.1, None, 0.0),
            KEEP,
            id="gone, and its kubelet stands still",
        ),
        param(
            FRESH, GoneHolder(0.0, False, 0.0), REPLACE, id="deleted after its plugin had answered"
        ),
        # a time only
        param(late(0), NoHolder(False), KEEP, id="a time"),
        param(late(), NoHolder(True), REPLACE, id="an old time"),
        param(
            lock(inherited_for_s=INHERITED_S + 0.1),
            NoHolder(True),
            KEEP,
            id="another leader's time, awaited",
        ),
        param(
            lock(inherited_for_s=INHERITED_S + 0.1),
            NoHolder(False),
            REPLACE,
            id="another leader's time",
        ),
        param(
            lock(inherited_for_s=INHERITED_S),
            NoHolder(False),
            KEEP,
            id="another leader's time, just now",
        ),
    ],
)
def test_judgements(facts, holder, judgement):
    assert judge(facts, holder) == judgement
