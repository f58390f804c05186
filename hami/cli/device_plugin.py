"""``hami device-plugin``: the flags and the process of the device plugin."""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from hami.cli.flags import (
    ADDRESS, BOOLEAN, COUNT, FILE, LOG_FORMAT, RESOURCE, STRING, VERBOSITY, Flag, GroupedCommand, Groups, Value,
    flags_given,
)
from hami.plugin.settings import (
    ENVIRONMENT, ID_STRATEGIES, LIST_STRATEGIES, MIG_STRATEGIES, NODE_CONFIG_FILE, OPERATING_MODES, REGISTER_FORMATS,
    PluginSettings, parse_channels, parse_discovery, parse_factor, parse_list_strategies, parse_split_count,
    read_plugin_settings,
)
from hami.runtime import logs
from hami.runtime.options import parse_choice

__all__ = ["PLUGIN_FLAGS", "device_plugin_command", "run_device_plugin"]

PLUGIN_DEFAULTS = PluginSettings()


def _flag(name: str, type: Value, field: str, help: str, *, also: tuple[str, ...] = (),
          repeated: bool = False) -> Flag:
    """A flag whose field may also be set by the environment."""
    names = next((variable.names for variable in ENVIRONMENT if variable.field == field), ())
    return Flag(name, type, help, field, also, environment=names, repeated=repeated)


NODE = (
    _flag("--node-name", STRING, "node", "The name of this node."),
    _flag("--config-file", FILE, "device_config_file", "The device configuration (YAML), the same as the scheduler's; "
          "without it, the chart's applies. Its section flags, which NVIDIA's plugin defines, is read, too.",
          also=("--device-config-file",)),
    _flag("--node-config-file", FILE, "node_config_file", "Settings of single nodes (JSON): the entries with this "
          f"node's name override everything else. Without the flag, {NODE_CONFIG_FILE} if it exists."),
    _flag("--mock-devices", FILE, "mock_devices", "Use the devices in this file (YAML) instead of the driver's."),
)
SHARING = (
    _flag("--resource-name", RESOURCE, "resource", "The resource that the kubelet offers."),
    _flag("--device-split-count", Value("int", parse_split_count), "split_count", "Containers that may share a "
          "device."),
    _flag("--device-memory-scaling", Value("factor", parse_factor), "memory_scaling", "Ratio of the memory that can be "
          "allocated to a device's memory; above 1, containers may use host memory."),
    _flag("--device-cores-scaling", Value("factor", parse_factor), "core_scaling", "Ratio of the cores that can be "
          "allocated to a device's cores."),
    _flag("--disable-core-limit", BOOLEAN, "disable_core_limit", "Do not limit the cores that containers use."),
    _flag("--operating-mode", Value("mode", parse_choice(*OPERATING_MODES)), "operating_mode",
          f"{' or '.join(OPERATING_MODES)}: the limiter shares devices, or MIG instances are created as pods need "
          "them."),
    _flag("--mig-strategy", Value("strategy", parse_choice(*MIG_STRATEGIES)), "mig_strategy", "none, single or mixed: "
          "offer existing MIG instances to all pods, under the resource's name or as nvidia.com/mig-<profile>."),
)
CONTAINERS = (
    _flag("--device-list-strategy", Value("strategy", parse_list_strategies), "list_strategies", "How devices are "
          f"passed to the container runtime: some of {', '.join(LIST_STRATEGIES)}, separated by commas or in several "
          "flags.", repeated=True),
    _flag("--device-id-strategy", Value("strategy", parse_choice(*ID_STRATEGIES)), "id_strategy", "How the container "
          "runtime identifies devices: uuid or index."),
    _flag("--pass-device-specs", BOOLEAN, "pass_device_specs", "Also pass device nodes."),
    _flag("--gdrcopy-enabled", BOOLEAN, "gdrcopy", "Enable GDRCopy in containers."),
    _flag("--gds-enabled", BOOLEAN, "gds", "Enable GPUDirect Storage in containers."),
    _flag("--mofed-enabled", BOOLEAN, "mofed", "Enable Mellanox OFED in containers."),
    _flag("--imex-channel-ids", Value("ids", parse_channels), "imex_channels", "IMEX channels for containers: none "
          "or 0."),
    _flag("--imex-required", BOOLEAN, "imex_required", "Fail at startup if the host lacks those channels."),
    _flag("--cdi-annotation-prefix", STRING, "cdi_prefix", "Prefix of the annotation of cdi-annotations."),
    _flag("--cdi-root", FILE, "cdi_root", "With a cdi strategy, the host's directory for CDI specifications; empty if "
          "another program writes them."),
    _flag("--nvidia-cdi-hook-path", FILE, "cdi_hook", "The host's nvidia-ctk or nvidia-cdi-hook, which the "
          "specifications name as hook.", also=("--nvidia-ctk-path",)),
)
PATHS = (
    _flag("--hook-path", FILE, "hook_path", "The host's directory above vgpu, which holds the limiter."),
    _flag("--library-source", FILE, "library_source", "Directory with the limiter's files, which are copied to the "
          "host at startup; running containers keep theirs. Without it, they must be there already."),
    _flag("--nvidia-driver-root", FILE, "driver_root", "Root of the host's driver installation."),
    _flag("--dev-root", FILE, "dev_root", "Root of the driver's /dev on the host; without it, the driver root.",
          also=("--nvidia-dev-root",)),
    _flag("--driver-root-ctr-path", FILE, "driver_root_in_container", "Path of the driver root in this container; / "
          "for a plugin that runs on the host.", also=("--container-driver-root",)),
    _flag("--kubelet-socket", FILE, "kubelet_socket", "The kubelet's socket; the plugin's own is beside it. Empty: "
          "devices are only registered with the node."),
    _flag("--socket-name", STRING, "socket_name", "Name of the plugin's socket; without it, nvidia-<resource>.sock, as "
          "in NVIDIA's plugin."),
)
REGISTRATION = (
    _flag("--register-format", Value("format", parse_choice(*REGISTER_FORMATS)), "register_format", "json; csv for "
          "schedulers of HAMi v2.4 to v2.7, whose handshakes are then answered."),
    _flag("--topology-score", BOOLEAN, "topology_score", "Register scores for pairs of devices by their links."),
    _flag("--unregister-on-stop", BOOLEAN, "unregister_on_stop", "Unregister the devices when the plugin stops. "
          "Running pods keep theirs."),
    _flag("--device-discovery-strategy", Value("strategy", parse_discovery), "discovery", "auto or nvml; nvml does not "
          "detect WSL, which has one device node for all devices."),
    _flag("--fail-on-init-error", BOOLEAN, "fail_on_init_error", "Without a driver, fail at startup and retry; "
          "otherwise the node has no devices."),
    _flag("--health-bind-address", ADDRESS, "health_bind_address", "Address of /readyz, plain HTTP: 200 when the "
          "devices are registered with the kubelet or there are none, else 503 and the reason. Not served without the "
          "flag."),
    _flag("--kube-timeout", COUNT, "kube_timeout", "Seconds until a request to the API server times out; 0 for the "
          "built-in timeout."),
)
PLUGIN_FLAGS: Groups = (
    ("Node", NODE),
    ("Sharing (flags override the device configuration, the node's entry overrides flags)", SHARING),
    ("Containers", CONTAINERS),
    ("Paths", PATHS),
    ("Registration", REGISTRATION),
    ("Output", (VERBOSITY, LOG_FORMAT)),
)


def _default_of(field: str) -> object:
    """The default of a field of PluginSettings or its PluginConfig; ``None`` for a file's name."""
    return getattr(PLUGIN_DEFAULTS, field, getattr(PLUGIN_DEFAULTS.config, field, None))


@click.command(name="device-plugin", cls=GroupedCommand, groups=PLUGIN_FLAGS, default_of=_default_of)
@click.pass_context
def device_plugin_command(ctx: click.Context, /, **values: object) -> None:
    """Offer this node's NVIDIA devices to its kubelet and to the scheduler, and allocate shares to containers.

    A flag overrides the environment variable in brackets, which overrides the device configuration. - and _ in a flag's
    name are equivalent; a BOOL may be omitted (true). SIGHUP reloads everything. DP_DISABLE_HEALTHCHECKS and
    DP_ENABLE_HEALTHCHECKS list XIDs to ignore or to observe, separated by commas, or all.
    """
    given = {flag.field: value for flag, value in flags_given(ctx, PLUGIN_FLAGS, values)}

    def read() -> PluginSettings:
        return read_plugin_settings(given, os.environ)
    settings = read()
    logs.configure(settings.log_format, settings.verbosity)
    serve: Callable[[PluginSettings, Callable[[], PluginSettings]], int] = ctx.obj or run_device_plugin
    ctx.exit(serve(settings, read))


def run_device_plugin(settings: PluginSettings, read: Callable[[], PluginSettings]) -> int:
    """Serves the kubelet until a stop signal arrives. Returns the exit status. *read* reloads the settings."""
    from hami.web.pages import PageServer
    from hami.plugin.program import Readiness, serve  # gRPC and NVML are only in the node's image

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
