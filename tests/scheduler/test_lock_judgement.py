"""What may be done with a node lock: one row for each case."""

from dataclasses import replace

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
from testing.cases import cases

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


@cases(
    "facts, holder, judgement",
    ("this process has failed to release it", lock(is_leftover=True), BOUND, REPLACE),
    ("unreadable", lock(is_readable=False), NoHolder(True), REPLACE),
    # a pod holds it
    ("allocating", FRESH, BOUND, KEEP),
    ("allocating, just in time", late(0), BOUND, KEEP),
    ("allocating, too late", late(), BOUND, REVOKE),
    ("bound, whatever it has", late(), replace(BOUND, has_devices=False), REVOKE),
    ("allocating since another leader's term", lock(inherited_for_s=1e9), BOUND, KEEP),
    ("bound elsewhere", FRESH, replace(BOUND, node="n2"), REPLACE),
    ("terminated", FRESH, replace(BOUND, is_terminated=True), REPLACE),
    ("terminated before it was bound", FRESH, replace(WAITS, is_terminated=True), REPLACE),
    ("finished just now", lock(seen_for_s=FINISHED_S), replace(BOUND, bind_phase="success"), KEEP),
    ("finished", lock(seen_for_s=FINISHED_S + 0.1), replace(BOUND, bind_phase="success"), REPLACE),
    ("failed", lock(seen_for_s=FINISHED_S + 0.1), replace(BOUND, bind_phase="failed"), REPLACE),
    ("finished just now, of an old lock", late(), replace(BOUND, bind_phase="success"), KEEP),
    ("not bound yet", lock(age_s=UNBOUND_S), WAITS, KEEP),
    ("never bound", lock(age_s=UNBOUND_S + 0.1), WAITS, REVOKE),
    (
        "never bound, nothing to revoke",
        lock(age_s=UNBOUND_S + 0.1),
        replace(WAITS, has_devices=False),
        REPLACE,
    ),
    ("not bound yet by another leader", lock(inherited_for_s=INHERITED_S), WAITS, KEEP),
    ("never bound by another leader", lock(inherited_for_s=INHERITED_S + 0.1), WAITS, REVOKE),
    (
        "unbound, whatever its phase",
        lock(age_s=UNBOUND_S - 1),
        replace(WAITS, bind_phase="success"),
        KEEP,
    ),
    # its holder is gone
    ("gone just now", FRESH, GoneHolder(DELETED_S), KEEP),
    ("gone", FRESH, GoneHolder(DELETED_S + 0.1), REPLACE),
    ("gone, of an old lock", late(), GoneHolder(0.0), REPLACE),
    ("deleted just now while it was allocating", late(), GoneHolder(0.0, True), KEEP),
    ("deleted while it was allocating", FRESH, GoneHolder(DELETED_S + 0.1, True), REPLACE),
    ("deleted, and its kubelet stands still", FRESH, GoneHolder(DELETED_S + 0.1, True, 0.0), KEEP),
    (
        "deleted, and its kubelet goes on just now",
        FRESH,
        GoneHolder(DELETED_S + 0.1, True, RENEWED_S),
        KEEP,
    ),
    (
        "deleted, and its kubelet goes on",
        FRESH,
        GoneHolder(DELETED_S + 0.1, True, RENEWED_S + 0.1),
        REPLACE,
    ),
    ("deleted just now, its Lease renewed", FRESH, GoneHolder(DELETED_S, True, DELETED_S), KEEP),
    ("deleted, and its kubelet is gone, too", FRESH, GoneHolder(300.1, True, 0.0), REPLACE),
    ("gone, and its kubelet stands still", FRESH, GoneHolder(DELETED_S + 0.1, None, 0.0), KEEP),
    ("deleted after its plugin had answered", FRESH, GoneHolder(0.0, False, 0.0), REPLACE),
    # a time only
    ("a time", late(0), NoHolder(False), KEEP),
    ("an old time", late(), NoHolder(True), REPLACE),
    (
        "another leader's time, awaited",
        lock(inherited_for_s=INHERITED_S + 0.1),
        NoHolder(True),
        KEEP,
    ),
    ("another leader's time", lock(inherited_for_s=INHERITED_S + 0.1), NoHolder(False), REPLACE),
    ("another leader's time, just now", lock(inherited_for_s=INHERITED_S), NoHolder(False), KEEP),
)
def test_judgements(facts, holder, judgement):
    assert judge(facts, holder) == judgement
