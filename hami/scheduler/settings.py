"""Settings of the scheduler program: flags, environment and device configuration as one frozen record."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hami.errors import HamiError, MalformedInput
from hami.runtime.logs import DEBUG_VERBOSITY
from hami.runtime.options import (
    ADDRESS,
    RATE,
    Address,
    File,
    Flag,
    Seconds,
    choice,
    parse_named,
    parse_seconds,
    whole_number,
)
from hami.runtime.settings import ALLOCATE, ClusterSettings, check_key_pair, cluster_values

SELF_SIGNED_FILE = "tls.pem"
"""File in ``--self-signed-cert-dir`` that holds certificate and key, so that both are replaced at once."""

PREEMPTION = ("on", "off", "strict")
OWNED, NONE = "owned", "none"
EVICT = "evict"
ADVISE, APPLY = "advise", "apply"
WARN, DEMOTE, REFUSE = "warn", "demote", "refuse"

DAY_S = 86_400.0
MAX_USAGE_INTERVAL_S = 600.0  # a longer time without a record is a gap
MIN_LIFETIME_S = 20.0  # shorter ones would expire before the API server knows the CA


@dataclass(frozen=True, kw_only=True)
class ServingSettings:
    """Where the scheduler listens, and for whom."""

    http_bind: Annotated[
        Address,
        Flag(
            "--http_bind",
            "Address of /webhook, /filter, /simulate, /preempt, /bind and health; :PORT means "
            "all addresses.",
        ),
    ] = Address("127.0.0.1", 8080)
    extender_bind_address: Annotated[
        Address | None,
        ADDRESS,
        Flag(
            "--extender-bind-address",
            "A second address, on loopback and plain HTTP, for the kube-scheduler on this "
            "machine. Whoever reaches it may call /filter and /bind.",
        ),
    ] = None
    metrics_bind_address: Annotated[
        Address, Flag("--metrics-bind-address", "Address of /metrics, plain HTTP.")
    ] = Address("", 9395)
    cert_file: Annotated[
        File,
        Flag(
            "--cert_file",
            "Certificate (PEM); with --key_file, the address serves HTTPS. Reloaded when it changes.",
        ),
    ] = ""
    key_file: Annotated[File, Flag("--key_file", "Private key of the certificate (PEM).")] = ""
    client_ca_file: Annotated[
        File,
        Flag(
            "--client-ca-file",
            "CA (PEM) of the clients that may do at --http_bind all that kube-scheduler does: "
            "call /filter, /preempt and /bind, and also /simulate. Without it, these are served "
            "on loopback addresses only: see --extender-bind-address.",
        ),
    ] = ""
    simulate_client_ca_file: Annotated[
        File,
        Flag(
            "--simulate-client-ca-file",
            "CA (PEM) of the clients that may call /simulate at --http_bind and no other verb, "
            "such as an autoscaler.",
        ),
    ] = ""
    threads: Annotated[
        int,
        whole_number(1),
        Flag(
            "--threads",
            "Concurrent requests; threads are started as needed, so the limit on the pod's "
            "processes must allow them. Each /bind that waits for its node occupies one. 64 "
            "threads are reserved for other requests; further binds are rejected and retried.",
        ),
    ] = 1024
    legacy_metrics: Annotated[
        bool, Flag("--legacy-metrics", "Also serve the metric names of HAMi before v2.9.")
    ] = False

    def check(self) -> None:
        """Raises HamiError if the settings contradict each other."""
        check_key_pair(self.cert_file, self.key_file)
        if not self.cert_file:
            for flag, file in (
                ("--client-ca-file", self.client_ca_file),
                ("--simulate-client-ca-file", self.simulate_client_ca_file),
            ):
                if file:
                    raise HamiError(f"{flag} without --cert_file and --key_file: it requires HTTPS")
        address = self.extender_bind_address
        if address is not None and not address.is_loopback:
            raise HamiError(
                f"--extender-bind-address={address}: expected a loopback address, since it serves plain HTTP"
            )


@dataclass(frozen=True, kw_only=True)
class SelfSignedSettings:
    """The self-signed certificate. Lifetimes are in seconds."""

    self_signed_cert_dir: Annotated[
        File,
        Flag(
            "--self-signed-cert-dir",
            "Serve HTTPS with a self-signed certificate instead of --cert_file and --key_file. "
            "It is kept in this directory, which must be writable and private to this replica "
            "(an emptyDir). CA and certificate are stored in a Secret and renewed without a "
            "restart after two thirds of their lifetimes; the CA is written into the webhook "
            "configuration.",
        ),
    ] = ""
    self_signed_cert_secret: Annotated[
        str,
        Flag(
            "--self-signed-cert-secret",
            "Secret of that CA and certificate, in the namespace POD_NAMESPACE. Both are created "
            "again if it is empty, or if it was deleted and the account may create it.",
        ),
    ] = "hami-scheduler-self-signed"
    self_signed_webhook: Annotated[
        str,
        Flag(
            "--self-signed-webhook",
            "MutatingWebhookConfiguration whose caBundle is kept up to date; it also provides "
            "the names in the certificate.",
        ),
    ] = "hami-webhook"
    self_signed_previous_secret: Annotated[
        str,
        Flag(
            "--self-signed-previous-secret",
            "Secret of a program that this one replaces, such as HAMi's hami-scheduler-tls. Its "
            "certificate is served until API servers trust the new CA, and its CA stays trusted "
            "while the Secret exists, so that the program can come back. It is only read.",
        ),
    ] = ""
    self_signed_cert_lifetime: Annotated[
        Seconds, Flag("--self-signed-cert-lifetime", "Lifetime of a certificate.")
    ] = 90 * DAY_S
    self_signed_ca_lifetime: Annotated[
        Seconds, Flag("--self-signed-ca-lifetime", "Lifetime of a CA.")
    ] = 3650 * DAY_S

    def check(self) -> None:
        """Raises HamiError if the settings contradict each other."""
        if not MIN_LIFETIME_S <= self.self_signed_cert_lifetime <= self.self_signed_ca_lifetime:
            raise HamiError(
                f"--self-signed-cert-lifetime: expected {MIN_LIFETIME_S:g}s or more, and no more than "
                "--self-signed-ca-lifetime"
            )


@dataclass(frozen=True, kw_only=True)
class PlacementSettings:
    """Which pods the scheduler places, and how it locks their nodes. Times are in seconds."""

    scheduler_name: Annotated[
        str,
        Flag("--scheduler-name", "The spec.schedulerName set on pods, and the source of events."),
    ] = "hami-scheduler"
    force_overwrite_default_scheduler: Annotated[
        bool,
        Flag(
            "--force-overwrite-default-scheduler",
            "Also schedule pods that name the default-scheduler.",
        ),
    ] = True
    node_lock_timeout: Annotated[
        Seconds,
        Flag(
            "--node-lock-timeout",
            "How long a pod may hold a node's lock, such as 5m0s. Without the flag, the "
            "environment variable HAMI_NODELOCK_EXPIRE applies.",
        ),
    ] = 300.0

    def check(self) -> None:
        """Raises HamiError for a value that cannot be used."""
        if self.node_lock_timeout <= 0:
            raise HamiError("--node-lock-timeout: expected more than 0s")

    @property
    def claims_scheduler_name(self) -> str:
        """The name under which the scheduler places pods that get their devices by claims of its own."""
        return f"{self.scheduler_name}-claims" if self.scheduler_name else ""

    def is_own_scheduler(self, name: str) -> bool:
        """Reports whether pods whose ``schedulerName`` is *name* are placed by this scheduler."""
        return name in (self.scheduler_name, self.claims_scheduler_name)


@dataclass(frozen=True, kw_only=True)
class PreemptionSettings:
    """Which pods are evicted for those of higher priority. Times are in seconds."""

    preemption: Annotated[
        str,
        choice("mode", *PREEMPTION),
        Flag(
            "--preemption",
            "Whether pods with devices are evicted for pods of higher priority that no node "
            "fits: on, as kube-scheduler does; strict, never against a PodDisruptionBudget; or "
            "off.",
        ),
    ] = "on"
    preemption_min_runtime: Annotated[
        Seconds,
        Flag(
            "--preemption-min-runtime",
            "How long a pod runs before it is evicted for one of higher priority.",
        ),
    ] = 0.0


@dataclass(frozen=True, kw_only=True)
class RepairSettings:
    """The care of pods whose devices are gone."""

    clean_rejected: Annotated[
        str,
        choice("which", OWNED, NONE),
        Flag(
            "--clean-rejected",
            "Which pods are deleted that their kubelet has rejected for good because of their "
            "devices, as after a reboot until the device plugin runs: owned, those of a "
            "controller of Kubernetes whose replacement runs; or none.",
        ),
    ] = OWNED
    remediation: Annotated[
        str,
        choice("mode", NONE, EVICT),
        Flag(
            "--remediation",
            "What happens to pods on a device that harms them: none, or evict, if a controller of "
            "Kubernetes replaces them and no PodDisruptionBudget forbids it.",
        ),
    ] = NONE
    remediation_after: Annotated[
        Seconds,
        Flag("--remediation-after", "How long a device has been unhealthy before that."),
    ] = 30.0
    remediation_share: Annotated[
        float,
        RATE,
        Flag(
            "--remediation-share",
            "Nobody is evicted while more than one device, and more percent of all devices, are "
            "unhealthy.",
        ),
    ] = 5.0
    remediation_rate: Annotated[
        float, RATE, Flag("--remediation-rate", "Evictions a minute; 0 for none.")
    ] = 6.0


@dataclass(frozen=True, kw_only=True)
class MoveSettings:
    """Whether pods are moved to make room for others."""

    defragment: Annotated[
        str,
        choice("mode", NONE, ADVISE, APPLY),
        Flag(
            "--defragment",
            "What happens if somebody with the right asks that other pods are moved so that a pod "
            "fits: none; advise, an event; or apply, they are moved, one after the other.",
        ),
    ] = ADVISE


@dataclass(frozen=True, kw_only=True)
class UsageSettings:
    """Whether and how it is recorded who has held how much of the devices."""

    opencost: Annotated[
        bool,
        Flag(
            "--opencost",
            "Also serve container_gpu_allocation, by which OpenCost and Kubecost charge parts of "
            "devices. Their own metric of that name must be disabled.",
        ),
    ] = False
    usage_namespace: Annotated[
        str,
        Flag(
            "--usage-namespace",
            "Namespace of the ConfigMaps in which it is recorded who has held how much of the "
            "devices. It should be one of their own. Without it, nothing is recorded.",
        ),
    ] = ""
    usage_interval: Annotated[
        Seconds, Flag("--usage-interval", "Time between two records; 1s to 10m.")
    ] = 300.0
    usage_keep_days: Annotated[
        int,
        whole_number(1),
        Flag("--usage-keep-days", "Days for which records are kept; of workloads, at most 62."),
    ] = 400

    over_budget: Annotated[
        str,
        choice("action", WARN, DEMOTE, REFUSE),
        Flag(
            "--over-budget",
            "What happens to new pods with devices of a namespace that has used its budget of "
            "GPU-hours: warn, nothing but a warning; demote, they get the priority class of "
            "--over-budget-priority-class, unless their own priority is lower; or refuse.",
        ),
    ] = WARN
    over_budget_priority_class: Annotated[
        str,
        Flag(
            "--over-budget-priority-class",
            "The priority class for --over-budget=demote. While it does not exist, pods keep theirs.",
        ),
    ] = ""

    def check(self) -> None:
        """Raises HamiError for a value that cannot be used, and if the settings contradict each other."""
        if not 1 <= self.usage_interval <= MAX_USAGE_INTERVAL_S:
            raise HamiError("--usage-interval: expected 1s to 10m")
        action, name = self.over_budget, self.over_budget_priority_class
        if action != WARN and not self.usage_namespace:
            raise HamiError(
                f"--over-budget={action} without --usage-namespace: budgets need the records of usage"
            )
        if action == DEMOTE and not name:
            raise HamiError(
                f"--over-budget={DEMOTE} without --over-budget-priority-class: name the class"
            )
        if action != DEMOTE and name:
            raise HamiError(
                f"--over-budget-priority-class={name} with --over-budget={action}: expected --over-budget={DEMOTE}"
            )


@dataclass(frozen=True, kw_only=True)
class LeaderElectionSettings:
    """The lease by which one of several replicas acts."""

    leader_elect: Annotated[
        bool, Flag("--leader-elect", "Act only while holding the lease; without it, act always.")
    ] = False
    leader_elect_resource_name: Annotated[
        str, Flag("--leader-elect-resource-name", "Name of the lease.")
    ] = ""
    leader_elect_resource_namespace: Annotated[
        str, Flag("--leader-elect-resource-namespace", "Namespace of the lease.")
    ] = ""
    pod_name: str = ""


@dataclass(frozen=True, kw_only=True)
class Settings(
    ServingSettings,
    SelfSignedSettings,
    PlacementSettings,
    PreemptionSettings,
    RepairSettings,
    MoveSettings,
    UsageSettings,
    LeaderElectionSettings,
    ClusterSettings,
):
    """The settings of the scheduler. Raises: HamiError if they contradict each other."""

    kube_qps: Annotated[
        float,
        RATE,
        Flag(
            "--kube-qps",
            "Events per second, at most 50; 0 for 50. Placing pods is never limited here.",
        ),
    ] = 0.0
    debug: Annotated[bool, Flag("--debug", "The same as -v 4.")] = False

    def __post_init__(self) -> None:
        ServingSettings.check(self)
        SelfSignedSettings.check(self)
        PlacementSettings.check(self)
        UsageSettings.check(self)
        if self.dra == ALLOCATE and not self.scheduler_name:
            raise HamiError(
                f"--dra={ALLOCATE} without --scheduler-name: pods with claims need a scheduler"
            )

    @property
    def log_verbosity(self) -> int:
        """The verbosity of the log, with *debug*."""
        return max(self.verbosity, DEBUG_VERBOSITY if self.debug else 0)


def read_settings(
    flag_values: Mapping[str, object],
    environ: Mapping[str, str],
    *,
    config_flags: Sequence[tuple[Flag, object]] = (),
    known: Collection[str] = (),
) -> Settings:
    """The settings of flags and environment; reads the device configuration. *flag_values*: values of flags by field.

    *config_flags*: flags for the device configuration with their values. *known*: its sections that vendors of third
    parties read. Raises: HamiError when a file cannot be read or settings contradict each other.
    """
    values = cluster_values(flag_values, environ, config_flags, known)
    values["pod_name"] = environ.get("POD_NAME", "")
    text = environ.get("HAMI_NODELOCK_EXPIRE")
    if text and "node_lock_timeout" not in flag_values:
        variable = "environment variable HAMI_NODELOCK_EXPIRE"
        values["node_lock_timeout"] = parse_named(text, parse_seconds, variable)
        if not values["node_lock_timeout"]:
            raise MalformedInput(variable, text, "expected more than 0s")
    if directory := str(values.get("self_signed_cert_dir", "")):
        for flag in ("cert_file", "key_file"):
            if values.get(flag):
                raise HamiError(f"--self-signed-cert-dir with --{flag}: use one or the other")
            values[flag] = str(Path(directory) / SELF_SIGNED_FILE)
    return Settings(**values)  # type: ignore[arg-type]  # each flag's type made its value
