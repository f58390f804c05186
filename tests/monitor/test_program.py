"""The program: pages, rounds, signals, and one look at the node."""

import json
import queue
import signal
import socket
import subprocess
import sys
import threading

import pytest
import urllib3
from click.testing import CliRunner

from hami.cli import main
from hami.cli.monitor import MONITOR_FLAGS
from hami.errors import HamiError
from hami.monitor.processes import HostProcesses
from hami.monitor.program import MonitorProgram, print_once, serve
from hami.monitor.settings import MonitorSettings, above_vgpu, read_monitor_settings
from hami.runtime.options import Address, all_flags
from testing.eventually import PATIENCE_S, eventually
from testing.monitor_stage import uid_of, wire
from testing.pod_server import Server
from testing.region_bytes import UUIDS, Process, region_bytes

TIMEOUT_S = 20.0
CARD = UUIDS[0]


@pytest.fixture
def server():
    return Server(([wire("a")], 5))


@pytest.fixture
def settings(tmp_path):
    """Makes settings of a node with a mock card."""
    (tmp_path / "cards.yaml").write_text(f"cards: [{{uuid: {CARD}, memory: 8192}}]")

    def make(**given):
        return read_monitor_settings(
            {
                "node": "n1",
                "mock_devices": str(tmp_path / "cards.yaml"),
                "hook_path": str(tmp_path),
                "interval": 0.1,
                "metrics_bind_address": Address("127.0.0.1", 0),
            }
            | given,
            {},
        )

    return make


@pytest.fixture
def make(server, tmp_path):
    """Makes a program for settings."""
    return lambda settings: MonitorProgram(
        settings, api=server, processes=HostProcesses(tmp_path / "proc")
    )


@pytest.fixture
def program(make, settings):
    started = make(settings())
    started.start()
    yield started
    started.stop()


def get(program, path):
    host, port = program.address
    answer = urllib3.request("GET", f"http://{host}:{port}{path}", retries=False, timeout=TIMEOUT_S)
    return answer.status, answer.data.decode()


def test_a_new_pod_is_on_the_page_and_a_deleted_one_is_not(program, server):
    eventually(lambda: get(program, "/readyz")[0] == 200, "it is ready")
    assert 'pod="a"' in get(program, "/metrics")[1]
    server.report("ADDED", wire("b", 6))
    eventually(lambda: 'pod="b"' in get(program, "/metrics")[1], "the new pod is shown")
    server.report("DELETED", wire("a", 7))
    eventually(lambda: 'pod="a"' not in get(program, "/metrics")[1], "the other is gone")
    assert get(program, "/healthz") == (200, "ok\n")


def test_the_region_of_a_pod_is_on_the_page(program, tmp_path):
    directory = tmp_path / "vgpu" / "containers" / f"{uid_of('a')}_main"
    directory.mkdir(parents=True)
    (directory / "t.cache").write_bytes(region_bytes(processes=[Process(used={0: 4096})]))
    eventually(lambda: "} 4096" in get(program, "/metrics")[1], "its use is shown")


def test_it_is_not_ready_before_it_knows_the_pods(make, settings, server):
    server.pages = []
    program = make(settings())
    assert "no round" in program.unready_reason()
    program.start()
    try:
        eventually(lambda: "not known yet" in get(program, "/readyz")[1], "a round has ended")
        assert get(program, "/readyz")[0] == 503
        assert "hami_monitor_nvml_up 1" in get(program, "/metrics")[1]
    finally:
        program.stop()


class FailsTwice(MonitorProgram):
    """Its first two rounds fail."""

    failures = 0

    def _round(self):
        if self.failures < 2:
            self.failures += 1
            raise RuntimeError("unexpected")
        return super()._round()


def test_a_round_that_fails_is_followed_by_others(server, settings, caplog, monkeypatch):
    monkeypatch.setattr("hami.runtime.tasks.RETRY_S", 0.05)
    program = FailsTwice(settings(), api=server)
    program.start()
    try:
        eventually(lambda: not program.unready_reason(), program.unready_reason)
    finally:
        program.stop()
    assert len([one for one in caplog.records if one.message == "task failed, will retry"]) == 2


class Hangs(MonitorProgram):
    """A round hangs until *goes_on*, as in a call of the driver, which has no deadline. *hangs*: one does."""

    def _round(self):
        if not self.goes_on.is_set():
            self.hangs.set()
        self.goes_on.wait(PATIENCE_S)
        return super()._round()


def test_a_driver_that_hangs_is_reported_and_fails_the_liveness_probe(
    server, settings, monkeypatch
):
    monkeypatch.setattr("hami.monitor.program.STALE_S", 0.2)
    program = Hangs(settings(), api=server)
    program.goes_on, program.hangs = threading.Event(), threading.Event()
    program.goes_on.set()
    program._round_task._limit_s = 1
    program.start()
    try:
        eventually(lambda: get(program, "/readyz") == (200, "ok\n"), "it is ready")
        eventually(lambda: shows_limits_of_now(get(program, "/metrics")[1]), "limits are shown")
        program.goes_on.clear()
        assert program.hangs.wait(PATIENCE_S)
        eventually(
            lambda: get(program, "/readyz") == (503, "no round has succeeded recently\n"),
            "it is not ready",
        )
        page = get(program, "/metrics")[1]
        assert "hami_monitor_nvml_up 0" in page
        assert "hami_vgpu_memory_limit_bytes" not in page, (
            "Prometheus would take it for a value of now"
        )
        eventually(lambda: "thread rounds hangs" in get(program, "/healthz")[1], "the probe fails")
    finally:
        program.goes_on.set()
        program.stop()


def shows_limits_of_now(page):
    return "hami_monitor_nvml_up 1" in page and "hami_vgpu_memory_limit_bytes{" in page


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_0(make, settings, number):
    signals = queue.SimpleQueue()
    signals.put(number)
    assert serve(settings(), make=make, signals=signals) == 0


class Dies(MonitorProgram):
    """Its rounds end with an error that nothing catches."""

    def _run(self):
        raise SystemExit("unexpected")


def test_a_thread_that_has_died_ends_it_with_1(server, settings):
    assert (
        serve(
            settings(),
            make=lambda settings: Dies(settings, api=server),
            signals=queue.SimpleQueue(),
        )
        == 1
    )


class LostForGood:
    """A driver that only a new process can use."""

    def read(self, now):
        return None

    def restart_reason(self):
        return "Driver/library version mismatch"


def test_a_driver_that_only_a_new_process_can_use_ends_it_with_1(server, settings, caplog):
    def make(settings):
        return MonitorProgram(settings, api=server, source=LostForGood())

    assert serve(settings(), make=make, signals=queue.SimpleQueue()) == 1
    assert "version mismatch" in str([vars(record) for record in caplog.records])


def test_an_address_in_use_ends_the_start_with_a_reason(make, settings):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(HamiError, match="--metrics-bind-address: cannot listen on"):
            serve(settings(metrics_bind_address=Address(*taken.getsockname())), make=make)


@pytest.fixture
def region(tmp_path):
    directory = tmp_path / "vgpu" / "containers" / f"{uid_of('a')}_main"
    directory.mkdir(parents=True)
    (directory / "t.cache").write_bytes(
        region_bytes(processes=[Process(used={0: 512 << 20}, sm={0: 20})], recent=-1)
    )
    return directory / "t.cache"


def test_once_prints_a_table(make, settings, region):
    before, shown = region.read_bytes(), []
    assert print_once(settings(once=True), shown.append, make=make) == 0
    header, line = "".join(shown).splitlines()
    assert header.split() == [
        "NODE",
        "CARD",
        "MEMORY",
        "LIMIT",
        "COMPUTE",
        "LIMIT",
        "STATE",
        "NAMESPACE",
        "POD",
        "CONTAINER",
    ]
    assert line.split() == [
        "n1",
        CARD,
        "512",
        "1024",
        "20%",
        "30%",
        "blocked",
        "default",
        "a",
        "main",
    ]
    assert region.read_bytes() == before


def test_once_prints_json(make, settings, region):
    shown = []
    print_once(settings(once=True, output="json"), shown.append, make=make)
    found = json.loads("".join(shown))
    (device,) = found["devices"]
    assert (found["node"], [card["uuid"] for card in found["cards"]]) == ("n1", [CARD])
    assert (device["pod"], device["memoryUsed"], device["memoryLimit"], device["memorySource"]) == (
        "a",
        512 << 20,
        1024 << 20,
        "region",
    )
    assert (device["utilization"], device["coreLimit"], device["region"]) == (
        20,
        30,
        {"state": "ok", "version": "1.2"},
    )


def test_it_loads_nothing_that_it_does_not_use():
    """It runs on every node with GPUs, in 80 MiB."""
    heavy = ("numpy", "flask", "grpc", "gunicorn", "jsonpatch", "cryptography")
    program = f"import sys, hami.monitor.program; print([name for name in {heavy!r} if name in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


# -- settings and command line


def monitor(*args, **environ):
    """Result of ``hami monitor`` with *args*, and its settings."""
    ran = []

    def run(settings):
        ran.append(settings)
        return 0

    silent = {name: None for flag in all_flags(MONITOR_FLAGS) for name in flag.environment.split()}
    result = CliRunner().invoke(main, ["monitor", *args], env=silent | environ, obj=run)
    return result, ran[0] if ran else None


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        (["--node-name=b"], "node", "b"),
        (["--interval=500ms"], "interval", 0.5),
        (["--feedback=false"], "feedback", False),
        (["--metrics-bind-address=:9400"], "metrics_bind_address", ("", 9400)),
        (["--legacy-metrics"], "legacy_metrics", True),
        (["--once"], "once", True),
        (["--once", "-o", "json"], "output", "json"),
        (["--hook-path=/opt"], "hook_path", "/opt"),
        (["--driver-root-ctr-path=/"], "driver_root_in_container", "/"),
        (["-v=4"], "verbosity", 4),
    ],
    ids=str,
)
def test_each_flag_sets_its_field(args, field, value):
    result, settings = monitor(*args, NODE_NAME="a")
    assert result.exit_code == 0, result.output
    assert getattr(settings, field) == value


def test_the_environment_of_hami_s_monitor_is_understood():
    _, settings = monitor(NODE_NAME="a", HOOK_PATH="/usr/local/vgpu", HAMI_RESYNC_INTERVAL="5m")
    assert (settings.node, above_vgpu(settings.hook_path)) == ("a", "/usr/local")
    assert above_vgpu("/usr/local") == "/usr/local"
    assert (settings.metrics_bind_address, settings.legacy_metrics) == (("", 9394), False)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "name is missing"),
        (["--node-name=a", "--hook-path=opt"], "expected an absolute path"),
        (["--node-name=a", "--interval=10ms"], "expected 100ms or more"),
        (["--node-name=a", "-o", "xml"], "expected table or json"),
        (["--node-name=a", "--config-file=/nowhere"], "--config-file /nowhere: No such file"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_refused_in_one_line(args, says):
    result, settings = monitor(*args)
    assert result.exit_code != 0
    assert settings is None
    assert says in result.output


def test_help_names_every_flag_with_environment_and_default():
    output = CliRunner().invoke(main, ["monitor", "--help"], terminal_width=120).output
    assert [flag.name for flag in all_flags(MONITOR_FLAGS) if flag.name not in output] == []
    for text in (
        "[NODE_NAME, NodeName]",
        "[default: 900ms]",
        "[default: :9394]",
        "[default: true]",
    ):
        assert text in " ".join(output.split())


def test_the_defaults_are_those_of_the_settings():
    _, settings = monitor("--node-name=a")
    assert settings == MonitorSettings(node="a")
