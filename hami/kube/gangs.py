"""PodGroups and the CompositePodGroups above them, as the API server has them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote

from hami.codec.gangs import COMPOSITE, GroupSpec, parse_pod_group, pod_group_apis
from hami.errors import NotFound
from hami.model import PodGroup, PodGroupRef

MAX_DEPTH = 4  # of groups above each other: WorkloadMaxTreeDepth of Kubernetes

Get = Callable[[str, str], bytes]
"""Returns an object, by its resource and its path."""


def read_pod_group(get: Get, ref: PodGroupRef) -> PodGroup | None:
    """Returns a PodGroup of Kubernetes, or of the coscheduling plugin; ``None`` if *ref* names none.

    Where there is no such object, the pods that name it stay together.
    Raises: what *get* raises, except NotFound; MalformedInput.
    """
    if not ref.name:
        return None
    for api in pod_group_apis(ref):
        with suppress(NotFound):
            spec = _read(get, api, "podgroups", ref.namespace, ref.name)
            return PodGroup(
                min_count=spec.min_count, disrupted_with=_disrupted_with(get, ref, spec)
            )
    return PodGroup(disrupted_with=f"podgroup/{ref.name}")


def _disrupted_with(get: Get, ref: PodGroupRef, spec: GroupSpec) -> str:
    """Returns the highest group above the pods that is disrupted as a whole, as kube-scheduler does;
    empty if none is."""
    highest, parents = f"podgroup/{ref.name}" if spec.is_disrupted_whole else "", set[str]()
    while spec.parent and spec.parent not in parents and len(parents) < MAX_DEPTH - 1:
        parents.add(spec.parent)
        name = spec.parent
        try:
            spec = _read(get, COMPOSITE, "compositepodgroups", ref.namespace, name)
        except NotFound:  # the API server does not have this API, or the group is gone: kube-scheduler goes no further
            break
        if spec.is_disrupted_whole:
            highest = f"compositepodgroup/{name}"
    return highest


def _read(get: Get, api: str, resource: str, namespace: str, name: str) -> GroupSpec:
    path = f"{api}/namespaces/{namespace}/{resource}/{quote(name, safe='')}"
    return parse_pod_group(get(resource, path), api)
