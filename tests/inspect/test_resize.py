"""Another size of a running pod: what is asked for, what becomes of it, and what is said of it."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from hami.cli import main
from hami.codec.keys import (
    NODE_RESIZES,
    RESIZE,
    RESIZE_APPLIED,
    RESIZE_STATUS,
    RESIZE_TARGET,
    RESIZED,
)
from hami.codec.resize import (
    AppliedSizes,
    ResizeState,
    ResizeStatus,
    Size,
    parse_resize,
    render_applied,
    render_resize,
    render_status,
)
from hami.errors import HamiError
from hami.inspect.cluster import SchedulingEvent
from hami.inspect.resize import follow, requested_sizes, resizable
from hami.inspect.resize_report import ResizeReport, excess, resize_report, size_lines
from hami.model import Container
from testing.builders import INIT, gpus, pod
from testing.cases import cases
from testing.fake_api import FakeApi, bound, node, pending, quota, refused

SMALL, LARGE = "GPU-a,NVIDIA,3072,20:;", "GPU-a,NVIDIA,8192,40:;"
TEXT = '{"main":{"memory":"8Gi","cores":40}}'


def status(state, message="", request=TEXT):
    return {RESIZE_STATUS: render_status(ResizeStatus(state, request, message))}


def resized(**annotations):
    """A running pod with these annotations, by the names of their keys."""
    keys = {
        "request": RESIZE,
        "resized": RESIZED,
        "target": RESIZE_TARGET,
        "status": RESIZE_STATUS,
        "applied": RESIZE_APPLIED,
    }
    return {"hami.io/vgpu-devices-allocated": SMALL} | {
        keys[name]: text for name, text in annotations.items()
    }


@cases(
    "annotations, report, sentence",
    ("nothing", {}, None, ""),
    (
        "not answered",
        {RESIZE: TEXT},
        ResizeReport("Requested", TEXT),
        "requested, the scheduler has not answered yet",
    ),
    (
        "another one was answered",
        {RESIZE: TEXT} | status("Applied", request="{}"),
        ResizeReport("Requested", TEXT),
        "requested, the scheduler has not answered yet",
    ),
    (
        "an answer that cannot be read",
        {RESIZE: TEXT, RESIZE_STATUS: "{"},
        ResizeReport("Requested", TEXT),
        "requested, the scheduler has not answered yet",
    ),
    (
        "booked",
        {RESIZE: TEXT} | status("Booked"),
        ResizeReport("Booked", TEXT),
        "booked, its node has not confirmed it yet",
    ),
    (
        "pending",
        (
            {RESIZE: TEXT, RESIZED: LARGE, RESIZE_TARGET: SMALL}
            | status("Booked", "it uses 5,000 MiB")
        ),
        ResizeReport("Booked", TEXT, "it uses 5,000 MiB", excess_mib=5120, excess_cores=20),
        (
            "pending; it uses 5,000 MiB; 5,120 MiB and 20 cores more than it is to have stay booked until it uses no "
            "more"
        ),
    ),
    ("applied", {RESIZE: TEXT} | status("Applied"), ResizeReport("Applied", TEXT), "applied"),
    (
        "deferred",
        {RESIZE: TEXT} | status("Deferred", "at most 5 MiB fit"),
        ResizeReport("Deferred", TEXT, "at most 5 MiB fit"),
        "deferred, it is tried again when something changes; at most 5 MiB fit",
    ),
    (
        "infeasible",
        (
            {RESIZE: TEXT, RESIZE_APPLIED: render_applied(AppliedSizes(SMALL, "no limits file"))}
            | status("Infeasible", "no")
        ),
        ResizeReport("Infeasible", TEXT, "no", "no limits file"),
        "infeasible; no; its node says: no limits file",
    ),
    (
        "only debts",
        {RESIZED: LARGE, RESIZE_TARGET: SMALL},
        ResizeReport("Booked", excess_mib=5120, excess_cores=20),
        "pending; 5,120 MiB and 20 cores more than it is to have stay booked until it uses no more",
    ),
    (
        "the request was taken away",
        status("Applied", request=""),
        ResizeReport("Applied"),
        "applied",
    ),
)
def test_what_the_annotations_say(annotations, report, sentence):
    found = resize_report(annotations)
    assert found == report
    assert found is None or found.sentence == sentence


@cases(
    "target, found",
    (SMALL, (5120, 20)),
    (LARGE, (0, 0)),
    ("GPU-a,NVIDIA,9000,10:;", (0, 30)),
    ("x,", (0, 0)),
    ("", (0, 0)),
)
def test_what_is_booked_beyond_what_a_pod_is_to_have(target, found):
    assert excess({RESIZED: LARGE, RESIZE_TARGET: target}) == found


RUNNING = pod(
    replace(gpus(), name="main"), name="p", node_name="n", phase="Running", annotations=resized()
)


def has(*names, text=None, **fields):
    """A pod with containers of these names, each with a share, or with the allocation *text*."""
    text = "".join("GPU-a,NVIDIA,1,1:;" for _ in names) if text is None else text
    containers = tuple(Container(name=name) for name in names)
    return replace(
        RUNNING,
        containers=containers,
        annotations={"hami.io/vgpu-devices-allocated": text},
        **fields,
    )


LEFT_OUT = replace(RUNNING, containers=(Container(name="plain"), *RUNNING.containers))


@cases(
    "one, container, found",
    ("the only one", has("main"), "", "main"),
    ("by its name", has("a", "b"), "b", "b"),
    ("the only one with GPUs", has("a", "b", text=";GPU-a,NVIDIA,1,1:;"), "", "b"),
    (
        "it cannot be told which of them has GPUs",
        has("a", "b", text="GPU-a,NVIDIA,1,1:;"),
        "b",
        "b",
    ),
    ("HAMi leaves out containers without GPUs", LEFT_OUT, "", "main"),
    (
        "init containers have ended",
        replace(
            RUNNING,
            containers=(replace(gpus(kind=INIT), name="i"), *RUNNING.containers),
            annotations={RESIZED: SMALL + SMALL},
        ),
        "",
        "main",
    ),
)
def test_the_container_whose_size_changes(one, container, found):
    assert resizable(one, container) == found


@cases(
    "one, lines",
    ("one", RUNNING, ["main 3,072 MiB and 20 cores"]),
    ("HAMi leaves out containers without GPUs", LEFT_OUT, ["main 3,072 MiB and 20 cores"]),
    ("it cannot be told which of them has GPUs", has("a", "b"), ["? 3,072 MiB and 20 cores"]),
)
def test_what_each_container_has(one, lines):
    assert list(size_lines(one, SMALL)) == lines


@cases(
    "one, container, why",
    (
        "several",
        has("a", "b"),
        "",
        "pod default/p has several containers with GPUs: name one of a, b",
    ),
    (
        "unknown",
        has("main"),
        "mein",
        "no container with GPUs in pod default/p: mein; did you mean main?",
    ),
    ("no GPUs", has("main", text=";"), "", "pod default/p holds no GPUs that HAMi has allocated"),
    ("an allocation that cannot be read", has("main", text="x,"), "", "holds no GPUs"),
    (
        "waits",
        has("main", node_name=""),
        "",
        "is not bound yet: change what its containers request instead",
    ),
    ("finished", has("main", phase="Failed"), "", "has finished"),
)
def test_pods_that_cannot_be_resized(one, container, why):
    with pytest.raises(HamiError) as caught:
        resizable(one, container)
    assert why in str(caught.value)


@cases(
    "annotations, size, text",
    (
        "nothing before",
        {},
        Size(memory_mib=8192, cores=40),
        '{"main":{"memory":"8192Mi","cores":40}}',
    ),
    (
        "for another container",
        {RESIZE: '{"other":{"cores":5}}'},
        Size(cores=40),
        '{"other":{"cores":5},"main":{"cores":40}}',
    ),
    (
        "the rest of the same",
        {RESIZE: TEXT} | status("Deferred"),
        Size(cores=10),
        '{"main":{"memory":"8192Mi","cores":10}}',
    ),
    (
        "percent for MiB",
        {RESIZE: TEXT},
        Size(memory_percent=30),
        '{"main":{"memory":"30%","cores":40}}',
    ),
    (
        "what was refused",
        {RESIZE: TEXT} | status("Infeasible"),
        Size(cores=10),
        '{"main":{"cores":10}}',
    ),
    ("what cannot be read", {RESIZE: "{"}, Size(cores=10), '{"main":{"cores":10}}'),
)
def test_what_is_asked_for(annotations, size, text):
    sizes = requested_sizes(replace(RUNNING, annotations=annotations), "main", size)
    assert render_resize(sizes) == text
    assert parse_resize(text) == sizes


def followed(*later, timeout_s=60.0, why=lambda ref: ()):
    """Follows a request while the pod becomes each of *later* (annotations, or a pod); returns whether it holds, what
    was said, and the time that it took. The last of *later* stays."""
    asked = replace(RUNNING, annotations=resized(request=TEXT))
    states = [
        one
        if one is None or not isinstance(one, dict)
        else replace(asked, annotations=asked.annotations | one)
        for one in later
    ]
    said, time = [], [0.0]

    def sleep(seconds):
        time[0] += seconds

    problem = follow(
        asked,
        lambda: states.pop(0) if len(states) > 1 else states[0],
        said.append,
        timeout_s=timeout_s,
        why=why,
        clock=lambda: time[0],
        sleep=sleep,
    )
    return problem, said, time[0]


def test_each_change_is_said_once():
    grows = {RESIZED: LARGE} | status("Booked")
    assert followed({}, {}, grows, grows, {RESIZED: LARGE} | status("Applied")) == (
        "",
        [
            "booked, its node has not confirmed it yet: main 8,192 MiB and 40 cores",
            "applied: main 8,192 MiB and 40 cores",
        ],
        2.0,
    )


def test_a_shrink_waits_until_the_container_uses_no_more():
    shrinks = {RESIZED: LARGE, RESIZE_TARGET: SMALL}
    problem, said, _ = followed(
        shrinks | status("Booked", "it uses 5,000 MiB"),
        shrinks | status("Booked", "it uses 4,000 MiB"),
        {RESIZED: SMALL} | status("Applied"),
    )
    assert not problem
    assert [text.partition(";")[0] for text in said] == [
        "pending",
        "pending",
        "applied: main 3,072 MiB and 20 cores",
    ]
    assert "it uses 4,000 MiB" in said[1]
    assert said[1].endswith("main 3,072 MiB and 20 cores")


def test_why_a_shrink_waits_is_said_in_the_words_of_the_node():
    def why(ref):
        return [
            SchedulingEvent("s", "ResizePending", f"{ref.name} uses {text}", 1, "now")
            for text in ("much", "more")
        ]

    shrinks = {RESIZED: LARGE, RESIZE_TARGET: SMALL} | status("Booked")
    _, said, _ = followed(shrinks, {RESIZED: SMALL} | status("Applied"), why=why)
    assert ": p uses more: main 3,072 MiB" in said[0]
    assert "uses" not in said[1]


@cases(
    "later, said",
    ("infeasible", status("Infeasible", "it is exclusive"), "infeasible; it is exclusive"),
    ("another request", {RESIZE: "{}"}, "replaced: somebody asks for something else now"),
)
def test_requests_that_never_hold(later, said):
    assert followed(later) == (said, [], 0.0)


def test_a_request_that_does_not_hold_in_time_stands():
    problem, said, time = followed(status("Deferred", "at most 6,000 MiB fit"), timeout_s=7.0)
    assert time == 7.0
    assert said == ["deferred, it is tried again when something changes; at most 6,000 MiB fit"]
    assert problem == (
        "it does not hold after 7 s. The request stands: see hami explain pod p -n default"
    )


@cases(
    "later",
    ("gone", None),
    ("another of its name", replace(RUNNING, ref=replace(RUNNING.ref, uid="other"))),
    ("finished", replace(RUNNING, phase="Failed")),
)
def test_a_pod_that_ends(later):
    with pytest.raises(HamiError, match="pod default/p has ended"):
        followed(later)


# The command


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    """The tests do not run in a pod."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def api(*answers, **fields):
    return FakeApi([node("n1")], [bound("p", "n1", (0, 3072, 20))], answers=list(answers), **fields)


def hami(*args, of):
    return CliRunner().invoke(main, ["resize", "pod", *args], obj=lambda client: of.request)


def applied(request='{"main":{"memory":"8192Mi"}}', state=ResizeState.APPLIED, message=""):
    return {RESIZED: "GPU-n1-0,NVIDIA,8192,20:;"} | status(state, message, request)


def test_the_command_asks_and_says_when_it_holds():
    of = api(applied())
    result = hami("p", "--memory=8Gi", "-n", "default", of=of)
    assert (result.exit_code, result.stdout.splitlines()) == (
        0,
        ["requested: main 8,192 MiB", "applied: main 8,192 MiB and 20 cores"],
    )
    assert of.patches == [
        {
            "uid": "uid-default-p",
            "resourceVersion": "1",
            "annotations": {RESIZE: '{"main":{"memory":"8192Mi"}}'},
        }
    ]


def test_the_command_writes_nothing_with_the_account_of_its_pod(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    of = api()
    refused = hami("p", "--memory=8Gi", "-n", "default", of=of)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == (
        "error: a command that writes does not use the account of its pod: run it where you have a kubeconfig, or name "
        "one with --kubeconfig\n"
    )
    assert of.patches == []
    mine = hami("p", "--memory=8Gi", "-n", "default", "--kubeconfig=mine", "--timeout=0s", of=of)
    assert mine.exit_code == 1
    assert len(of.patches) == 1


def test_the_command_reads_the_pod_again_if_others_change_it():
    of = api()

    def request(method, *args, **fields):
        if method == "PATCH" and not of.patches:
            of.pods[0]["metadata"]["resourceVersion"] = "2"
            of.pods[0]["metadata"]["annotations"][RESIZE] = '{"side":{"cores":5}}'
        return of.request(method, *args, **fields)

    result = CliRunner().invoke(
        main,
        ["resize", "pod", "p", "--cores=30", "-n=default", "--timeout=0s"],
        obj=lambda client: request,
    )
    assert result.exit_code == 1
    assert [(patch["resourceVersion"], patch["annotations"][RESIZE]) for patch in of.patches] == [
        ("1", '{"main":{"cores":30}}'),
        ("2", '{"side":{"cores":5},"main":{"cores":30}}'),
    ]


def test_ctrl_c_leaves_the_request():
    of = api()

    def request(method, *args, **fields):
        if method == "GET" and of.patches:
            raise KeyboardInterrupt
        return of.request(method, *args, **fields)

    result = CliRunner().invoke(
        main, ["resize", "pod", "p", "--cores=30", "-n=default"], obj=lambda client: request
    )
    assert result.exit_code == 130
    assert (
        result.stdout.splitlines()[-1]
        == "interrupted. The request stands: see hami explain pod p -n default"
    )


def cluster(*pods, resizes="true", **limits):
    return FakeApi(
        [node("n1", annotations={NODE_RESIZES: resizes})],
        list(pods),
        [quota("default", **limits)] if limits else [],
    )


@cases(
    "args, of, code, said",
    (
        "more",
        ["--memory=8Gi", "--cores=40"],
        cluster(bound("p", "n1", (0, 3072, 20))),
        0,
        "it fits: main 8,192 MiB and 40 cores",
    ),
    (
        "percent",
        ["--memory=10%"],
        cluster(bound("p", "n1", (0, 3072, 20))),
        0,
        "it fits: main 8,192 MiB and 20 cores",
    ),
    (
        "less",
        ["--memory=1Gi"],
        cluster(bound("p", "n1", (0, 3072, 20))),
        0,
        (
            "pending; 2,048 MiB and 0 cores more than it is to have stay booked until it uses no more: main 1,024 MiB "
            "and 20 cores"
        ),
    ),
    (
        "beside others",
        ["--memory=8Gi"],
        cluster(bound("p", "n1", (0, 3072, 20)), bound("q", "n1", (0, 75_000, 20))),
        1,
        "at most 6920 MiB and 80 percent fit",
    ),
    (
        "quota",
        ["--memory=8Gi"],
        cluster(bound("p", "n1", (0, 3072, 20)), gpumem=5000),
        1,
        "at most 5000 MiB",
    ),
    (
        "a node that does not resize",
        ["--memory=8Gi"],
        cluster(bound("p", "n1", (0, 3072, 20)), resizes="false"),
        1,
        "the device plugin of node n1 does not change",
    ),
    (
        "whole",
        ["--memory=8Gi"],
        cluster(bound("p", "n1", (0, 3072, 100))),
        1,
        "infeasible; container main has",
    ),
    (
        "no such pod",
        ["--memory=8Gi"],
        cluster(bound("q", "n1", (0, 3072, 20))),
        2,
        'pods "p" not found in namespace default',
    ),
)
def test_what_would_be_decided_and_nothing_is_written(args, of, code, said, tmp_path):
    result = hami("p", "-n=default", "--dry-run", *args, of=of)
    assert result.exit_code == code
    assert said in result.output
    assert of.patches == []
    (path := tmp_path / "snapshot").write_bytes(
        CliRunner().invoke(main, ["snapshot"], obj=lambda client: of.request).stdout_bytes
    )
    assert (
        hami("p", "-n=default", "--dry-run", *args, f"--snapshot={path}", of=FakeApi()).output
        == result.output
    )


@cases(
    "args, of, code, said",
    ("nothing asked for", ["p", "-n", "default"], api(), 2, "expected --memory, --cores or both"),
    ("cores", ["p", "--cores=0"], api(), 2, "0 is not in the range 1<=x<=100"),
    (
        "no quantity",
        ["p", "--memory=x"],
        api(),
        2,
        "error: --memory=x: expected a positive quantity",
    ),
    ("timeout", ["p", "--memory=8Gi", "--timeout=x"], api(), 2, "expected numbers with units"),
    ("no such pod", ["q", "--memory=8Gi"], api(), 2, 'error: pods "q" not found in namespace team'),
    ("all namespaces", ["p", "--memory=8Gi", "-A"], api(), 2, "a pod has one namespace: use -n"),
    (
        "waits",
        ["w", "--memory=8Gi"],
        FakeApi([node("n1")], [pending("w", "team", gpu=1)]),
        2,
        "is not bound yet",
    ),
    (
        "snapshot",
        ["p", "--memory=8Gi", "--snapshot=x"],
        api(),
        2,
        "only --dry-run answers from one",
    ),
    (
        "no right",
        ["p", "-n=default", "--cores=9"],
        api(errors={"/api/v1/namespaces/default/pods/p": refused("get")}),
        2,
        "you may not get pods in namespace default",
    ),
    (
        "infeasible",
        ["p", "-n=default", "--memory=8Gi"],
        api(applied(state="Infeasible", message="all is taken")),
        1,
        "infeasible; all is taken",
    ),
)
def test_commands_that_fail(args, of, code, said):
    result = hami(*args, of=of)
    assert result.exit_code == code
    assert said in result.output
