"""Settings of the monitor: flags and environment as one frozen record.

Source: HAMi v2.10, cmd/vGPUmonitor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Annotated, Any

from hami.codec.device_config import DeviceConfig, chart_config
from hami.errors import MalformedInput
from hami.node.flags import MOCK_DEVICES, driver_root
from hami.runtime.options import (
    Address,
    File,
    Flag,
    Seconds,
    choice,
    flags_of,
)
from hami.runtime.settings import (
    KUBE_TIMEOUT,
    LogSettings,
    environment_values,
    load_device_config,
    require_node_name,
)

OUTPUTS = TABLE, JSON = ("table", "json")
MIN_INTERVAL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class MonitorSettings(LogSettings):
    """The settings of the monitor. Times are in seconds."""

    node: Annotated[
        str, Flag("--node-name", "The name of this node.", environment="NODE_NAME NodeName")
    ] = ""
    device_config_file: Annotated[
        File,
        Flag(
            "--config-file",
            "The device configuration (YAML), the same as the scheduler's; without it, the "
            "chart's applies.",
            also="--device-config-file",
            environment="CONFIG_FILE",
        ),
    ] = ""
    hook_path: Annotated[
        File,
        Flag(
            "--hook-path",
            "The host's directory above vgpu, which holds the shared regions; vgpu itself, as in "
            "HAMi's monitor, will do.",
            environment="HOOK_PATH",
        ),
    ] = "/usr/local"
    mock_devices: Annotated[File, MOCK_DEVICES] = ""
    driver_root_in_container: Annotated[File, driver_root("monitor")] = "/driver-root"
    interval: Annotated[
        Seconds,
        Flag(
            "--interval",
            "Time between two rounds, in which usage is read and priorities are decided; 100ms "
            "or more.",
        ),
    ] = 0.9
    feedback: Annotated[
        bool,
        Flag(
            "--feedback",
            "Write to shared regions who waits for a container of higher priority, whose compute "
            "limit counts, and what processes use. Without it, regions are only read.",
        ),
    ] = True
    limit_uncounted: Annotated[
        bool,
        Flag(
            "--limit-uncounted",
            "Let memory limits include what the driver sees and the limiter cannot count, such "
            "as code that is loaded later. Needs --feedback.",
        ),
    ] = False
    once: Annotated[
        bool,
        Flag(
            "--once", "Run one round without writing anything, print what containers use, and end."
        ),
    ] = False
    output: Annotated[
        str,
        choice("format", *OUTPUTS),
        Flag("--output", "What --once prints: table or json.", also="-o"),
    ] = TABLE
    metrics_bind_address: Annotated[
        Address,
        Flag(
            "--metrics-bind-address",
            "Address of /metrics, /readyz and /healthz, plain HTTP. /readyz: 200 while rounds "
            "succeed and the pods are known, else 503 and the reason. /healthz: 200, or 500 when "
            "a thread has died or hangs.",
        ),
    ] = Address("", 9394)
    legacy_metrics: Annotated[
        bool, Flag("--legacy-metrics", "Also serve metrics under the names of HAMi before v2.9.")
    ] = False
    kube_timeout: Annotated[int, KUBE_TIMEOUT] = 0
    devices: DeviceConfig = field(default_factory=chart_config)


def read_monitor_settings(
    flag_values: Mapping[str, object], environ: Mapping[str, str]
) -> MonitorSettings:
    """The settings of flags, environment and the device configuration. *flag_values*: values of flags by field.

    Raises: HamiError when the file cannot be read or a value cannot be used; names it.
    """
    flags = flags_of(MonitorSettings()).values()
    values: dict[str, Any] = {**environment_values(flags, environ), **flag_values}
    devices = load_device_config("--config-file", str(values.get("device_config_file", "")))
    settings = MonitorSettings(devices=devices, **values)
    require_node_name(settings.node)
    if not settings.hook_path.startswith("/"):
        raise MalformedInput("--hook-path", settings.hook_path, "expected an absolute path")
    if settings.interval < MIN_INTERVAL_S:
        raise MalformedInput("--interval", f"{settings.interval:g}s", "expected 100ms or more")
    return settings


def above_vgpu(hook_path: str) -> str:
    """Returns the directory above ``vgpu``, whether *hook_path* is that directory or ``vgpu`` itself."""
    path = PurePosixPath(hook_path)
    return str(path.parent if path.name == "vgpu" else path)
