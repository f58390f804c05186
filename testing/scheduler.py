"""``hami scheduler`` as a process beside the local control plane, configured like the Deployment of ``manifests/``.

Flags, permissions (the token in the shipped Secret) and webhook configuration are the same; addresses, certificate and
files differ.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import ipaddress
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import urllib3
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hami.codec.documents import parse_own_yaml
from testing.cluster import SCHEDULER, LocalCluster
from testing.eventually import PATIENCE_S, eventually
from testing.kube import ApiError, Kube, write_kubeconfig
from testing.pods import pod
from testing.processes import Program, free_port
from testing.revision import THIS, Revision

__all__ = [
    "EXTENDER",
    "Certificates",
    "Scheduler",
    "account_kubeconfig",
    "account_token",
    "install",
    "is_admitted",
    "kill_leader",
    "kube_scheduler_kubeconfig",
    "redirect_webhook",
    "second_replica",
    "wait_for_webhook",
]

NAMESPACE = "kube-system"
EXTENDER = f"{SCHEDULER}-extender"
"""Name of the extender's account and of its Lease."""
Object = dict[str, Any]


class Certificates:
    """A CA and a serving certificate for loopback and the Service, as files. ``renew`` replaces that certificate."""

    def __init__(self, folder: Path, namespace: str = NAMESPACE) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.ca_file, self.cert_file, self.key_file = (
            folder / "ca.crt",
            folder / "tls.crt",
            folder / "tls.key",
        )
        self._service = f"{SCHEDULER}.{namespace}.svc"
        self._ca_key = ec.generate_private_key(ec.SECP256R1())
        self._ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hami e2e CA")])
        ca = (
            builder(self._ca_name, self._ca_name, self._ca_key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(key_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._ca_key.public_key()), critical=False
            )
        )
        self.ca_file.write_bytes(
            ca.sign(self._ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        self.renew()

    def renew(self) -> None:
        """Creates a new key and certificate in the same files, each replaced atomically."""
        self._issue(self.cert_file, self.key_file, ExtendedKeyUsageOID.SERVER_AUTH)

    def client(self) -> tuple[Path, Path]:
        """Returns the files of a new certificate and its key, for a client."""
        files = self.cert_file.with_name("client.crt"), self.key_file.with_name("client.key")
        self._issue(*files, ExtendedKeyUsageOID.CLIENT_AUTH)
        return files

    def _issue(self, cert_file: Path, key_file: Path, usage: x509.ObjectIdentifier) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SCHEDULER)])
        certificate = (
            builder(name, self._ca_name, key.public_key())
            .add_extension(
                x509.SubjectAlternativeName(
                    [
                        x509.DNSName("localhost"),
                        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
                        x509.DNSName(self._service),
                    ]
                ),
                critical=False,
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._ca_key.public_key()),
                critical=False,
            )
        )
        replace_file(
            key_file,
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )
        signed = certificate.sign(self._ca_key, hashes.SHA256())
        replace_file(cert_file, signed.public_bytes(serialization.Encoding.PEM))


def builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=issuer,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - datetime.timedelta(hours=1),
        not_valid_after=now + datetime.timedelta(days=7),
    )


def key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def replace_file(path: Path, content: bytes) -> None:
    fresh = path.with_suffix(path.suffix + ".new")
    fresh.write_bytes(content)
    fresh.rename(path)


def install(
    cluster: LocalCluster,
    certificates: Certificates,
    *,
    port: int | None = None,
    revision: Revision = THIS,
) -> Path:
    """Applies the RBAC, policies and webhook configuration of *revision*; returns a kubeconfig of its extender."""
    for file in ("rbac.yaml", "device-plugin-rbac.yaml", "policy-roles.yaml", "policies.yaml"):
        cluster.kube.apply_yaml((revision.manifests / file).read_text(), NAMESPACE)
    wait_for_policies(cluster.kube)
    cluster.kube.apply(webhook_configuration(certificates, port or cluster.webhook_port, revision))
    has_own_account = f"{EXTENDER}-token" in (revision.manifests / "rbac.yaml").read_text()
    return account_kubeconfig(cluster) if has_own_account else kube_scheduler_kubeconfig(cluster)


def wait_for_policies(kube: Kube, timeout: float = PATIENCE_S) -> None:
    """Waits until the API server enforces the policies. It does so some seconds after they were created."""
    # what the last policy of the file refuses; the webhook leaves it to the other scheduler
    last = pod("probe", gpu=1, node_name="nowhere", scheduler="foo")

    def enforced() -> bool:
        try:
            kube.dry_run(last, "default")
        except ApiError as error:
            return "ValidatingAdmissionPolicy 'hami-placement'" in error.message
        return False

    eventually(enforced, "the API server enforces the policies", timeout=timeout)


def webhook_configuration(
    certificates: Certificates,
    port: int,
    revision: Revision = THIS,
    configuration: Object | None = None,
) -> Object:
    """Returns the shipped *configuration* (default: of the base) with the address of a process on this machine.

    The API server waits as long as it may: what it does not hear in time goes to another scheduler.
    """
    configuration = configuration or parse_own_yaml(
        (revision.manifests / "webhook.yaml").read_text()
    )
    for webhook in configuration["webhooks"]:
        webhook["timeoutSeconds"] = 30
        path = webhook["clientConfig"]["service"]["path"]
        bundle = base64.b64encode(certificates.ca_file.read_bytes()).decode()
        webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
    return configuration


def redirect_webhook(
    kube: Kube, certificates: Certificates, port: int, timeout: float = PATIENCE_S
) -> None:
    """Makes the API server call the webhook on *port*, and waits until it does.

    Nothing may listen on the previous port.
    """
    kube.apply(webhook_configuration(certificates, port))
    wait_for_webhook(kube, timeout)


def wait_for_webhook(kube: Kube, timeout: float = PATIENCE_S) -> None:
    """Waits until the webhook changes pods. The API server applies a new configuration with a delay, and kube-proxy
    forwards to a pod some time after it has become ready; pods of that time would go to another scheduler.
    """
    eventually(
        lambda: is_admitted(kube, "probe"),
        "the API server calls the webhook",
        timeout=timeout,
        interval=0.1,
    )


def is_admitted(kube: Kube, name: str) -> bool:
    """Reports whether the webhook changes a new pod, which is not kept. Raises: ApiError."""
    made = kube.dry_run(pod(name, gpu=1), "default")
    return bool(made["spec"]["schedulerName"] == SCHEDULER)


def account_token(kube: Kube, namespace: str = NAMESPACE, account: str = EXTENDER) -> str:
    """Returns the token in the shipped Secret of the extender, once the control plane has written it there."""
    name = f"{account}-token"
    data = eventually(
        lambda: kube.get("Secret", name, namespace).get("data"), f"{name} has a token"
    )
    return base64.b64decode(data["token"]).decode()


def account_kubeconfig(cluster: LocalCluster, account: str = EXTENDER) -> Path:
    """Returns a kubeconfig with the token of the extender."""
    token = account_token(cluster.kube, account=account)
    return write_kubeconfig(cluster.kubeconfig, token, cluster.folder / f"{account}.kubeconfig")


def kube_scheduler_kubeconfig(cluster: LocalCluster, account: str = SCHEDULER) -> Path:
    """Returns a kubeconfig with a token of the account of kube-scheduler."""
    return write_kubeconfig(
        cluster.kubeconfig,
        cluster.kube.token(account, NAMESPACE),
        cluster.folder / f"{account}.kubeconfig",
    )


def shipped_flags(
    file: str = "deployment.yaml",
    container: str = "extender",
    revision: Revision = THIS,
) -> dict[str, str]:
    """Returns the flags of a container of the manifests, with underscores; default: the extender."""
    workload = parse_own_yaml((revision.manifests / file).read_text())
    containers = {item["name"]: item for item in workload["spec"]["template"]["spec"]["containers"]}
    command = containers[container]["command"]
    words = (word.removeprefix("--").split("=", 1) for word in command if word.startswith("--"))
    return {name.replace("-", "_"): value for name, value in words}


class Scheduler:
    """A replica of ``hami scheduler``. Flags are keyword arguments with underscores."""

    def __init__(
        self,
        cluster: LocalCluster,
        certificates: Certificates,
        kubeconfig: Path,
        *,
        name: str = "hami-scheduler-0",
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
        revision: Revision = THIS,
        **flags: str,
    ) -> None:
        self.cluster = cluster
        self.certificates = certificates
        self.name = name
        self.port = port or cluster.webhook_port
        self.extender_port = free_port() if port else cluster.extender_port
        self.metrics_port = free_port()
        self.defaults = (
            shipped_flags(revision=revision)
            | {
                "http_bind": f"127.0.0.1:{self.port}",
                "extender_bind_address": f"127.0.0.1:{self.extender_port}",
                "metrics_bind_address": f"127.0.0.1:{self.metrics_port}",
                "cert_file": str(certificates.cert_file),
                "key_file": str(certificates.key_file),
                "device_config_file": str(revision.manifests / "device-config.yaml"),
                "leader_elect_resource_namespace": NAMESPACE,
            }
            | flags
        )
        self._flags: dict[str, str] = {}
        self._environment = (
            os.environ
            | revision.environment
            | {
                "KUBECONFIG": str(kubeconfig),
                "POD_NAME": name,
                "POD_NAMESPACE": NAMESPACE,
                "PYTHONUNBUFFERED": "1",
                **(environment or {}),
            }
        )
        self.program = Program(name, [], cluster.folder / f"{name}.log", env=self._environment)
        self._pool = urllib3.PoolManager(
            ca_certs=str(certificates.ca_file), retries=False, timeout=30
        )

    def start(self, *, wait: bool = True, **flags: str) -> Scheduler:
        """Starts with the shipped flags, changed by *flags*, and waits until ``/healthz`` is 200."""
        self._flags = self.defaults | flags
        words = [f"--{name}={value}" for name, value in self._flags.items()]
        self.program.argv = [sys.executable, "-m", "hami.cli", "scheduler", *words]
        self.program.start()
        if wait:
            self.wait_healthy()
        return self

    def run_with(self, **flags: str) -> Scheduler:
        """Runs it with the shipped flags, changed by *flags*; restarts it only if necessary."""
        if self.program.running() and self._flags == self.defaults | flags:
            return self
        self.program.stop()
        return self.start(**flags)

    def wait_healthy(self, timeout: float = PATIENCE_S, path: str = "/healthz") -> float:
        """Waits for status 200; returns the seconds. Raises: AssertionError with the end of the log."""

        def healthy() -> bool:
            assert self.program.running(), (
                f"hami scheduler ended ({self.program.exit_code}):\n{self.program.tail()}"
            )
            return self.status(path) == 200

        started = time.monotonic()
        eventually(healthy, lambda: f"{path} is 200:\n{self.program.tail()}", timeout=timeout)
        return time.monotonic() - started

    def status(self, path: str) -> int | None:
        """Returns the HTTP status of a GET; ``None`` without a response."""
        try:
            return int(
                self._pool.request("GET", f"https://127.0.0.1:{self.port}{path}", timeout=5).status
            )
        except urllib3.exceptions.HTTPError:
            return None

    def call(
        self,
        verb: str,
        body: Object | bytes | None = None,
        *,
        method: str = "POST",
        content_type: str = "application/json",
    ) -> urllib3.BaseHTTPResponse:
        """Calls the process like kube-scheduler or the API server does."""
        url = f"https://127.0.0.1:{self.port}{verb}"
        if isinstance(body, dict):
            return self._pool.request(method, url, json=body)
        return self._pool.request(method, url, body=body, headers={"Content-Type": content_type})

    def call_extender(self, verb: str, body: Object) -> urllib3.BaseHTTPResponse:
        """Calls the address on loopback like the kube-scheduler of the same pod does."""
        return self._pool.request("POST", f"http://127.0.0.1:{self.extender_port}{verb}", json=body)

    def reservation(self, uid: str) -> Object | None:
        """Returns the reservation of the pod *uid*, with the annotations of its future Binding."""
        answer = self.call(f"/reservations/{uid}", method="GET")
        return answer.json() if answer.status == 200 else None

    def metrics(self) -> str:
        """Returns the metrics as text."""
        return self._pool.request(
            "GET", f"http://127.0.0.1:{self.metrics_port}/metrics"
        ).data.decode()

    def kill(self) -> None:
        """Kills the process and its worker."""
        self.program.kill()

    def stop(self) -> None:
        """Sends SIGTERM and waits until it has ended. Raises: WaitTimeout."""
        self.program.stop()

    def close(self) -> None:
        if self.program.running():
            self.kill()
        self._pool.clear()


@contextlib.contextmanager
def second_replica(first: Scheduler, kubeconfig: Path | None = None) -> Iterator[Scheduler]:
    """Runs a standby of *first* with its own kube-scheduler; restores *first* and its kube-scheduler at the end.

    *kubeconfig*: permissions of that kube-scheduler (default: the administrator's).
    """
    cluster, certificates = first.cluster, first.certificates
    # the first kube-scheduler leads, so that the second one does not take over an expired Lease
    wait_renewed(cluster.kube)
    second = Scheduler(
        cluster,
        certificates,
        account_kubeconfig(cluster),
        name="hami-scheduler-1",
        port=free_port(),
    )
    second.start(wait=False)
    program = cluster.start_kube_scheduler("kube-scheduler-1", second.extender_port, kubeconfig)
    try:
        yield second
    finally:
        cluster.components.pop("kube-scheduler-1")
        program.kill()
        second.close()
        cluster.revive()
        first.run_with()
        redirect_webhook(cluster.kube, certificates, first.port)


def kill_leader(first: Scheduler, second: Scheduler) -> None:
    """Kills the pod of *first*, which leads: its kube-scheduler has no extender for a moment. *second* takes over when
    both Leases have expired; the API server calls its webhook by then."""
    first.kill()
    first.cluster.components["kube-scheduler"].kill()
    redirect_webhook(
        first.cluster.kube, first.certificates, second.port
    )  # a Service removes dead endpoints


def wait_renewed(kube: Kube) -> None:
    """Waits until kube-scheduler has renewed its Lease."""

    def renewed() -> str | None:
        lease = kube.find("Lease", SCHEDULER, NAMESPACE) or {"spec": {}}
        return lease["spec"].get("renewTime")

    before = renewed()
    eventually(lambda: renewed() != before, "kube-scheduler renews its Lease", interval=0.2)


def lease_holder(kube: Kube, name: str = SCHEDULER) -> str:
    """Returns ``holderIdentity`` of a Lease; empty without one."""
    lease = kube.find("Lease", name, NAMESPACE)
    return (lease or {}).get("spec", {}).get("holderIdentity") or ""
