"""The command line: ``hami scheduler``, ``hami device-plugin``, ``hami vendors`` and ``hami version``.

Flags are upstream's, so that its manifests work with the image changed; ``-`` and ``_`` in a name are the same,
booleans are Go's. What a command needs is imported when it runs: the parent process of the server stays small.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hami import __version__
from hami.codec.device_config import Flagged, parse_resource_name
from hami.codec.durations import render_duration
from hami.errors import HamiError, MalformedInput
from hami.plugin.settings import (
    ENVIRONMENT, ID_STRATEGIES, LIST_STRATEGIES, MIG_STRATEGIES, NODE_CONFIG_FILE, OPERATING_MODES, REGISTER_FORMATS,
    PluginSettings, parse_channels, parse_discovery, parse_factor, parse_list_strategies, parse_split_count,
    parse_word, read_plugin_settings,
)
from hami.runtime import logs
from hami.runtime.options import parse_address, parse_boolean, parse_seconds
from hami.scheduler.settings import (
    DEVICE_POLICIES, NODE_POLICIES, Settings, parse_device_policy_flag, read_settings,
)

if TYPE_CHECKING:
    from flask import Flask

    from hami.scheduler.program import SchedulerProgram

__all__ = ["main", "run_device_plugin", "run_scheduler"]

log = logging.getLogger(__name__)

EXIT_FAILED = 1
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Text(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """A flag's value, read by one of our parsers: what it refuses becomes an error that names the flag."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """The value of *value*, which click hands over as text."""
        try:
            return self._parse(str(value))
        except MalformedInput as error:
            self.fail(f"{error.text!r}: {error.problem}", param, ctx)


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        digits = text.removeprefix("=")  # -v=4, which only click's short flags leave in
        if not (digits.removeprefix("-").isascii() and digits.removeprefix("-").isdigit()) or int(digits) < least:
            raise MalformedInput("integer", text, f"expected a whole number, {least} or more")
        return int(digits)
    return parse


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise MalformedInput("number", text, "expected a number, 0 or more")
    return value


STRING = Text("text", str)
FILE = Text("file", str)
BOOLEAN = Text("bool", parse_boolean)
COUNT = Text("int", _whole(0))
THREADS = Text("int", _whole(1))
RATE = Text("number", _rate)
DURATION = Text("duration", parse_seconds)
ADDRESS = Text("host:port", parse_address)
SELECTOR = Text("selector", str)
NODE_POLICY = Text("policy", parse_word(*NODE_POLICIES))
DEVICE_POLICY = Text("policy", parse_device_policy_flag)
RESOURCE = Text("name", parse_resource_name)
TABLE_FORMATS = ("text", "markdown", "json")  # as in hami.inspect.vendors, which only its command needs
TABLE_FORMAT = Text("format", parse_word(*TABLE_FORMATS))
LOG_FORMAT = Text("format", parse_word(*logs.FORMATS))
PARTS = Text("int", parse_split_count)
FACTOR = Text("factor", parse_factor)
STRATEGIES = Text("strategy", parse_list_strategies)
ID_STRATEGY = Text("strategy", parse_word(*ID_STRATEGIES))
MIG_STRATEGY = Text("strategy", parse_word(*MIG_STRATEGIES))
DISCOVERY = Text("strategy", parse_discovery)
CHANNELS = Text("ids", parse_channels)
MODE = Text("mode", parse_word(*OPERATING_MODES))
REGISTER_FORMAT = Text("format", parse_word(*REGISTER_FORMATS))


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its name (upstream's way), other names of it, its type, its help, and the field of Settings it sets.

    The default is that of the field. *stands_for*: the key of the device configuration whose place it takes where the
    file has none: mapping, dot, key, the mapping as in :data:`hami.codec.device_config.Fallback`. Without either the
    flag is taken and has no effect. *environment*: the variables that set it, too. *repeated*: it may be given several
    times, and its values are put together.
    """

    name: str
    type: Text
    help: str = ""
    field: str = ""
    also: tuple[str, ...] = ()
    stands_for: str = ""
    environment: tuple[str, ...] = ()
    repeated: bool = False

    @property
    def kept_as(self) -> str:
        """The name by which the command gets its value."""
        return self.field or self.name.lstrip("-").replace("-", "_")

    def option(self, defaults: Callable[[str], object]) -> click.Option:
        """The flag as click wants it; a boolean may stand alone. *defaults*: that of a field."""
        names = [self.name, *self.also, self.kept_as]
        if self.type is BOOLEAN:
            return click.Option(names, type=self.type, help=self._help(defaults), metavar="[BOOL]", is_flag=False,
                                flag_value="true")
        return click.Option(names, type=self.type, help=self._help(defaults), metavar=self.type.name.upper(),
                            multiple=self.repeated)

    def _help(self, defaults: Callable[[str], object]) -> str:
        if self.stands_for:
            return " ".join(filter(None, (f"Stands for {_described(self.stands_for)}.", self.help)))
        default = _render(defaults(self.field), self.type) if self.field else ""
        variables = f"  [{', '.join(self.environment)}]" if self.environment else ""
        return f"{self.help}{variables}" + (f"  [default: {default}]" if default else "")


def _described(path: str) -> str:
    """The thing at *path* of the device configuration, in words."""
    mapping, _, key = path.rpartition(".")
    section, bracket, word = mapping.rstrip("]").partition("[")
    if word:
        return f"{key} of {word} in {section}"
    return f"{key} of the one entry in {section} that has none" if bracket else path


def _render(value: object, type: Text) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return render_duration(timedelta(seconds=value)) if type is DURATION else f"{value:g}"
    if type is STRATEGIES or type is CHANNELS:
        return ",".join(map(str, value)) if isinstance(value, tuple) else ""
    return "" if value is None else str(value)


DEFAULTS = Settings()

LISTENING = (
    Flag("--http_bind", ADDRESS, "Address of /webhook, /filter, /bind and health; :PORT is all addresses.",
         "http_bind"),
    Flag("--cert_file", FILE, "Certificate (PEM); with --key_file the address speaks HTTPS. Read again when it "
         "changes.", "cert_file"),
    Flag("--key_file", FILE, "Private key of the certificate (PEM).", "key_file"),
    Flag("--client-ca-file", FILE, "CA (PEM) whose clients may call /filter and /bind from other machines; others only "
         "from this one.", "client_ca_file"),
    Flag("--self-signed-cert-dir", FILE, "Serve HTTPS with a certificate of our own making, in place of --cert_file "
         "and --key_file, which is kept in this directory (private to this replica, writable; an emptyDir). CA and "
         "certificate lie in a Secret, are renewed at two thirds of their lifetimes without a restart, and the CA is "
         "written into the webhook configuration.", "self_signed_cert_dir"),
    Flag("--self-signed-cert-secret", STRING, "Secret of that CA and certificate, in the namespace of POD_NAMESPACE. "
         "After it has been deleted both are made anew.", "self_signed_cert_secret"),
    Flag("--self-signed-webhook", STRING, "MutatingWebhookConfiguration whose caBundle is kept; also the names in the "
         "certificate are from there.", "self_signed_webhook"),
    Flag("--self-signed-cert-lifetime", DURATION, "How long a certificate lasts.", "self_signed_cert_lifetime"),
    Flag("--self-signed-ca-lifetime", DURATION, "How long a CA lasts.", "self_signed_ca_lifetime"),
    Flag("--extender-bind-address", ADDRESS, "A second address, on loopback and plain HTTP, for the kube-scheduler "
         "beside us: it opens a connection for most binds.", "extender_bind_address"),
    Flag("--metrics-bind-address", ADDRESS, "Address of /metrics, plain HTTP.", "metrics_bind_address"),
    Flag("--threads", THREADS, "Requests served at once, started as needed. Each /bind that waits for its node is "
         "one; all but 64 may be, and more are told to come again.", "threads"),
    Flag("--profiling", BOOLEAN, "Taken for upstream's sake: there are no Go profiles to serve.", "profiling"),
)
SCHEDULING = (
    Flag("--scheduler-name", STRING, "Name that pods are given as spec.schedulerName, and source of events.",
         "scheduler_name"),
    Flag("--node-scheduler-policy", NODE_POLICY, "How nodes are chosen where a pod does not say: binpack (the fullest "
         "that fits) or spread.", "node_scheduler_policy"),
    Flag("--gpu-scheduler-policy", DEVICE_POLICY, f"How devices are chosen where a pod does not say: "
         f"{', '.join(DEVICE_POLICIES)}, or several with commas.", "gpu_scheduler_policy"),
    Flag("--force-overwrite-default-scheduler", BOOLEAN, "Take over pods that name the default-scheduler.",
         "force_overwrite_default_scheduler"),
    Flag("--node-label-selector", SELECTOR, "Label selector of the nodes to use, evaluated by the API server, such as "
         "gpu=on,zone!=b; empty for all.",
         "node_selector"),
    Flag("--node-lock-timeout", DURATION, "How long a pod may hold a node's lock, such as 5m0s; without the flag the "
         "environment's HAMI_NODELOCK_EXPIRE counts.", "node_lock_timeout"),
    Flag("--node-lock-retry-timeout", DURATION, "Taken for upstream's sake: every bind waits in line for its node.",
         "node_lock_retry_timeout"),
)
CLUSTER = (
    Flag("--leader-elect", BOOLEAN, "Act only while holding the lease; without, act always.", "leader_elect"),
    Flag("--leader-elect-resource-name", STRING, "Name of the lease.", "leader_elect_resource_name"),
    Flag("--leader-elect-resource-namespace", STRING, "Namespace of the lease.", "leader_elect_resource_namespace"),
    Flag("--kube-qps", RATE, "Events a second, at most 50; 0 for 50. What places pods is never limited here.",
         "kube_qps"),
    Flag("--kube-burst", COUNT, "Taken for upstream's sake: the API server's own limits hold.", "kube_burst"),
    Flag("--kube-timeout", COUNT, "Seconds that a request to the API server may take; 0 for the built-in limit.",
         "kube_timeout"),
)
DEVICES = (
    Flag("--device-config-file", FILE, "YAML with resource names and defaults by vendor; without, those of the chart.",
         "device_config_file"),
    Flag("--enable-ascend", BOOLEAN, "Schedule Ascend devices, those of the file's vnpus.",
         "enable_ascend"),
    Flag("--enable-iluvatar", BOOLEAN, "Schedule Iluvatar devices, those of the file's iluvatars.",
         "enable_iluvatar"),
)
VERBOSITY = Flag("--v", COUNT, "Verbosity: 0 for outcomes and warnings, 4 or more for debugging.", "verbosity",
                 also=("-v",))
LOG_LINES = Flag("--log-format", LOG_FORMAT, "text (key=value) or json, one line an outcome, on standard error.",
                 "log_format")
OUTPUT = (
    VERBOSITY,
    Flag("--debug", BOOLEAN, "The same as -v 4.", "debug"),
    LOG_LINES,
    Flag("--legacy-metrics", BOOLEAN, "Serve the metric names of HAMi before v2.9 as well.", "legacy_metrics"),
)
NO_EFFECT = (
    Flag("--vmodule", STRING),
    Flag("--logtostderr", BOOLEAN),
    Flag("--alsologtostderr", BOOLEAN),
    Flag("--alsologtostderrthreshold", STRING),
    Flag("--log_dir", STRING),
    Flag("--log_file", STRING),
    Flag("--log_file_max_size", COUNT),
    Flag("--stderrthreshold", STRING),
    Flag("--skip_headers", BOOLEAN),
    Flag("--add_dir_header", BOOLEAN),
    Flag("--one_output", BOOLEAN),
    Flag("--skip_log_headers", BOOLEAN),
    Flag("--log_backtrace_at", STRING),
    Flag("--legacy_stderr_threshold_behavior", BOOLEAN),
)
STAND_INS = (
    *(Flag(name, RESOURCE, stands_for=path) for name, path in (
        ("--resource-name", "nvidia.resourceCountName"),
        ("--resource-mem", "nvidia.resourceMemoryName"),
        ("--resource-mem-percentage", "nvidia.resourceMemoryPercentageName"),
        ("--resource-cores", "nvidia.resourceCoreName"),
        ("--resource-priority", "nvidia.resourcePriorityName"),
    )),
    Flag("--default-gpu", COUNT, "Cards for a container that asks for memory or cores alone.",
         stands_for="nvidia.defaultGPUNum"),
    Flag("--default-mem", COUNT, "MiB for a container that does not say; 0 for the whole card.",
         stands_for="nvidia.defaultMemory"),
    Flag("--default-cores", COUNT, "Percent of a card for a container that does not say.",
         stands_for="nvidia.defaultCores"),
    Flag("--overwrite-env", BOOLEAN, "Containers without a request see no card.", stands_for="nvidia.overwriteEnv"),
    *(Flag(name, RESOURCE, stands_for=path) for name, path in (
        ("--cambricon-mlu-name", "cambricon.resourceCountName"),
        ("--cambricon-mlu-memory", "cambricon.resourceMemoryName"),
        ("--cambricon-mlu-cores", "cambricon.resourceCoreName"),
        ("--dcu-name", "hygon.resourceCountName"),
        ("--dcu-memory", "hygon.resourceMemoryName"),
        ("--dcu-cores", "hygon.resourceCoreName"),
        ("--metax-name", "metax.resourceCountName"),
        ("--metax-vcount", "metax.resourceVCountName"),
        ("--metax-vmemory", "metax.resourceVMemoryName"),
        ("--metax-vcore", "metax.resourceVCoreName"),
    )),
    Flag("--sgpu-topology-aware", BOOLEAN, "Whole sGPU cards are chosen by their links.",
         stands_for="metax.sgpuTopologyAware"),
    *(Flag(name, RESOURCE, stands_for=path) for name, path in (
        ("--mthreads-name", "mthreads.resourceCountName"),
        ("--mthreads-memory", "mthreads.resourceMemoryName"),
        ("--mthreads-cores", "mthreads.resourceCoreName"),
        ("--kunlun-name", "kunlun.resourceCountName"),
        ("--kunlun-vcount", "kunlun.resourceVCountName"),
        ("--kunlun-vmemory", "kunlun.resourceVMemoryName"),
        ("--enflame-gcu-resource-name", "enflame.resourceNameGCU"),
        ("--enflame-drs-gcu-resource-name", "enflame.resourceNameDRSGCU"),
        ("--enflame-vgcu-resource-name", "enflame.resourceNameDRSGCU"),  # an older name: the one above goes before it
        ("--enflame-gcu-memory-resource-name", "enflame.resourceNameGCUMemory"),
        ("--enflame-gcu-core-resource-name", "enflame.resourceNameGCUCore"),
    )),
    Flag("--enflame-vgcu-legacy-resource-name", RESOURCE, "Counts where nothing gives resourceNameDRSGCU.",
         stands_for="enflame.resourceNameVGCU"),
    Flag("--enflame-vgcu-percentage-resource-name", RESOURCE, "Without effect, as that is.",
         stands_for="enflame.resourceNameVGCUPercentage"),
    *(Flag(name, RESOURCE, "With --enable-iluvatar only.", stands_for=path) for name, path in (
        ("--iluvatar-name", "iluvatars[].resourceCountName"),
        ("--iluvatar-memory", "iluvatars[].resourceMemoryName"),
        ("--iluvatar-cores", "iluvatars[].resourceCoreName"),
    )),
    *(Flag(name, RESOURCE, "With --enable-ascend only.", stands_for=path) for name, path in (
        ("--ascend-name", "vnpus.configs[].resourceName"),
        ("--ascend-memory", "vnpus.configs[].resourceMemoryName"),
        ("--ascend310p-name", "vnpus.configs[Ascend310P].resourceName"),
        ("--ascend310p-memory", "vnpus.configs[Ascend310P].resourceMemoryName"),
    )),
)
Groups = tuple[tuple[str, tuple[Flag, ...]], ...]
STAND_IN_GROUP = (
    "In place of keys that --device-config-file lacks; without a file, they go before the chart's", STAND_INS)
SCHEDULER_FLAGS: Groups = (
    ("Listening", LISTENING),
    ("Scheduling", SCHEDULING),
    ("Cluster", CLUSTER),
    ("Devices", DEVICES),
    ("Output", OUTPUT),
    STAND_IN_GROUP,
    ("Taken without effect (klog's)", NO_EFFECT),
)
VENDORS_FLAGS: Groups = (
    ("Form", (Flag("--output", TABLE_FORMAT, f"{', '.join(TABLE_FORMATS)}.  [default: {TABLE_FORMATS[0]}]"),)),
    ("Devices", DEVICES),
    STAND_IN_GROUP,
)


def _node_flag(name: str, type: Text, field: str, help: str, *, also: tuple[str, ...] = (),
               repeated: bool = False) -> Flag:
    """A flag of the device plugin: the environment may set what it sets."""
    names = next((variable.names for variable in ENVIRONMENT if variable.field == field), ())
    return Flag(name, type, help, field, also, environment=names, repeated=repeated)


PLUGIN_DEFAULTS = PluginSettings()
NODE = (
    _node_flag("--node-name", STRING, "node", "The node that this is."),
    _node_flag("--config-file", FILE, "device_config_file", "The device configuration (YAML), the scheduler's; without "
               "it the chart's. Flags of NVIDIA's plugin in it count, too.", also=("--device-config-file",)),
    _node_flag("--node-config-file", FILE, "node_config_file", "What holds for single nodes (JSON): the entries with "
               f"this node's name go before everything else. Without the flag {NODE_CONFIG_FILE}, if it is there."),
    _node_flag("--mock-devices", FILE, "mock_devices", "Cards from this file (YAML) in place of the driver's."),
)
SHARING = (
    _node_flag("--resource-name", RESOURCE, "resource", "The resource that the kubelet offers."),
    _node_flag("--device-split-count", PARTS, "split_count", "Containers that may share a card."),
    _node_flag("--device-memory-scaling", FACTOR, "memory_scaling", "How much more memory may be given out than there "
               "is; more than 1 lets containers use the host's."),
    _node_flag("--device-cores-scaling", FACTOR, "core_scaling", "How much more of a card's cores may be given out."),
    _node_flag("--disable-core-limit", BOOLEAN, "disable_core_limit", "Containers' use of cores is not limited."),
    _node_flag("--operating-mode", MODE, "operating_mode", f"{' or '.join(OPERATING_MODES)}: cards are shared by the "
               "limiter, or cut in MIG instances as pods need them."),
    _node_flag("--mig-strategy", MIG_STRATEGY, "mig_strategy", "none, single or mixed: MIG instances that somebody has "
               "cut are offered to all pods, as more of the resource or as nvidia.com/mig-<profile>."),
)
HANDING_OVER = (
    _node_flag("--device-list-strategy", STRATEGIES, "list_strategies", "How the container runtime is told of devices: "
               f"some of {', '.join(LIST_STRATEGIES)}, with commas or by several flags.", repeated=True),
    _node_flag("--device-id-strategy", ID_STRATEGY, "id_strategy", "uuid or index: what it is told."),
    _node_flag("--pass-device-specs", BOOLEAN, "pass_device_specs", "Device nodes are handed over as well."),
    _node_flag("--gdrcopy-enabled", BOOLEAN, "gdrcopy", "Containers get GDRCopy."),
    _node_flag("--gds-enabled", BOOLEAN, "gds", "Containers get GPUDirect Storage."),
    _node_flag("--mofed-enabled", BOOLEAN, "mofed", "Containers get Mellanox OFED."),
    _node_flag("--imex-channel-ids", CHANNELS, "imex_channels", "IMEX channels for containers: none or 0."),
    _node_flag("--imex-required", BOOLEAN, "imex_required", "Without those channels on the host the start fails."),
    _node_flag("--cdi-annotation-prefix", STRING, "cdi_prefix", "Begins the annotation of cdi-annotations."),
    _node_flag("--cdi-root", FILE, "cdi_root", "With a cdi strategy, the directory of the host in which the "
               "specifications are written that say what the names stand for; empty: somebody else writes them."),
    _node_flag("--nvidia-cdi-hook-path", FILE, "cdi_hook", "The host's nvidia-ctk or nvidia-cdi-hook, which they have "
               "container runtimes call.", also=("--nvidia-ctk-path",)),
)
PATHS = (
    _node_flag("--hook-path", FILE, "hook_path", "Directory of the host above vgpu, where the limiter lies."),
    _node_flag("--library-source", FILE, "library_source", "Directory with the limiter's files, which are laid there "
               "at the start; containers that run keep theirs. Without, they are there already."),
    _node_flag("--nvidia-driver-root", FILE, "driver_root", "Where the host has its driver."),
    _node_flag("--dev-root", FILE, "dev_root", "Where the host has the driver's /dev; without, where the driver is.",
               also=("--nvidia-dev-root",)),
    _node_flag("--driver-root-ctr-path", FILE, "driver_root_in_container", "Where that driver is seen from here: / "
               "for a plugin that runs on the host itself.", also=("--container-driver-root",)),
    _node_flag("--kubelet-socket", FILE, "kubelet_socket", "The kubelet's socket, and beside it ours; empty: the cards "
               "are registered with the node only."),
    _node_flag("--socket-name", STRING, "socket_name", "Our socket's name; without, nvidia-<resource>.sock, which is "
               "that of NVIDIA's plugin, too."),
)
REGISTERING = (
    _node_flag("--register-format", REGISTER_FORMAT, "register_format", "json; csv for schedulers of HAMi v2.4 to "
               "v2.7, whose handshakes are then answered."),
    _node_flag("--topology-score", BOOLEAN, "topology_score", "Pairs of cards are scored by how they are linked."),
    _node_flag("--unregister-on-stop", BOOLEAN, "unregister_on_stop", "A plugin that ends takes its cards off the "
               "node. Pods that run keep theirs."),
    _node_flag("--device-discovery-strategy", DISCOVERY, "discovery", "auto, or nvml where WSL's one device node "
               "for all cards is not to be looked for."),
    _node_flag("--fail-on-init-error", BOOLEAN, "fail_on_init_error", "Without a driver the start fails and is tried "
               "again; else the node has no cards."),
    _node_flag("--health-bind-address", ADDRESS, "health_bind_address", "Address of /readyz, plain HTTP: 200 when the "
               "kubelet knows of the cards, or there are none; else 503 and the reason. Without, it is not served."),
    _node_flag("--kube-timeout", COUNT, "kube_timeout", "Seconds that a request to the API server may take; 0 for the "
               "built-in limit."),
)
PLUGIN_FLAGS: Groups = (
    ("Node", NODE),
    ("Sharing (the flags go before the device configuration, the node's entry goes before them)", SHARING),
    ("Handing over", HANDING_OVER),
    ("Paths", PATHS),
    ("Registering", REGISTERING),
    ("Output", (VERBOSITY, LOG_LINES)),
)


def _default(field: str) -> object:
    return getattr(DEFAULTS, field)


def _plugin_default(field: str) -> object:
    """The default of a field of PluginSettings or its PluginConfig; nothing for what only names a file."""
    return getattr(PLUGIN_DEFAULTS, field, getattr(PLUGIN_DEFAULTS.config, field, None))


GO_FLAGS = {"token_normalize_func": lambda name: name.replace("_", "-"), "max_content_width": 120}


class _GroupedCommand(click.Command):
    """A command whose help shows its flags in groups."""

    def __init__(self, *, groups: Groups, defaults: Callable[[str], object] = _default, **kwargs: Any) -> None:
        self._groups = [(title, [flag.option(defaults) for flag in flags]) for title, flags in groups]
        kwargs["params"] = [option for _, options in self._groups for option in options]
        super().__init__(**kwargs)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups, then --help."""
        others = [option for option in (self.get_help_option(ctx),) if option is not None]
        for title, options in [*self._groups, ("Other", others)]:
            with formatter.section(title):
                formatter.write_dl([record for option in options if (record := option.get_help_record(ctx))])


class _Failure(click.ClickException):
    """An error of ours: one line, no usage."""

    exit_code = EXIT_FAILED

    def show(self, file: Any = None) -> None:
        """Write the line to standard error."""
        click.echo(f"error: {' '.join(self.message.splitlines())}", err=True)


class _Commands(click.Group):
    """The commands; what goes wrong in one ends in one line, not in a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except HamiError as error:
            raise _Failure(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hami", message="%(prog)s %(version)s")
def main() -> None:
    """Share accelerators between the pods of a Kubernetes cluster."""


@main.command()
def version() -> None:
    """Print the version."""
    click.echo(f"hami {__version__}")


@main.command(cls=_GroupedCommand, groups=SCHEDULER_FLAGS, context_settings=GO_FLAGS)
@click.pass_context
def scheduler(ctx: click.Context, /, **values: object) -> None:
    """Serve the admission webhook and the scheduler extender, and keep the cluster's device accounts.

    The cluster is that of KUBECONFIG, else the one this pod runs in. - and _ in a flag's name are the same; a BOOL may
    be left out (true). A DURATION is written as 28s or 5m0s. POD_NAME and POD_NAMESPACE say which pod this is.
    """
    from hami.vendors.entry_points import catalog

    settings = _settings(ctx, SCHEDULER_FLAGS, values)
    logs.configure(settings.log_format, max(settings.verbosity, logs.DEBUG_VERBOSITY if settings.debug else 0))
    for note in settings.devices.notes:
        log.warning("device configuration", extra={"note": note})
    # a faulty vendor ends the start here, with one line, rather than in the worker
    catalog(settings.devices, ascend=settings.enable_ascend, iluvatar=settings.enable_iluvatar)
    serve: Callable[[Settings], int] = ctx.obj or run_scheduler  # a test hands in its own
    ctx.exit(serve(settings))


@main.command(cls=_GroupedCommand, groups=PLUGIN_FLAGS, defaults=_plugin_default, context_settings=GO_FLAGS)
@click.pass_context
def device_plugin(ctx: click.Context, /, **values: object) -> None:
    """Offer this node's NVIDIA cards to its kubelet and to the scheduler, and hand parts of them to containers.

    A flag goes before the variable of the environment in brackets, that before the device configuration. - and _ in a
    flag's name are the same; a BOOL may be left out (true). SIGHUP reads everything again. DP_DISABLE_HEALTHCHECKS and
    DP_ENABLE_HEALTHCHECKS name XIDs, with commas, that shall or shall not be ignored, or all.
    """
    given = {flag.field: _joined(flag, values[flag.kept_as]) for _, flags in PLUGIN_FLAGS for flag in flags
             if ctx.get_parameter_source(flag.kept_as) is ParameterSource.COMMANDLINE}

    def read() -> PluginSettings:
        return read_plugin_settings(given, os.environ)
    settings = read()
    logs.configure(settings.log_format, settings.verbosity)
    serve: Callable[[PluginSettings, Callable[[], PluginSettings]], int] = ctx.obj or run_device_plugin
    ctx.exit(serve(settings, read))


def _joined(flag: Flag, value: object) -> object:
    """The value of a flag; those of one that is repeated make one."""
    if flag.repeated and isinstance(value, tuple):
        return tuple(dict.fromkeys(word for words in value for word in words))
    return value


@main.command(cls=_GroupedCommand, groups=VENDORS_FLAGS, context_settings=GO_FLAGS)
@click.pass_context
def vendors(ctx: click.Context, /, **values: object) -> None:
    """Print the devices that are scheduled: what they are called in pods and nodes, in which units, with what defaults.

    What is switched off is shown, too, and marked. A backend whose devices have no name in the device configuration
    does not exist, and is not shown.
    """
    from hami.inspect.vendors import entries, render

    settings = _settings(ctx, VENDORS_FLAGS, values)
    for note in settings.devices.notes:
        click.echo(f"note: {note}", err=True)
    rows = entries(settings.devices, ascend=settings.enable_ascend, iluvatar=settings.enable_iluvatar)
    click.echo(render(rows, str(values["output"] or TABLE_FORMATS[0])))


def _settings(ctx: click.Context, groups: Groups, values: Mapping[str, object]) -> Settings:
    """What the command line and the environment say; *values* are those of the flags in *groups*."""
    from hami.vendors.entry_points import sections

    given: dict[str, object] = {}
    named: dict[str, dict[str, Flagged]] = {}
    for flag in (flag for _, flags in groups for flag in flags):
        if ctx.get_parameter_source(flag.kept_as) is not ParameterSource.COMMANDLINE:
            continue
        if flag.field:
            given[flag.field] = values[flag.kept_as]
        elif flag.stands_for:
            mapping, _, key = flag.stands_for.rpartition(".")
            named.setdefault(mapping, {}).setdefault(key, Flagged(values[flag.kept_as], flag.name))
    return read_settings(given, os.environ, named=named, known=sections())


def run_scheduler(settings: Settings) -> int:
    """Serve as *settings* say until told to stop; returns the exit status."""
    from hami.web.server import serve
    from hami.web.tls import TlsContext

    if settings.self_signed_cert_dir and (status := _prepare_certificate(settings)) != 0:
        return max(status, 0)  # negative: we were told to stop
    tls = None
    if settings.cert_file:
        tls = TlsContext(settings.cert_file, settings.key_file, settings.client_ca_file or None)
    parts: list[SchedulerProgram] = []

    def make_app() -> Flask:
        from hami.scheduler.program import SchedulerProgram  # in the worker: its parent process stays small

        parts.append(SchedulerProgram(settings))
        return parts[-1].app()

    return serve(make_app, bind=settings.http_bind, tls=tls, plain=settings.extender_bind_address,
                 threads=settings.threads,
                 on_start=lambda app: parts[-1].start(), on_stop=lambda app: parts[-1].stop())


def _prepare_certificate(settings: Settings) -> int:
    """See that there is a certificate before the server listens; the exit status of the child that does it.

    In a child, as what talks to the API server would make the process that only watches over the server a large one.
    """
    parent = os.getpid()
    if (child := os.fork()) == 0:
        status = EXIT_FAILED
        try:
            _prepare_in_child(settings, parent)
            status = 0
        except HamiError as error:
            log.critical("cannot start", extra={"error": error})
        except Exception:
            log.critical("cannot start", exc_info=True)
        finally:
            os._exit(status)
    # the first process of a container takes no signal that it does not ask for
    before = {number: signal.signal(number, lambda *_: os.kill(child, signal.SIGTERM)) for number in STOP_SIGNALS}
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _prepare_in_child(settings: Settings, parent: int) -> None:
    from hami.scheduler.program import make_certificate_manager

    def wait(seconds: float) -> None:
        time.sleep(seconds)
        if os.getppid() != parent:
            raise HamiError("the process that waits for the certificate is gone")

    make_certificate_manager(settings).prepare(wait)


def run_device_plugin(settings: PluginSettings, read: Callable[[], PluginSettings]) -> int:
    """Serve the kubelet until told to stop; returns the exit status. *read* makes settings anew, for SIGHUP."""
    from hami.web.pages import PageServer
    from hami.plugin.program import Readiness, serve  # gRPC and NVML are for the node's image only

    readiness = Readiness()
    if settings.health_bind_address is None:
        return serve(settings, read, readiness=readiness)
    pages = PageServer("health", settings.health_bind_address, {"/readyz": readiness.page},
                       flag="--health-bind-address")
    pages.start()
    try:
        return serve(settings, read, readiness=readiness)
    finally:
        pages.stop()
