"""Gauges of the pods that wait: one reason for each, and a bound on labels."""

from hami.model import PodScope
from hami.scheduler.waiting_pods import MAX_CLASSES, reason_of, waiting_gauges
from testing.builders import pod
from testing.cases import cases

AT = 1_800_000_000.0
MINUTE_BEFORE = "2027-01-15T07:59:00Z"


def waiting(name="p", said="", created=MINUTE_BEFORE, priority_class=""):
    text = f"2027-01-15T07:59:01Z Unschedulable {said}" if said else ""
    scope = PodScope(priority_class=priority_class)
    return pod(name=name, scheduling_failure=text, created=created, scope=scope)


@cases(
    "said, reason",
    ("", "New"),
    ("0/4 nodes are available: 4 8/8 CardInsufficientMemory.", "CardInsufficientMemory"),
    (
        "0/3 nodes are available: 1 1/8 AllocatedCardsInsufficientRequest, 7/8 CardInsufficientMemory, "
        "1 1/8 AllocatedCardsInsufficientRequest, 7/8 CardInsufficientCore, 1 8/8 CardInsufficientCore.",
        "CardInsufficientCore",
    ),
    (
        "0/1 nodes are available: 1 1/8 AllocatedCardsInsufficientRequest.",
        "AllocatedCardsInsufficientRequest",
    ),
    ("0/2 nodes are available: 2 Insufficient cpu.", "Other"),
)
def test_the_most_frequent_reason_is_that_of_the_pod(said, reason):
    assert reason_of(waiting(said=said)) == reason


def test_a_pod_that_must_not_be_tried_yet():
    text = "2027-01-15T07:59:01Z SchedulingGated Scheduling is blocked due to non-empty gates"
    assert reason_of(pod(scheduling_failure=text)) == "SchedulingGated"


def samples(*pods):
    counts, ages = waiting_gauges(pods, AT)
    return [
        {(s.labels["reason"], s.labels["priority_class"]): s.value for s in family.samples}
        for family in (counts, ages)
    ]


def test_pods_are_counted_by_reason_and_priority_class():
    memory = "0/1 nodes are available: 1 8/8 CardInsufficientMemory."
    counts, ages = samples(
        waiting("a", memory, priority_class="high"),
        waiting("b", memory, "2027-01-15T07:30:00Z", priority_class="high"),
        waiting("c", memory, "no time"),
        waiting("d", created="2027-01-15T09:00:00Z"),
    )
    assert counts == {
        ("CardInsufficientMemory", "high"): 2,
        ("CardInsufficientMemory", ""): 1,
        ("New", ""): 1,
    }
    assert ages[("CardInsufficientMemory", "high")] == 1800
    assert ages[("New", "")] == 0  # not older than the clock


def test_priority_classes_are_bounded():
    often = [waiting(f"a{n}", priority_class="often") for n in range(2)]
    counts, _ = samples(*often, *(waiting(f"b{n}", priority_class=f"c{n}") for n in range(50)))
    assert len(counts) == MAX_CLASSES + 1
    assert counts["New", "often"] == 2
    assert counts["New", "other"] == 50 - (MAX_CLASSES - 1)
