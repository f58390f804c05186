"""``hami scheduler``: the flags and the processes of the scheduler program."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from hami.cli.flags import GroupedCommand, command_line_flags
from hami.codec.device_config import Key, parse_resource_name
from hami.runtime import logs
from hami.runtime.options import (
    BOOLEAN,
    COUNT,
    DURATION,
    Flag,
    Sections,
    Value,
    flags_of,
    section,
)
from hami.runtime.settings import ClusterSettings
from hami.scheduler.settings import Settings, read_settings

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from hami.scheduler.program import SchedulerProgram

S = TypeVar("S", bound=ClusterSettings)

log = logging.getLogger(__name__)

DEFAULTS = Settings()
_FLAGS = flags_of(DEFAULTS)
_RESOURCE = Value("name", parse_resource_name)

NO_EFFECT = (
    Flag("--profiling", "There are no Go profiles.", BOOLEAN),
    Flag("--node-lock-retry-timeout", "Binds wait until their node is unlocked.", DURATION),
    Flag("--kube-burst", "The API server's own limits apply.", COUNT),
    *(
        Flag(f"--{name}")
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
        Flag(f"--{name}", type=BOOLEAN)
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
    Flag("--log_file_max_size", type=COUNT),
)


def _names(
    section: str,
    flags: Mapping[str, str],
    help: str = "",
    *,
    chip: str | None = None,
    requires: str = "",
) -> Iterator[Flag]:
    """Flags that set resource names of a section: name of the flag → key."""
    for name, key in flags.items():
        yield Flag(name, help, _RESOURCE, key=Key(section, key, chip), requires=requires)


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
        "Devices for a container that requests only memory or cores.",
        COUNT,
        key=Key("nvidia", "defaultGPUNum"),
    ),
    Flag(
        "--default-mem",
        "Default memory in MiB; 0 for the whole device.",
        COUNT,
        key=Key("nvidia", "defaultMemory"),
    ),
    Flag(
        "--default-cores",
        "Default cores in percent of a device.",
        COUNT,
        key=Key("nvidia", "defaultCores"),
    ),
    Flag(
        "--overwrite-env",
        "Hide all devices from containers without a request.",
        BOOLEAN,
        key=Key("nvidia", "overwriteEnv"),
    ),
    *_names(
        "cambricon",
        {
            "--cambricon-mlu-name": "resourceCountName",
            "--cambricon-mlu-memory": "resourceMemoryName",
            "--cambricon-mlu-cores": "resourceCoreName",
        },
    ),
    *_names(
        "hygon",
        {
            "--dcu-name": "resourceCountName",
            "--dcu-memory": "resourceMemoryName",
            "--dcu-cores": "resourceCoreName",
        },
    ),
    *_names(
        "hcu",
        {
            "--hcu-name": "resourceCountName",
            "--hcu-memory": "resourceMemoryName",
            "--hcu-cores": "resourceCoreName",
        },
    ),
    *_names(
        "metax",
        {
            "--metax-name": "resourceCountName",
            "--metax-vcount": "resourceVCountName",
            "--metax-vmemory": "resourceVMemoryName",
            "--metax-vcore": "resourceVCoreName",
        },
    ),
    Flag(
        "--sgpu-topology-aware",
        "Choose whole sGPU devices by their links.",
        BOOLEAN,
        key=Key("metax", "sgpuTopologyAware"),
    ),
    *_names(
        "mthreads",
        {
            "--mthreads-name": "resourceCountName",
            "--mthreads-memory": "resourceMemoryName",
            "--mthreads-cores": "resourceCoreName",
        },
    ),
    *_names(
        "kunlun",
        {
            "--kunlun-name": "resourceCountName",
            "--kunlun-vcount": "resourceVCountName",
            "--kunlun-vmemory": "resourceVMemoryName",
        },
    ),
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
    *_names(
        "iluvatars",
        {
            "--iluvatar-name": "resourceCountName",
            "--iluvatar-memory": "resourceMemoryName",
            "--iluvatar-cores": "resourceCoreName",
        },
        chip="",
        requires="--enable-iluvatar",
    ),
    *_names(
        "vnpus.configs",
        {"--ascend-name": "resourceName", "--ascend-memory": "resourceMemoryName"},
        chip="",
        requires="--enable-ascend",
    ),
    *_names(
        "vnpus.configs",
        {"--ascend310p-name": "resourceName", "--ascend310p-memory": "resourceMemoryName"},
        chip="Ascend310P",
        requires="--enable-ascend",
    ),
)
DEVICE_SECTIONS: Sections = {
    "Devices": section(_FLAGS, "--device-config-file --enable-ascend --enable-iluvatar"),
    "Device configuration (for keys that --device-config-file lacks; without a file, they replace the chart's)": (
        CONFIG_FLAGS
    ),
}
SCHEDULER_FLAGS: Sections = {
    "Listening": section(
        _FLAGS,
        "--http_bind --cert_file --key_file --client-ca-file --simulate-client-ca-file "
        "--self-signed-cert-dir --self-signed-cert-secret --self-signed-webhook "
        "--self-signed-previous-secret --self-signed-cert-lifetime "
        "--self-signed-ca-lifetime --extender-bind-address --metrics-bind-address "
        "--threads",
    ),
    "Scheduling": section(
        _FLAGS,
        "--scheduler-name --node-scheduler-policy --gpu-scheduler-policy --usual-pods "
        "--force-overwrite-default-scheduler --foreign-reservations --node-label-selector "
        "--preemption --preemption-min-runtime --clean-rejected --dra "
        "--remediation --remediation-after --remediation-share --remediation-rate --defragment "
        "--node-lock-timeout",
    ),
    "Usage": section(
        _FLAGS,
        "--usage-namespace --usage-interval --usage-keep-days --over-budget "
        "--over-budget-priority-class --opencost",
    ),
    "Cluster": section(
        _FLAGS,
        "--leader-elect --leader-elect-resource-name --leader-elect-resource-namespace "
        "--kube-qps --kube-timeout",
    ),
    **DEVICE_SECTIONS,
    "Output": section(_FLAGS, "--v --debug --log-format --legacy-metrics"),
    "Accepted without effect": NO_EFFECT,
}


def settings_of_command_line(
    ctx: click.Context, sections: Sections, values: dict[str, object], read: Callable[..., S]
) -> S:
    """Returns the settings that *read* makes of command line and environment; *values*: the command's parameters."""
    from hami.vendors import entry_points

    flag_values: dict[str, object] = {}
    config_flags: list[tuple[Flag, object]] = []
    for flag, value in command_line_flags(ctx, sections, values):
        if flag.key is not None:
            config_flags.append((flag, value))
        elif flag.field:
            flag_values[flag.field] = value
    return read(flag_values, os.environ, config_flags=config_flags, known=entry_points.sections())


@click.command(name="scheduler", cls=GroupedCommand, sections=SCHEDULER_FLAGS)
@click.pass_context
def scheduler_command(ctx: click.Context, /, **values: object) -> None:
    """Serve the admission webhook and the extender.

    It decides on which node and devices pods run, and keeps track of them. The cluster is that of KUBECONFIG, else the
    one this pod runs in. - and _ in a flag's name are equivalent; a BOOL may be omitted (true). A DURATION is written
    as 28s or 5m0s. POD_NAME and POD_NAMESPACE identify this pod.
    """
    from hami.vendors.entry_points import catalog

    settings = settings_of_command_line(ctx, SCHEDULER_FLAGS, values, read_settings)
    logs.configure(settings.log_format, settings.log_verbosity)
    for note in settings.devices.notes:
        log.warning("device configuration", extra={"note": note})
    # a faulty vendor or file ends the start here, with one line, rather than in the worker
    vendors = catalog(
        settings.devices, ascend=settings.enable_ascend, iluvatar=settings.enable_iluvatar
    )
    if settings.usual_pods:
        # it imports numpy: without the file, this parent process of the worker stays small
        from hami.scheduler.usual_pods import fixed_usual_pods

        fixed_usual_pods(settings, vendors)
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
        # in the worker: its parent process stays small
        from hami.scheduler.program import SchedulerProgram

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
