"""The command line."""

import json
import logging
import os
import subprocess
import sys

import msgspec
import pytest
from click.testing import CliRunner

from hami import __version__
from hami.cli import main
from hami.cli.dashboard import DASHBOARD_FLAGS
from hami.cli.device_plugin import PLUGIN_FLAGS
from hami.cli.monitor import MONITOR_FLAGS
from hami.cli.scheduler import CONFIG_FLAGS, DEFAULTS, SCHEDULER_FLAGS
from hami.cli.vendors import VENDORS_FLAGS
from hami.codec.device_config import Key
from hami.dashboard.settings import DashboardSettings
from hami.errors import ClusterError
from hami.monitor.settings import MonitorSettings
from hami.plugin.settings import NvidiaFlags, PluginSettings
from hami.runtime.options import Address, all_flags, flags_of
from testing.cases import cases

ENVIRONMENT = {"POD_NAME": None, "POD_NAMESPACE": None, "HAMI_NODELOCK_EXPIRE": None}


def words(value):
    """The id of a row: its command line."""
    return " ".join(value) if isinstance(value, list) else ""


def scheduler(*args, run=None, **environ):
    """Result of ``hami scheduler`` with *args*, and the settings that would have been served."""
    served = []
    result = CliRunner().invoke(
        main,
        ["scheduler", *args],
        env=ENVIRONMENT | environ,
        obj=run or (lambda settings: served.append(settings) or 0),
    )
    return result, served[0] if served else None


def settings_of(*args, **environ):
    result, settings = scheduler(*args, **environ)
    assert result.exit_code == 0, result.output
    return settings


def test_without_flags_the_defaults_hold():
    assert settings_of() == DEFAULTS


@pytest.mark.parametrize(
    "args, field, value",
    [
        (["--http_bind=0.0.0.0:443"], "http_bind", Address("0.0.0.0", 443)),
        (["--http-bind", ":80"], "http_bind", Address("", 80)),
        (["--metrics-bind-address=127.0.0.1:1"], "metrics_bind_address", Address("127.0.0.1", 1)),
        (["--metrics_bind_address=:1"], "metrics_bind_address", Address("", 1)),
        (["--extender-bind-address=127.0.0.1:2"], "extender_bind_address", Address("127.0.0.1", 2)),
        (["--extender_bind_address", "[::1]:2"], "extender_bind_address", Address("::1", 2)),
        (["--self-signed-cert-secret=s"], "self_signed_cert_secret", "s"),
        (["--self-signed-webhook=w"], "self_signed_webhook", "w"),
        (["--self-signed-previous-secret=p"], "self_signed_previous_secret", "p"),
        (["--self-signed-cert-lifetime=48h"], "self_signed_cert_lifetime", 172_800.0),
        (["--self-signed-ca-lifetime=87600h"], "self_signed_ca_lifetime", 315_360_000.0),
        (["--threads=64"], "threads", 64),
        (["--scheduler-name=mine"], "scheduler_name", "mine"),
        (["--scheduler-name", "--http_bind"], "scheduler_name", "--http_bind"),
        (["--scheduler-name="], "scheduler_name", ""),
        (["--node-scheduler-policy=spread"], "node_scheduler_policy", "spread"),
        (
            ["--gpu-scheduler-policy=topology-aware,mutex"],
            "gpu_scheduler_policy",
            "topology-aware,mutex",
        ),
        (["--force-overwrite-default-scheduler=false"], "force_overwrite_default_scheduler", False),
        (["--foreign-reservations"], "foreign_reservations", True),
        (["--node-label-selector=gpu=on,zone!=b"], "node_selector", "gpu=on,zone!=b"),
        (["--node-lock-timeout=90s"], "node_lock_timeout", 90.0),
        (["--dra=allocate"], "dra", "allocate"),
        ([], "dra", "off"),
        (["--leader-elect"], "leader_elect", True),
        (["--leader-elect=T"], "leader_elect", True),
        (["--leader-elect", "--debug"], "leader_elect", True),
        (["--leader_elect=0"], "leader_elect", False),
        (["--leader-elect=true", "--leader-elect=false"], "leader_elect", False),
        (["--leader-elect-resource-name=l"], "leader_elect_resource_name", "l"),
        (["--leader-elect-resource-namespace=n"], "leader_elect_resource_namespace", "n"),
        (["--kube-qps=1000"], "kube_qps", 1000.0),
        (["--kube-qps=2.5"], "kube_qps", 2.5),
        (["--kube-timeout=5"], "kube_timeout", 5),
        (["--enable-ascend=true"], "enable_ascend", True),
        (["--enable-iluvatar"], "enable_iluvatar", True),
        (["-v", "4"], "verbosity", 4),
        (["-v=4"], "verbosity", 4),
        (["-v4"], "verbosity", 4),
        (["--v=4"], "verbosity", 4),
        (["--v", "4"], "verbosity", 4),
        (["--debug"], "debug", True),
        (["--debug=false"], "debug", False),
        (["--log-format=json"], "log_format", "json"),
        (["--legacy-metrics"], "legacy_metrics", True),
    ],
    ids=words,
)
def test_each_flag_sets_its_field(args, field, value):
    settings = settings_of(*args)
    assert getattr(settings, field) == value
    assert [
        name
        for name in vars(DEFAULTS)
        if getattr(settings, name) != getattr(DEFAULTS, name) and name not in (field, "debug")
    ] == []


def test_the_contract_s_command_line_is_understood(tmp_path):
    config = tmp_path / "device-config.yaml"
    config.write_text("nvidia: {resourceCountName: nvidia.com/gpu}")
    settings = settings_of(
        "--http_bind=127.0.0.1:8001",
        "--scheduler-name=hami-scheduler",
        "--metrics-bind-address=127.0.0.1:8002",
        "--node-scheduler-policy=binpack",
        "--gpu-scheduler-policy=spread",
        "--force-overwrite-default-scheduler=true",
        f"--device-config-file={config}",
        "--leader-elect=false",
        "--leader-elect-resource-name=hami-scheduler",
        "--leader-elect-resource-namespace=kube-system",
        "--enable-ascend=true",
        "--enable-iluvatar=true",
        "--kube-qps=1000",
        "--kube-burst=1000",
        "--debug",
        "-v=4",
        POD_NAME="hami-0",
        POD_NAMESPACE="gpu",
        HAMI_NODELOCK_EXPIRE="30s",
    )
    assert (settings.http_bind.port, settings.metrics_bind_address.port) == (8001, 8002)
    assert (settings.pod_name, settings.pod_namespace, settings.node_lock_timeout) == (
        "hami-0",
        "gpu",
        30.0,
    )
    assert settings.devices.nvidia.resource_memory_name == ""


@pytest.mark.parametrize(
    "args",
    [
        ["--vmodule=a=1"],
        ["--logtostderr"],
        ["--logtostderr=true"],
        ["--alsologtostderr=false"],
        ["--log_dir=/tmp"],
        ["--alsologtostderrthreshold=2"],
        ["--log-file=x"],
        ["--log_file_max_size=1800"],
        ["--stderrthreshold=2"],
        ["--skip_headers"],
        ["--add_dir_header"],
        ["--one_output=true"],
        ["--skip_log_headers"],
        ["--log_backtrace_at=a.go:1"],
        ["--legacy_stderr_threshold_behavior"],
        ["--profiling"],
        ["--node_lock_retry_timeout=0"],
        ["--kube-burst=2000"],
    ],
    ids=words,
)
def test_flags_of_klog_and_upstream_are_taken_without_effect(args):
    assert settings_of(*args) == DEFAULTS


@pytest.mark.parametrize(
    "args, backend, field, value",
    [
        (["--cambricon-mlu-name", "a.b/c"], "MLU", "count", "a.b/c"),
        (["--cambricon-mlu-memory=a.b/c"], "MLU", "memory", "a.b/c"),
        (["--cambricon_mlu_cores=a.b/c"], "MLU", "cores", "a.b/c"),
        (["--dcu-name=a.b/c"], "DCU", "count", "a.b/c"),
        (["--dcu-memory=a.b/c"], "DCU", "memory", "a.b/c"),
        (["--dcu_cores=a.b/c"], "DCU", "cores", "a.b/c"),
        (["--dcu_cores="], "DCU", "cores", ""),
        (["--metax-name=a.b/c"], "Metax-GPU", "count", "a.b/c"),
        (["--metax-vcount=a.b/c"], "Metax-SGPU", "count", "a.b/c"),
        (["--metax-vmemory=a.b/c"], "Metax-SGPU", "memory", "a.b/c"),
        (["--metax-vcore=a.b/c"], "Metax-SGPU", "cores", "a.b/c"),
        (["--mthreads-name=a.b/c"], "Mthreads", "count", "a.b/c"),
        (["--mthreads-memory=a.b/c"], "Mthreads", "memory", "a.b/c"),
        (["--mthreads-cores=a.b/c"], "Mthreads", "cores", "a.b/c"),
        (["--kunlun-name=a.b/c"], "kunlun", "count", "a.b/c"),
        (["--kunlun-vcount=a.b/c"], "XPU", "count", "a.b/c"),
        (["--kunlun-vmemory=a.b/c"], "XPU", "memory", "a.b/c"),
        (["--enflame-gcu-resource-name=a.b/c"], "GCU", "count", "a.b/c"),
        (["--enflame-drs-gcu-resource-name=a.b/c"], "Enflame", "count", "a.b/c"),
        (["--enflame-vgcu-resource-name=a.b/c"], "Enflame", "count", "a.b/c"),
        (
            ["--enflame-vgcu-resource-name=d.e/f", "--enflame-drs-gcu-resource-name=a.b/c"],
            "Enflame",
            "count",
            "a.b/c",
        ),
        (["--enflame-gcu-memory-resource-name=a.b/c"], "Enflame", "memory", "a.b/c"),
        (["--enflame-gcu-core-resource-name=a.b/c"], "Enflame", "cores", "a.b/c"),
    ],
    ids=words,
)
def test_a_name_flag_goes_before_the_chart(args, backend, field, value):
    assert getattr(settings_of(*args).devices.names[backend], field) == value


@pytest.mark.parametrize(
    "args, field, value",
    [
        (["--resource-name=a.b/c"], "resource_count_name", "a.b/c"),
        (["--resource-mem=a.b/c"], "resource_memory_name", "a.b/c"),
        (["--resource-mem-percentage=a.b/c"], "resource_memory_percentage_name", "a.b/c"),
        (["--resource-cores=a.b/c"], "resource_core_name", "a.b/c"),
        (["--resource-priority=a.b/c"], "resource_priority_name", "a.b/c"),
        (["--default-gpu=2"], "default_gpu_num", 2),
        (["--default-mem=5000"], "default_memory", 5000),
        (["--default-cores=30"], "default_cores", 30),
        (["--overwrite-env"], "overwrite_env", True),
    ],
    ids=words,
)
def test_nvidia_s_old_flags_go_before_the_chart(args, field, value):
    assert getattr(settings_of(*args).devices.nvidia, field) == value


@pytest.mark.parametrize(
    "args, chips, word, field, value",
    [
        (["--iluvatar-name=a.b/c", "--enable-iluvatar"], "iluvatars", "BI-V100", "count", "a.b/c"),
        (
            ["--iluvatar-memory=a.b/c", "--enable-iluvatar"],
            "iluvatars",
            "BI-V100",
            "memory",
            "a.b/c",
        ),
        (["--iluvatar-cores=a.b/c", "--enable-iluvatar"], "iluvatars", "BI-V100", "cores", "a.b/c"),
        (["--ascend-name=a.b/c", "--enable-ascend"], "ascends", "Ascend910A", "count", "a.b/c"),
        (["--ascend-memory=a.b/c", "--enable-ascend"], "ascends", "Ascend910A", "memory", "a.b/c"),
        (["--ascend310p-name=a.b/c", "--enable-ascend"], "ascends", "Ascend310P", "count", "a.b/c"),
        (
            ["--ascend310p-memory=a.b/c", "--enable-ascend"],
            "ascends",
            "Ascend310P",
            "memory",
            "a.b/c",
        ),
        (["--ascend-name=a.b/c"], "ascends", "Ascend910A", "count", ""),
        (["--iluvatar-name=a.b/c"], "iluvatars", "BI-V100", "count", ""),
    ],
    ids=words,
)
def test_a_name_flag_for_chips_names_the_chip_that_the_file_does_not(
    tmp_path, args, chips, word, field, value
):
    config = tmp_path / "device-config.yaml"
    config.write_text(
        "iluvatars: [{commonWord: BI-V100}]\n"
        "vnpus: {configs: [{commonWord: Ascend910A, memoryAllocatable: 1, memoryCapacity: 1},"
        " {commonWord: Ascend310P, memoryAllocatable: 1, memoryCapacity: 1}]}"
    )
    found = getattr(settings_of(f"--device-config-file={config}", *args).devices, chips)
    assert {chip.common_word: getattr(chip.names, field) for chip in found}[word] == value


@cases("args, aware", (["--sgpu-topology-aware"], True), (["--sgpu-topology-aware=false"], False))
def test_links_of_metax_cards_count_by_flag(args, aware):
    assert settings_of(*args).devices.sgpu_topology_aware is aware


def test_the_file_goes_before_the_flags(tmp_path):
    config = tmp_path / "device-config.yaml"
    config.write_text("hygon: {resourceCountName: a.b/c}")
    result, settings = scheduler(
        f"--device-config-file={config}", "--dcu-name=d.e/f", "--log-format=json"
    )
    assert settings.devices.names["DCU"].count == "a.b/c"
    assert (
        json.loads(result.stderr)["note"]
        == f"{config}: hygon.resourceCountName: overrides --dcu-name d.e/f"
    )


def test_the_command_line_of_hami_2_3_is_understood():
    devices = settings_of(
        "--resource-name=nvidia.com/vgpu",
        "--resource-mem=nvidia.com/gpumem",
        "--resource-cores=nvidia.com/gpucores",
        "--resource-mem-percentage=nvidia.com/gpumem-percentage",
        "--resource-priority=nvidia.com/priority",
        "--http_bind=0.0.0.0:443",
        "--cert_file=/tls/tls.crt",
        "--key_file=/tls/tls.key",
        "--scheduler-name=hami-scheduler",
        "--metrics-bind-address=:9395",
        "--default-mem=0",
        "--default-gpu=1",
        "--default-cores=0",
        "--iluvatar-memory=iluvatar.ai/vcuda-memory",
        "--iluvatar-cores=iluvatar.ai/vcuda-core",
        "--cambricon-mlu-name=cambricon.com/vmlu",
        "--cambricon-mlu-memory=cambricon.com/mlu.smlu.vmemory",
        "--cambricon-mlu-cores=cambricon.com/mlu.smlu.vcore",
        "--ascend-name=huawei.com/Ascend910",
        "--ascend-memory=huawei.com/Ascend910-memory",
        "--ascend310p-name=huawei.com/Ascend310P",
        "--ascend310p-memory=huawei.com/Ascend310P-memory",
        "--overwrite-env=false",
        "--node-scheduler-policy=binpack",
        "--gpu-scheduler-policy=spread",
        "--debug",
        "-v=4",
    ).devices
    assert devices.nvidia == msgspec.structs.replace(
        DEFAULTS.devices.nvidia, resource_count_name="nvidia.com/vgpu"
    )
    assert devices.names == DEFAULTS.devices.names
    assert [note.split(":")[0] for note in devices.notes] == [
        "--iluvatar-memory",
        "--iluvatar-cores",
        "--ascend-name",
        "--ascend-memory",
        "--ascend310p-name",
        "--ascend310p-memory",
    ]


def test_every_flag_that_stands_in_for_a_key_has_a_key_of_its_own():
    keys = [flag.key for flag in CONFIG_FLAGS]
    assert None not in keys
    assert {key for key in keys if keys.count(key) > 1} == {Key("enflame", "resourceNameDRSGCU")}


@pytest.mark.parametrize(
    "args, named",
    [
        (["--http_bnd=:80"], "--http-bnd"),
        (["--default-memory=1"], "--default-memory"),
        (["-x"], "-x"),
        (["more"], "more"),
        (["--scheduler-name"], "--scheduler-name"),
    ],
    ids=words,
)
def test_what_is_not_known_is_named(args, named):
    result, settings = scheduler(*args)
    assert (result.exit_code, settings) == (2, None)
    assert named in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "args, right",
    [
        (["--http_bind", "8080"], "expected host:port"),
        (["--metrics-bind-address", "x:y"], "expected host:port"),
        (["--threads", "0"], "expected a whole number, 1 or more"),
        (["--kube-burst", "-1"], "expected a whole number, 0 or more"),
        (["--kube-burst", "1.5"], "expected a whole number, 0 or more"),
        (["--kube-qps", "nan"], "expected a number, 0 or more"),
        (["--kube-qps", "fast"], "expected a number, 0 or more"),
        (["--node-scheduler-policy", "random"], "expected binpack or spread"),
        (
            ["--gpu-scheduler-policy", "random"],
            "expected binpack, spread, numa, mutex, topology-aware",
        ),
        (["--node-lock-timeout", "5"], "expected numbers with units, such as 28s"),
        (["--node-lock-timeout", "-5m"], "expected no negative duration"),
        (["--leader-elect", "yes"], "expected true or false"),
        (["--v", "four"], "expected a whole number"),
        (["--log-format", "xml"], "expected text or json"),
        (["--dcu-name", "dcu num"], "expected a resource name such as nvidia.com/gpu"),
    ],
    ids=words,
)
def test_a_bad_value_is_named_with_what_would_be_right(args, right):
    result, settings = scheduler(*args)
    assert (result.exit_code, settings) == (2, None)
    flag, value = args
    line = result.stderr.splitlines()[-1]
    assert flag in line
    assert repr(value) in line
    assert right in line


@cases(
    "args, environ, problem",
    (
        ["--device-config-file=/nowhere.yaml"],
        {},
        "--device-config-file /nowhere.yaml: No such file or directory",
    ),
    (
        ["--usual-pods=/nowhere.yaml"],
        {},
        "--usual-pods /nowhere.yaml: No such file or directory",
    ),
    (
        ["--cert_file=a"],
        {},
        "--cert_file without --key_file: give both for HTTPS, or none for plain HTTP",
    ),
    (["--default-cores=101"], {}, "--default-cores: expected a whole number from 0 to 100: '101'"),
    (
        ["--dcu-name=amd.com/gpu"],
        {},
        "the chart's configuration: amd.resourceCountName: expected another name than "
        "that of --dcu-name: 'amd.com/gpu'",
    ),
    (
        ["--iluvatar-name=a.b/c", "--enable-iluvatar"],
        {},
        "--iluvatar-name: it could mean MR-V100, MR-V50, BI-V150, BI-V100: expected "
        "resourceCountName in the entries of "
        "iluvatars in --device-config-file instead: 'a.b/c'",
    ),
    (
        [],
        {"HAMI_NODELOCK_EXPIRE": "soon"},
        "environment variable HAMI_NODELOCK_EXPIRE: expected numbers with units, "
        "such as 28s, 5m0s or 1h30m: 'soon'",
    ),
)
def test_settings_that_cannot_be_used_end_in_one_line(args, environ, problem):
    result, _ = scheduler(*args, **environ)
    assert (result.exit_code, result.stderr) == (1, f"error: {problem}\n")


def test_a_usual_pod_of_a_vendor_that_is_not_enabled_ends_the_start(tmp_path):
    file = tmp_path / "usual.yaml"
    file.write_text("- {pods: 1, vendor: H100, count: 1}")
    result, settings = scheduler(f"--usual-pods={file}")
    assert (result.exit_code, settings) == (1, None)
    assert f"error: {file}: [0].vendor: expected one of " in result.stderr
    assert result.stderr.endswith(": 'H100'\n")


def test_an_error_of_ours_ends_in_one_line():
    def run(settings):
        raise ClusterError("cannot\nreach it")

    result, _ = scheduler(run=run)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "error: cannot reach it\n")


def self_signed(folder, server):
    """``hami scheduler`` that has to make a certificate first, beside an API server at *server*."""
    cluster = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(json.dumps(cluster))
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "hami.cli",
            "scheduler",
            "--http_bind=127.0.0.1:0",
            f"--self-signed-cert-dir={folder}/d",
        ],
        env=os.environ | {"KUBECONFIG": str(folder / "kubeconfig")},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_start_without_a_certificate_waits_for_the_api_server_and_can_be_ended(tmp_path):
    with self_signed(tmp_path, "http://127.0.0.1:1") as process:
        assert "certificate sync failed" in process.stderr.readline()
        assert process.poll() is None
        process.terminate()
        assert (process.wait(20), "serving" in process.stderr.read()) == (0, False)


def test_a_start_that_can_have_no_certificate_ends_with_its_reason(tmp_path):
    (tmp_path / "kubeconfig").mkdir()
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "hami.cli",
            "scheduler",
            "--http_bind=127.0.0.1:0",
            f"--self-signed-cert-dir={tmp_path}",
        ],
        env=os.environ | {"KUBECONFIG": str(tmp_path / "kubeconfig")},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        text = process.stderr.read()
    assert process.returncode == 3
    assert "no API server to talk to" in text.splitlines()[0]
    assert "Traceback" not in text


def test_the_exit_status_is_the_server_s():
    assert scheduler(run=lambda settings: 3)[0].exit_code == 3


def test_what_the_device_configuration_says_in_vain_is_logged(tmp_path):
    config = tmp_path / "device-config.yaml"
    config.write_text("nvidia: {resourceCountName: a.b/c, memoryfactor: 2}")
    result, _ = scheduler(f"--device-config-file={config}", "--log-format=json")
    assert (
        json.loads(result.stderr)["note"] == f"{config}: nvidia.memoryfactor: unknown key, skipped"
    )


@cases(
    "args, level",
    ([], logging.INFO),
    (["-v=3"], logging.INFO),
    (["-v=4"], logging.DEBUG),
    (["--debug"], logging.DEBUG),
)
def test_verbosity_and_debug_set_the_log_level(args, level):
    settings_of(*args)
    assert logging.getLogger("hami").level == level


def test_help_names_every_flag_with_its_default_and_unit():
    result = CliRunner().invoke(main, ["scheduler", "--help"], terminal_width=120)
    assert result.exit_code == 0
    for title, flags in SCHEDULER_FLAGS.items():
        assert f"{title}:" in result.output
        assert [flag.name for flag in flags if flag.name not in result.output] == []
    output = " ".join(result.output.split())
    for text in (
        "[default: 127.0.0.1:8080]",
        "[default: 5m]",
        "[default: true]",
        "--threads INT",
        "BOOL",
        "Seconds",
    ):
        assert text in output


@pytest.mark.parametrize(
    "record, sections",
    [
        (DEFAULTS, SCHEDULER_FLAGS),
        (PluginSettings(node=""), PLUGIN_FLAGS),
        (NvidiaFlags(), PLUGIN_FLAGS),
        (MonitorSettings(), MONITOR_FLAGS),
        (DashboardSettings(), DASHBOARD_FLAGS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_field_with_a_flag_is_in_one_section_of_the_help(record, sections):
    fields = [flag.field for flag in all_flags(sections) if flag.field]
    assert len(fields) == len(set(fields))
    assert {flag.field for flag in flags_of(record).values()} <= set(fields)


@pytest.mark.parametrize(
    "sections", [SCHEDULER_FLAGS, PLUGIN_FLAGS, MONITOR_FLAGS, DASHBOARD_FLAGS, VENDORS_FLAGS]
)
def test_no_two_flags_have_one_parameter(sections):
    parameters = [flag.parameter for flag in all_flags(sections)]
    assert len(parameters) == len(set(parameters))


def listing(*args, **environ):
    """Result of ``hami vendors``."""
    return CliRunner().invoke(main, ["vendors", *args], env=ENVIRONMENT | environ)


def test_vendors_prints_the_catalog():
    assert listing().exit_code == 0
    assert "nvidia.com/gpumem-percentage" in listing().stdout
    assert listing("--output=markdown").stdout.startswith("| backend |")
    named = json.loads(listing("--output", "json", "--resource-name=a.b/gpu").stdout)
    assert {entry["backend"]: entry["resources"]["count"] for entry in named}["NVIDIA"] == "a.b/gpu"


def test_vendors_reads_the_file_and_says_what_it_skips(tmp_path):
    config = tmp_path / "device-config.yaml"
    config.write_text("nvidia: {resourceCountName: a.b/c, memoryfactor: 2}")
    result = listing(f"--device-config-file={config}")
    assert "a.b/c" in result.stdout
    assert "gpumem" not in result.stdout
    assert result.stderr == f"note: {config}: nvidia.memoryfactor: unknown key, skipped\n"


@pytest.mark.parametrize(
    "args, code, problem",
    [
        (
            ["--device-config-file=/nowhere.yaml"],
            1,
            "error: --device-config-file /nowhere.yaml: No such file or directory",
        ),
        (["--output=xml"], 2, "expected text or markdown or json"),
        (["--http_bind=:80"], 2, "--http-bind"),
    ],
    ids=words,
)
def test_vendors_names_what_is_wrong(args, code, problem):
    result = listing(*args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert problem in result.stderr.splitlines()[-1]


def test_help_of_vendors_names_every_flag():
    output = CliRunner().invoke(main, ["vendors", "--help"], terminal_width=120).output
    assert [flag.name for flag in all_flags(VENDORS_FLAGS) if flag.name not in output] == []
    assert "[default: text]" in output


@pytest.mark.parametrize("args", [["version"], ["--version"]])
def test_version(args):
    result = CliRunner().invoke(main, args)
    assert (result.exit_code, result.output) == (0, f"hami {__version__}\n")


def test_importing_the_command_line_is_light():
    heavy = ("kubernetes", "flask", "numpy", "gunicorn", "prometheus_client", "urllib3")
    program = f"import sys, hami.cli; print([name for name in {heavy!r} if name in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def device_plugin(*args, **environ):
    """Result of ``hami device-plugin`` with *args*, and the settings that would have been served."""
    served = []

    def serve(settings, read):
        assert read() == settings
        served.append(settings)
        return 0

    silent = {name: None for flag in all_flags(PLUGIN_FLAGS) for name in flag.environment.split()}
    result = CliRunner().invoke(
        main, ["device-plugin", *args], env=ENVIRONMENT | silent | environ, obj=serve
    )
    return result, served[0] if served else None


@pytest.mark.parametrize(
    "args, field, value",
    [
        (["--device-split-count=4"], "device_split_count", 4),
        (["--device-memory-scaling", "1.5"], "device_memory_scaling", 1.5),
        (["--device_cores_scaling=2"], "device_core_scaling", 2.0),
        (["--disable-core-limit"], "disable_core_limit", True),
        (["--disable-core-limit=false"], "disable_core_limit", False),
        (["--resource-name=nvidia.com/vgpu"], "resource", "nvidia.com/vgpu"),
        (["--node-name=b"], "node", "b"),
        (["--pass-device-specs=true"], "pass_device_specs", True),
        (["--device-list-strategy=envvar,cdi-cri"], "list_strategies", ("envvar", "cdi-cri")),
        (
            ["--device-list-strategy=envvar", "--device-list-strategy=volume-mounts"],
            "list_strategies",
            ("envvar", "volume-mounts"),
        ),
        (["--device-id-strategy=index"], "id_strategy", "index"),
        (["--gdrcopy-enabled"], "gdrcopy", True),
        (["--gds-enabled"], "gds", True),
        (["--mofed-enabled"], "mofed", True),
        (["--kubelet-socket=/k.sock"], "kubelet_socket", "/k.sock"),
        (["--kubelet-socket="], "kubelet_socket", ""),
        (["--socket-name=h.sock"], "socket_name", "h.sock"),
        (["--cdi-annotation-prefix=x/"], "cdi_prefix", "x/"),
        (["--cdi-root="], "cdi_root", ""),
        (["--nvidia-cdi-hook-path=/h"], "cdi_hook", "/h"),
        (["--nvidia-ctk-path=/h"], "cdi_hook", "/h"),
        (["--nvidia-driver-root=/d"], "driver_root", "/d"),
        (["--dev-root=/d"], "dev_root", "/d"),
        (["--nvidia-dev-root=/d"], "dev_root", "/d"),
        (["--imex-channel-ids=0"], "imex_channels", (0,)),
        (["--register-format=csv"], "register_format", "csv"),
        (["--topology-score"], "topology_score", True),
        (["--unregister-on-stop"], "unregister_on_stop", True),
        (["--hook-path=/opt"], "hook_path", "/opt"),
        (["--health-bind-address=:9396"], "health_bind_address", ("", 9396)),
    ],
    ids=words,
)
def test_each_flag_of_the_device_plugin_sets_its_field(args, field, value):
    result, settings = device_plugin(*args, NODE_NAME="a")
    assert result.exit_code == 0, result.output
    assert getattr(settings if hasattr(settings, field) else settings.nvidia, field) == value


def test_the_device_plugin_names_an_address_that_it_cannot_listen_on():
    result = CliRunner().invoke(
        main, ["device-plugin", "--node-name=a", "--health-bind-address=203.0.113.1:9396"]
    )
    assert result.exit_code == 1
    assert result.output == (
        "error: --health-bind-address: cannot listen on 203.0.113.1:9396: Cannot assign requested address\n"
    )


def test_the_chart_s_command_line_of_the_device_plugin_is_understood(tmp_path):
    config = tmp_path / "device-config.yaml"
    config.write_text(
        "nvidia: {resourceCountName: nvidia.com/gpu, deviceSplitCount: 3, migProfileAllowlist: []}"
    )
    _, settings = device_plugin(
        f"--config-file={config}",
        "--mig-strategy=none",
        "--disable-core-limit=false",
        "-v=4",
        NODE_NAME="a",
        HOOK_PATH="/usr/local",
        DEVICE_LIST_STRATEGY="envvar",
        PASS_DEVICE_SPECS="false",
        NVIDIA_MIG_MONITOR_DEVICES="all",
    )
    assert (settings.node, settings.nvidia.device_split_count, settings.verbosity) == ("a", 3, 4)


@pytest.mark.parametrize(
    "args, says",
    [
        ([], "name is missing"),
        (["--node-name=a", "--config-file=/nowhere"], "--config-file /nowhere: No such file"),
        (["--node-name=a", "--device-split-count=0"], "--device-split-count"),
        (["--node-name=a", "--device-id-strategy=name"], "expected uuid or index"),
        (["--node-name=a", "--device-discovery-strategy=tegra"], "expected auto or nvml"),
        (["--node-name=a", "--hook-path=opt"], "expected an absolute path"),
        (["--node-name=a", "--health-bind-address=9396"], "expected host:port"),
    ],
    ids=words,
)
def test_the_device_plugin_refuses_what_it_cannot_use_in_one_line(args, says):
    result, settings = device_plugin(*args)
    assert result.exit_code != 0
    assert says in result.output
    assert settings is None


def test_help_of_the_device_plugin_names_every_flag_with_environment_and_default():
    output = CliRunner().invoke(main, ["device-plugin", "--help"], terminal_width=120).output
    for title, flags in PLUGIN_FLAGS.items():
        assert f"{title}:" in output
        assert [flag.name for flag in flags if flag.name not in output] == []
    for text in (
        "[DEVICE_SPLIT_COUNT]  [default: 10]",
        "[default: nvidia.com/gpu]",
        "[default: envvar]",
        "[NodeName, NODE_NAME]",
    ):
        assert text in " ".join(output.split()).replace("] [", "]  [")


def test_a_command_ends_without_freeing_what_it_has_read():
    """It ends with its status, and nothing of its output is lost."""
    script = (
        "import sys; from hami.cli.group import Commands, run; import click\n"
        "class Kept:\n    def __del__(self): print('freed')\n"
        "@click.group(cls=Commands)\ndef commands(): pass\n"
        "@commands.command()\ndef read(): Kept.one = Kept(); sys.stdout.write('read'); sys.exit(3)\n"
        "run(commands, 'any')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "read"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "read", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_no_success():
    script = (
        "import sys; from hami.cli.group import Commands, run; import click\n"
        "@click.group(cls=Commands)\ndef commands(): pass\n"
        "@commands.command()\ndef read(): sys.stdout.write('read')\n"
        "run(commands, 'any')\n"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script, "read"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            env=os.environ | {"PYTHONUNBUFFERED": ""},
        )
    assert done.returncode == 120


def test_a_program_does_not_import_the_commands_of_others():
    """Their modules would take it 0.1 s at its start, and stay in the memory of its parent process."""
    script = (
        "import sys; from hami.cli import main\n"
        "try: main(['scheduler', '--help'])\n"
        "except SystemExit: print([name for name in sys.modules if name.startswith('hami.')], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "'hami.cli.scheduler'" in done.stderr
    assert not [
        name
        for name in ("cli.people", "plugin", "dashboard", "monitor", "inspect.top")
        if f"'hami.{name}" in done.stderr
    ]


def test_a_scheduler_without_claims_does_not_import_what_they_need():
    script = (
        "import json, sys, hami.scheduler.program\n"
        "print(json.dumps([name for name in sys.modules\n"
        "                  if name.startswith('hami.') and ('claim' in name or name.startswith('hami.dra'))]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert sorted(json.loads(done.stdout)) == ["hami.codec.claim_amounts", "hami.vendors.claims"]
