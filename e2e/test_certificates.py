"""The self-signed certificate is created, renewed and rotated under load, without a lost admission."""

from __future__ import annotations

import base64
import contextlib
import re
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography import x509

from testing.cases import cases
from testing.cluster import MANIFESTS, LocalCluster
from testing.eventually import PATIENCE_S, eventually
from testing.kube import ApiError, Follower, Kube
from testing.pods import pod
from testing.processes import free_port
from testing.rights import calls, granted, refused, unused
from testing.sandbox import Sandbox
from testing.scheduler import (
    EXTENDER,
    NAMESPACE,
    Certificates,
    Scheduler,
    account_kubeconfig,
    lease_holder,
    redirect_webhook,
    webhook_configuration,
)
from testing.yaml_text import read_documents

Object = dict[str, Any]
SECRET, WEBHOOK, PREVIOUS = "hami-scheduler-self-signed", "hami-webhook", "hami-scheduler-tls"
COMPONENT = MANIFESTS.parent / "components" / "self-signed"
RIGHTS = COMPONENT / "rbac.yaml"
LATE = 1.0  # seconds
SHORT = {"self_signed_cert_lifetime": "36s"}  # renewed after 24 s
OVERLAP = 4.0  # seconds, a ninth of it: so long a client may take to learn of a new CA
FAST = SHORT | {"self_signed_ca_lifetime": "100s"}  # rotated after 67 s


class Pair:
    """The certificates in one version of the Secret."""

    def __init__(self, secret: Object) -> None:
        self.data = {key: base64.b64decode(text) for key, text in secret.get("data", {}).items()}

    @property
    def authorities(self) -> list[x509.Certificate]:
        return x509.load_pem_x509_certificates(self.data["ca.crt"])

    @property
    def serving(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.data["tls.crt"])


class Trust(Pair):
    """The certificates in the cluster at one time."""

    def __init__(self, kube: Kube) -> None:
        super().__init__(kube.find("Secret", SECRET, NAMESPACE) or {})
        *_, webhook = kube.get("MutatingWebhookConfiguration", WEBHOOK)["webhooks"]
        self.bundle = base64.b64decode(webhook["clientConfig"].get("caBundle", ""))


class History(Follower):
    """All versions of the Secret, as a watch shows them: some last for a few seconds only."""

    def __init__(self, kube: Kube) -> None:
        super().__init__(kube, "Secret", NAMESPACE, fieldSelector=f"metadata.name={SECRET}")
        self.pairs: list[Pair] = []

    def first(self, holds: Callable[[Pair], bool], what: str) -> Pair:
        """Returns the first version of which *holds* is true, once there is one."""
        return eventually(lambda: next(filter(holds, self.pairs), None), what, interval=0.2)

    def take(self, change: str, item: Object) -> None:
        found = item["items"] if change == "LISTED" else [item]
        self.pairs += [pair for pair in map(Pair, found) if pair.data]


def wait_for(kube: Kube, holds: Callable[[Trust], bool], what: str) -> Trust:
    def observed() -> Trust | None:
        trust = Trust(kube)
        return trust if holds(trust) else None

    return eventually(observed, what, interval=0.2)


def published(trust: Trust) -> bool:
    return bool(trust.data) and trust.bundle == trust.data["ca.crt"]


class SelfSigned(Scheduler):
    """A replica with a self-signed certificate; clients trust the CA in the Secret."""

    def __init__(
        self,
        cluster: LocalCluster,
        certificates: Certificates,
        *,
        name: str,
        port: int | None = None,
        **flags: str,
    ) -> None:
        super().__init__(
            cluster,
            certificates,
            account_kubeconfig(cluster),
            name=name,
            port=port,
            cert_file="",
            key_file="",
            self_signed_cert_dir=str(cluster.folder / name),
            self_signed_previous_secret=PREVIOUS,
            **flags,
        )


@pytest.fixture
def self_signed(
    sandbox: Sandbox, local: LocalCluster, scheduler: Scheduler, certificates: Certificates
) -> Iterator[Callable[..., SelfSigned]]:
    """Starts replicas instead of the shared one, which is restored at the end. The Secret is empty, and the webhook has
    failurePolicy Fail and initially no CA bundle.
    """
    scheduler.stop()
    sandbox.kube.delete("Secret", SECRET, NAMESPACE)
    ship(sandbox.kube)
    point_at(sandbox.kube, certificates, local.webhook_port)
    with contextlib.ExitStack() as started:

        def start(
            name: str = "hami-self-signed-0", port: int | None = None, **flags: str
        ) -> SelfSigned:
            replica = SelfSigned(local, certificates, name=name, port=port, **flags)
            started.callback(replica.close)
            replica.start(wait=False)
            return replica

        yield start
    sandbox.kube.delete("MutatingWebhookConfiguration", WEBHOOK)
    sandbox.kube.delete("Secret", SECRET, NAMESPACE)
    scheduler.run_with()
    redirect_webhook(sandbox.kube, certificates, local.webhook_port)


def ship(kube: Kube) -> None:
    """Applies the component, as an installation and an upgrade do."""
    for file in ("rbac.yaml", "secret.yaml"):
        kube.apply_yaml((COMPONENT / file).read_text(), NAMESPACE)


def point_at(kube: Kube, certificates: Certificates, port: int) -> None:
    configuration = webhook_configuration(certificates, port)
    for webhook in configuration["webhooks"]:
        del webhook["clientConfig"]["caBundle"]
        webhook["failurePolicy"] = "Fail"
        webhook["namespaceSelector"]["matchExpressions"].append(
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [NAMESPACE]}
        )
    kube.delete("MutatingWebhookConfiguration", WEBHOOK)
    kube.apply(configuration)


def admitted(sandbox: Sandbox, name: str) -> bool:
    """Creates a pod; reports whether the API server could call the webhook."""
    try:
        made = sandbox.kube.create(pod(name, gpu=1), sandbox.namespace)
    except ApiError as error:
        assert "failed calling webhook" in error.message, error
        return False
    assert made["spec"]["schedulerName"] == "hami-scheduler"
    return True


def wait_admitted(sandbox: Sandbox) -> None:
    eventually(
        lambda: admitted(sandbox, f"p-{secrets.token_hex(4)}"),
        "a pod is admitted",
        interval=0.2,
    )


class Load:
    """Creates pods one after the other, and connects to the webhook.

    The API server keeps its connection for a long time, so the new connections act as an API server that learns of the
    bundle a second late. One that is later than OVERLAP, because this process stood still, has no promise.
    """

    def __init__(self, sandbox: Sandbox, port: int) -> None:
        self._sandbox = sandbox
        self._port = port
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=[act])
            for act in (self._create, self._connect)
        ]
        self._bundles: list[tuple[float, str]] = []
        self.lost: list[str] = []
        self.pods = self.connections = 0

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, act: Callable[[], None]) -> None:
        while not self._stop.wait(0.02):
            try:
                act()
            except Exception as error:  # reported by the test
                self.lost.append(f"{time.strftime('%T')} {error}")

    def _create(self) -> None:
        name = f"load-{self.pods}"
        self.pods += 1
        self._sandbox.kube.create(pod(name, gpu=1), self._sandbox.namespace)
        self._sandbox.kube.delete("Pod", name, self._sandbox.namespace, grace_seconds=0)

    def _connect(self) -> None:
        now = time.monotonic()
        self._bundles.append((now, Trust(self._sandbox.kube).bundle.decode()))
        while len(self._bundles) > 1 and self._bundles[1][0] <= now - LATE:
            del self._bundles[0]
        bundle = self._bundles[0][1]
        current = max(at for at, other in self._bundles if other == bundle)
        context = ssl.create_default_context(cadata=bundle)
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_S) as plain:
                context.wrap_socket(plain, server_hostname="127.0.0.1").close()
        except ssl.SSLCertVerificationError:
            if time.monotonic() < current + OVERLAP:
                raise
            return
        self.connections += 1


def test_renewal_and_rotation_under_load_lose_no_admission(sandbox, self_signed, local):
    begun = local.audit_log.stat().st_size
    replica = self_signed(**FAST)
    first = wait_for(sandbox.kube, published, "a first CA")
    wait_admitted(sandbox)
    with Load(sandbox, replica.port) as load, History(sandbox.kube) as history:
        renewed = history.first(
            lambda then: then.data["tls.crt"] != first.data["tls.crt"], "a renewal"
        )
        assert renewed.authorities == first.authorities
        overlap = history.first(lambda then: len(then.authorities) == 2, "a second CA")
        assert overlap.authorities[1:] == first.authorities
        overlap.serving.verify_directly_issued_by(overlap.authorities[1])
        moved = history.first(
            lambda then: then.serving.issuer == overlap.authorities[0].subject,
            "a certificate of the second CA",
        )
        assert moved.authorities == overlap.authorities
        gone = wait_for(
            sandbox.kube,
            lambda now: published(now) and first.authorities[0] not in now.authorities,
            "the first CA is gone",
        )
        pods, connections = load.pods, load.connections
        eventually(
            lambda: load.pods > pods + 20 and load.connections > connections + 20,
            "the load continues without the first CA",
        )
    assert load.lost == []
    assert min(load.pods, load.connections) > 200
    assert gone.authorities[-1] == moved.authorities[0]
    assert replica.program.running()
    shown = re.search(
        r"^hami_scheduler_certificate_expiry_timestamp_seconds (\S+)$",
        replica.metrics(),
        re.MULTILINE,
    )
    assert shown
    assert float(shown[1]) >= moved.serving.not_valid_after_utc.timestamp()
    made = list(calls(local.audit_log, EXTENDER, begun))
    assert not refused(made)
    assert not unused(granted(read_documents(RIGHTS.read_text()), EXTENDER), made)


def change_webhooks(kube: Kube, **changes: object) -> None:
    """Changes *clientConfig* of the webhook that admits pods."""
    kube.call(
        "PATCH",
        f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{WEBHOOK}",
        {"webhooks": [{"name": "vgpu.hami.io", "clientConfig": changes}]},
        content_type="application/strategic-merge-patch+json",
    )


def is_called(replica: Scheduler) -> bool:
    """Reports whether the replica has answered a call of its webhook."""
    counted = r"^hami_scheduler_request_duration_seconds_count\{.*verb=\"webhook\".*\} [1-9]"
    return bool(re.search(counted, replica.metrics(), re.MULTILINE))


@pytest.fixture
def predecessor(
    self_signed: Callable[..., SelfSigned], scheduler: Scheduler, certificates: Certificates
) -> Iterator[Scheduler]:
    """A scheduler with the certificate in a Secret of its own, as HAMi's chart makes it. It leads."""
    kube = scheduler.cluster.kube
    files = {
        "ca": certificates.ca_file,
        "tls.crt": certificates.cert_file,
        "tls.key": certificates.key_file,
    }
    data = {key: base64.b64encode(file.read_bytes()).decode() for key, file in files.items()}
    kube.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": PREVIOUS}, "data": data},
        NAMESPACE,
    )
    change_webhooks(kube, caBundle=data["ca"])
    scheduler.start()
    eventually(lambda: lease_holder(kube, EXTENDER).startswith(scheduler.name), "it leads")
    yield scheduler
    kube.delete("Secret", PREVIOUS, NAMESPACE)


def test_the_certificate_of_a_predecessor_is_served_until_ours_is_trusted(
    sandbox, self_signed, predecessor
):
    """As HAMi's chart is replaced by ours: ours is ready while the other leads, which ends only then."""
    before = x509.load_pem_x509_certificates(predecessor.certificates.ca_file.read_bytes())
    wait_admitted(sandbox)
    successor = self_signed(port=free_port(), **SHORT)
    successor.wait_healthy(path="/readyz")
    assert lease_holder(sandbox.kube, EXTENDER).startswith(predecessor.name)
    with Load(sandbox, successor.port) as load:
        change_webhooks(sandbox.kube, url=f"https://127.0.0.1:{successor.port}/webhook")
        eventually(lambda: is_called(successor), "the API server calls the successor")
        predecessor.stop()
        both = wait_for(
            sandbox.kube, lambda now: len(now.authorities) == 2 and published(now), "both CAs"
        )
        assert both.authorities[1:] == before
        moved = wait_for(
            sandbox.kube,
            lambda now: now.serving.issuer == both.authorities[0].subject,
            "our certificate",
        )
        assert moved.authorities == both.authorities
        pods, connections = load.pods, load.connections
        eventually(
            lambda: load.pods > pods + 20 and load.connections > connections + 20,
            "the load continues",
        )
    assert load.lost == []


def test_changed_certificates_are_restored(sandbox, self_signed):
    replica = self_signed(**FAST)
    wait_for(sandbox.kube, published, "a first CA")
    wait_admitted(sandbox)
    foreign = base64.b64encode(Trust(sandbox.kube).data["tls.crt"]).decode()
    change_webhooks(sandbox.kube, caBundle=foreign)
    wait_for(sandbox.kube, published, "the bundle is back")
    sandbox.kube.delete("Secret", SECRET, NAMESPACE)
    missing = (
        f"Secret {NAMESPACE}/{SECRET} is missing and may not be created: apply the manifests again"
    )
    eventually(lambda: missing in replica.program.tail(), "the log says what to do")
    assert admitted(sandbox, "meanwhile")
    ship(sandbox.kube)
    wait_for(sandbox.kube, published, "a new CA")
    wait_admitted(sandbox)


@cases("kind", ("again", "Opaque"), ("after an upgrade", "kubernetes.io/tls"))
def test_applying_the_manifests_keeps_the_certificates(sandbox, self_signed, local, kind):
    """Earlier versions created the Secret, with the second type, which cannot change."""
    self_signed()
    before = wait_for(sandbox.kube, published, "a CA")
    secret = sandbox.kube.get("Secret", SECRET, NAMESPACE)
    if kind != secret["type"]:
        sandbox.kube.delete("Secret", SECRET, NAMESPACE)
        sandbox.kube.create(secret | {"type": kind, "metadata": {"name": SECRET}}, NAMESPACE)
    local.kubectl("apply", "-f", str(COMPONENT / "secret.yaml"))
    assert sandbox.kube.get("Secret", SECRET, NAMESPACE)["type"] == kind
    assert Trust(sandbox.kube).data == before.data


def test_two_replicas_that_start_at_once_share_one_ca(sandbox, self_signed, local):
    replicas = [
        self_signed("hami-self-signed-0"),
        self_signed("hami-self-signed-1", port=free_port()),
    ]
    trust = wait_for(sandbox.kube, published, "a CA")
    assert len(trust.authorities) == 1
    served = trust.data["tls.crt"].rstrip() + b"\n" + trust.data["tls.key"]
    for replica in replicas:
        file = local.folder / replica.name / "tls.pem"
        wait_for(
            sandbox.kube,
            lambda now: file.exists() and file.read_bytes() == served,
            f"the file of {replica.name}",
        )
    wait_admitted(sandbox)
