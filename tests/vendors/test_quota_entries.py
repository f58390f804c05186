"""Entries of ResourceQuotas: those that nobody counts, and what is said of them."""

import pytest

from hami.codec.device_config import chart_config
from hami.model import QuotaLimits
from hami.vendors.entry_points import full_catalog
from hami.vendors.quota_entries import QuotaEntries
from hami.vendors.vocabulary import counted_names
from testing.cases import cases

CATALOG = full_catalog(chart_config())
ENTRIES = QuotaEntries(CATALOG)


def said(entry, text="4"):
    """What is said of a quota with this entry."""
    quota = QuotaLimits(namespace="a", name="q", uid="q", entries=((entry, text),))
    return [str(found) for found in ENTRIES.uncounted(quota)]


@cases(
    "entry, text",
    ("limits.nvidia.com/gpu", "4"),
    ("limits.nvidia.com/gpumem", "40k"),
    ("requests.nvidia.com/gpu", "4"),
    ("requests.nvidia.com/gpumem-percentage", "100"),
    ("limits.example.com/dongle", "1"),
    ("count/jobs.batch", "1"),
    ("nvidia.com/rdma", "1"),
)
def test_what_somebody_counts_or_nothing_of_ours(entry, text):
    assert said(entry, text) == []


@pytest.mark.parametrize("vendor", list(CATALOG), ids=lambda vendor: vendor.key)
def test_what_is_counted_of_every_vendor(vendor):
    assert vendor.resources.count in counted_names(vendor.resources)
    for name in counted_names(vendor.resources):
        assert said(f"limits.{name}") == []


@cases(
    "entry, text, message",
    (
        "limits.nvidia.com/gpumemory",
        "4000",
        "limits.nvidia.com/gpumemory: nobody counts this resource; write limits.nvidia.com/gpumem",
    ),
    (
        "limits.nvidia.com/gpumem-percentage",
        "100",
        "limits.nvidia.com/gpumem-percentage: HAMi does not count this resource; "
        "write requests.nvidia.com/gpumem-percentage, which Kubernetes counts",
    ),
    (
        "nvidia.com/gpu",
        "2",
        "nvidia.com/gpu: nobody counts a resource without a prefix; write limits.nvidia.com/gpu",
    ),
    (
        "limits.nvidia.com/gpumem",
        "40Gi",
        "limits.nvidia.com/gpumem: 40Gi is more than all devices have; write a number in MiB",
    ),
    (
        "limits.nvidia.com/gpumem",
        "1500m",
        "limits.nvidia.com/gpumem: 1500m is no whole number; write a number in MiB",
    ),
)
def test_what_nobody_counts(entry, text, message):
    assert said(entry, text) == [message]
