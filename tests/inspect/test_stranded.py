"""The use of what is free, for people: the usual pods are those that hold devices."""

import json
from dataclasses import replace

import pytest
from pytest import param

from hami.inspect.cluster import InspectedCluster
from hami.inspect.explain import explain_pod, render_report
from hami.inspect.simulate import render_capacity
from hami.inspect.snapshot import anonymize, parse_snapshot, render_snapshot
from hami.inspect.stranded import FreeReport, PodRoom, free_report, free_sentences, pod_text
from hami.inspect.tables import Style
from hami.inspect.top import TopQuery, render_top
from hami.scheduling.node_resources import NodeResources
from hami.state.view import Policies
from hami.state.workload import FIRST
from testing.builders import gpu, gpus, node, pod
from testing.cases import cases
from testing.records import held, record
from tests.inspect.test_simulate import source

DEVICES = [gpu(f"GPU-{place}", index=place) for place in range(FIRST)]
IDLE = [gpu(f"idle-{place}", index=place) for place in range(2)]


def full_and_idle(pods=FIRST, others=0):
    """The record of a node on which *pods* hold 60 % of a device each, and an idle one for two of them by CPU, of which
    pods without devices request *others*."""
    nodes = [
        node("full", *DEVICES, allocatable={"cpu": "64"}),
        node("idle", *IDLE, allocatable={"cpu": "4"}),
    ]
    holders = [held(f"p{place}", "full", (f"GPU-{place}", 8000, 60)) for place in range(pods)]
    holders = [
        replace(pod, containers=(replace(pod.containers[0], requests={"cpu": "2"}),))
        for pod in holders
    ]
    return replace(record(nodes, holders), others={"idle": NodeResources(others)} if others else {})


def report_on(changed):
    return free_report(InspectedCluster(changed).view)


def test_without_enough_pods_nothing_is_said():
    assert report_on(full_and_idle(pods=FIRST - 1)) is None


@pytest.mark.parametrize("policy, sentence", [("binpack", False), ("least-waste", True)])
def test_explain_says_what_room_a_placement_takes_where_the_policy_asks(policy, sentence):
    waits = pod(gpus(cores=60), name="waits")
    changed = full_and_idle()
    changed = replace(changed, pods=(*changed.pods, waits), policies=Policies(policy, "binpack"))
    report = explain_pod(InspectedCluster(changed), waits, ())
    text = render_report(report, wide=False)
    said = (
        "There it takes least room from the usual pods: 1 of 2 with 1 device (60 cores, 8,000 MiB)"
    )
    assert (said in text) is sentence
    assert [each.taken for each in report.room] == ([1] if sentence else [])


@cases(
    "pods, shown",
    ("known", FIRST, [round(FIRST * 0.4, 2), 0.8]),
    ("too few", FIRST - 1, [None, None]),
)
def test_top_shows_what_is_stranded_on_each_node_once_the_usual_pods_are_known(pods, shown):
    cluster = InspectedCluster(full_and_idle(pods=pods))
    rows = json.loads(render_top(cluster, TopQuery(), Style("json")))["items"]
    assert [row["stranded"] for row in rows] == shown
    assert rows == sorted(rows, key=lambda row: row["name"])
    by_stranded = TopQuery(sort="stranded")
    wide = render_top(cluster, by_stranded, Style("wide")).splitlines()
    assert "STRANDED" in wide[0]
    assert ("0.8" in wide[2]) is (shown[1] is not None)


def test_the_report_of_a_cluster():
    assert report_on(full_and_idle()) == FreeReport(
        devices=FIRST + 2,
        free=round(FIRST * 0.4 + 2, 2),
        lacks_cpu=0.0,
        crumbs=round(FIRST * 0.4 + 0.8, 2),
        not_accepted=0.0,
        room=(
            PodRoom(
                vendor="NVIDIA",
                devices=1,
                cores=60,
                memory_mib=8000,
                memory_percent=0,
                cpu=2.0,
                pods=2,
            ),
        ),
    )


def test_pods_without_devices_count():
    report = report_on(full_and_idle(others=1500))
    assert report.lacks_cpu == pytest.approx(0.6)
    assert report.room[0].pods == 1


def test_pods_without_devices_count_in_snapshots_too():
    plain = full_and_idle(others=1500)
    for changed in (parse_snapshot(render_snapshot(plain), "f"), anonymize(plain)):
        assert report_on(changed) == report_on(plain)
    assert "idle" not in anonymize(plain).others


def a_report(**fields):
    amounts = {"devices": 100, "free": 20.0, "lacks_cpu": 0.0, "crumbs": 0.0, "not_accepted": 0.0}
    room = PodRoom("NVIDIA", 8, 100, 0, 0, 88.0, 2)
    return FreeReport(**{**amounts, **fields}, room=(room,))


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        param(a_report(), "Free: 20.0 of 100 devices.", id="nothing"),
        param(
            a_report(lacks_cpu=2.0, crumbs=1.0),
            "Free: 20.0 of 100 devices; the usual pods cannot use 15.0% of that: 10.0% lacks CPU, 5.0% lies in crumbs.",
            id="two causes",
        ),
        param(
            a_report(not_accepted=1.0),
            "Free: 20.0 of 100 devices; the usual pods cannot use 5.0% of that: "
            "5.0% is of a model that none of them accepts.",
            id="model",
        ),
        param(a_report(free=0.0), "Free: 0.0 of 100 devices.", id="nothing is free"),
    ],
)
def test_what_is_stranded_in_words(report, sentence):
    assert list(free_sentences(report)) == [
        sentence,
        "Room for the usual pods, if only one kind comes: 2 with 8 devices (100 cores) and 88 CPU.",
    ]


@pytest.mark.parametrize(
    ("pod", "text"),
    [
        (PodRoom("NVIDIA", 1, 30, 8192, 0, 1.5, 1), "1 device (30 cores, 8,192 MiB) and 1.5 CPU"),
        (PodRoom("NVIDIA", 1, 0, 0, 50, 0.0, 1), "1 device (50 % of the memory)"),
        (PodRoom("NVIDIA", 2, 0, 0, 0, 0.0, 1), "2 devices"),
    ],
)
def test_a_usual_pod_in_words(pod, text):
    assert pod_text(pod) == text


def test_capacity_says_what_is_free():
    lines = render_capacity(source().title, [], a_report(), Style()).splitlines()
    assert lines[2] == "Free: 20.0 of 100 devices."
