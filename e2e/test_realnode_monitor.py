"""The monitor beside a real kubelet: what containers use of a fake GPU, and who waits for whom."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import urllib3
from prometheus_client.parser import text_string_to_metric_families

from testing.accounts import permit_priority
from testing.device_plugin import DevicePlugin
from testing.eventually import eventually
from testing.fake_gpu import CARDS, CLIENT, FakeGpus, client, client_pod, offered_gpu, typed
from testing.limiter.builds import Builds
from testing.limiter.rig import MIB
from testing.realnode import RealNode

pytestmark = pytest.mark.kind
Object = dict[str, Any]
PRIORITY = 2_008_908
"""Where it stands in the region, as an integer of 32 bits."""


@pytest.fixture
def gpu(real: RealNode, builds: Builds) -> Iterator[FakeGpus]:
    """The card, which the kubelet offers."""
    plugin = DevicePlugin(real)
    yield offered_gpu(real, plugin, builds)
    plugin.close()


def container_id(item: Object) -> str:
    (status,) = item["status"]["containerStatuses"]
    return str(status["containerID"])


def launching(commands: str, pause: str = "0.1") -> str:
    """A shell command whose program launches kernels; *commands*: shell words that decide how often."""
    return f"({typed(['module'])}; {commands}; do echo launch plain idle 1; sleep {pause}; done) | {CLIENT}"


def test_metrics_are_what_two_pods_on_one_card_have_allocated(sandbox, gpu, monitor):
    used, limits = {"a": 700, "b": 1234}, {"a": 1500, "b": 2500}
    sandbox.create(
        *(
            client_pod(
                name, client(f"alloc plain 0 {used[name] * MIB}", gpu=1, gpumem=limits[name])
            )
            for name in used
        )
    )
    sandbox.bound(2)
    eventually(
        lambda: (
            monitor.values("hami_vgpu_memory_limit_bytes", sandbox.namespace).keys()
            == limits.keys()
        ),
        monitor.log,
    )
    sandbox.running(*used)
    for name in used:
        assert gpu.answers(sandbox.pod(name), 3)[-1] == [0]
    wanted = {name: float(mib * MIB) for name, mib in used.items()}

    def used_now() -> dict[str, float]:
        return monitor.values("hami_vgpu_memory_used_bytes", sandbox.namespace)

    eventually(lambda: used_now() == wanted, lambda: f"{used_now()}: {monitor.log()}")
    assert monitor.values("hami_vgpu_memory_limit_bytes", sandbox.namespace) == {
        name: float(mib * MIB) for name, mib in limits.items()
    }
    assert monitor.values("hami_container_over_limit", sandbox.namespace) == {"a": 0.0, "b": 0.0}
    curled = subprocess.run(
        ["curl", "-sS", f"{monitor.url}/metrics"], capture_output=True, text=True, check=True
    ).stdout
    for name, mib in used.items():
        assert re.search(
            rf'^hami_vgpu_memory_used_bytes{{.*pod="{name}".*}} {mib * MIB}$', curled, re.MULTILINE
        )
    shown = json.loads(monitor.once("-o", "json"))
    assert {
        one["pod"]: one["memoryUsed"]
        for one in shown["devices"]
        if one["namespace"] == sandbox.namespace
    } == {name: mib * MIB for name, mib in used.items()}
    assert CARDS[0].uuid in monitor.once()
    for name in used:
        sandbox.delete(name)
    eventually(lambda: used_now() == {}, monitor.log)


def test_a_pod_of_higher_priority_blocks_the_other_and_lets_go(sandbox, real, gpu, monitor):
    permit_priority(sandbox)
    low = client("module", gpu=1, gpumem=1000, priority=1)
    low["command"] = ["sh", "-c", launching("while true")]
    sandbox.create(
        client_pod("low", low), client_pod("high", client("module", gpu=1, gpumem=1000, priority=0))
    )
    sandbox.running("low", "high")

    def launched() -> int:
        return len(gpu.answers(sandbox.pod("low"), 0))

    def blocked() -> dict[str, float]:
        return monitor.values("hami_container_blocked", sandbox.namespace)

    begun = launched()
    eventually(lambda: launched() > begun + 3, "the lower works while it is alone")
    high = container_id(sandbox.pod("high"))
    with ThreadPoolExecutor() as pool:
        work = pool.submit(real.run_in, high, "sh", "-c", launching("until [ -e /tmp/enough ]"))
        try:
            eventually(lambda: blocked() == {"low": 1.0, "high": 0.0}, monitor.log)
            before = launched()
            time.sleep(1)
            assert launched() <= before + 1
        finally:
            real.run_in(high, "touch", "/tmp/enough")
        work.result(timeout=60)
    eventually(lambda: launched() > before + 3, monitor.log)
    eventually(lambda: blocked() == {"low": 0.0, "high": 0.0}, monitor.log)
    assert [gpu.region(sandbox.pod(name)).number(PRIORITY) for name in ("low", "high")] == [1, 0]


def test_a_monitor_that_ends_blocks_nobody(sandbox, real, gpu, monitor):
    permit_priority(sandbox)
    high = client("module", gpu=1, gpumem=1000, priority=0)
    high["command"] = ["sh", "-c", launching("while true")]
    sandbox.create(
        client_pod("low", client("module", gpu=1, gpumem=1000, priority=1)),
        client_pod("high", high),
    )
    sandbox.running("low", "high")
    eventually(
        lambda: monitor.values("hami_container_blocked", sandbox.namespace).get("low") == 1.0,
        monitor.log,
    )
    monitor.stop()
    low = gpu.run(container_id(sandbox.pod("low")), "module", "launch plain idle 1")
    assert low[-1] == [0]


def test_the_account_of_the_monitor_can_only_read_pods(real, monitor):
    assert monitor.answer("/readyz") == (200, "ok")
    assert "forbidden" not in monitor.log().lower()
    assert {family.name for family in text_string_to_metric_families(monitor.page())} >= {
        "hami_monitor_nvml_up",
        "hami_monitor_round_seconds",
    }
    assert urllib3.request("GET", f"{monitor.url}/other", retries=False).status == 404
