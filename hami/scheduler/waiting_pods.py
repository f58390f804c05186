"""Gauges of the pods that wait for devices, from what the API server shows of them: the same in every replica."""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from hami.codec.times import parse_time
from hami.model import Pod, Reason

NEW, GATED, OTHER = "New", "SchedulingGated", "Other"
"""Reasons of pods that kube-scheduler has not tried, that must not be tried yet, and that wait for something else than
devices, such as CPU, a taint or a volume."""
MAX_CLASSES = 20  # that have a label of their own
OTHER_CLASSES = "other"
MAX_TEXT = 4096  # characters of kube-scheduler's message that are read
MAX_TEXTS = 256  # that are remembered
_REASON = re.compile("|".join(sorted(Reason, key=len, reverse=True)))
LABELS = "reason", "priority_class"


def waiting_gauges(pods: Collection[Pod], now: float) -> Iterator[Metric]:
    """Yields how many of *pods*, which wait for devices, there are, and the age of the oldest. *now*: Unix seconds."""
    counts = GaugeMetricFamily(
        "hami_waiting_pods",
        "Pods that request devices and are not bound, by the most frequent reason and by priority class",
        labels=LABELS,
    )
    ages = GaugeMetricFamily(
        "hami_waiting_pods_oldest_seconds",
        "Age of the oldest of these pods",
        labels=LABELS,
    )
    for labels, seconds in sorted(_ages(pods, now).items()):
        counts.add_metric(labels, len(seconds))
        ages.add_metric(labels, max(seconds))
    yield counts
    yield ages


def reason_of(pod: Pod) -> str:
    """Returns why *pod* waits: the Reason that kube-scheduler's message repeats most often, NEW, GATED or OTHER."""
    _, _, text = pod.scheduling_failure[:MAX_TEXT].partition(" ")  # the time of it differs
    if not text:
        return NEW
    return _reason_in(text)


@functools.lru_cache(MAX_TEXTS)
def _reason_in(text: str) -> str:
    """Returns the reason in *text*, which has kube-scheduler's own before its message. Many pods have equal ones."""
    if text.startswith(f"{GATED} "):
        return GATED
    found = Counter(_REASON.findall(text))
    # on nearly every node some devices serve, and too few do: the others say why
    del found[Reason.TOO_FEW_FITTING]
    for reason, _ in found.most_common(1):
        return str(reason)
    return str(Reason.TOO_FEW_FITTING) if Reason.TOO_FEW_FITTING in text else OTHER


def _ages(pods: Collection[Pod], now: float) -> Mapping[tuple[str, str], list[float]]:
    """Returns the ages in seconds, by reason and priority class."""
    classes = Counter(pod.scope.priority_class for pod in pods)
    named = {name for name, _ in classes.most_common(MAX_CLASSES)}
    ages: dict[tuple[str, str], list[float]] = defaultdict(list)
    for pod in pods:
        name = pod.scope.priority_class
        if name not in named:
            name = OTHER_CLASSES
        ages[reason_of(pod), name].append(max(0.0, now - parse_time(pod.created)))
    return ages
