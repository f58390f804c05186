"""The most cores of a GPU that a pod may use while no other container does: its annotation CORES_LIMIT."""

from __future__ import annotations

from collections.abc import Mapping

from hami.codec.keys import CORES_LIMIT
from hami.quantity import parse_integer

__all__ = ["parse_cores_limit", "pod_cores_limit"]


def parse_cores_limit(text: str) -> int | None:
    """Returns the percentage in *text*, from 1 to 100; ``None`` if it is none."""
    percent = parse_integer(text)
    return percent if percent is not None and 1 <= percent <= 100 and text == str(percent) else None


def pod_cores_limit(annotations: Mapping[str, str]) -> int | None:
    """Returns the limit in the annotations of a pod; ``None`` if there is none, or it cannot be read."""
    return parse_cores_limit(annotations.get(CORES_LIMIT, ""))
