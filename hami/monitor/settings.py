"""Settings of the monitor: flags and environment as one frozen record.

Source: HAMi v2.10, cmd/vGPUmonitor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from hami.codec.device_config import DeviceConfig, chart_config
from hami.errors import MalformedInput
from hami.node.flags import KUBE_TIMEOUT, MOCK_DEVICES, driver_root
from hami.runtime.options import (
    ADDRESS,
    BOOLEAN,
    DURATION,
    FILE,
    STRING,
    Address,
    Flag,
    Groups,
    choice,
)
from hami.runtime.settings import gather, load_device_config, require_node_name

OUTPUTS = TABLE, JSON = ("table", "json")
MIN_INTERVAL_S = 0.1

NODE = (
    Flag(
        "--node-name",
        STRING,
        "The name of this node.",
        "node",
        environment=("NODE_NAME", "NodeName"),
    ),
    Flag(
        "--config-file",
        FILE,
        "The device configuration (YAML), the same as the scheduler's; without it, the chart's "
        "applies.",
        "device_config_file",
        also=("--device-config-file",),
        environment=("CONFIG_FILE",),
    ),
    Flag(
        "--hook-path",
        FILE,
        "The host's directory above vgpu, which holds the shared regions; vgpu itself, as in "
        "HAMi's monitor, will do.",
        environment=("HOOK_PATH",),
    ),
    MOCK_DEVICES,
    driver_root("monitor"),
)
ROUNDS = (
    Flag(
        "--interval",
        DURATION,
        "Time between two rounds, in which usage is read and priorities are decided; 100ms or "
        "more.",
    ),
    Flag(
        "--feedback",
        BOOLEAN,
        "Write to shared regions who waits for a container of higher priority, whose compute "
        "limit counts, and what processes use. Without it, regions are only read.",
    ),
    Flag(
        "--limit-uncounted",
        BOOLEAN,
        "Let memory limits include what the driver sees and the limiter cannot count, "
        "such as code that is loaded later. Needs --feedback.",
    ),
    Flag(
        "--once",
        BOOLEAN,
        "Run one round without writing anything, print what containers use, and end.",
    ),
    Flag(
        "--output", choice("format", *OUTPUTS), "What --once prints: table or json.", also=("-o",)
    ),
)
SERVING = (
    Flag(
        "--metrics-bind-address",
        ADDRESS,
        "Address of /metrics, /readyz and /healthz, plain HTTP. /readyz: 200 while "
        "rounds succeed and the pods are known, else 503 and the reason. /healthz: 200, or 500 when a thread has died "
        "or hangs.",
    ),
    Flag("--legacy-metrics", BOOLEAN, "Also serve metrics under the names of HAMi before v2.9."),
    KUBE_TIMEOUT,
)
FLAGS: Groups = (("Node", NODE), ("Rounds", ROUNDS), ("Serving", SERVING))


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    """All settings. *hook_path*: the host's directory above ``vgpu``. *mock_devices*: a file that replaces the driver,
    empty for the driver. *interval*: seconds. *feedback*: write to regions. *limit_uncounted*: also what
    only the driver sees. *kube_timeout*: 0 for the built-in one."""

    node: str = ""
    devices: DeviceConfig = field(default_factory=chart_config)
    hook_path: str = "/usr/local"
    mock_devices: str = ""
    driver_root_in_container: str = "/driver-root"
    interval: float = 0.9
    feedback: bool = True
    limit_uncounted: bool = False
    once: bool = False
    output: str = TABLE
    metrics_bind_address: Address = Address("", 9394)
    legacy_metrics: bool = False
    kube_timeout: int = 0
    log_format: str = "text"
    verbosity: int = 0


def read_monitor_settings(
    given: Mapping[str, object], environ: Mapping[str, str]
) -> MonitorSettings:
    """The settings of flags, environment and the device configuration. *given*: values of flags by field.

    Raises: HamiError when the file cannot be read or a value cannot be used; names it.
    """
    values: dict[str, Any] = gather(FLAGS, given, environ)
    devices = load_device_config("--config-file", str(values.pop("device_config_file", "")))
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
