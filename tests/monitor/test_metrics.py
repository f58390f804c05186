"""The metrics page: what Prometheus reads, and what no tenant can put on it."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from hami.monitor.metrics import MonitorMetrics, families
from hami.web.exposition import build_info, render
from testing.fake_nvml import GIB, MIB
from testing.monitor_stage import CARD, Stage, node_pod
from testing.region_bytes import Process as Slot

DEVICE = {
    "namespace": "default",
    "pod": "a",
    "container": "main",
    "vdevice_index": "0",
    "device_uuid": CARD,
    "zone": "vGPU",
}
NEW = {
    "hami_host_gpu_memory_used_bytes",
    "hami_host_gpu_utilization_ratio",
    "hami_host_gpu_memory_controller_utilization_ratio",
    "hami_vgpu_memory_used_bytes",
    "hami_vgpu_memory_limit_bytes",
    "hami_container_device_memory_bytes",
    "hami_vgpu_memory_context_bytes",
    "hami_vgpu_memory_module_bytes",
    "hami_vgpu_memory_buffer_bytes",
    "hami_container_device_utilization_ratio",
    "hami_container_last_kernel_elapsed_seconds",
}
OLD = {
    "HostGPUMemoryUsage",
    "HostCoreUtilization",
    "vGPU_device_memory_usage_in_bytes",
    "vGPU_device_memory_limit_in_bytes",
    "Device_utilization_desc_of_container",
    "Device_last_kernel_of_container",
    "Device_memory_desc_of_container",
}


@pytest.fixture
def stage(tmp_path):
    """A pod whose processes the driver sees, and whose region says how memory is used."""
    made = Stage(tmp_path)
    made.pods = [node_pod("a", CARD)]
    made.region(
        "a", processes=[Slot(used={0: 400 * MIB}, sm={0: 30})], last_kernel=int(made.now) - 5
    )
    made.work("a", 4007, 500 * MIB, 33)
    made.nvml.gpus[0].used, made.nvml.gpus[0].rates = GIB, (60, 20)
    return made


def page(stage, report, *, legacy=False):
    """The page, as text and as samples by name."""
    registry = CollectorRegistry()
    metrics = MonitorMetrics(registry, lambda: report, stage.rounds.errors)
    metrics.observe_round(0.02)
    text = (
        "".join(render([build_info(), *families(report, legacy=legacy)]))
        + generate_latest(registry).decode()
    )
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return text, found


def test_names_and_labels_are_those_of_hami_s_monitor(stage):
    _, found = page(stage, stage.run())
    assert NEW <= found.keys()
    assert not OLD & found.keys()
    for name in NEW:
        if name.startswith("hami_host"):
            labels, _ = found[name][0]
            node = set() if "controller" in name else {"node"}
            assert labels.keys() == {"device_index", "device_uuid", "device_type", "zone"} | node
            assert labels["device_type"] == "NVIDIA-NVIDIA A100-SXM4-80GB"
        else:
            assert [labels for labels, _ in found[name]] == [DEVICE]


def test_use_counts_seconds_of_the_device(stage):
    stage.run()
    _, found = page(stage, stage.run())
    assert found["hami_container_memory_byte_seconds_total"] == [(DEVICE, 500 * MIB)]
    assert found["hami_container_memory_given_byte_seconds_total"] == [(DEVICE, GIB)]
    assert found["hami_container_compute_seconds_total"] == [(DEVICE, 0.33)]


def test_values(stage):
    _, found = page(stage, stage.run())
    values = {name: samples[0][1] for name, samples in found.items()}
    assert (
        values["hami_vgpu_memory_used_bytes"]
        == values["hami_container_device_memory_bytes"]
        == 500 * MIB
    )
    assert values["hami_container_memory_host_bytes"] == 500 * MIB
    assert values["hami_container_uncounted_bytes"] == 100 * MIB
    assert values["hami_vgpu_memory_limit_bytes"] == GIB
    assert values["hami_container_device_utilization_ratio"] == 33
    assert values["hami_container_core_limit_ratio"] == 30
    assert values["hami_container_last_kernel_elapsed_seconds"] == 5
    assert (
        values["hami_container_over_limit"] == values["hami_container_throttled_seconds_total"] == 0
    )
    assert (
        values["hami_host_gpu_memory_used_bytes"],
        values["hami_host_gpu_utilization_ratio"],
    ) == (GIB, 60)
    assert values["hami_monitor_nvml_up"] == 1
    assert found["hami_container_usage_source_info"] == [
        ({**DEVICE, "memory_source": "host", "utilization_source": "host"}, 1)
    ]
    (region,) = found["hami_vgpu_region_info"]
    assert (region[0]["limiter"], region[0]["version"], region[0]["state"]) == (
        "libvgpu",
        "1.2",
        "ok",
    )
    assert {labels["what"] for labels, _ in found["hami_vgpu_tampered_total"]} == {
        "block",
        "limit",
        "priority",
        "switch",
        "disk",
    }
    assert {labels["what"] for labels, _ in found["hami_monitor_errors_total"]} == {
        "allocation",
        "driver",
        "region",
        "write",
    }


def test_the_old_generation_has_the_same_values(stage):
    _, found = page(stage, stage.run(), legacy=True)
    assert NEW | OLD <= found.keys()
    old = {
        "podnamespace": "default",
        "podname": "a",
        "ctrname": "main",
        "vdeviceid": "0",
        "deviceuuid": CARD,
        "zone": "vGPU",
    }
    assert found["vGPU_device_memory_usage_in_bytes"] == [(old, 500 * MIB)]
    assert found["vGPU_device_memory_limit_in_bytes"] == [(old, GIB)]
    parts = {
        "context": str(100 * MIB),
        "module": str(50 * MIB),
        "data": str(250 * MIB),
        "offset": str(100 * MIB),
    }
    assert found["Device_memory_desc_of_container"] == [({**old, **parts}, 500 * MIB)]
    assert {labels["nodeid"] for labels, _ in found["HostGPUMemoryUsage"]} == {"n1"}


def test_a_bound_pod_that_has_not_started_has_limit_and_use(stage):
    stage.pods = [node_pod("b", CARD)]
    _, found = page(stage, stage.run())
    assert [value for _, value in found["hami_vgpu_memory_used_bytes"]] == [0]
    assert [value for _, value in found["hami_vgpu_memory_limit_bytes"]] == [GIB]
    assert [value for _, value in found["hami_container_device_utilization_ratio"]] == [0]
    assert "hami_vgpu_memory_context_bytes" not in found


def test_without_driver_and_pods_there_is_a_page(stage):
    stage.has_driver, stage.pods = False, None
    _, found = page(stage, stage.run())
    assert found["hami_monitor_nvml_up"] == [({}, 0)]
    assert not any(name.startswith(("hami_host", "hami_vgpu", "hami_container")) for name in found)


def test_nothing_of_a_region_is_text_on_the_page(stage):
    """UUIDs are compared only; upstream showed what was there, and the page became invalid."""
    stage.region("a", uuids=('GPU-\x01evil"}} 1',), processes=[Slot(used={0: 1})])
    text, found = page(stage, stage.run(), legacy=True)
    assert "evil" not in text
    assert found["hami_vgpu_memory_limit_bytes"] == [(DEVICE, GIB)]


def test_the_page_is_openmetrics_as_well(stage):
    report = stage.run()
    registry = CollectorRegistry()
    MonitorMetrics(registry, lambda: report, stage.rounds.errors)
    text = (
        "".join(render([build_info(), *families(report, legacy=True)]))
        + generate_openmetrics(registry).decode()
    )
    assert {family.name for family in parse_openmetrics(text)} >= NEW | OLD
