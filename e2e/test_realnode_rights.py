"""The account of the device plugin has exactly the permissions that it uses, according to the audit log."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

import pytest

from testing.cluster import LocalCluster
from testing.device_plugin import DevicePlugin, cards
from testing.eventually import PATIENCE_S, WaitTimeout, eventually
from testing.placing import LOCK, Part, place_as_upstream
from testing.pods import container, pod
from testing.realnode import RealNode
from testing.rights import Call, Right, calls, granted, refused, shipped, unused

STAMP = "%Y-%m-%dT%H:%M:%SZ"


@pytest.mark.kind
def test_the_device_plugin_uses_every_right_that_it_has_and_misses_none(sandbox, real, local):
    """In admission mode, which records events of pods."""
    plugin = DevicePlugin(real, allocate="admission")
    plugin.insert(*cards(1))
    plugin.install_limiter(b"the limiter\n")
    plugin.start()
    try:
        plugin.wait_offered(10)
        sandbox.create(
            pod("a", containers=[container("main", gpu=1, gpumem=1000)], scheduler="hami-scheduler")
        )
        sandbox.running("a")
        # Pods without an allocation, and a lock of a pod that does not exist, cause the same event at least twice, so
        # that it is patched. The scheduler releases such locks periodically, and the event without a lock differs.
        strays = [f"stray-{number}" for number in range(4)]
        for name in strays:
            write_lock(real, f"{datetime.now(UTC):{STAMP}},{sandbox.namespace},gone")
            sandbox.kube.create(
                pod(
                    name,
                    containers=[container("main", gpu=1)],
                    node_name=real.name,
                    labels={"hami.io/webhook": "ignore"},
                ),
                sandbox.namespace,
            )
            sandbox.kube.wait(
                "Pod",
                lambda pods, name=name: pods[name]["status"]["phase"] == "Failed",
                sandbox.namespace,
                what=f"the kubelet gives {name} up",
            )
        rights = granted(shipped("device-plugin-rbac.yaml"), "hami-device-plugin")
        made = wait_for_use(rights, local, "hami-device-plugin")
        for name in strays:
            sandbox.delete(name)
        write_lock(real, None)
    finally:
        plugin.close()
        real.kubelet.start()
    assert not refused(made)
    assert not unused(rights, made)


@pytest.mark.kind
def test_the_device_plugin_misses_no_right_in_start_time_mode(sandbox, real, plugin, local):
    before = local.audit_log.stat().st_size
    sandbox.create(
        pod("a", containers=[container("main", gpu=1, gpumem=1000)], scheduler="hami-scheduler")
    )
    sandbox.running("a")
    place_as_upstream(
        sandbox,
        real,
        pod("b", containers=[container("main", gpu=1, gpumem=1000)]),
        [Part(cards(1)[0].uuid, 1000)],
    )
    sandbox.running("b")
    real.wait_node(
        lambda node: LOCK not in (node["metadata"].get("annotations") or {}), what="unlocked"
    )
    made = list(calls(local.audit_log, "hami-device-plugin", before))
    assert {call.right.verb for call in made} >= {"get", "patch"}
    assert not refused(made)


def write_lock(real: RealNode, text: str | None) -> None:
    real.kube.merge_patch("Node", real.name, {"metadata": {"annotations": {LOCK: text}}})


def wait_for_use(
    rights: set[Right], local: LocalCluster, account: str, timeout: float = PATIENCE_S
) -> list[Call]:
    """Returns the account's calls once they have used all *rights*, or after *timeout*: events are written late."""
    with contextlib.suppress(WaitTimeout):  # the test reports the unused rights
        eventually(
            lambda: not unused(rights, calls(local.audit_log, account)),
            "all rights are used",
            timeout=timeout,
            interval=0.2,
        )
    return list(calls(local.audit_log, account))
