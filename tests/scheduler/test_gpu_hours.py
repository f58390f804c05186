"""Every replica knows what namespaces have used of their budgets; the leader says it, once."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from hami.codec.config_maps import ConfigMapRecord
from hami.codec.gpu_hours import BudgetWindow, GpuHours
from hami.codec.objects import PriorityClass
from hami.codec.usage_objects import CURRENT, day_data, name_of_day, render_current
from hami.codec.usage_sums import DAY_S, HOUR_S, HeldAmounts, UsageDay, UsageKey, UsageSums, date_of
from hami.errors import ClusterError
from hami.model import Namespace, NamespaceRef
from hami.scheduler.budget_metrics import MAX_SERIES, BudgetMetrics
from hami.scheduler.budget_reports import BudgetReports
from hami.scheduler.gpu_hours import READ_S, BudgetReader
from hami.scheduler.settings import DEMOTE, REFUSE, WARN, Settings
from hami.scheduling.gpu_hours import BudgetUse
from hami.state.gpu_hours import GpuHoursBudgets
from testing.cases import cases
from testing.fake_cluster import FakeCluster
from testing.replicas import Journal

RECORDS = "hami-usage"
MONDAY = 1_795_996_800  # 2026-11-30
TEAM = Namespace(name="team", uid="uid-team", resource_version="1", gpu_hours="10/week")


class Stage:
    """A replica, and the records of usage. *now*: Unix seconds."""

    def __init__(self, *namespaces, action=WARN, fake=None, now=MONDAY + 2 * DAY_S + 7200):
        self.fake = fake or FakeCluster()
        self.now, self.monotonic, self.leads = now, 0.0, True
        self.events = Journal()
        settings = Settings(
            usage_namespace=RECORDS,
            over_budget=action,
            over_budget_priority_class="low" if action == DEMOTE else "",
        )
        self.budgets = GpuHoursBudgets(lambda: self.now)
        for namespace in namespaces or (TEAM,):
            self.budgets.upsert(namespace)
        reports = BudgetReports(self.budgets, self.events, settings, leads=lambda: self.leads)
        self.reader = BudgetReader(
            self.fake, self.budgets, reports, settings, clock=lambda: self.monotonic
        )

    def current(self, gpu_hours, start=MONDAY + 2 * DAY_S):
        """Records what the namespace has used in the current day."""
        day = day_of(start, gpu_hours)
        sums = UsageSums(settled=start + HOUR_S, day=day)
        self.fake.put_config_map(render_current(RECORDS, "", sums))

    def ended(self, start, gpu_hours, data=None):
        """Records a day that has ended."""
        data = data or day_data(day_of(start, gpu_hours))
        name = name_of_day(date_of(start))
        self.fake.put_config_map(ConfigMapRecord(namespace=RECORDS, name=name, data=data))

    def step(self, seconds=READ_S):
        """Takes a step after so many seconds."""
        self.monotonic += seconds
        self.now += int(seconds)
        self.reader.step()

    def used(self):
        """Returns the GPU-hours that are used."""
        return self.budgets.use_of("team").used_milli / 1000

    def reads(self):
        """Returns the names of the objects that have been read."""
        return [call.arguments["name"] for call in self.fake.calls if call.method == "config_map"]


def day_of(start, gpu_hours):
    key = UsageKey("team", "NVIDIA", "A40", "", "device-plugin")
    return UsageDay(
        start=start, hours={key: {0: HeldAmounts(share=int(gpu_hours * 1000 * HOUR_S))}}
    )


def test_all_days_of_the_window_count():
    stage = Stage()
    stage.ended(MONDAY - DAY_S, 100)
    stage.ended(MONDAY, 1)
    stage.ended(MONDAY + DAY_S, 2)
    stage.current(4.5)
    stage.step()
    assert stage.used() == 7.5


def test_days_that_have_ended_are_read_once():
    stage = Stage()
    stage.ended(MONDAY, 1)
    stage.current(1)
    stage.step()
    stage.step()
    assert sorted(stage.reads()) == [
        CURRENT,
        CURRENT,
        "hami-usage-2026-11-30",
        "hami-usage-2026-12-01",
    ]
    stage.now = MONDAY + 3 * DAY_S + 600
    stage.ended(MONDAY + 2 * DAY_S, 3)
    stage.current(5, start=MONDAY + 3 * DAY_S)
    stage.step()
    assert stage.used() == 9


def test_nothing_is_read_without_budgets():
    stage = Stage(replace(TEAM, gpu_hours=None), action=DEMOTE)
    stage.step()
    assert stage.fake.calls == []


def test_the_records_are_read_only_as_often_as_they_may_change():
    stage = Stage()
    stage.current(1)
    stage.step()
    stage.step(seconds=5)
    assert stage.reads().count(CURRENT) == 1


def test_a_longer_window_is_read_at_once():
    stage = Stage()
    stage.current(1)
    stage.ended(MONDAY - 7 * DAY_S + DAY_S, 5)
    stage.step()
    stage.budgets.upsert(replace(TEAM, gpu_hours="10/month", resource_version="2"))
    stage.now = MONDAY + 600
    stage.current(1, start=MONDAY)
    stage.step(seconds=1)
    assert stage.used() == 6


@cases(
    "data",
    ("edited", {"usage": "1:0:x"}),
    ("newer", {"usage": "9:0:x"}),
    ("empty", {}),
)
def test_records_that_cannot_be_read_leave_what_was_known(data):
    stage = Stage()
    stage.current(4)
    stage.step()
    stage.fake.put_config_map(ConfigMapRecord(namespace=RECORDS, name=CURRENT, data=data))
    stage.step()
    assert stage.used() == 4
    assert stage.reader.failures == 1


def test_a_server_that_does_not_answer_leaves_what_was_known():
    stage = Stage()
    stage.current(4)
    stage.step()
    stage.fake.fail("config_map", ClusterError("down"))
    stage.current(5)
    stage.step()
    assert (stage.used(), stage.reader.failures) == (4, 1)
    stage.step()
    assert stage.used() == 5


def test_failures_are_retried_as_often_as_records_are_read():
    stage = Stage()
    stage.fake.fail("config_map", ClusterError("down"), times=2)
    stage.step()
    stage.step(seconds=5)
    assert stage.reader.failures == 1
    stage.step()
    assert stage.reader.failures == 2


def test_a_day_that_cannot_be_read_is_left_out():
    stage = Stage()
    stage.ended(MONDAY, 0, data={"usage": "1:0:x"})
    stage.current(4)
    stage.step()
    assert (stage.used(), stage.reader.failures) == (4, 0)


def test_nothing_is_used_where_nothing_is_recorded():
    stage = Stage()
    stage.step()
    assert stage.used() == 0


def test_the_class_is_known_while_it_exists():
    stage = Stage(action=DEMOTE)
    stage.step()
    assert stage.reader.priority_class() is None
    low = stage.fake.priority_classes["low"] = PriorityClass(value=-10)
    stage.step(seconds=5)
    assert stage.reader.priority_class() == low
    stage.fake.fail("priority_class", ClusterError("down"))
    stage.step(seconds=5)
    assert stage.reader.priority_class() == low
    del stage.fake.priority_classes["low"]
    stage.step(seconds=5)
    assert stage.reader.priority_class() is None


def test_an_event_comes_once_at_each_step_of_a_window():
    stage = Stage()
    for used in (1, 7.9, 8, 9, 9.9, 10, 11, 20):
        stage.current(used)
        stage.step()
    assert stage.events.reasons() == ["BudgetNearlyUsed", "BudgetExceeded"]
    assert stage.events.subjects == [NamespaceRef("team", "team", "uid-team")] * 2
    assert stage.events[0][1].startswith(
        "namespace team has used 8 of the 10 GPU-hours of its budget for the week"
    )
    stage.now += 7 * DAY_S
    stage.current(8, start=MONDAY + 9 * DAY_S)
    stage.step()
    assert stage.events.reasons()[2:] == ["BudgetNearlyUsed"]


def test_a_higher_budget_is_a_new_one():
    stage = Stage()
    stage.current(10)
    stage.step()
    stage.budgets.upsert(replace(TEAM, gpu_hours="12/week", resource_version="2"))
    stage.step()
    stage.budgets.upsert(replace(TEAM, gpu_hours="100/week", resource_version="3"))
    stage.step()
    assert stage.events.reasons() == ["BudgetExceeded", "BudgetNearlyUsed"]


def test_the_next_leader_says_nothing_again():
    first = Stage()
    second = Stage(fake=first.fake)
    second.leads = False
    first.current(8)
    for stage in (first, second):
        stage.step()
    second.leads = True
    second.step()
    assert (first.events.reasons(), second.events.reasons()) == (["BudgetNearlyUsed"], [])
    second.current(10)
    second.step()
    assert second.events.reasons() == ["BudgetExceeded"]


@cases(
    "action, classes, end",
    (WARN, {}, "2026-12-07T00:00:00Z"),
    (REFUSE, {}, ": no more pods with devices are admitted until then"),
    (DEMOTE, {"low": PriorityClass()}, ": new pods with devices get the priority class low"),
    (DEMOTE, {}, ": new pods keep their priority, since the priority class low does not exist"),
)
def test_the_event_says_what_becomes_of_new_pods(action, classes, end):
    stage = Stage(action=action)
    stage.fake.priority_classes |= classes
    stage.current(10)
    stage.step()
    ((reason, text),) = stage.events
    assert reason == "BudgetExceeded"
    assert text.endswith(end)


def test_a_budget_that_cannot_be_read_is_an_event_of_each_leader():
    stage = Stage(replace(TEAM, gpu_hours="many/week"))
    stage.leads = False
    stage.step()
    assert stage.events == []
    stage.leads = True
    stage.step()
    stage.step()
    ((reason, text),) = stage.events
    assert reason == "BudgetUnreadable"
    assert "such as 500/week" in text
    assert "'many/week'" in text


@pytest.mark.parametrize("count", [2, MAX_SERIES + 1])
def test_metrics_are_in_seconds_and_bounded(count):
    uses = []
    for number in range(count):
        window = BudgetWindow(0, 1)
        hours = GpuHours(10_000, "week")
        use = BudgetUse(namespace=f"n{number}", hours=hours, window=window, share_s=number * 1000)
        uses.append(use)
    registry = CollectorRegistry()
    registry.register(BudgetMetrics(lambda: uses, lambda: 3))
    page = generate_latest(registry).decode()
    assert 'hami_budget_gpu_seconds{namespace="n1",period="week"} 36000.0' in page
    assert 'hami_budget_used_gpu_seconds{namespace="n1",period="week"} 1.0' in page
    assert "hami_budget_read_failures_total 3.0" in page
    assert page.count("hami_budget_gpu_seconds{") == min(count, MAX_SERIES)
    assert ('namespace="n0"' in page) == (count <= MAX_SERIES)
