"""Metrics of the scheduler itself."""

import math

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from hami.model import Reason
from hami.scheduler.metrics import RESIZE_OUTCOMES, Metrics, MetricSources
from testing.cases import cases


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def metrics(registry):
    return Metrics(registry)


def sources(**changed):
    """The sources of an idle process."""
    idle = {
        "reserved": lambda: 0,
        "waiting": dict,
        "ages": {},
        "leads": lambda: False,
        "unreadable_inventories": dict,
        "unreadable_pods": list,
        "events": {},
        "handshakes": lambda: 0,
        "edits_refused": lambda: 0,
    }
    return MetricSources(**(idle | changed))


@cases(
    "seconds, bucket, below",
    (0.0004, "0.0005", "0.0"),
    (0.003, "0.005", "0.0025"),
    (29.0, "30.0", "20.0"),
    (31.0, "+Inf", "30.0"),
)
def test_durations_are_counted_by_verb_and_outcome(registry, metrics, seconds, bucket, below):
    metrics.observe("filter", "refused", seconds)
    name, labels = (
        "hami_scheduler_request_duration_seconds",
        {"verb": "filter", "outcome": "refused"},
    )
    assert registry.get_sample_value(f"{name}_sum", labels) == seconds
    assert registry.get_sample_value(f"{name}_bucket", labels | {"le": bucket}) == 1
    assert not registry.get_sample_value(f"{name}_bucket", labels | {"le": below})


@pytest.mark.parametrize("verb", ["webhook", "filter", "prioritize", "preempt", "bind"])
@pytest.mark.parametrize("outcome", ["ok", "refused", "error"])
def test_series_exist_from_the_start(registry, metrics, verb, outcome):
    assert (
        registry.get_sample_value(
            "hami_scheduler_request_duration_seconds_count", {"verb": verb, "outcome": outcome}
        )
        == 0
    )


def test_answers_to_resized_pods_are_counted_by_outcome(registry, metrics):
    metrics.resize("booked")
    counts = [
        registry.get_sample_value("hami_scheduler_resizes_total", {"outcome": outcome})
        for outcome in RESIZE_OUTCOMES
    ]
    assert dict(zip(RESIZE_OUTCOMES, counts)) == dict.fromkeys(RESIZE_OUTCOMES, 0) | {"booked": 1}


def test_lock_waits_are_counted(registry, metrics):
    metrics.lock_wait(0.2)
    assert (
        registry.get_sample_value("hami_scheduler_node_lock_wait_seconds_bucket", {"le": "0.25"})
        == 1
    )
    assert (
        registry.get_sample_value("hami_scheduler_node_lock_wait_seconds_bucket", {"le": "0.1"})
        == 0
    )


@cases("reason", ("enum", Reason.NO_MEMORY), ("text", "CardInsufficientMemory"))
def test_refusals_are_counted_by_reason(registry, metrics, reason):
    metrics.refused(reason)
    assert (
        registry.get_sample_value(
            "hami_scheduler_refusals_total", {"reason": "CardInsufficientMemory"}
        )
        == 1
    )
    assert (
        registry.get_sample_value("hami_scheduler_refusals_total", {"reason": "CardNotHealth"}) == 0
    )


def test_unknown_reasons_and_verbs_are_counted_too(registry, metrics):
    metrics.refused("NodeUnregistered")
    metrics.refused("NodeUnregistered")
    metrics.observe("simulate", "ok", 1.0)
    assert (
        registry.get_sample_value("hami_scheduler_refusals_total", {"reason": "NodeUnregistered"})
        == 2
    )
    assert (
        registry.get_sample_value(
            "hami_scheduler_request_duration_seconds_count", {"verb": "simulate", "outcome": "ok"}
        )
        == 1
    )


@cases(
    "changed, name, labels, value",
    ({"reserved": lambda: 7}, "reservations", {}, 7),
    ({"waiting": lambda: {"n1": 3, "n2": 5}}, "node_lock_waiting_pods", {}, 8),
    ({"waiting": lambda: {"n1": 3, "n2": 5}}, "node_lock_longest_queue_pods", {}, 5),
    ({}, "node_lock_longest_queue_pods", {}, 0),
    (
        {"ages": {"pods": lambda: 1.5, "nodes": lambda: math.inf}},
        "cache_age_seconds",
        {"resource": "pods"},
        1.5,
    ),
    ({"ages": {"nodes": lambda: math.inf}}, "cache_age_seconds", {"resource": "nodes"}, math.inf),
    ({"leads": lambda: True}, "leader", {}, 1),
    ({}, "leader", {}, 0),
    (
        {"unreadable_inventories": lambda: {("n1", "NVIDIA"): "why"}},
        "unreadable_inventory",
        {"node": "n1", "vendor": "NVIDIA"},
        1,
    ),
    ({}, "unreadable_inventory", {"node": "n1", "vendor": "NVIDIA"}, None),
    ({"unreadable_pods": lambda: ["a", "b"]}, "unreadable_allocations", {}, 2),
    ({"events": {"dropped": lambda: 4}}, "events_total", {"outcome": "dropped"}, 4),
    ({"handshakes": lambda: 9}, "handshake_requests_total", {}, 9),
    ({"edits_refused": lambda: 3}, "allocation_edits_refused_total", {}, 3),
    ({"resizing": lambda: 6}, "resizes_pending", {}, 6),
    ({"certificate_expiry": lambda: 1.8e9}, "certificate_expiry_timestamp_seconds", {}, 1.8e9),
    ({}, "certificate_expiry_timestamp_seconds", {}, None),
)
def test_sources_are_read(registry, metrics, changed, name, labels, value):
    registry.register(sources(**changed))
    assert registry.get_sample_value(f"hami_scheduler_{name}", labels) == value


def test_sources_are_read_at_each_scrape_only(registry, metrics):
    asked = []
    registry.register(sources(reserved=lambda: asked.append(1) or len(asked)))
    assert asked == []
    assert [registry.get_sample_value("hami_scheduler_reservations") for _ in range(2)] == [1, 2]


def test_all_names_have_our_prefix_and_the_page_is_valid(registry, metrics):
    registry.register(
        sources(
            ages={"pods": lambda: math.inf},
            unreadable_inventories=lambda: {('n"1\n', "NVIDIA"): ""},
        )
    )
    found = list(parse_openmetrics(generate_openmetrics(registry).decode()))
    names = {family.name for family in found if not family.name.startswith("hami_waiting_pods")}
    names -= {"hami_remediations", "hami_moves"}
    assert {name[:15] for name in names} == {"hami_scheduler_"}
    assert b'node="n\\"1\\n"' in generate_latest(registry)


def test_registries_share_no_state(registry, metrics):
    other = CollectorRegistry()
    Metrics(other).refused("CardNotHealth")
    assert (
        registry.get_sample_value("hami_scheduler_refusals_total", {"reason": "CardNotHealth"}) == 0
    )
