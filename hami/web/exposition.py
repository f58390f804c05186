"""Gauges as text, in Prometheus' format and in OpenMetrics, rendered a slice at a time."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from hami import __version__

__all__ = ["Family", "build_info", "escape_label", "render"]

SLICE = 200  # samples rendered at a time

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}  # in Go's words, as upstream's platform label has them
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Family:
    """A gauge and its samples: whole lines without their ends, made while they are iterated, once."""

    name: str
    help: str
    samples: Iterable[str]


def build_info(version: str = __version__, revision: str = "", build_date: str = "") -> Family:
    """``hami_build_info``: what runs here. Upstream's ``go_version`` stays empty."""
    labels = {
        "build_date": build_date, "compiler": f"{platform.python_implementation()} {platform.python_version()}",
        "go_version": "", "platform": f"{sys.platform}/{_MACHINES.get(machine := platform.machine(), machine)}",
        "revision": revision, "version": version,
    }
    text = ",".join(f'{name}="{escape_label(value)}"' for name, value in labels.items())
    return Family("hami_build_info", "What is running, always 1", (f"hami_build_info{{{text}}} 1",))


def render(made: Iterable[Family]) -> Iterator[str]:
    """*made* as text, a slice at a time; it reads the same in Prometheus' text format and in OpenMetrics."""
    for family in made:
        yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} gauge\n"
        samples = iter(family.samples)
        while lines := "\n".join(islice(samples, SLICE)):
            yield lines + "\n"


def escape_label(text: str) -> str:
    """*text* as it may stand between the quotes of a label."""
    return text.translate(_ESCAPES) if "\\" in text or '"' in text or "\n" in text else text
