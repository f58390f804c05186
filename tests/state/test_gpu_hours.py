"""The budgets of namespaces, and what of them is used."""

from hami.codec.gpu_hours import GpuHours
from hami.codec.usage_sums import DAY_S, HOUR_S
from hami.model import Namespace
from hami.state.gpu_hours import MAX_BUDGETS, GpuHoursBudgets
from testing.cases import cases

MONDAY = 1_795_996_800  # 2026-11-30
GPU_HOUR = 1000 * HOUR_S


def namespace(name="team", hours="10/week", version="1"):
    return Namespace(name=name, uid=f"uid-{name}", resource_version=version, gpu_hours=hours)


def budgets(*namespaces, now=MONDAY + 2 * DAY_S, days=None):
    made = GpuHoursBudgets(lambda: now)
    for each in namespaces:
        made.upsert(each)
    made.record(days or {})
    return made


@cases(
    "share_s, nearly, reached",
    (0, False, False),
    (8 * GPU_HOUR - 1, False, False),
    (8 * GPU_HOUR, True, False),
    (10 * GPU_HOUR - 1, True, False),
    (10 * GPU_HOUR, True, True),
)
def test_how_far_a_budget_is_used(share_s, nearly, reached):
    use = budgets(namespace(), days={MONDAY: {"team": share_s}}).use_of("team")
    assert use.is_nearly_reached == nearly
    assert use.is_reached == reached


def test_days_of_other_windows_and_other_namespaces_do_not_count():
    days = {MONDAY - DAY_S: {"team": 1}, MONDAY: {"team": 10, "other": 100}, MONDAY + DAY_S: {}}
    made = budgets(namespace(), days={**days, MONDAY + 2 * DAY_S: {"team": 1000}})
    assert made.use_of("team").share_s == 1010
    assert made.use_of("other") is None


def test_a_budget_in_words():
    use = budgets(namespace(), days={MONDAY: {"team": 9_999 * HOUR_S + 1}}).use_of("team")
    assert str(use) == (
        "namespace team has used 9.999 of the 10 GPU-hours of its budget for the week that ends at "
        "2026-12-07T00:00:00Z"
    )


def test_a_new_window_begins_without_a_record():
    made = budgets(namespace(), now=MONDAY + 7 * DAY_S, days={MONDAY: {"team": 20 * GPU_HOUR}})
    assert made.use_of("team").share_s == 0


def test_an_annotation_that_cannot_be_read_is_no_budget():
    made = budgets(namespace(hours="many/week"))
    assert made.use_of("team") is None
    ((known, error),) = made.unreadable()
    assert known == namespace(hours="many/week")
    assert "'many/week'" in str(error)
    made.upsert(namespace(version="2"))
    assert made.unreadable() == []
    assert made.use_of("team").hours == GpuHours(10_000, "week")


@cases(
    "change, kept",
    (
        "the annotation is removed",
        lambda made: made.upsert(namespace(hours=None, version="2")),
        False,
    ),
    ("deleted", lambda made: made.remove(namespace()), False),
    ("not in a list", lambda made: made.prune({"other"}, 0.0), False),
    ("in a list", lambda made: made.prune({"team"}, 0.0), True),
    ("an earlier version", lambda made: made.upsert(namespace(hours="5/day", version="0")), True),
    ("a later one", lambda made: made.upsert(namespace(hours="5/day", version="2")), False),
    ("a list", lambda made: made.upsert(namespace(hours="5/day", version="0"), 1.0), False),
)
def test_the_watch_says_which_budgets_there_are(change, kept):
    made = budgets(namespace())
    change(made)
    use = made.use_of("team")
    assert (use is not None and use.hours == GpuHours(10_000, "week")) == kept


def test_the_first_day_is_that_of_the_longest_window():
    assert budgets().first_day() is None
    assert budgets(namespace(hours="1/day")).first_day() == MONDAY + 2 * DAY_S
    assert budgets(namespace(), namespace("b", "1/day")).first_day() == MONDAY


def test_the_number_of_budgets_is_bounded():
    made = budgets(*[namespace(f"n{number}") for number in range(MAX_BUDGETS + 1)])
    assert len(made.uses()) == MAX_BUDGETS
