"""Renders gauges in slices. The text is valid both in Prometheus' text format and in OpenMetrics."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Generic, TypeVar

from hami import __version__

SLICE = 200  # samples in a slice
ZONE = "vGPU"  # upstream's label of all metrics of devices

Row = TypeVar("Row")

_MACHINES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
}  # Go's names, which upstream's platform label uses
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Family:
    """A gauge and its samples: lines without line ends, which can be iterated once."""

    name: str
    help: str
    samples: Iterable[str]


@dataclass(frozen=True, slots=True)
class Gauge(Generic[Row]):
    """A gauge under its new and its old name. *labels*: label name to row field. A *value* of None yields no sample.

    *old_name*: upstream's, empty if there is none. *old_value*: if it differs from *value*.
    """

    name: str
    help: str
    labels: Mapping[str, str]
    value: Callable[[Row], int | float | None]
    old_name: str = ""
    old_labels: Mapping[str, str] = field(default_factory=dict)
    old_value: Callable[[Row], int | float | None] | None = None


def gauge_families(
    gauges: Iterable[Gauge[Row]],
    rows: Callable[[], Iterable[Row]],
    legacy: bool,
    *,
    escape: Callable[[str], str] | None = None,
) -> Iterator[Family]:
    """Yields *gauges* with a sample for each of *rows*; with *legacy* also under their old names.

    *escape*: `escape_label` where texts of rows are not escaped yet. Every sample has upstream's label ``zone``.
    """
    for gauge in gauges:
        samples = _samples(gauge.name, gauge.labels, gauge.value, rows(), escape)
        yield Family(gauge.name, gauge.help, samples)
        if not legacy or not gauge.old_name:
            continue
        value = gauge.old_value or gauge.value
        samples = _samples(gauge.old_name, gauge.old_labels, value, rows(), escape)
        yield Family(gauge.old_name, f"Old name of {gauge.name}", samples)


def _samples(
    name: str,
    labels: Mapping[str, str],
    value: Callable[[Row], int | float | None],
    rows: Iterable[Row],
    escape: Callable[[str], str] | None,
) -> Iterator[str]:
    names, attributes = zip(*sorted(labels.items()))
    pairs = [*(f'{label}="%s"' for label in names), f'zone="{ZONE}"']
    template = f"{name}{{{','.join(pairs)}}} %s"
    fields = attrgetter(*attributes)
    for row in rows:
        amount = value(row)
        if amount is None:
            continue
        texts: Iterable[object] = fields(row)
        if len(attributes) == 1:  # then it is no tuple
            texts = [texts]
        if escape is not None:
            texts = map(escape, map(str, texts))
        yield template % (*texts, amount)


def build_info(version: str = __version__, revision: str = "", build_date: str = "") -> Family:
    """Returns ``hami_build_info``: version and platform of this process. Upstream's ``go_version`` stays empty."""
    machine = platform.machine()
    labels = {
        "build_date": build_date,
        "compiler": f"{platform.python_implementation()} {platform.python_version()}",
        "go_version": "",
        "platform": f"{sys.platform}/{_MACHINES.get(machine, machine)}",
        "revision": revision,
        "version": version,
    }
    text = ",".join(f'{name}="{escape_label(value)}"' for name, value in labels.items())
    return Family("hami_build_info", "What is running, always 1", (f"hami_build_info{{{text}}} 1",))


def render(families: Iterable[Family]) -> Iterator[str]:
    """Yields *families* as text, one slice at a time."""
    for family in families:
        yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} gauge\n"
        samples = iter(family.samples)
        while lines := "\n".join(islice(samples, SLICE)):
            yield lines + "\n"


def escape_label(text: str) -> str:
    """Returns *text* escaped for a quoted label value."""
    if "\\" in text or '"' in text or "\n" in text:
        return text.translate(_ESCAPES)
    return text
