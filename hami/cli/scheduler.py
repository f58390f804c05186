"""``hami scheduler``: the flags and the processes of the scheduler program."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from hami.cli.flags import LOG_FORMAT, VERBOSITY, GroupedCommand, flags_given
from hami.codec.device_config import Flagged, parse_resource_name
from hami.runtime import logs
from hami.runtime.options import (
    ADDRESS,
    BOOLEAN,
    COUNT,
    DURATION,
    FILE,
    RATE,
    STRING,
    Flag,
    Groups,
    Value,
    choice,
    whole_number,
)
from hami.runtime.settings import DRA, ClusterSettings
from hami.scheduler.settings import (
    DEVICE_POLICIES,
    NODE_POLICIES,
    PREEMPTION,
    Settings,
    parse_device_policy_flag,
    read_settings,
)

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from hami.scheduler.program import SchedulerProgram

S = TypeVar("S", bound=ClusterSettings)

log = logging.getLogger(__name__)

DEFAULTS = Settings()
_RESOURCE = Value("name", parse_resource_name)

LISTENING = (
    Flag(
        "--http_bind",
        ADDRESS,
        "Address of /webhook, /filter, /simulate, /preempt, /bind and health; :PORT means all "
        "addresses.",
    ),
    Flag(
        "--cert_file",
        FILE,
        "Certificate (PEM); with --key_file, the address serves HTTPS. Reloaded when it changes.",
    ),
    Flag("--key_file", FILE, "Private key of the certificate (PEM)."),
    Flag(
        "--client-ca-file",
        FILE,
        "CA (PEM) of the clients that may do at --http_bind all that kube-scheduler does: "
        "call /filter, /preempt and /bind, and also /simulate. Without it, these are served on loopback addresses "
        "only: see --extender-bind-address.",
    ),
    Flag(
        "--simulate-client-ca-file",
        FILE,
        "CA (PEM) of the clients that may call /simulate at --http_bind and no "
        "other verb, such as an autoscaler.",
    ),
    Flag(
        "--self-signed-cert-dir",
        FILE,
        "Serve HTTPS with a self-signed certificate instead of --cert_file and "
        "--key_file. It is kept in this directory, which must be writable and private to this replica (an emptyDir). "
        "CA and certificate are stored in a Secret and renewed without a restart after two thirds of their lifetimes; "
        "the CA is written into the webhook configuration.",
    ),
    Flag(
        "--self-signed-cert-secret",
        STRING,
        "Secret of that CA and certificate, in the namespace POD_NAMESPACE. Both "
        "are created again if it is empty, or if it was deleted and the account may create it.",
    ),
    Flag(
        "--self-signed-webhook",
        STRING,
        "MutatingWebhookConfiguration whose caBundle is kept up to date; it also "
        "provides the names in the certificate.",
    ),
    Flag(
        "--self-signed-previous-secret",
        STRING,
        "Secret of a program that this one replaces, such as HAMi's "
        "hami-scheduler-tls. Its certificate is served until API servers trust the new CA, and its CA stays trusted "
        "while the Secret exists, so that the program can come back. It is only read.",
    ),
    Flag("--self-signed-cert-lifetime", DURATION, "Lifetime of a certificate."),
    Flag("--self-signed-ca-lifetime", DURATION, "Lifetime of a CA."),
    Flag(
        "--extender-bind-address",
        ADDRESS,
        "A second address, on loopback and plain HTTP, for the kube-scheduler on "
        "this machine. Whoever reaches it may call /filter and /bind.",
    ),
    Flag("--metrics-bind-address", ADDRESS, "Address of /metrics, plain HTTP."),
    Flag(
        "--threads",
        whole_number(1),
        "Concurrent requests; threads are started as needed, so the limit on the "
        "pod's processes must allow them. Each /bind that waits for its node occupies one. 64 threads are reserved "
        "for other requests; further binds are rejected and retried.",
    ),
)
SCHEDULING = (
    Flag(
        "--scheduler-name", STRING, "The spec.schedulerName set on pods, and the source of events."
    ),
    Flag(
        "--node-scheduler-policy",
        choice("policy", *NODE_POLICIES),
        "Default policy that selects nodes: binpack (the fullest that fits) or spread.",
    ),
    Flag(
        "--gpu-scheduler-policy",
        Value("policy", parse_device_policy_flag),
        "Default policy that selects devices: "
        f"{', '.join(DEVICE_POLICIES)}, or several separated by commas.",
    ),
    Flag(
        "--force-overwrite-default-scheduler",
        BOOLEAN,
        "Also schedule pods that name the default-scheduler.",
    ),
    Flag(
        "--foreign-reservations",
        BOOLEAN,
        "Count for 60s what another scheduler has written on a pod that is not "
        "bound yet. For an upgrade from HAMi, whose scheduler does so. While it is set, everyone who may write "
        "these annotations can claim devices.",
    ),
    Flag(
        "--node-label-selector",
        Value("selector", str),
        "Label selector of the nodes to use, such as "
        "gpu=on,zone!=b; empty for all. The API server validates it after the start.",
        "node_selector",
    ),
    Flag(
        "--preemption",
        choice("mode", *PREEMPTION),
        "Whether pods with devices are evicted for pods of higher "
        "priority that no node fits: on, as kube-scheduler does; strict, never against a PodDisruptionBudget; or "
        "off.",
    ),
    Flag(
        "--preemption-min-runtime",
        DURATION,
        "How long a pod runs before it is evicted for one of higher priority.",
    ),
    Flag(
        "--dra",
        choice("mode", *DRA),
        "What to do about GPUs that pods get by claims (Dynamic Resource Allocation, "
        "from Kubernetes 1.36 on): show them; allocate: give pods that a label of theirs or of their namespace "
        "selects claims that this scheduler allocates; or off.",
    ),
    Flag(
        "--node-lock-timeout",
        DURATION,
        "How long a pod may hold a node's lock, such as 5m0s. Without the flag, the "
        "environment variable HAMI_NODELOCK_EXPIRE applies.",
    ),
)
CLUSTER = (
    Flag("--leader-elect", BOOLEAN, "Act only while holding the lease; without it, act always."),
    Flag("--leader-elect-resource-name", STRING, "Name of the lease."),
    Flag("--leader-elect-resource-namespace", STRING, "Namespace of the lease."),
    Flag(
        "--kube-qps",
        RATE,
        "Events per second, at most 50; 0 for 50. Placing pods is never limited here.",
    ),
    Flag(
        "--kube-timeout",
        COUNT,
        "Seconds until a request to the API server times out; 0 for the built-in timeout.",
    ),
)
DEVICES = (
    Flag(
        "--device-config-file",
        FILE,
        "YAML file with resource names and defaults by vendor; without it, the chart's apply.",
    ),
    Flag("--enable-ascend", BOOLEAN, "Schedule Ascend devices, those in the file's vnpus."),
    Flag("--enable-iluvatar", BOOLEAN, "Schedule Iluvatar devices, those in the file's iluvatars."),
)
OUTPUT = (
    VERBOSITY,
    Flag("--debug", BOOLEAN, "The same as -v 4."),
    LOG_FORMAT,
    Flag("--legacy-metrics", BOOLEAN, "Also serve the metric names of HAMi before v2.9."),
)
NO_EFFECT = (
    Flag("--profiling", BOOLEAN, "There are no Go profiles."),
    Flag("--node-lock-retry-timeout", DURATION, "Binds wait until their node is unlocked."),
    Flag("--kube-burst", COUNT, "The API server's own limits apply."),
    *(
        Flag(f"--{name}", STRING)
        for name in (
            "vmodule",
            "alsologtostderrthreshold",
            "log_dir",
            "log_file",
            "stderrthreshold",
            "log_backtrace_at",
        )
    ),
    *(
        Flag(f"--{name}", BOOLEAN)
        for name in (
            "logtostderr",
            "alsologtostderr",
            "skip_headers",
            "add_dir_header",
            "one_output",
            "skip_log_headers",
            "legacy_stderr_threshold_behavior",
        )
    ),
    Flag("--log_file_max_size", COUNT),
)


_KEYS = {
    "name": "resourceCountName",
    "memory": "resourceMemoryName",
    "cores": "resourceCoreName",
    "vcount": "resourceVCountName",
    "vmemory": "resourceVMemoryName",
    "vcore": "resourceVCoreName",
}


def _names(section: str, flags: Mapping[str, str], help: str = "") -> Iterator[Flag]:
    """Flags that set resource names of a section: name of the flag → key."""
    return (
        Flag(name, _RESOURCE, help, config_key=f"{section}.{key}") for name, key in flags.items()
    )


def _usual_names(section: str, prefix: str, *amounts: str, help: str = "") -> Iterator[Flag]:
    """Flags that set the names of the resources for *amounts*: ``--PREFIX-AMOUNT``."""
    return _names(section, {f"--{prefix}-{amount}": _KEYS[amount] for amount in amounts}, help)


CONFIG_FLAGS = (
    *_names(
        "nvidia",
        {
            "--resource-name": "resourceCountName",
            "--resource-mem": "resourceMemoryName",
            "--resource-mem-percentage": "resourceMemoryPercentageName",
            "--resource-cores": "resourceCoreName",
            "--resource-priority": "resourcePriorityName",
        },
    ),
    Flag(
        "--default-gpu",
        COUNT,
        "Devices for a container that requests only memory or cores.",
        config_key="nvidia.defaultGPUNum",
    ),
    Flag(
        "--default-mem",
        COUNT,
        "Default memory in MiB; 0 for the whole device.",
        config_key="nvidia.defaultMemory",
    ),
    Flag(
        "--default-cores",
        COUNT,
        "Default cores in percent of a device.",
        config_key="nvidia.defaultCores",
    ),
    Flag(
        "--overwrite-env",
        BOOLEAN,
        "Hide all devices from containers without a request.",
        config_key="nvidia.overwriteEnv",
    ),
    *_usual_names("cambricon", "cambricon-mlu", "name", "memory", "cores"),
    *_usual_names("hygon", "dcu", "name", "memory", "cores"),
    *_usual_names("metax", "metax", "name", "vcount", "vmemory", "vcore"),
    Flag(
        "--sgpu-topology-aware",
        BOOLEAN,
        "Choose whole sGPU devices by their links.",
        config_key="metax.sgpuTopologyAware",
    ),
    *_usual_names("mthreads", "mthreads", "name", "memory", "cores"),
    *_usual_names("kunlun", "kunlun", "name", "vcount", "vmemory"),
    *_names(
        "enflame",
        {
            "--enflame-gcu-resource-name": "resourceNameGCU",
            "--enflame-drs-gcu-resource-name": "resourceNameDRSGCU",
            "--enflame-vgcu-resource-name": "resourceNameDRSGCU",  # an older name; the one above takes precedence
            "--enflame-gcu-memory-resource-name": "resourceNameGCUMemory",
            "--enflame-gcu-core-resource-name": "resourceNameGCUCore",
        },
    ),
    *_names(
        "enflame",
        {"--enflame-vgcu-legacy-resource-name": "resourceNameVGCU"},
        "Applies where resourceNameDRSGCU is not set.",
    ),
    *_names(
        "enflame",
        {"--enflame-vgcu-percentage-resource-name": "resourceNameVGCUPercentage"},
        "Has no effect.",
    ),
    *_usual_names(
        "iluvatars[]", "iluvatar", "name", "memory", "cores", help="Requires --enable-iluvatar."
    ),
    *_names(
        "vnpus.configs[]",
        {"--ascend-name": "resourceName", "--ascend-memory": "resourceMemoryName"},
        "Requires --enable-ascend.",
    ),
    *_names(
        "vnpus.configs[Ascend310P]",
        {"--ascend310p-name": "resourceName", "--ascend310p-memory": "resourceMemoryName"},
        "Requires --enable-ascend.",
    ),
)
DEVICE_GROUPS: Groups = (
    ("Devices", DEVICES),
    (
        "Device configuration (for keys that --device-config-file lacks; without a file, they replace the chart's)",
        CONFIG_FLAGS,
    ),
)
SCHEDULER_FLAGS: Groups = (
    ("Listening", LISTENING),
    ("Scheduling", SCHEDULING),
    ("Cluster", CLUSTER),
    *DEVICE_GROUPS,
    ("Output", OUTPUT),
    ("Accepted without effect", NO_EFFECT),
)


def settings_of_command_line(
    ctx: click.Context, groups: Groups, values: dict[str, object], read: Callable[..., S]
) -> S:
    """Returns the settings that *read* makes of command line and environment; *values*: the command's parameters."""
    from hami.vendors.entry_points import sections

    given: dict[str, object] = {}
    fallback: dict[str, dict[str, Flagged]] = {}
    for flag, value in flags_given(ctx, groups, values):
        if flag.config_key:
            mapping, _, key = flag.config_key.rpartition(".")
            fallback.setdefault(mapping, {}).setdefault(key, Flagged(value, flag.name))
        elif flag not in NO_EFFECT:
            given[flag.parameter] = value
    return read(given, os.environ, fallback=fallback, known=sections())


MOVED = {
    f"--dashboard-{name}": f"hami dashboard --{name}"
    for name in ("bind-address", "monitor-selector", "monitor-port")
}


@click.command(
    name="scheduler", cls=GroupedCommand, groups=SCHEDULER_FLAGS, defaults=(DEFAULTS,), moved=MOVED
)
@click.pass_context
def scheduler_command(ctx: click.Context, /, **values: object) -> None:
    """Serve the admission webhook and the scheduler extender, and track the cluster's devices.

    The cluster is that of KUBECONFIG, else the one this pod runs in. - and _ in a flag's name are equivalent; a BOOL
    may be omitted (true). A DURATION is written as 28s or 5m0s. POD_NAME and POD_NAMESPACE identify this pod.
    """
    from hami.vendors.entry_points import catalog

    settings = settings_of_command_line(ctx, SCHEDULER_FLAGS, values, read_settings)
    logs.configure(settings.log_format, settings.log_verbosity)
    for note in settings.devices.notes:
        log.warning("device configuration", extra={"note": note})
    # a faulty vendor ends the start here, with one line, rather than in the worker
    catalog(settings.devices, ascend=settings.enable_ascend, iluvatar=settings.enable_iluvatar)
    serve: Callable[[Settings], int] = ctx.obj or run_scheduler  # tests pass their own
    ctx.exit(serve(settings))


def run_scheduler(settings: Settings) -> int:
    """Serves until a stop signal arrives. Returns or exits with the exit status."""
    from hami.web.server import serve
    from hami.web.tls import TlsContext

    tls = None
    if settings.cert_file:
        until_made = (
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if settings.self_signed_cert_dir else None
        )
        tls = TlsContext(
            settings.cert_file,
            settings.key_file,
            settings.client_ca_file,
            settings.simulate_client_ca_file,
            until_made=until_made,
        )
    programs: list[SchedulerProgram] = []

    def make_app() -> WSGIApplication:
        from hami.scheduler.program import (
            SchedulerProgram,
        )  # in the worker: its parent process stays small

        program = SchedulerProgram(settings)
        programs.append(program)
        app = program.app()
        program.start()
        return app

    serve(
        make_app,
        bind=settings.http_bind,
        tls=tls,
        plain=settings.extender_bind_address,
        threads=settings.threads,
        on_stop=lambda: programs[-1].stop(),
    )
    return 0
