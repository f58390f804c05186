"""Renders gauges in slices. The text is valid both in Prometheus' text format and in OpenMetrics."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from hami import __version__

SLICE = 200  # samples in a slice

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}  # Go's names, which upstream's platform label uses
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Family:
    """A gauge and its samples: lines without line ends, which can be iterated once."""

    name: str
    help: str
    samples: Iterable[str]


def build_info(version: str = __version__, revision: str = "", build_date: str = "") -> Family:
    """Returns ``hami_build_info``: version and platform of this process. Upstream's ``go_version`` stays empty."""
    labels = {
        "build_date": build_date, "compiler": f"{platform.python_implementation()} {platform.python_version()}",
        "go_version": "", "platform": f"{sys.platform}/{_MACHINES.get(machine := platform.machine(), machine)}",
        "revision": revision, "version": version,
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
    return text.translate(_ESCAPES) if "\\" in text or '"' in text or "\n" in text else text
