"""``hami dashboard``: the flags and the process of the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hami.cli.flags import OUTPUT, GroupedCommand, run_program
from hami.cli.scheduler import DEVICE_SECTIONS, settings_of_command_line
from hami.dashboard.settings import DashboardSettings, read_dashboard_settings
from hami.runtime.options import Sections, flags_of, section

if TYPE_CHECKING:
    from hami.state.store import Store

_FLAGS = flags_of(DashboardSettings())
DASHBOARD_FLAGS: Sections = {
    "Serving": section(
        _FLAGS,
        "--bind-address --inspect-bind-address --cert_file --key_file --monitor-selector "
        "--monitor-port --prometheus-url --usage-namespace --replay-reports",
    ),
    "Scheduling (as the scheduler)": section(
        _FLAGS,
        "--node-scheduler-policy --gpu-scheduler-policy --usual-pods --foreign-reservations "
        "--node-label-selector --dra",
    ),
    "Cluster": section(_FLAGS, "--kube-timeout"),
    **DEVICE_SECTIONS,
    "Output": section(_FLAGS, OUTPUT),
}


@click.command(name="dashboard", cls=GroupedCommand, sections=DASHBOARD_FLAGS)
@click.pass_context
def dashboard_command(ctx: click.Context, /, **values: object) -> None:
    """Serve read-only pages of nodes, cards, pods and quotas.

    They also say why pods wait and what would help. It watches the cluster of KUBECONFIG, else the one this pod runs
    in, and writes nothing. Beside nodes, pods and quotas it needs the rights to create TokenReviews and
    SubjectAccessReviews, unless it serves a loopback address. Give it the scheduler's policies and device
    configuration: they decide what would help. - and _ in a flag's name are equivalent; a BOOL may be omitted (true).
    POD_NAMESPACE is the namespace of the monitors.
    """
    # the parent process of the scheduler stays small
    from hami.scheduler.cluster_store import cluster_store

    settings = settings_of_command_line(ctx, DASHBOARD_FLAGS, values, read_dashboard_settings)
    run_program(ctx, run_dashboard, settings, cluster_store(settings))


def run_dashboard(settings: DashboardSettings, store: Store) -> int:
    """Serves until a stop signal arrives. Returns the exit status."""
    from hami.dashboard.program import serve

    return serve(settings, store)
