"""Settings of the dashboard program: flags and environment as one frozen record."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from hami.errors import HamiError
from hami.inspect.prometheus import check_url
from hami.runtime.options import ADDRESS, Address, File, Flag, Value, whole_number
from hami.runtime.settings import ClusterSettings, check_key_pair, cluster_values


@dataclass(frozen=True, kw_only=True)
class DashboardSettings(ClusterSettings):
    """The settings of the dashboard. Raises: HamiError if they contradict each other."""

    bind_address: Annotated[
        Address,
        Flag(
            "--bind-address",
            "Address of the pages, /healthz and /readyz. A loopback address serves plain HTTP to "
            "everyone who can reach it, for kubectl port-forward. Any other address serves "
            "HTTPS, to users whose bearer tokens may list pods.",
        ),
    ] = Address("127.0.0.1", 8445)
    inspect_bind_address: Annotated[
        Address | None,
        ADDRESS,
        Flag(
            "--inspect-bind-address",
            "Address of the API group inspect.hami.io, HTTPS, for an APIService. It trusts the "
            "front proxy of the API server alone. Without it, it is not served.",
        ),
    ] = None
    cert_file: Annotated[
        File,
        Flag(
            "--cert_file",
            "Certificate (PEM) for HTTPS. Reloaded when it changes. Until it exists, a "
            "self-signed certificate of this process is served.",
        ),
    ] = ""
    key_file: Annotated[File, Flag("--key_file", "Private key of the certificate (PEM).")] = ""
    monitor_selector: Annotated[
        str,
        Value("selector", str),
        Flag(
            "--monitor-selector",
            "Label selector of the monitor's pods, in the namespace POD_NAMESPACE. They are "
            "polled for the real use of the cards that are being viewed; empty: none is polled.",
        ),
    ] = "app.kubernetes.io/component=hami-monitor"
    monitor_port: Annotated[
        int, whole_number(1), Flag("--monitor-port", "Port of the monitor's /metrics, plain HTTP.")
    ] = 9394

    prometheus_url: Annotated[
        str,
        Flag(
            "--prometheus-url",
            "Address of a Prometheus that has HAMi's metrics, such as http://prometheus.monitoring:9090. "
            "Pages show allocated and used memory of the last hours from it.",
        ),
    ] = ""

    usage_namespace: Annotated[
        str,
        Flag(
            "--usage-namespace",
            "Namespace of the records of usage, as the scheduler's flag says. Viewers see the figures of the "
            "namespaces whose pods they may list, also by the API group inspect.hami.io.",
        ),
    ] = ""

    replay_reports: Annotated[
        str,
        Value("folder", str),
        Flag(
            "--replay-reports",
            "Folder with reports of hami replay -o json, as files *.json: the page Replays shows them to all "
            "viewers. A mounted ConfigMap will do.",
        ),
    ] = ""

    def __post_init__(self) -> None:
        check_key_pair(self.cert_file, self.key_file)
        if self.inspect_bind_address is not None and self.bind_address.is_loopback:
            raise HamiError(
                "--inspect-bind-address: requires a --bind-address that is not a loopback address"
            )
        if self.prometheus_url:
            check_url("--prometheus-url", self.prometheus_url)
        if self.monitor_port > 65_535:
            raise HamiError("--monitor-port: expected a port from 1 to 65535")


def read_dashboard_settings(
    flag_values: Mapping[str, object],
    environ: Mapping[str, str],
    *,
    config_flags: Sequence[tuple[Flag, object]],
    known: Collection[str],
) -> DashboardSettings:
    """Returns the settings of flags and environment, as :func:`hami.runtime.settings.cluster_values` reads them."""
    return DashboardSettings(**cluster_values(flag_values, environ, config_flags, known))  # type: ignore[arg-type]
