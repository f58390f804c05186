"""The real use of cards, as the monitor of a node reports it on its metrics page. Nothing on the page is trusted.

Only lines of known metrics are parsed, up to a number, and only names of pods and bounded numbers are taken from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from hami.inspect.tables import OutputRecord
from hami.quantity import MIB

CARD_MEMORY, CARD_COMPUTE = "hami_host_gpu_memory_used_bytes", "hami_host_gpu_utilization_ratio"
POD_MEMORY, POD_COMPUTE = "hami_vgpu_memory_used_bytes", "hami_container_device_utilization_ratio"
MAX_SAMPLES = 4096  # of a page: two for each card, and for each device of a container
LINE_LIMIT = 1024  # characters; that of the longest names of Kubernetes is shorter
MAX_MIB = 1 << 24
GREATEST = 2.0**62

Labels = tuple[str, ...]
"""The UUID of a card; or that, and the namespace and the name of a pod that holds a part of it."""

_CARD, _PART = ("device_uuid",), ("device_uuid", "namespace", "pod")
METRICS: Mapping[str, tuple[str, ...]] = {
    CARD_MEMORY: _CARD,
    CARD_COMPUTE: _CARD,
    POD_MEMORY: _PART,
    POD_COMPUTE: _PART,
}
"""The labels that tell the samples of each metric apart. Samples that only differ in others are added up."""
_BEGINNINGS = tuple(f"{name}{{" for name in METRICS)


class Use(OutputRecord, frozen=True):
    """The use of a card, or of a part of it: memory in MiB, compute in percent of a card.

    ``None``: the monitor does not say. *as_of*: when the monitor said so, in the API server's format.
    """

    memory_mib: int | None
    compute_percent: int | None
    as_of: str


Uses = Mapping[Labels, Use]
"""The use of a node's cards, and of the parts that pods hold of them, as far as it is known."""


def parse_use(page: str, as_of: str) -> Uses:
    """Returns what the metrics *page* of a monitor says, without the lines that cannot be read."""
    sums: dict[str, dict[Labels, float]] = {name: {} for name in METRICS}
    for sample in _samples(page):
        labels = tuple(sample.labels.get(name, "") for name in METRICS[sample.name])
        if all(labels):
            by_labels = sums[sample.name]
            by_labels[labels] = by_labels.get(labels, 0.0) + max(0.0, sample.value)
    return _uses(sums[CARD_MEMORY], sums[CARD_COMPUTE], as_of) | _uses(
        sums[POD_MEMORY], sums[POD_COMPUTE], as_of
    )


def total_use(uses: Collection[Use | None]) -> Use | None:
    """Returns the sum of the memory and the mean of the compute of *uses*; ``None`` unless all of them are known."""
    if not uses:
        return None
    memory: list[int | None] = []
    compute: list[int | None] = []
    as_of: list[str] = []
    for use in uses:
        if use is None:
            return None
        memory.append(use.memory_mib)
        compute.append(use.compute_percent)
        as_of.append(use.as_of)
    mean = _sum(compute)
    if mean is not None:
        mean //= len(uses)
    return Use(_sum(memory), mean, min(as_of))


def _sum(amounts: Iterable[int | None]) -> int | None:
    """Returns the sum of *amounts*; ``None`` unless all of them are known."""
    total = 0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total


def _samples(page: str) -> Iterator[Sample]:
    """Yields the samples of known metrics. The parser sees one short line at a time, without a backslash: no name of
    Kubernetes has one, and the parser's time grows with their square."""
    count = 0
    for line in page.splitlines():
        if not line.startswith(_BEGINNINGS) or len(line) > LINE_LIMIT or "\\" in line:
            continue
        count += 1
        if count > MAX_SAMPLES:
            return
        for sample in _samples_of(line):
            # integers of any length pass the parser, and so do NaN and infinity
            if sample.name in METRICS and abs(sample.value) <= GREATEST:
                yield sample


def _samples_of(line: str) -> list[Sample]:
    """Returns the samples of *line*; none if it cannot be read."""
    samples: list[Sample] = []
    try:
        for family in text_string_to_metric_families(line):
            samples += family.samples
    except (ValueError, IndexError, OverflowError):
        return []
    return samples


def _uses(
    memory: Mapping[Labels, float], compute: Mapping[Labels, float], as_of: str
) -> dict[Labels, Use]:
    uses: dict[Labels, Use] = {}
    for labels in memory.keys() | compute.keys():
        memory_mib = compute_percent = None
        if labels in memory:
            memory_mib = min(MAX_MIB, round(memory[labels] / MIB))
        if labels in compute:
            compute_percent = min(100, round(compute[labels]))
        uses[labels] = Use(memory_mib, compute_percent, as_of)
    return uses
