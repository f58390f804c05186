"""A release of HAMi's chart that our chart takes over, and what happens to pods meanwhile.

The chart in ``hami_release`` stands for HAMi's.
"""

from __future__ import annotations

import base64
import itertools
import shutil
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from hami.codec.documents import parse_own_yaml
from testing.cluster import MANIFESTS, SCHEDULER
from testing.eventually import eventually
from testing.hami_values import upstream_values
from testing.helm_chart import CHART, Helm
from testing.kube import ApiError, Kube, path_of, summary
from testing.scheduler import Certificates, is_admitted

__all__ = ["ALLOCATED", "NAMESPACE", "SECRET", "TakeOver", "remains", "remove"]

Object = dict[str, Any]
NAMESPACE = "hami-system"
SECRET = "hami-scheduler-tls"
ALLOCATED = "hami.io/vgpu-devices-allocated"
RELEASE = Path(__file__).with_name("hami_release")
THEIRS = "example.com/hami:v2"
ROLLOUT_S = 240
"""Of a DaemonSet with one new pod at a time, each of which must be ready for ten seconds."""
MAX_CONNECTING = 64  # more than begin while one hangs


class TakeOver:
    """A release named hami, first of HAMi's chart. In its context, it observes admission and device plugins.

    *nodes*: the names of the GPU nodes. *address*: where the Service of the webhook is reached, if it has pods.
    *crowded*, *deserted*: when a node had two plugins, and which nodes had none at the same time.
    """

    def __init__(
        self, kube: Kube, helm: Helm, nodes: Collection[str], address: tuple[str, int] | None = None
    ) -> None:
        self._kube = kube
        self._helm = helm
        self._nodes = nodes
        self._address = address
        self.admitted = 0
        self.missed: list[str] = []
        self.connections = 0
        self.crowded: list[Counter[str]] = []
        self.deserted: list[set[str]] = []
        self._lock = threading.Lock()  # guards connections
        self._ending = threading.Event()
        self._threads = ThreadPoolExecutor()
        self._watches: list[Future[None]] = []

    def __enter__(self) -> TakeOver:
        self._watches = [
            self._threads.submit(watch) for watch in (self._admit, self._connect, self._look)
        ]
        try:
            eventually(self._is_reached, lambda: f"the webhook is called: {self.missed[-3:]}")
        except BaseException:
            self.__exit__()
            raise
        self.missed.clear()  # API server and kube-proxy apply what is new with a delay
        return self

    def _is_reached(self) -> bool:
        return self.admitted > 5 and (self._address is None or self.connections > 5)

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        for watch in self._watches:
            watch.result()  # raises what has ended it too early

    def _admit(self) -> None:
        """Creates pods that the webhook must see, without leaving one."""
        for number in itertools.count():
            if self._ending.wait(0.1):
                return
            try:
                if is_admitted(self._kube, f"probe-{number}"):
                    self.admitted += 1
                else:
                    self.missed.append(f"{time.strftime('%T')} probe-{number}")
            except ApiError as error:
                self.missed.append(f"{time.strftime('%T')} {error.message}")

    def _connect(self) -> None:
        """Begins connections to the webhook at a fixed rate, also while an earlier one hangs."""
        with ThreadPoolExecutor(MAX_CONNECTING) as pool:
            begun = []
            while self._address is not None and not self._ending.wait(0.1):
                webhook = self._kube.get("MutatingWebhookConfiguration", "hami-webhook")[
                    "webhooks"
                ][-1]
                trusted = base64.b64decode(webhook["clientConfig"]["caBundle"]).decode()
                begun.append(pool.submit(self._connect_once, self._address, trusted))
        for connection in begun:
            connection.result()

    def _connect_once(self, address: tuple[str, int], trusted: str) -> None:
        """Connects to the webhook as an API server does that has no connection yet. *trusted*: CA certificates."""
        context = ssl.create_default_context(cadata=trusted)
        begun, connections, admitted = time.monotonic(), self.connections, self.admitted
        try:
            with (
                socket.create_connection(address, timeout=5) as connection,
                context.wrap_socket(connection, server_hostname=f"{SCHEDULER}.{NAMESPACE}.svc"),
            ):
                with self._lock:
                    self.connections += 1
        except OSError as error:
            self.missed.append(
                f"{time.strftime('%T')} a new connection: {error} after {time.monotonic() - begun:.1f} s, in which "
                f"{self.connections - connections} others and {self.admitted - admitted} admissions succeeded"
            )

    def _look(self) -> None:
        """Counts the device plugins on each node."""
        while not self._ending.wait(0.2):
            here = Counter(
                item["spec"].get("nodeName", "") for item in self._plugins() if is_running(item)
            )
            if any(count > 1 for node, count in here.items() if node):
                self.crowded.append(here)
            without = set(self._nodes) - here.keys()
            if len(without) > 1:
                self.deserted.append(without)

    # -- what an operator does

    def install_hamis(
        self,
        folder: Path,
        version: str,
        certificates: Certificates,
        values: Object,
        *,
        client_side: bool = False,
    ) -> None:
        """Installs the stand-in from *folder* with values of a user, and does what the jobs of HAMi's chart do for the
        certificate."""
        shutil.copytree(RELEASE, folder, dirs_exist_ok=True)
        chart = parse_own_yaml((folder / "Chart.yaml").read_text())
        (folder / "Chart.yaml").write_text(
            yaml.safe_dump({**chart, "version": version, "appVersion": version})
        )
        (folder / "values.yaml").write_text(yaml.safe_dump(upstream_values(f"v{version}")))
        data = {
            "ca": certificates.ca_file,
            "tls.crt": certificates.cert_file,
            "tls.key": certificates.key_file,
        }
        self._kube.create(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": SECRET},
                "data": {name: encoded(file) for name, file in data.items()},
            },
            NAMESPACE,
        )
        side = f"--server-side={str(not client_side).lower()}"
        self._helm.run("install", "hami", folder, "--namespace", NAMESPACE, side, values=values)
        configuration = self._kube.get("MutatingWebhookConfiguration", "hami-webhook")
        configuration["webhooks"][0]["clientConfig"]["caBundle"] = encoded(certificates.ca_file)
        path = path_of("MutatingWebhookConfiguration", None, "hami-webhook")
        self._kube.call("PUT", path, configuration, query={"fieldManager": "kube-webhook-certgen"})
        self.wait_rollout(THEIRS)

    def upgrade(self, *words: str) -> str:
        """Upgrades the release to our chart, as soon as its device plugins count as available; returns what Helm
        prints. Plugins that have just started would be replaced all at once."""
        eventually(self._are_plugins_available, "the device plugins are available")
        return self._helm.run(
            "upgrade", "hami", CHART, "--namespace", NAMESPACE, "--reuse-values", *words
        )

    def _are_plugins_available(self) -> bool:
        """Reports whether the plugins have been ready for as long as our DaemonSet demands."""
        demanded = parse_own_yaml((MANIFESTS / "device-plugin.yaml").read_text())["spec"][
            "minReadySeconds"
        ]
        latest = datetime.now(UTC) - timedelta(
            seconds=demanded + 1
        )  # times of conditions are whole seconds
        ready = [
            condition
            for item in self._plugins()
            for condition in item["status"].get("conditions", ())
            if condition["type"] == "Ready" and condition["status"] == "True"
        ]
        return len(ready) == len(self._nodes) and all(
            datetime.fromisoformat(condition["lastTransitionTime"]) < latest for condition in ready
        )

    def _plugins(self) -> list[Object]:
        return self._kube.list(
            "Pod", NAMESPACE, labelSelector="app.kubernetes.io/component=hami-device-plugin"
        )

    def roll_back(self) -> None:
        """Returns to HAMi's chart, and waits for the rollout."""
        self._helm.run("rollback", "hami", "1", "--namespace", NAMESPACE)
        self.wait_rollout(THEIRS)

    def uninstall(self) -> None:
        """Uninstalls the release."""
        self._helm.run("uninstall", "hami", "--namespace", NAMESPACE, "--wait")

    # -- what can be seen

    def wait_rollout(self, image: str) -> None:
        """Waits until all images of scheduler and device plugin begin with *image*, and their pods are ready."""

        def done() -> bool:
            pods = [
                item
                for item in self._kube.list("Pod", NAMESPACE)
                if "hami-monitor" not in item["metadata"]["name"]
            ]
            images = [
                container["image"] for item in pods for container in item["spec"]["containers"]
            ]
            replicas = self._kube.get("Deployment", "hami-scheduler", NAMESPACE)["spec"]["replicas"]
            return (
                len(pods) == len(self._nodes) + replicas
                and all(map(is_running, pods))
                and not any(
                    not found.startswith(image) and "kube-scheduler" not in found
                    for found in images
                )
            )

        eventually(
            done,
            lambda: f"all pods have {image}: {summary(self._kube.list('Pod', NAMESPACE))}",
            timeout=ROLLOUT_S,
            interval=0.2,
        )

    def pods_of_users(self) -> dict[str, tuple[object, ...]]:
        """Returns what may not change about them: containers and their restarts, allocations, identity."""
        return {
            item["metadata"]["name"]: (
                item["metadata"]["uid"],
                item["metadata"]["annotations"],
                item["spec"],
                item["status"]["containerStatuses"],
            )
            for item in self._kube.list("Pod", "default")
        }

    def identities(self) -> dict[str, Object]:
        """Returns what must stay of the objects that both charts have: identity, selectors and addresses."""
        found = {}
        for kind, name in (
            ("Deployment", "hami-scheduler"),
            ("DaemonSet", "hami-device-plugin"),
            ("Service", "hami-scheduler"),
            ("Service", "hami-device-plugin-monitor"),
            ("ServiceAccount", "hami-device-plugin"),
        ):
            item = self._kube.get(kind, name, NAMESPACE)
            spec = item.get("spec", {})
            ports = {port["port"]: port.get("nodePort") for port in spec.get("ports", ())}
            found[f"{kind}/{name}"] = {
                "uid": item["metadata"]["uid"],
                "address": spec.get("clusterIP"),
                "ports": ports,
                "endpoints": [port["name"] for port in spec.get("ports", ())[:1]],
                "labels": spec["selector"].get("matchLabels") if "template" in spec else None,
            }
        return found


def is_running(item: Object) -> bool:
    """Reports whether a pod runs, its containers are ready, and it is not being deleted."""
    containers = item["status"].get("containerStatuses", ())
    return bool(
        item["status"].get("phase") == "Running"
        and "deletionTimestamp" not in item["metadata"]
        and all(container["ready"] for container in containers)
    )


def encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def remains(kubectl: Callable[..., str]) -> set[str]:
    """Returns all objects of HAMi, other than those that controllers make and remove."""
    return (objects(kubectl, f"--namespace={NAMESPACE}") | objects(kubectl)) - {
        f"namespace/{NAMESPACE}"
    }


def remove(kubectl: Callable[..., str]) -> None:
    """Removes the release, from whatever state it is in, and its namespace."""
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s")
    if left := objects(kubectl, "--selector=app.kubernetes.io/managed-by=Helm"):
        kubectl("delete", *sorted(left), "--timeout=60s")


def objects(kubectl: Callable[..., str], *words: str) -> set[str]:
    """Returns the objects of HAMi that *words* of ``kubectl get`` select: of a namespace, or without one."""
    namespaced = any(word.startswith("--namespace") for word in words)
    kinds = kubectl(
        "api-resources",
        "--verbs=list,delete",
        f"--namespaced={str(namespaced).lower()}",
        "--output=name",
    )
    wanted = [kind for kind in kinds.split() if kind.partition(".")[0] not in OTHERS]
    names = kubectl("get", ",".join(wanted), *words, "--output=name")
    return {name for name in names.split() if "hami" in name.partition("/")[2]}


OTHERS = {
    "pods",
    "events",
    "endpoints",
    "endpointslices",
    "replicasets",
    "controllerrevisions",
    "nodes",
    "csinodes",
}
"""Kinds of objects that do not belong to a release."""
