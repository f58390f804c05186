"""Settings of the dashboard program: flags and environment as one frozen record."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hami.codec.device_config import Fallback
from hami.errors import HamiError
from hami.runtime.options import ADDRESS, FILE, Address, Flag, Value, whole_number
from hami.runtime.settings import ClusterSettings, check_key_pair, cluster_values

SERVING = (
    Flag(
        "--bind-address",
        ADDRESS,
        "Address of the pages, /healthz and /readyz. A loopback address serves plain HTTP "
        "to everyone who can reach it, for kubectl port-forward. Any other address serves HTTPS, to users whose "
        "bearer tokens may list pods.",
    ),
    Flag(
        "--cert_file",
        FILE,
        "Certificate (PEM) for HTTPS. Reloaded when it changes. Until it exists, a self-signed "
        "certificate of this process is served.",
    ),
    Flag("--key_file", FILE, "Private key of the certificate (PEM)."),
    Flag(
        "--monitor-selector",
        Value("selector", str),
        "Label selector of the monitor's pods, in the namespace "
        "POD_NAMESPACE. They are polled for the real use of the cards that are being viewed; empty: none is polled.",
    ),
    Flag("--monitor-port", whole_number(1), "Port of the monitor's /metrics, plain HTTP."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings(ClusterSettings):
    """The settings of the dashboard. *cert_file*, *key_file*: empty for none. *monitor_selector*: empty to poll no
    monitor. Raises: HamiError if they contradict each other."""

    bind_address: Address = Address("127.0.0.1", 8445)
    cert_file: str = ""
    key_file: str = ""
    monitor_selector: str = "app.kubernetes.io/component=hami-monitor"
    monitor_port: int = 9394

    def __post_init__(self) -> None:
        check_key_pair(self.cert_file, self.key_file)
        if self.monitor_port > 65_535:
            raise HamiError("--monitor-port: expected a port from 1 to 65535")


def read_dashboard_settings(
    given: Mapping[str, object],
    environ: Mapping[str, str],
    *,
    fallback: Fallback,
    known: Collection[str],
) -> DashboardSettings:
    """Returns the settings of flags and environment, as :func:`hami.runtime.settings.cluster_values` reads them."""
    return DashboardSettings(**cluster_values(given, environ, fallback, known))  # type: ignore[arg-type]
