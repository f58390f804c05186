"""The program: it reads the cluster, serves pages and probes, and ends when it no longer works."""

import contextlib
import json
import os
import queue
import re
import signal
import ssl
import subprocess
import sys
import threading

import pytest
import urllib3
import yaml
from click.testing import CliRunner

from hami.cli import main
from hami.cli.dashboard import DASHBOARD_FLAGS
from hami.dashboard.live import LiveCluster
from hami.dashboard.program import DashboardProgram
from hami.dashboard.settings import DashboardSettings
from hami.errors import ClusterError, HamiError
from hami.runtime.options import Address, all_flags
from hami.runtime.signals import run_until_signal
from hami.scheduler.cluster_store import cluster_store
from hami.scheduler.settings import Settings
from hami.state.workload import FIRST
from testing.cases import cases
from testing.eventually import eventually
from testing.fake_api import bound, node, pending
from testing.processes import thread_states
from tests.web.test_tls import Authority

TIMEOUT_S = 20.0


class Cluster:
    """An API server with these objects, whose watches stay silent."""

    def __init__(self, nodes=(), pods=()):
        self.lists = {"/api/v1/nodes": nodes, "/api/v1/pods": pods, "/api/v1/resourcequotas": ()}
        self.is_read = threading.Event()
        self.is_read.set()
        self.error = None

    def request(self, method, path, *, query=None):
        assert self.is_read.wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error
        if path not in self.lists:
            return b"{}"
        return json.dumps(
            {"metadata": {"resourceVersion": "5"}, "items": self.lists[path]}
        ).encode()

    def stream(self, path, query, *, read_timeout):
        return SilentWatch()


class SilentWatch:
    """A watch without events."""

    def __init__(self):
        self._ended = threading.Event()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def __iter__(self):
        self._ended.wait(TIMEOUT_S)
        return iter(())

    def close(self):
        self._ended.set()


@pytest.fixture
def cluster():
    return Cluster(
        [node("n1")],
        [bound("a", "n1", (0, 20_000, 50), gpu=1), pending("waits", gpu=1, gpumem=90_000)],
    )


@pytest.fixture
def start(cluster):
    """Starts programs on loopback and stops them after the test."""
    with contextlib.ExitStack() as stack:

        def start(store=None, **given):
            settings = DashboardSettings(**{"bind_address": Address("127.0.0.1", 0)} | given)
            program = DashboardProgram(settings, store or cluster_store(Settings()), api=cluster)
            program.start()
            stack.callback(program.stop)
            return program

        yield start


def get(program, path, **options):
    scheme = "https" if options else "http"
    with urllib3.PoolManager(retries=False, timeout=TIMEOUT_S, **options) as pool:
        answer = pool.request("GET", f"{scheme}://localhost:{program.address[1]}{path}")
        return answer.status, answer.data.decode()


def test_it_learns_the_usual_pods_from_those_that_have_devices(start, cluster):
    cluster.lists["/api/v1/pods"] = [
        bound(f"p{number}", "n1", (0, 1000, 5), gpu=1) for number in range(FIRST)
    ]
    store = cluster_store(Settings())
    start(store)
    eventually(lambda: store.view().facts.usual.kinds, "the usual pods are known")


def test_it_shows_the_cluster_once_it_has_read_it(start, cluster):
    cluster.is_read.clear()
    program = start()
    assert get(program, "/readyz") == (503, "the cluster is still being read\n")
    assert get(program, "/healthz") == (200, "ok\n")
    assert get(program, "/")[0] == 503
    cluster.is_read.set()
    eventually(lambda: get(program, "/readyz") == (200, "ok\n"), "the cluster has been read")
    assert [
        item["node"]["name"] for item in json.loads(get(program, "/?format=json")[1])["items"]
    ] == ["n1"]


def test_it_is_ready_once_the_first_viewer_need_not_wait_for_the_rows_of_all_nodes(
    start, monkeypatch
):
    are_allowed = threading.Event()
    make = LiveCluster.node_rows

    def slow(live):
        assert are_allowed.wait(TIMEOUT_S)
        return make(live)

    monkeypatch.setattr(LiveCluster, "node_rows", slow)
    program = start()
    eventually(program._watches.is_synced, "the cluster has been read")
    assert get(program, "/readyz") == (503, "the cluster is still being read\n")
    are_allowed.set()
    eventually(lambda: get(program, "/readyz") == (200, "ok\n"), "the rows are made")


def test_it_shows_nothing_while_the_api_server_has_been_silent_for_long(start, monkeypatch):
    """What was read earlier would pass for what is there now."""
    program = start()
    eventually(lambda: get(program, "/readyz") == (200, "ok\n"), "the cluster has been read")
    monkeypatch.setattr("hami.kube.watches.STALE_S", -1.0)
    status, text = get(program, "/readyz")
    assert status == 503
    assert re.fullmatch(r"no answer of the API server about nodes for \d+ s\n", text)
    assert get(program, "/")[0] == 503


def test_its_thread_explains_what_is_asked(start):
    program = start()

    def explanation():
        status, text = get(program, "/pending?format=json")
        return status == 200 and json.loads(text)["items"][0]["explanation"]

    assert eventually(explanation, "the pod is explained", timeout=TIMEOUT_S)["unfit"] == 1


def test_a_thread_that_has_died_fails_the_liveness_probe_and_ends_it_with_1(start, cluster):
    cluster.error = SystemExit("unexpected")
    program = start()
    eventually(lambda: get(program, "/healthz")[0] == 500, "the probe fails")
    assert "thread nodes died: SystemExit: unexpected" in get(program, "/healthz")[1]
    assert run_until_signal(Started(program), queue.SimpleQueue()) == 1


class Started:
    """A program that has been started, and is stopped later."""

    def __init__(self, program):
        self.hung_reason, self.start, self.stop = program.hung_reason, int, int


def test_a_thread_that_hangs_fails_the_liveness_probe(start, cluster):
    cluster.is_read.clear()
    program = start()
    for task in program._work.tasks:
        task._limit_s = 0.1

    def status():
        code, text = get(program, "/healthz")
        return code if "hangs" in text else None

    assert eventually(status, "the thread hangs") == 500
    cluster.is_read.set()


def test_an_outage_of_the_api_server_is_no_reason_to_restart(start, cluster):
    cluster.error = ClusterError("no answer")
    program = start()
    assert get(program, "/healthz") == (200, "ok\n")
    assert get(program, "/readyz")[0] == 503


def test_an_address_in_use_ends_the_start_with_a_reason(start):
    with pytest.raises(HamiError, match="--bind-address: cannot listen on 127.0.0.1"):
        start(bind_address=Address(*start().address))


def test_other_addresses_serve_https_with_a_certificate_of_its_own_until_there_is_one(
    start, tmp_path
):
    authority = Authority("ours")
    files = tmp_path / "tls.crt", tmp_path / "tls.key"
    program = start(bind_address=Address("", 0), cert_file=str(files[0]), key_file=str(files[1]))
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(urllib3.exceptions.InsecureRequestWarning):
        assert [get(program, path, ssl_context=anyone)[0] for path in ("/healthz", "/")] == [
            200,
            401,
        ]
    with pytest.raises(urllib3.exceptions.HTTPError):
        get(program, "/healthz")  # no plain HTTP
    for path, data in zip(files, authority.issue("server"), strict=True):
        path.write_bytes(data)
    trusting = ssl.create_default_context(cadata=authority.pem().decode())
    trusting.check_hostname = False
    eventually(lambda: is_trusted(program, trusting), "the certificate is served")


def is_trusted(program, context):
    with contextlib.suppress(urllib3.exceptions.SSLError):
        return get(program, "/healthz", ssl_context=context, assert_hostname=False)[0] == 200
    return False


# The process


@pytest.fixture
def process(tmp_path):
    """A process of ``hami dashboard`` without an API server, and the port of its pages."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "users": [{"name": "x", "user": {}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "hami.cli", "dashboard", "--bind-address=127.0.0.1:0"]
    started = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"KUBECONFIG": str(tmp_path / "kubeconfig")},
    )
    try:
        yield (
            started,
            next(
                int(match[1])
                for line in started.stderr
                if (match := re.search(r"serving.*:(\d+)", line))
            ),
        )
    finally:
        started.kill()
        started.wait(TIMEOUT_S)
        started.stderr.close()


def probe(port, timeout=TIMEOUT_S):
    """Status of ``/healthz``; ``None`` without an answer in time."""
    with contextlib.suppress(urllib3.exceptions.HTTPError):
        return urllib3.request(
            "GET", f"http://localhost:{port}/healthz", retries=False, timeout=timeout
        ).status
    return None


def test_a_process_that_is_stopped_fails_the_liveness_probe(process):
    started, port = process
    assert probe(port) == 200
    started.send_signal(signal.SIGSTOP)
    eventually(lambda: thread_states(started.pid) == {"T"}, "it is stopped")
    assert probe(port, timeout=1.0) is None
    started.send_signal(signal.SIGCONT)
    assert probe(port) == 200


def test_a_signal_ends_it_with_0(process):
    started, _ = process
    started.send_signal(signal.SIGTERM)
    assert started.wait(TIMEOUT_S) == 0


# The command line


def dashboard(*args):
    """Result of ``hami dashboard`` with *args*; its settings, and its cache."""
    served = []
    result = CliRunner().invoke(
        main,
        ["dashboard", *args],
        env={"POD_NAMESPACE": None},
        obj=lambda *given: served.append(given) or 0,
    )
    return result, *(served[0] if served else (None, None))


@cases(
    "args, field, value",
    (["--bind-address=:3"], "bind_address", Address("", 3)),
    (["--monitor-selector="], "monitor_selector", ""),
    (["--monitor-port=3"], "monitor_port", 3),
    (["--node-label-selector=gpu=on"], "node_selector", "gpu=on"),
    (["--kube-timeout=5"], "kube_timeout", 5),
    ([], "bind_address", Address("127.0.0.1", 8445)),
)
def test_each_flag_sets_its_field(args, field, value):
    result, settings, _ = dashboard(*args)
    assert result.exit_code == 0, result.output
    assert settings == DashboardSettings(**{field: value})


def test_policies_and_devices_are_those_of_the_scheduler_s_flags():
    _, _, cache = dashboard(
        "--node-scheduler-policy=spread",
        "--gpu-scheduler-policy=binpack",
        "--resource-name=a.b/gpu",
        "--enable-ascend",
        "--foreign-reservations",
    )
    assert (cache.policies.node, cache.policies.device) == ("spread", "binpack")
    assert cache.vendors["NVIDIA"].resources.count == "a.b/gpu"
    assert any(vendor.key.startswith("Ascend") for vendor in cache.vendors)


@pytest.mark.parametrize(
    "args, problem",
    [
        (["--monitor-port=65536"], "--monitor-port: expected a port"),
        (["--cert_file=/x"], "--cert_file without --key_file"),
        (["--leader-elect"], "No such option"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_refused_in_one_line(args, problem):
    result, settings, _ = dashboard(*args)
    assert result.exit_code != 0
    assert settings is None
    assert problem in result.output.splitlines()[-1]


def test_help_explains_every_flag():
    output = CliRunner().invoke(main, ["dashboard", "--help"], terminal_width=120).output
    assert [flag.name for flag in all_flags(DASHBOARD_FLAGS) if flag.name not in output] == []
    for text in ("[default: 127.0.0.1:8445]", "TokenReviews", "[default: binpack]"):
        assert text in " ".join(output.split())
