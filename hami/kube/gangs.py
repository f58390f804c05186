"""The size of a gang, as its PodGroup says it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote

from hami.codec.gangs import parse_gang_size, pod_group_apis
from hami.errors import NotFound
from hami.model import Pod


def read_gang_size(get: Callable[[str], bytes], pod: Pod) -> int | None:
    """Returns how many pods of the gang of *pod* are placed together: of a PodGroup of Kubernetes, or of the
    coscheduling plugin. ``None`` if it has no gang, or nothing says so.

    *get*: returns what is at a path. Raises: what *get* raises, except NotFound; MalformedInput.
    """
    for api in pod_group_apis(pod):
        with suppress(NotFound):
            return parse_gang_size(get(f"{api}/namespaces/{pod.ref.namespace}/podgroups/{quote(pod.group, safe='')}"))
    return None
