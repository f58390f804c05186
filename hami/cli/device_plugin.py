"""``hami device-plugin``: the process of the device plugin."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import click

from hami.cli.flags import OUTPUT, GroupedCommand, command_line_values, run_program
from hami.plugin.settings import FLAGS, PluginSettings, read_plugin_settings
from hami.runtime.options import Sections, section

PLUGIN_FLAGS: Sections = {
    "Node": section(
        FLAGS,
        "--node-name --config-file --node-config-file --mock-devices",
    ),
    "Sharing (flags override the device configuration, the node's entry overrides flags)": section(
        FLAGS,
        "--resource-name --device-split-count --device-memory-scaling "
        "--device-cores-scaling --disable-core-limit --operating-mode --mig-strategy",
    ),
    "Containers": section(
        FLAGS,
        "--allocate --memory-by --cgroup-root --device-list-strategy --device-id-strategy --pass-device-specs "
        "--gdrcopy-enabled --gds-enabled --mofed-enabled --imex-channel-ids "
        "--imex-required --cdi-annotation-prefix --cdi-root --nvidia-cdi-hook-path",
    ),
    "Paths": section(
        FLAGS,
        "--hook-path --library-source --nvidia-driver-root --dev-root "
        "--driver-root-ctr-path --kubelet-socket --socket-name",
    ),
    "Registration": section(
        FLAGS,
        "--allocation-mode --claim-allocator --register-format --publish-capacity --gpu-labels "
        "--topology-score --unregister-on-stop --device-discovery-strategy "
        "--fail-on-init-error --health-bind-address --kube-timeout",
    ),
    "Output": section(FLAGS, OUTPUT),
}


@click.command(name="device-plugin", cls=GroupedCommand, sections=PLUGIN_FLAGS)
@click.pass_context
def device_plugin_command(ctx: click.Context, /, **values: object) -> None:
    """Offer this node's NVIDIA devices in shares.

    It offers them to the kubelet and to the scheduler, and allocates the shares to containers. A flag overrides the
    environment variable in brackets, which overrides the device configuration. - and _ in a flag's name are equivalent;
    a BOOL may be omitted (true). SIGHUP reloads everything. DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS list
    XIDs to ignore or to observe, separated by commas, or all.
    """
    read = partial(read_plugin_settings, command_line_values(ctx, PLUGIN_FLAGS, values), os.environ)
    run_program(ctx, run_device_plugin, read(), read)


def run_device_plugin(settings: PluginSettings, read: Callable[[], PluginSettings]) -> int:
    """Serves the kubelet until a stop signal arrives. Returns the exit status. *read* reloads the settings."""
    from prometheus_client import CollectorRegistry

    from hami.plugin.metrics import PluginMetrics
    from hami.plugin.program import serve  # gRPC and NVML are only in the node's image
    from hami.web.exporter import Exporter
    from hami.web.pages import Health

    health = Health()
    if settings.health_bind_address is None:
        return serve(settings, read, health=health)
    registry = CollectorRegistry()
    metrics = PluginMetrics(registry)
    pages = Exporter(
        registry,
        settings.health_bind_address,
        pages={"/readyz": health.readyz, "/healthz": health.healthz},
        flag="--health-bind-address",
    )
    pages.start()
    try:
        return serve(settings, read, health=health, metrics=metrics)
    finally:
        pages.stop()
