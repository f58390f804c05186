"""Settings of the dashboard program: flags and environment as one frozen record."""

from __future__ import annotations

from dataclasses import dataclass

from hami.errors import HamiError
from hami.runtime.options import ADDRESS, FILE, Address, Flag, Value, whole_number

SERVING = (
    Flag("--bind-address", ADDRESS, "Address of the pages, /healthz and /readyz. A loopback address serves plain HTTP "
         "to everyone who can reach it, for kubectl port-forward. Any other address serves HTTPS, to users whose "
         "bearer tokens may list pods."),
    Flag("--cert_file", FILE, "Certificate (PEM) for HTTPS. Reloaded when it changes. Until it exists, a self-signed "
         "certificate of this process is served."),
    Flag("--key_file", FILE, "Private key of the certificate (PEM)."),
    Flag("--monitor-selector", Value("selector", str), "Label selector of the monitor's pods, in the namespace "
         "POD_NAMESPACE. They are polled for the real use of the cards that are being viewed; empty: none is polled."),
    Flag("--monitor-port", whole_number(1), "Port of the monitor's /metrics, plain HTTP."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings:
    """All settings. *cert_file*, *key_file*: empty for none. *monitor_selector*: empty to poll no monitor.

    *node_selector*: a label selector; empty for all nodes. *request_timeout*: seconds.
    """

    bind_address: Address = Address("127.0.0.1", 8445)
    cert_file: str = ""
    key_file: str = ""
    monitor_selector: str = "app.kubernetes.io/component=hami-monitor"
    monitor_port: int = 9394

    node_selector: str = ""
    request_timeout: float = 10.0
    pod_namespace: str = "kube-system"

    def __post_init__(self) -> None:
        if self.monitor_port > 65_535:
            raise HamiError("--monitor-port: expected a port from 1 to 65535")
