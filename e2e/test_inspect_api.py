"""The API group ``inspect.hami.io`` behind a real API server: users of one namespace learn why a pod waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami.codec.config_maps import render_config_map
from hami.codec.documents import parse_own_yaml
from hami.codec.usage_objects import render_current
from hami.codec.usage_sums import DAY_S, HeldAmounts, UsageDay, UsageKey, UsageSums, day_start
from testing.accounts import account
from testing.cluster import LocalCluster
from testing.dashboard import COMPONENT, dashboard, publish
from testing.eventually import eventually
from testing.kube import Kube
from testing.measured import own_address
from testing.nodes import gpu
from testing.people import hami
from testing.pods import pod
from testing.processes import free_port
from testing.sandbox import Sandbox
from testing.scheduler import NAMESPACE, SCHEDULER, Certificates

USAGE = "hami-usage"
INSPECT = COMPONENT.parent / "inspect-api"
SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"


@pytest.fixture
def fronted(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster whose API server has a front proxy, with the dashboard behind it."""
    certificates = Certificates(tmp_path)
    certificate, key = certificates.client()
    flags = {
        "proxy-client-cert-file": str(certificate),
        "proxy-client-key-file": str(key),
        "requestheader-client-ca-file": str(certificates.ca_file),
        "requestheader-allowed-names": SCHEDULER,
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "enable-aggregator-routing": "true",
    }
    pages, answers = free_port(), free_port()
    with LocalCluster.started(durable=False, extender=False, api_server=flags) as cluster:
        kube = cluster.kube
        for file in (COMPONENT / "rbac.yaml", INSPECT / "rbac.yaml"):
            kube.apply_yaml(file.read_text(), NAMESPACE)
        record_usage(kube)
        publish(kube, {8445: pages, 8446: answers})
        token = kube.token("hami-dashboard", NAMESPACE)
        kubeconfig = kube.with_token(token).write_kubeconfig(tmp_path / "dashboard.kubeconfig")
        with dashboard(
            kubeconfig,
            cluster.folder,
            pages,
            bind_address=f":{pages}",
            inspect_bind_address=f":{answers}",
            usage_namespace=USAGE,
            cert_file=str(certificates.cert_file),
            key_file=str(certificates.key_file),
        ):
            kube.call("POST", SERVICES, parse_own_yaml((INSPECT / "api-service.yaml").read_text()))
            eventually(
                lambda: is_available(kube),
                lambda: f"the API server reaches the group: {conditions(kube)}",
            )
            yield cluster


def record_usage(kube: Kube) -> None:
    """Makes a record of usage, which the dashboard may get, and users may not."""
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": USAGE}})
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]
    meta = {"name": "hami-dashboard-usage", "namespace": USAGE}
    rbac = "rbac.authorization.k8s.io"
    kube.apply({"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": rules})
    role = {"apiGroup": rbac, "kind": "Role", "name": meta["name"]}
    subject = {"kind": "ServiceAccount", "name": "hami-dashboard", "namespace": NAMESPACE}
    binding = {"kind": "RoleBinding", "metadata": meta, "roleRef": role, "subjects": [subject]}
    kube.apply({"apiVersion": f"{rbac}/v1", **binding})


def write_usage(kube: Kube, *namespaces: str) -> None:
    """Records that each of these has held a device for an hour."""
    now = int(time.time())
    held = HeldAmounts(3600, 3600, 3600, 3_600_000, 3600)
    hours = {}
    for name in namespaces:
        hours[UsageKey(name, "NVIDIA", "A100", "", "device-plugin")] = {now % DAY_S // 3600: held}
    start = day_start(now)
    sums = UsageSums(settled=now, day=UsageDay(start=start, recorded_from=start, hours=hours))
    kube.apply(render_config_map(render_current(USAGE, "", sums), {}))


def is_available(kube: Kube) -> bool:
    """Reports whether the API server passes requests on."""
    for condition in conditions(kube):
        if (condition["type"], condition["status"]) == ("Available", "True"):
            return True
    return False


def conditions(kube: Kube) -> list[dict[str, str]]:
    """Returns what the API server says of the group."""
    service = kube.call("GET", f"{SERVICES}/v1alpha1.inspect.hami.io")
    found: list[dict[str, str]] = service.get("status", {}).get("conditions", [])
    return found


@pytest.mark.skipif(not own_address(), reason="this machine has no address beside loopback")
def test_a_user_of_one_namespace_learns_why_a_pod_waits(fronted: LocalCluster, tmp_path: Path):
    with Sandbox.opened(fronted.kube) as sandbox, Sandbox.opened(fronted.kube) as other:
        sandbox.add_gpu_node("n0", gpu())
        sandbox.create(pod("waits", gpu=1, gpumem=200_000))
        other.create(pod("secret", gpu=1, gpumem=200_000))
        user = account(sandbox, "dev", "view")
        kubeconfig = user.write_kubeconfig(tmp_path / "dev.kubeconfig")

        def explain(name: str, *options: str, namespace: str = sandbox.namespace):
            return hami(kubeconfig, "explain", name, "-n", namespace, *options)

        answer = eventually(
            lambda: next(
                (one for one in [explain("waits")] if "fits none of 1 node" in one.text), None
            ),
            "the right of the role view has arrived, and the dashboard knows the node",
        )
        assert answer.status == 0
        document = explain("waits", "-o", "json").document
        assert (document["kind"], document["name"]) == ("PodExplanation", "waits")
        assert explain("secret", namespace=other.namespace).status == 2
        gone = explain("nothing")
        assert (
            gone.status,
            f'pods "nothing" not found in namespace {sandbox.namespace}' in gone.errors,
        ) == (2, True)
        assert hami(kubeconfig, "top", "nodes").status == 2

        write_usage(fronted.kube, sandbox.namespace, other.namespace)
        usage = hami(kubeconfig, "usage", "-n", sandbox.namespace, "-o", "json")
        assert usage.status == 0, usage.errors
        assert [row["name"] for row in usage.document["items"]] == [sandbox.namespace]
        assert hami(kubeconfig, "usage", "-n", other.namespace).status == 2
