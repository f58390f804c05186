"""Settings of the scheduler program: flags, environment and device configuration as one frozen record.

The defaults of all flags are here; the flags themselves are in :mod:`hami.cli.scheduler`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from hami.codec.device_config import Fallback
from hami.errors import HamiError, MalformedInput
from hami.runtime.logs import DEBUG_VERBOSITY
from hami.runtime.options import Address, parse_named, parse_seconds
from hami.runtime.settings import ALLOCATE, ClusterSettings, check_key_pair, cluster_values

SELF_SIGNED_FILE = "tls.pem"
"""File in ``--self-signed-cert-dir`` that holds certificate and key, so that both are replaced at once."""

NODE_POLICIES = ("binpack", "spread")
PREEMPTION = ("on", "off", "strict")
DEVICE_POLICIES = ("binpack", "spread", "numa", "mutex", "topology-aware")

DAY_S = 86_400.0
MIN_LIFETIME_S = 20.0  # shorter ones would expire before the API server knows the CA


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ClusterSettings):
    """The settings of the scheduler. Times are in seconds.

    *cert_file*, *key_file*, *client_ca_file*, *simulate_client_ca_file*: empty for none; with the first two,
    *http_bind* serves TLS.
    *self_signed_cert_dir*: the directory of the self-signed certificate; empty to disable it. The certificate is stored
    in the Secret *self_signed_cert_secret*, and its CA in the webhook configuration *self_signed_webhook*.
    *self_signed_previous_secret*: a Secret whose certificate is served first; empty for none.
    *extender_bind_address*: a second listener without TLS, on loopback; ``None`` for none. *kube_qps*: 0 for no limit.
    *pod_name*: empty if unknown.
    Raises: HamiError if they contradict each other.
    """

    http_bind: Address = Address("127.0.0.1", 8080)
    extender_bind_address: Address | None = None
    metrics_bind_address: Address = Address("", 9395)
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    simulate_client_ca_file: str = ""
    threads: int = 1024

    self_signed_cert_dir: str = ""
    self_signed_cert_secret: str = "hami-scheduler-self-signed"
    self_signed_webhook: str = "hami-webhook"
    self_signed_previous_secret: str = ""
    self_signed_cert_lifetime: float = 90 * DAY_S
    self_signed_ca_lifetime: float = 3650 * DAY_S

    scheduler_name: str = "hami-scheduler"
    force_overwrite_default_scheduler: bool = True
    node_lock_timeout: float = 300.0
    preemption: str = "on"
    preemption_min_runtime: float = 0.0

    leader_elect: bool = False
    leader_elect_resource_name: str = ""
    leader_elect_resource_namespace: str = ""
    kube_qps: float = 0.0

    debug: bool = False
    legacy_metrics: bool = False

    pod_name: str = ""

    def __post_init__(self) -> None:
        check_key_pair(self.cert_file, self.key_file)
        if not MIN_LIFETIME_S <= self.self_signed_cert_lifetime <= self.self_signed_ca_lifetime:
            raise HamiError(
                f"--self-signed-cert-lifetime: expected {MIN_LIFETIME_S:g}s or more, and no more than "
                "--self-signed-ca-lifetime"
            )
        for flag, file in (
            ("--client-ca-file", self.client_ca_file),
            ("--simulate-client-ca-file", self.simulate_client_ca_file),
        ):
            if file and not self.cert_file:
                raise HamiError(f"{flag} without --cert_file and --key_file: it requires HTTPS")
        if (address := self.extender_bind_address) is not None and not address.is_loopback:
            raise HamiError(
                f"--extender-bind-address={address}: expected a loopback address, since it serves plain HTTP"
            )
        if self.node_lock_timeout <= 0:
            raise HamiError("--node-lock-timeout: expected more than 0s")
        if self.dra == ALLOCATE and not self.scheduler_name:
            raise HamiError(
                f"--dra={ALLOCATE} without --scheduler-name: pods with claims need a scheduler"
            )

    @property
    def claims_scheduler_name(self) -> str:
        """The name under which the scheduler places pods that get their devices by claims of its own."""
        if not self.scheduler_name:
            return ""
        return f"{self.scheduler_name}-claims"

    def is_own_scheduler(self, name: str) -> bool:
        """Reports whether pods whose ``schedulerName`` is *name* are placed by this scheduler."""
        return name in (self.scheduler_name, self.claims_scheduler_name)

    @property
    def log_verbosity(self) -> int:
        """The verbosity of the log, with *debug*."""
        return max(self.verbosity, DEBUG_VERBOSITY if self.debug else 0)


def read_settings(
    given: Mapping[str, object],
    environ: Mapping[str, str],
    *,
    fallback: Fallback = MappingProxyType({}),
    known: Collection[str] = (),
) -> Settings:
    """The settings of flags and environment; reads the device configuration. *given*: values of flags by field.

    *fallback*: values of flags for the device configuration. *known*: its sections that vendors of third parties read.
    Raises: HamiError when a file cannot be read or settings contradict each other.
    """
    values = {
        "pod_name": environ.get("POD_NAME", ""),
        **cluster_values(given, environ, fallback, known),
    }
    if "node_lock_timeout" not in given and (text := environ.get("HAMI_NODELOCK_EXPIRE")):
        variable = "environment variable HAMI_NODELOCK_EXPIRE"
        values["node_lock_timeout"] = parse_named(text, parse_seconds, variable)
        if not values["node_lock_timeout"]:
            raise MalformedInput(variable, text, "expected more than 0s")
    if directory := str(values.get("self_signed_cert_dir", "")):
        if given_file := next((flag for flag in ("cert_file", "key_file") if values.get(flag)), ""):
            raise HamiError(f"--self-signed-cert-dir with --{given_file}: use one or the other")
        values |= dict.fromkeys(("cert_file", "key_file"), str(Path(directory) / SELF_SIGNED_FILE))
    return Settings(**values)  # type: ignore[arg-type]  # each flag's type made its value


def parse_device_policy_flag(text: str) -> str:
    """*text* when it is a device policy, or several separated by commas. Raises: MalformedInput."""
    if not all(token.strip() in DEVICE_POLICIES for token in text.split(",")):
        raise MalformedInput(
            "policy", text, f"expected {', '.join(DEVICE_POLICIES)}, or several separated by commas"
        )
    return text
