"""Renderings are shared, explanations leave the cluster's cache alone, rows follow every change."""

import json
import threading

import pytest
from hypothesis import given, settings
from hypothesis.strategies import randoms

from hami.codec.pods import parse_pod
from hami.dashboard.access import Scope
from hami.dashboard.app import compile_templates
from hami.dashboard.caches import MAX_BYTES, MAX_RENDERINGS, Renderings
from hami.dashboard.explainer import Question
from hami.dashboard.paging import paged
from hami.dashboard.texts import hue, mib, percent, width
from hami.inspect.cluster import InspectedCluster
from hami.inspect.explain import explain_pod
from hami.inspect.top import NAMESPACES, namespace_rows, node_rows, pod_rows
from testing.builders import content
from testing.cases import cases
from testing.fake_api import bound, node, pending
from testing.nodes import gpu
from testing.records import some_record
from testing.replicas import Clock
from tests.dashboard.stage import NOW, Stage


class Maker:
    """Makes texts, and counts."""

    def __init__(self, clock, seconds=0.0):
        self.clock, self.seconds, self.made = clock, seconds, 0

    def __call__(self):
        self.made += 1
        self.clock.seconds += self.seconds
        return f"text {self.made}", "text/plain"


def test_a_rendering_is_used_until_the_version_differs_and_for_some_time():
    clock = Clock()
    renderings, make = Renderings(clock=clock), Maker(clock)
    assert [renderings.get("a", lambda: 1, make).body for _ in range(3)] == [b"text 1"] * 3
    assert renderings.get("a", lambda: 2, make).body == b"text 1"
    clock.seconds += 2
    assert renderings.get("a", lambda: 2, make).body == b"text 2"
    clock.seconds += 1000
    assert renderings.get("a", lambda: 2, make).body == b"text 2"


def test_what_takes_long_is_made_less_often():
    clock = Clock()
    renderings, make = Renderings(clock=clock), Maker(clock, seconds=1.0)
    for version in range(60):
        renderings.get("a", lambda: version, make)  # noqa: B023
        clock.seconds += 1
    assert 5 <= make.made <= 7


def test_a_failure_is_not_kept():
    def fail():
        raise ValueError

    renderings = Renderings(clock=Clock())
    for _ in range(2):
        with pytest.raises(ValueError):
            renderings.get("a", lambda: 1, fail)
    assert renderings.get("a", lambda: 1, Maker(Clock())).body == b"text 1"


def test_the_number_of_renderings_is_bounded():
    renderings, make = Renderings(clock=Clock()), Maker(Clock())
    for number in range(3 * MAX_RENDERINGS):
        renderings.get(number, lambda: 1, make)
    assert len(renderings._kept) == MAX_RENDERINGS


def test_the_size_of_all_renderings_is_bounded():
    renderings = Renderings(clock=Clock())
    for number in range(9):
        renderings.get(number, lambda: 1, lambda: ("x" * (MAX_BYTES // 4), "text/plain"))
    assert list(renderings._kept) == [6, 7, 8]


def test_only_one_rendering_is_made_at_a_time_and_the_others_get_it():
    renderings, make = Renderings(clock=Clock()), Maker(Clock())
    begun, go_on = threading.Event(), threading.Event()

    def slow():
        begun.set()
        go_on.wait(20)
        return make()

    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(renderings.get("a", lambda: 1, slow).body))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    begun.wait(20)
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert (answers, make.made) == ([b"text 1"] * 5, 1)


def test_nobody_waits_while_another_page_is_prepared():
    clock = Clock()
    renderings, make = Renderings(clock=clock), Maker(clock)
    others = []

    def prepare():
        clock.seconds += (
            60  # no part of the time by which it is decided how long a rendering is used
        )
        others.append(renderings.get("other", lambda: 1, make).body)

    assert renderings.get("slow", lambda: 1, make, prepare=prepare).body == b"text 2"
    assert others == [b"text 1"]
    renderings.get("slow", lambda: 1, make, prepare=pytest.fail)


def test_nobody_waits_for_templates():
    stage = Stage([node("n1")])
    compile_templates(stage.app)
    assert len(stage.app.jinja_env.cache) == len(stage.app.jinja_env.list_templates())


def test_explaining_leaves_the_cluster_alone():
    stage = Stage(
        [node("n1"), node("n2", unschedulable=True)],
        [bound("a", "n1", (0, 20_000, 50), gpu=1), pending("waits", gpu=1, gpumem=90_000)],
    )
    before = content(stage.cache), stage.cache.version()
    stage.ask("/pending")
    stage.explain()
    assert (content(stage.cache), stage.cache.version()) == before
    assert stage.json("/pending")["items"][0]["explanation"]["suggestions"]


def test_pods_that_ask_for_the_same_have_one_answer():
    stage = Stage(
        [node("n1")], [pending(f"w{number}", gpu=1, gpumem=90_000) for number in range(9)]
    )
    stage.ask("/pending")
    stage.explain()
    assert stage.explainer.changes == 1
    assert all(item["explanation"]["nodes"] for item in stage.json("/pending")["items"])


@settings(max_examples=20)
@given(rng=randoms(use_true_random=True))
def test_the_live_rows_are_those_of_hami_top_and_the_answers_those_of_hami_explain(rng):
    record = some_record(rng)
    inspected, stage = InspectedCluster(record), Stage.of(record)
    rows = stage.live.node_rows()
    assert rows == {row.name: row for row in node_rows(inspected, inspected.nodes.values())}
    for pod in [pod for pod in record.pods if not pod.node_name][:3]:
        stage.explainer.view(Question.of(pod, Scope()))
        stage.explain()
        answer, report = (
            stage.explainer.view(Question.of(pod, Scope())),
            explain_pod(inspected, pod, ()),
        )
        assert (answer.fits, answer.unfit, answer.suggestions) == (
            report.fits,
            len(report.nodes),
            report.suggestions,
        )


@settings(max_examples=20)
@given(rng=randoms(use_true_random=True))
def test_the_namespaces_are_those_of_hami_top(rng):
    record = some_record(rng)
    inspected, stage = InspectedCluster(record), Stage.of(record)
    expected = sorted(namespace_rows(inspected), key=NAMESPACES.name)
    assert (
        sorted(namespace_rows(stage.live.cluster((), Scope()), Scope()), key=NAMESPACES.name)
        == expected
    )
    for name in {row.name for row in expected}:
        own = stage.live.cluster((), Scope(frozenset([name])))
        assert sorted(namespace_rows(own, [name]), key=NAMESPACES.name) == [
            row for row in expected if row.name == name
        ]
        holders = own.pods_with(each for each in own.bookings() if each.namespace == name)
        shown = [
            (row.name, row.node, row.cards, row.memory_mib, row.cores)
            for row in pod_rows(own, holders)
        ]
        assert shown == [
            (row.name, row.node, row.cards, row.memory_mib, row.cores)
            for row in pod_rows(inspected, holders)
        ]


@settings(max_examples=20)
@given(chance=randoms(use_true_random=True))
def test_rows_follow_every_change(chance):
    stage = Stage([node(f"n{number}", unschedulable=chance.random() < 0.3) for number in range(4)])
    for step in range(12):
        name, on = f"p{chance.randrange(5)}", f"n{chance.randrange(4)}"
        match chance.randrange(3):
            case 0:
                stage.add(bound(f"{name}-{step}", on, (0, chance.randrange(1, 9) * 100, 5), gpu=1))
            case 1:
                fresh = Stage([node(on, unschedulable=chance.random() < 0.5)]).cache.nodes.get(on)
                stage.cache.nodes.upsert(fresh)
            case 2 if (fresh := stage.cache.nodes.get(on)) is not None and chance.random() < 0.3:
                stage.cache.nodes.remove(fresh)
        inspected = stage.live.cluster(stage.cache.nodes.names(), Scope())
        assert stage.live.node_rows() == {
            row.name: row for row in node_rows(inspected, inspected.nodes.values())
        }


def test_a_row_follows_a_change_of_pods_that_hold_the_same():
    reserved, placed = bound("a", "n1", (0, 100, 5), gpu=1), bound("b", "n1", (0, 100, 5), gpu=1)
    del reserved["spec"]["nodeName"]
    reserved["metadata"]["annotations"]["hami.io/vgpu-time"] = str(int(NOW.timestamp()))
    stage = Stage([node("n1")], [reserved], foreign_reservations=True)
    assert stage.live.node_rows()["n1"].reserved == 1
    stage.cache.pods.remove(parse_pod(json.dumps(reserved).encode()))
    stage.add(placed)
    assert stage.live.node_rows()["n1"].reserved == 0


@cases(
    "items, page, expected",
    (0, 1, (0, 1, 1)),
    (5, 1, (5, 1, 1)),
    (10, 1, (10, 1, 1)),
    (11, 1, (10, 1, 2)),
    (11, 2, (1, 2, 2)),
    (11, 99, (1, 2, 2)),
)
def test_pages(items, page, expected):
    shown, page, pages = paged(range(items), page, 10)
    assert (len(shown), page, pages) == expected


@pytest.mark.parametrize(
    "made, expected",
    [
        (percent(5, 10), 50),
        (percent(15, 10), 150),
        (percent(1, 0), 0),
        (width(5, 10), 500),
        (width(15, 10), 1000),
        (width(-1, 10), 0),
        (width(1, 0), 0),
        (mib(500), "500 MiB"),
        (mib(2048), "2 GiB"),
        (mib(2_560), "2.5 GiB"),
        (mib(81_920_000), "80,000 GiB"),
        (hue(None), "other"),
    ],
    ids=repr,
)
def test_texts(made, expected):
    assert made == expected


def test_a_page_waits_for_an_explanation_until_it_is_there():
    stage = Stage([node("n1", gpu())], [pending("waits", gpu=1, gpumem=99_999)])
    (pod,) = stage.cache.pods.waiting()
    question = Question.of(pod, Scope())
    stage.explainer.wait([question], 0.0)  # nobody answers yet
    assert stage.explainer.view(question) is None
    stage.explainer.start()
    stage.explainer.wait([question], 60.0)
    assert stage.explainer.view(question) is not None
    stage.explainer.stop()
    stage.explainer.join(60.0)


@pytest.mark.parametrize("path", ["/pending", "/pods/default/waits"])
def test_pages_expect_the_answers_that_they_ask_for(path):
    expected = []
    stage = Stage(
        [node("n1", gpu())], [pending("waits", gpu=1, gpumem=99_999)], expect=expected.append
    )
    stage.ask(path)
    ((question,),) = expected
    assert question.pod.ref.name == "waits"
