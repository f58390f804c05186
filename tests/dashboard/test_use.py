"""The real use of cards beside what was given out: hostile monitors, bounds, and who sees which number."""

import itertools
import socket
import string
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.strategies import randoms

from hami.codec.keys import CORES_LIMIT, RESIZE, RESIZE_STATUS, RESIZE_TARGET, RESIZED
from hami.dashboard.caches import FAILED_S, GIVE_WAY_S, Poller, PollLimits, Renderings
from hami.dashboard.monitors import USE_LIMITS, Monitors, NoMonitor, is_host, read_page, use_poller
from hami.dashboard.use import LINE_LIMIT, MAX_MIB, MAX_SAMPLES, Use, parse_use, total_use
from hami.dashboard.viewed_pods import (
    MESSAGE_LIMIT,
    PodSize,
    SchedulingCondition,
    read_condition,
    read_size,
)
from hami.errors import ClusterError, MalformedInput
from hami.inspect.resize_report import ResizeReport
from hami.model import PodRef
from hami.monitor.metrics import families
from hami.web.exposition import render
from testing.cases import cases
from testing.eventually import eventually
from testing.fake_api import bound, node, pending
from testing.fake_nvml import GIB, MIB
from testing.monitor_stage import CARD, OTHER, Stage, node_pod
from testing.nodes import gpu
from testing.region_bytes import Process as Slot
from testing.replicas import Clock
from tests.dashboard.stage import Rights
from tests.dashboard.stage import Stage as DashboardStage

AT = "2026-08-21T12:30:00Z"
CARD_LABELS = (
    'device_index="0",device_type="NVIDIA-A100",device_uuid="GPU-n1-0",node="n1",zone="vGPU"'
)


def card_lines(memory=3 * GIB, percent=45, uuid="GPU-n1-0"):
    labels = CARD_LABELS.replace("GPU-n1-0", uuid)
    return (
        f"hami_host_gpu_memory_used_bytes{{{labels}}} {memory}\n"
        f"hami_host_gpu_utilization_ratio{{{labels}}} {percent}\n"
    )


def pod_lines(
    memory=GIB, percent=20, *, pod="a", namespace="default", uuid="GPU-n1-0", container="main"
):
    labels = f'container="{container}",device_uuid="{uuid}",namespace="{namespace}",pod="{pod}",vdevice_index="0"'
    return (
        f"hami_vgpu_memory_used_bytes{{{labels}}} {memory}\n"
        f"hami_container_device_utilization_ratio{{{labels}}} {percent}\n"
    )


# What is read


def test_the_page_of_our_monitor_is_read(tmp_path):
    stage = Stage(tmp_path)
    stage.pods = [node_pod("a", CARD)]
    stage.region("a", processes=[Slot(used={0: 400 * MIB}, sm={0: 30})])
    stage.work("a", 4007, 500 * MIB, 33)
    stage.nvml.gpus[0].used, stage.nvml.gpus[0].rates = GIB, (60, 20)
    uses = parse_use("".join(render(families(stage.run(), legacy=True))), AT)
    assert uses[CARD,] == Use(1024, 60, AT)
    assert uses[CARD, "default", "a"] == Use(500, 33, AT)
    assert uses[OTHER,].memory_mib == 0
    assert (OTHER, "default", "a") not in uses


@pytest.mark.parametrize(
    "page, expected",
    [
        ("", {}),
        ("# HELP x\n# TYPE hami_host_gpu_memory_used_bytes gauge\n", {}),
        (card_lines(), {("GPU-n1-0",): Use(3072, 45, AT)}),
        (card_lines().partition("\n")[0], {("GPU-n1-0",): Use(3072, None, AT)}),
        (card_lines(memory="NaN", percent="+Inf"), {}),
        (card_lines(memory=-5, percent=-1), {("GPU-n1-0",): Use(0, 0, AT)}),
        (card_lines(memory="4e18", percent=10**15), {("GPU-n1-0",): Use(MAX_MIB, 100, AT)}),
        (card_lines(memory="1e999", percent="9" * 500), {}),
        (card_lines(memory="1e300", percent="-9e300"), {}),
        (card_lines(memory="<script>", percent="1_0"), {}),
        (
            pod_lines(container="main") + pod_lines(container="side"),
            {("GPU-n1-0", "default", "a"): Use(2048, 40, AT)},
        ),
        (pod_lines(pod=""), {}),
        (pod_lines(pod="x" * LINE_LIMIT), {}),
        (pod_lines(pod='a\\"b'), {}),
        ("hami_host_gpu_memory_used_bytes{\n", {}),
        ("hami_host_gpu_memory_used_bytes{}\n", {}),
        ("hami_host_gpu_memory_used_bytes{,} 5\n", {}),
        ('hami_host_gpu_memory_used_bytes{device_uuid="a",device_uuid="b"} 5\n', {}),
        ('hami_host_gpu_memory_used_bytes{__name__="up",device_uuid="a"} 5\n', {}),
        (
            'hami_host_gpu_memory_used_bytes{device_uuid="a"} 5 1 # {x="y"} 3\n',
            {("a",): Use(0, None, AT)},
        ),
        ('hami_host_gpu_memory_used_bytes_total{device_uuid="a"} 5\n', {}),
        ('up{device_uuid="a"} 5\n', {}),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_pages(page, expected):
    assert parse_use(page, AT) == expected


def test_only_so_many_samples_are_read():
    page = "".join(pod_lines(pod=f"p{number}") for number in range(MAX_SAMPLES))
    assert len(parse_use(page, AT)) == MAX_SAMPLES // 2


@given(some.text(alphabet=string.printable + "é\0\u2028", max_size=200), some.integers(0, 200))
def test_no_page_is_an_error(text, place):
    line = card_lines().splitlines()[0]
    parse_use(line[:place] + text + line[place:], AT)


@cases(
    "uses, expected",
    ([], None),
    ([None], None),
    ([Use(1, 2, "b"), None], None),
    ([Use(1, 10, "b"), Use(2, 21, "a")], Use(3, 15, "a")),
    ([Use(1, None, "b"), Use(None, 2, "a")], Use(None, None, "a")),
)
def test_the_use_of_a_node_is_that_of_all_its_cards(uses, expected):
    assert total_use(uses) == expected


# Who is asked


class Speaker:
    """Answers each connection with *parts*, one after the other; ``None``: waits until the client has gone."""

    def __init__(self, *parts):
        self.parts = parts
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        client, _ = self.listener.accept()
        with client:
            client.recv(65_536)
            for part in self.parts:
                try:
                    if part is None:
                        client.recv(1)
                    else:
                        client.sendall(part)
                except OSError:
                    return

    def close(self):
        self.listener.close()
        self.thread.join(20)


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "parts, expected",
    [
        ([OK, b"Content-Length: 3\r\n\r\nabc"], "abc"),
        ([OK, b"\r\nabc"], "abc"),
        ([OK, b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"], "abc"),
        ([OK, b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"], None),
        ([OK, b"Content-Length: 5\r\n\r\nabc"], None),
        ([OK, b"Content-Length: 3\r\n\r\n\xff\xfe\xfd"], "\ufffd" * 3),
        ([b"HTTP/1.1 503 no\r\n\r\nabc"], None),
        ([b"HTTP/1.1 302 no\r\nLocation: http://127.0.0.1/\r\n\r\n"], None),
        ([b"SSH-2.0-x\r\n"], None),
        ([], None),
        ([OK, b"X: y\r\n" * 1000, b"\r\nabc"], None),
        ([OK, b"X: " + b"y" * 70_000, b"\r\n\r\nabc"], None),
        ([OK, b"\r\n", *[b"x" * 10_000] * 20], None),
        ([OK, None], None),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_answers_of_monitors(parts, expected):
    speaker = Speaker(*parts)
    try:
        if expected is None:
            with pytest.raises(NoMonitor):
                read_page("127.0.0.1", speaker.port, timeout=0.5, limit=100_000)
        else:
            assert read_page("127.0.0.1", speaker.port, timeout=20) == expected
    finally:
        speaker.close()


def test_a_monitor_that_sends_without_end_is_ended_in_time():
    speaker = Speaker()
    speaker.parts = itertools.chain((OK, b"\r\n"), itertools.repeat(b"x"))
    try:
        with pytest.raises(NoMonitor):
            read_page("127.0.0.1", speaker.port, timeout=0.3, limit=1 << 28)
    finally:
        speaker.close()


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(NoMonitor):
        read_page("127.0.0.1", port)


@cases(
    "address, expected",
    ("10.0.0.7", True),
    ("fd00::7", True),
    ("192.0.2.2", True),
    ("", False),
    ("127.0.0.1", False),
    ("::1", False),
    ("169.254.169.254", False),
    ("fe80::1", False),
    ("224.0.0.1", False),
    ("0.0.0.0", False),
    ("::", False),
    ("::ffff:127.0.0.1", False),
    ("::ffff:169.254.169.254", False),
    ("localhost", False),
    ("10.0.0.7:80", False),
    ("10.0.0.7 x", False),
    ("fe80::1%eth0", False),
    ("fd00::7%a\r\nX: y", False),
)
def test_addresses_of_monitors(address, expected):
    assert is_host(address) is expected


class Pods:
    """An API server with these pods of the monitor, by node."""

    def __init__(self, **addresses):
        self.addresses = addresses
        self.requests = []
        self.is_ready = "True"

    def request(self, method, path, *, query=None):
        self.requests.append((method, path, query["labelSelector"]))
        name = query["fieldSelector"].removeprefix("spec.nodeName=")
        items = [
            {
                "status": {
                    "podIP": address,
                    "conditions": [{"type": "Ready", "status": self.is_ready}],
                }
            }
            for address in self.addresses.get(name, ())
        ]
        return msgspec.json.encode({"metadata": {}, "items": items})


def test_a_monitor_is_looked_for_once_in_a_while_and_again_when_it_does_not_answer():
    pods, clock, read = Pods(n1=["127.0.0.1", "10.0.0.1"], n2=[]), Clock(), []

    def answer(host, port):
        read.append((host, port))
        if len(read) == 3:
            raise NoMonitor("gone")
        return "page"

    monitors = Monitors(pods, "hami", "a=b", 7, clock=clock, read=answer)
    assert [monitors.page("n1") for _ in range(2)] == ["page"] * 2
    assert pods.requests == [("GET", "/api/v1/namespaces/hami/pods", "a=b")]
    assert read == [("10.0.0.1", 7)] * 2
    with pytest.raises(NoMonitor):
        monitors.page("n1")
    monitors.page("n1")
    clock.seconds += 3600
    monitors.page("n1")
    assert len(pods.requests) == 3
    with pytest.raises(NoMonitor, match="n2"):
        monitors.page("n2")
    pods.is_ready = "False"
    with pytest.raises(NoMonitor):
        Monitors(pods, "hami", "a=b", 7, clock=clock, read=answer).page("n1")


# Polled values


def poller(clock, values):
    return Poller(
        "any", None, PollLimits(interval=10, shown=60, viewed=90, values=values), clock=clock
    )


def test_values_are_polled_while_they_are_viewed_and_shown_while_they_are_fresh():
    clock = Clock()
    values = poller(clock, 3)
    assert (values.due(), values.view("a"), values.due()) == ([], None, ["a"])
    values.put("a", 1)
    assert (values.view("a"), values.changes, values.due()) == (1, 1, [])
    clock.seconds += 10
    assert values.due() == ["a"]
    values.put("a", 1)
    assert values.changes == 1
    values.put("a", None)
    assert (values.view("a"), values.due()) == (1, [])
    clock.seconds += 60
    assert (values.view("a"), values.due(), values.changes) == (None, ["a"], 2)
    clock.seconds += 91
    assert values.due() == []
    values.put("a", 5)
    assert (values.view("a"), values.changes) == (None, 2)


def test_polls_give_way_to_a_page_that_is_made_but_not_for_long():
    clock, fetched = Clock(), []
    renderings = Renderings(clock=clock)
    values = Poller(
        "any",
        lambda key: fetched.append(key) or 1,
        PollLimits(interval=10, shown=60, viewed=90, values=9, at_once=1),
        clock=clock,
        give_way=renderings.wait_until_made,
    )
    values.view("a")
    is_made = threading.Event()

    def make():
        assert is_made.wait(20)
        return "text", "text/plain"

    with ThreadPoolExecutor(2) as pool:
        page = pool.submit(renderings.get, "page", lambda: 1, make)
        eventually(renderings._making.locked, "the page is made")
        begun = time.monotonic()
        values.step()
        waited = time.monotonic() - begun
        assert (waited >= GIVE_WAY_S, fetched, page.done()) == (True, ["a"], False)
        is_made.set()
        assert page.result(20).body == b"text"


def test_the_number_of_polled_values_is_bounded():
    values = poller(Clock(), 3)
    for name in "abcde":
        values.view(name)
    assert values.due() == ["c", "d", "e"]


@settings(max_examples=20)
@given(chance=randoms(use_true_random=True))
def test_nothing_old_is_shown_and_nothing_is_polled_too_often(chance):
    clock = Clock()
    values, answered, polled, viewed = poller(clock, 4), {}, {}, {}
    for step in range(400):
        clock.seconds += chance.choice((0, 1, 7, 40))
        name = chance.choice("abcdef")
        match chance.randrange(3):
            case 0:
                shown = values.view(name)
                assert (
                    shown is None
                    or clock.seconds - answered[name][0] < 60
                    and answered[name][1] == shown
                )
                if (
                    clock.seconds - viewed.pop(name, clock.seconds) > 90
                ):  # it may have been forgotten
                    polled.pop(name, None)
                viewed[name] = clock.seconds
                for dropped in list(viewed)[:-4]:
                    polled.pop(dropped, None)
            case 1:
                for due in values.due():
                    assert due not in polled or clock.seconds - polled[due] >= 10
            case 2 if name in values.due():
                values.put(name, step)
                answered[name], polled[name] = (clock.seconds, step), clock.seconds


# What is shown


@pytest.fixture
def stage():
    """A node with two cards and a monitor, and one without a monitor."""
    made = DashboardStage(
        [node("n1", gpu(memory_mib=10_000), gpu(memory_mib=10_000)), node("n2")],
        [
            bound("a", "n1", (0, 6000, 50), gpu=1),
            bound("secret", "n1", (0, 1500, 5), namespace="other", gpu=1),
            pending("waits", gpu=8, gpumem=9500),
        ],
        rights=Rights({"t-admin": "admin", "t-dev": "dev"}, {"admin": {""}, "dev": {"default"}}),
    )
    made.monitors["n1"] = (
        card_lines()
        + card_lines(0, 0, "GPU-n1-1")
        + pod_lines()
        + pod_lines(777 * MIB, 7, pod="secret", namespace="other")
    )
    return made


def test_the_numbers_of_the_monitor_are_beside_what_was_given_out(stage):
    for path in ("/", "/nodes/n1", "/cards/n1/GPU-n1-0", "/pods/default/a"):
        assert "in use" not in stage.ask(path, "t-admin").text
    stage.collect()
    item = stage.json("/", "t-admin")["items"][0]
    assert item["use"] == {"memoryMib": 3072, "computePercent": 22, "asOf": AT}
    assert item["cards"][0]["use"] == {"memoryMib": 3072, "computePercent": 45, "asOf": AT}
    assert [part["use"]["memoryMib"] for part in item["cards"][0]["segments"]] == [1024, 777]
    assert stage.json("/cards/n1/GPU-n1-0", "t-admin")["card"]["use"]["computePercent"] == 45
    assert (
        stage.json("/pods/default/a", "t-admin")["cards"][0]["card"]["segments"][0]["use"][
            "computePercent"
        ]
        == 20
    )
    assert "3 GiB, 22% busy" in stage.ask("/", "t-admin").text
    for path in ("/nodes/n1", "/cards/n1/GPU-n1-0", "/pods/default/a"):
        text = stage.ask(path, "t-admin").text
        assert "3 GiB in use" in text, path
        assert "45% busy" in text, path
        assert f'<time datetime="{AT}" data-ago>' in text, path


def test_without_a_number_nothing_is_shown(stage):
    stage.ask("/nodes/n2", "t-admin")
    stage.collect()
    page = stage.json("/nodes/n2", "t-admin")
    assert page["use"] is None
    assert page["cards"][0]["use"] is None
    assert "measured" not in stage.ask("/nodes/n2", "t-admin").text


def test_the_use_of_pods_that_a_viewer_may_not_see_is_not_told(stage):
    stage.ask("/?namespace=default", "t-dev")
    stage.collect()
    card = stage.json("/?namespace=default", "t-dev")["items"][0]["cards"][0]
    assert [
        (part["pod"], part["use"] and part["use"]["memoryMib"]) for part in card["segments"]
    ] == [("a", 1024), (None, None)]
    for path in ("/", "/nodes/n1", "/cards/n1/GPU-n1-0", "/pods/default/a"):
        assert "777" not in stage.ask(f"{path}?namespace=default", "t-dev").text


def test_a_monitor_says_nothing_about_cards_of_other_nodes(stage):
    stage.monitors["n1"] += card_lines(GIB, 1, "GPU-n2-0")
    for _ in range(2):
        stage.ask("/", "t-admin")
        stage.collect()
    assert stage.json("/nodes/n2", "t-admin")["cards"][0]["use"] is None


def test_new_numbers_change_the_etag_and_the_same_do_not(stage):
    def etag():
        stage.clock.seconds += 2
        return stage.ask("/nodes/n1", "t-admin").headers["ETag"]

    def next_answer():
        stage.clock.seconds += USE_LIMITS.interval
        stage.collect()

    before = etag()
    stage.collect()
    with_numbers = etag()
    assert with_numbers != before
    assert stage.ask("/nodes/n1", "t-admin", If_None_Match=with_numbers).status_code == 304
    next_answer()
    assert etag() == with_numbers
    stage.monitors["n1"] = card_lines(5 * GIB)
    next_answer()
    assert etag() != with_numbers
    assert stage.ask("/nodes/n1", "t-admin", If_None_Match=with_numbers).status_code == 200


def test_old_numbers_disappear(stage):
    stage.ask("/nodes/n1", "t-admin")
    stage.collect()
    stage.monitors.clear()
    assert stage.json("/nodes/n1", "t-admin")["use"] is not None
    for _ in range(8):
        stage.clock.seconds += 10
        stage.collect()
    assert stage.json("/nodes/n1", "t-admin")["use"] is None


# Polling


class FakeMonitors:
    """Monitors that record which nodes were polled; some raise."""

    def __init__(self, **errors):
        self.errors = errors
        self.nodes = []

    def __call__(self, node):
        self.nodes.append(node)
        if node in self.errors:
            raise self.errors[node]
        return card_lines()


def use_of_cards(page, clock):
    return use_poller(page, clock=clock, now=lambda: datetime(2026, 8, 21, 12, 30, tzinfo=UTC))


@pytest.mark.parametrize(
    "error",
    [
        NoMonitor("n2"),
        ClusterError("no", 500),
        MalformedInput("x", "y", "z"),
        ValueError("a defect"),
    ],
    ids=repr,
)
def test_a_monitor_that_fails_disturbs_no_other_and_is_left_alone_for_some_time(error):
    clock, monitors = Clock(), FakeMonitors(n2=error)
    uses = use_of_cards(monitors, clock)
    for name in ("n1", "n2", "n3"):
        assert uses.view(name) is None
    uses.step()
    assert [uses.view(name) is not None for name in ("n1", "n2", "n3")] == [True, False, True]
    clock.seconds += USE_LIMITS.interval
    uses.step()
    assert sorted(monitors.nodes) == ["n1", "n1", "n2", "n3", "n3"]
    clock.seconds += FAILED_S
    uses.step()
    assert monitors.nodes.count("n2") == 2
    uses.finish()


def test_nodes_that_nobody_views_are_not_polled():
    clock, monitors = Clock(), FakeMonitors()
    uses = use_of_cards(monitors, clock)
    uses.view("n1")
    for _ in range(60):
        uses.step()
        clock.seconds += 10
    assert len(monitors.nodes) < 10
    for number in range(2 * USE_LIMITS.values):
        uses.view(f"n{number}")
    monitors.nodes.clear()
    while uses.due():
        uses.step()
    assert len(monitors.nodes) == USE_LIMITS.values
    uses.finish()


def test_without_a_selector_no_monitor_is_polled():
    uses = use_of_cards(Monitors(None, "hami", "", 7, read=pytest.fail).page, Clock())
    assert uses.view("n1") is None
    uses.step()
    assert uses.view("n1") is None
    uses.finish()


def test_the_thread_polls_until_it_is_stopped():
    polled = threading.Event()

    def page(node):
        polled.set()
        return card_lines()

    uses = use_of_cards(page, Clock())
    uses.view("n1")
    thread = threading.Thread(target=uses.run)
    thread.start()
    assert polled.wait(20)
    uses.stop()
    thread.join(20)
    assert not thread.is_alive()


# Why kube-scheduler does not place a pod


class Conditions:
    """An API server with one pod."""

    def __init__(self, *conditions):
        self.conditions = conditions
        self.paths = []

    def request(self, method, path):
        self.paths.append(path)
        return msgspec.json.encode({"status": {"conditions": self.conditions}})


WHY = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/2 nodes are available",
    "lastTransitionTime": AT,
}


@pytest.mark.parametrize(
    "conditions, expected",
    [
        ([], SchedulingCondition()),
        ([WHY | {"status": "True"}], SchedulingCondition()),
        ([WHY], SchedulingCondition("Unschedulable", "0/2 nodes are available", AT)),
        ([{"type": "Ready", "status": "False", "message": "x"}], SchedulingCondition()),
        ([WHY | {"message": "a\x1b[31mb\n"}], SchedulingCondition("Unschedulable", "a?[31mb?", AT)),
        (
            [WHY | {"message": "x" * 10_000}],
            SchedulingCondition("Unschedulable", "x" * MESSAGE_LIMIT, AT),
        ),
        ([{"type": "PodScheduled", "status": "False", "message": None}], SchedulingCondition()),
    ],
    ids=repr,
)
def test_the_condition_of_a_waiting_pod(conditions, expected):
    api = Conditions(*conditions)
    assert read_condition(api, PodRef("ns", "p", "u")) == expected
    assert api.paths == ["/api/v1/namespaces/ns/pods/p"]


def test_a_waiting_pod_shows_why_kube_scheduler_does_not_place_it(stage):
    stage.conditions["waits"] = SchedulingCondition(
        "Unschedulable", "0/2 nodes are <b>available</b>", AT
    )
    assert stage.json("/pods/default/waits", "t-admin")["waits"]["condition"] is None
    stage.collect()
    stage.clock.seconds += 2
    assert (
        stage.json("/pods/default/waits", "t-admin")["waits"]["condition"]["reason"]
        == "Unschedulable"
    )
    assert "0/2 nodes are &lt;b&gt;available" in stage.ask("/pods/default/waits", "t-admin").text
    assert stage.json("/pending", "t-admin")["items"][0]["condition"] is None


# What the annotations of a bound pod say of its size

LARGE, SMALL = "GPU-a,NVIDIA,8192,40:;", "GPU-a,NVIDIA,3072,20:;"


@cases(
    "uid, annotations, expected",
    ("nothing", "u", {}, PodSize()),
    ("another pod", "other", {RESIZE: "{"}, PodSize()),
    ("unreadable", "u", {RESIZE: "{\x1b"}, PodSize(ResizeReport("Requested", "{?"))),
    (
        "pending",
        "u",
        {
            RESIZED: LARGE,
            RESIZE_TARGET: SMALL,
            RESIZE_STATUS: '{"state":"Booked","message":"uses\\u202e 5"}',
        },
        PodSize(ResizeReport("Booked", message="uses? 5", excess_mib=5120, excess_cores=20)),
    ),
)
def test_the_size_of_a_bound_pod(uid, annotations, expected):
    class Api:
        def request(self, method, path):
            assert (method, path) == ("GET", "/api/v1/namespaces/ns/pods/p")
            return msgspec.json.encode({"metadata": {"uid": uid, "annotations": annotations}})

    assert read_size(Api(), PodRef("ns", "p", "u")) == expected


def shrinking(stage):
    """The pod a holds 6,000 MiB and 50 cores, and is to have 500 and 5 less."""
    pod = bound("a", "n1", (0, 6000, 50), gpu=1)
    held = pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"]
    pod["metadata"] |= {
        "resourceVersion": "99",
        "annotations": pod["metadata"]["annotations"]
        | {CORES_LIMIT: "60", RESIZED: held, RESIZE_TARGET: held.replace("6000,50", "5500,45")},
    }
    stage.add(pod)


@cases(
    "path, row",
    ("/pods/default/a", lambda page: page["row"]),
    ("/namespaces/default", lambda page: page["pods"][0]),
)
def test_a_pod_shows_what_it_may_use_and_is_to_have(stage, path, row):
    before = row(stage.json(path, "t-admin"))
    assert (before["memoryWantedMib"], before["coresWanted"], before["coresLimit"]) == (
        6000,
        50,
        None,
    )
    shrinking(stage)
    stage.clock.seconds += 2
    after = row(stage.json(path, "t-admin"))
    assert (after["memoryMib"], after["memoryWantedMib"]) == (6000, 5500)
    assert (after["cores"], after["coresWanted"], after["coresLimit"]) == (50, 45, 60)
    text = stage.ask(path, "t-admin").text
    assert "60%" in text
    assert "50 → 45" in text
    assert " → 5.4 GiB" in text


def test_a_pod_shows_what_becomes_of_its_resize(stage):
    stage.sizes["a"] = PodSize(
        ResizeReport("Booked", "{}", "it uses <b>more</b>", excess_mib=500, excess_cores=5)
    )
    assert stage.json("/pods/default/a", "t-admin")["size"] is None
    stage.collect()
    stage.clock.seconds += 2
    text = stage.ask("/pods/default/a", "t-admin").text
    assert "pending; it uses &lt;b&gt;more&lt;/b&gt;" in text
    assert "pending;" not in stage.ask("/pods/default/waits", "t-admin").text
