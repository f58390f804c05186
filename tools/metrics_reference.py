"""The table of all metrics in ``docs/metrics.md``: names, labels and the help text that the programs serve.

``python -m tools.generate`` writes it. Notes that are too long for a help text are here, since only people need them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from testing.metric_pages import monitor_page, plugin_page, scheduler_page
from tools.marked import marked

__all__ = ["NOTES", "rendered_page", "rows"]

UNNAMED = {"zone", "le"}
"""Labels that the page explains, and those of the format."""
NOTES: Mapping[str, str] = MappingProxyType(
    {
        "container_gpu_allocation": "with `--opencost`",
        "hami_budget_gpu_seconds": "of the leader, with `--usage-namespace`; so is the next but one",
        "hami_container_compute_seconds_total": "since the monitor started",
        "hami_container_core_limit_ratio": "0 for no limit",
        "hami_container_device_memory_bytes": "the same as `hami_vgpu_memory_used_bytes`",
        "hami_container_device_utilization_ratio": "in the last second",
        "hami_container_last_kernel_elapsed_seconds": "absent before the first",
        "hami_container_memory_byte_seconds_total": "since the monitor started",
        "hami_container_memory_given_byte_seconds_total": "since the monitor started",
        "hami_container_memory_host_bytes": "absent where the driver does not report it",
        "hami_container_throttled_seconds_total": "only with this project's limiter",
        "hami_device_recovery_action": "absent where the driver does not say it (before release 570)",
        "hami_gpu_stranded_ratio": "*cause*: `cpu` (the node lacks it), `crumbs` (parts into which no usual pod fits), "
        "`model` (no usual pod accepts it); absent until 16 pods have shown what is usual",
        "hami_monitor_errors_total": "*what*: `allocation`, `driver`, `region`, `write`",
        "hami_remediations_total": "once for each pod and reason, with `--remediation=evict`; *result*: `evicted`, or "
        "why not: `budget`, `many_unhealthy`, `not_replaced`, `protected`, `failed` (calls)",
        "hami_moves_total": "*result*: `moved`; `stopped`, where reality differed; `none`, no plan",
        "hami_node_devices": "without cordoned nodes",
        "hami_resource_quota_limit": "the lowest of the quotas without scopes, in the unit in which it is written",
        "hami_resource_quota_used": "in MiB or percent; *limit* is that of `hami_resource_quota_limit`, 0 without one",
        "hami_resource_quota_used_ratio": "absent if the limit is 0 or not enforced (cores of AMD and AWS Neuron)",
        "hami_scheduler_certificate_expiry_timestamp_seconds": "absent with other certificates than self-signed ones",
        "hami_scheduler_foreign_reservations_enabled": "as in a [migration](migrate.md) before its last step",
        "hami_scheduler_preemption_attempts_total": "*result*: `planned`, `none`",
        "hami_scheduler_preemptions_in_vain_total": "should stay 0",
        "hami_scheduler_refusals_total": "see [reasons](events.md#reasons)",
        "hami_scheduler_request_duration_seconds": "*verb*: `webhook`, `filter`, `simulate`, `preempt`, `bind`; "
        "*outcome*: `ok`, `refused` (preempt: no pod may be evicted), `error`",
        "hami_scheduler_resizes_total": "*outcome*: `booked`, `applied`, `deferred`, `infeasible`, `failed` (writes)",
        "hami_usage_gpu_seconds_total": "of the leader, with `--usage-namespace`; so are the next three",
        "hami_usual_pod_room": "the ten most common ones: *count* devices, each with *cores* percent and *memory* MiB "
        "(or `%`), and *cpu*",
        "hami_waiting_pods": "*reason*: one of the [reasons](events.md#reasons), `New` (not tried yet), "
        "`SchedulingGated`, or `Other` (CPU, taints, volumes and so on); at most 20 priority classes, then `other`",
        "hami_vgpu_core_allocated_ratio": "*container_index* is always 0: the containers of a pod are summed",
        "hami_vgpu_memory_allocated_bytes": "*container_index* is always 0: the containers of a pod are summed",
        "hami_vgpu_region_info": "*limiter*: `libvgpu` (ours) or `hami`; *state*: `ok`, `absent`, `uninitialized`, "
        "`unknown`, `unreadable`",
        "hami_vgpu_tampered_total": "*what*: `block`, `limit`, `priority`, `switch`; `disk`: the containers of the pod "
        "were ended, since a file with which it filled the disk could not be truncated",
    }
)
"""What a help text does not say, by metric."""


def rendered_page(page: str) -> str:
    """Returns *page* with the tables of all metrics."""
    tables = "".join(
        f"\nServed by the {program}:\n\n| metric | labels | meaning |\n|---|---|---|\n{''.join(rows(text))}"
        for program, text in (
            ("scheduler", scheduler_page()),
            ("monitor", monitor_page()),
            ("device plugin", plugin_page()),
        )
    )
    return marked(page, "python -m tools.metrics_reference", f"{tables}\n")


def rows(page: str) -> Iterator[str]:
    """Yields a row for each metric of HAMi on a metrics *page*, sorted by name; a histogram has one."""
    metrics = {name_of(metric): metric for metric in text_string_to_metric_families(page)}
    for name, metric in sorted(metrics.items()):
        if not name.startswith(("hami_", "container_gpu_")) or name.endswith("_created"):
            continue
        labels: set[str] = set().union(*(sample.labels for sample in metric.samples))
        meaning = metric.documentation
        if name in NOTES:
            meaning = f"{meaning}; {NOTES[name]}"
        yield f"| `{name}` | {', '.join(sorted(labels - UNNAMED))} | {meaning} |\n"


def name_of(metric: Metric) -> str:
    """Returns the name of the series of *metric*."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name
