"""Metrics of the device plugin."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hami.plugin.metrics import PluginMetrics
from testing.metric_pages import plugin_page


def samples(page, name):
    """Returns labels and value of each sample of a metric."""
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    ]


def test_its_cards_are_counted_whatever_their_health():
    page = plugin_page()
    assert samples(page, "hami_device_plugin_cards") == [({"node": "gpu-0"}, 2)]
    assert [value for _, value in samples(page, "hami_device_healthy")] == [1, 0]


def test_a_program_that_has_not_started_says_nothing():
    registry = CollectorRegistry()
    PluginMetrics(registry).follow(None)
    assert generate_latest(registry) == b""
