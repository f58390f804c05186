"""Admission: what the mutating webhook changes in a new pod, and which pods it denies."""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hami.cache.cache import Cache
from hami.codec.admission import Review
from hami.codec.keys import is_scheduler_owned
from hami.codec.pods import convert_pod
from hami.errors import MalformedInput
from hami.model import Pod
from hami.scheduler.settings import Settings
from hami.vendors.admission import admit, confine
from hami.vendors.request import MAX_CONTAINERS
from hami.vendors.spec import Catalog, Vendor

MAX_RESOURCES = 128  # names in limits and requests of a container
_FOREIGN = "pod already has different scheduler assigned"


@dataclass(frozen=True, slots=True)
class Admitted:
    """The pod is allowed, as *pod* (the same object if it is unchanged)."""

    pod: Mapping[str, Any]
    message: str = ""


@dataclass(frozen=True, slots=True)
class Denied:
    """The pod is denied; *code* is the HTTP status that the user sees."""

    message: str
    code: int = 403


class Admitter:
    """The admission of pods."""

    def __init__(self, cache: Cache, settings: Settings) -> None:
        self._cache = cache
        self._settings = settings

    def admit(self, review: Review) -> Admitted | Denied:
        """Decides about the pod in *review*.

        Source: HAMi v2.10, pkg/scheduler/webhook.go, Handle; forged annotations are denied beyond that.
        """
        pod = review.pod
        if not pod:
            return Denied("there is no content to decode", 400)
        try:
            decoded = convert_pod(pod)
        except MalformedInput as error:
            return Denied(str(error), 400)
        if review.subresource == "ephemeralcontainers":
            return self._admit_ephemeral(pod)
        spec = pod.get("spec") or {}
        if not spec.get("containers"):
            return Denied("pod has no containers")
        if forged := next((key for key in (*decoded.annotations, *decoded.labels) if is_scheduler_owned(key)), None):
            return Denied(f"{forged} is written by the HAMi scheduler alone and may not be set on a new pod")
        is_foreign = self._is_of_another_scheduler(decoded.scheduler_name)
        if is_foreign and not self._cache.vendors.confining:
            return Admitted(pod, _FOREIGN)
        if (problem := _beyond_bounds(decoded)) is not None:
            vendors = self._cache.vendors
            is_managed = vendors.admitting_all or any(_requested_by(vendors, one) for one in _containers(spec))
            return Denied(problem) if is_managed else Admitted(pod)
        try:
            if is_foreign:
                return Admitted(_confine(self._cache.vendors, pod), _FOREIGN)
            mutated, requests_devices = _mutate(self._cache.vendors, pod)
        except MalformedInput as error:
            return Denied(str(error), 500)
        if requests_devices and (name := _privileged(spec)) is not None:
            return Denied(f"container {name} is privileged")
        if requests_devices and (ours := self._settings.scheduler_name):
            if decoded.scheduler_name != ours:
                mutated = {**mutated, "spec": {**mutated["spec"], "schedulerName": ours}}
            if decoded.node_name:
                return Denied("pod has node assigned")
        namespace = review.namespace or decoded.ref.namespace
        if not self._cache.quota_allows(namespace, decoded if mutated is pod else convert_pod(mutated)):
            return Denied("exceeding resource quota")
        return Admitted(mutated)

    def _admit_ephemeral(self, pod: Mapping[str, Any]) -> Admitted | Denied:
        """Decides about an existing pod that gets an ephemeral container, which could see all devices of the node."""
        vendors = (vendor for container in _containers(pod.get("spec") or {})
                   for vendor in _requested_by(self._cache.vendors, container))
        if any(vendor.refuses_ephemeral for vendor in vendors):
            return Denied("ephemeralContainers are not permitted in strict mode on a pod that requests devices")
        return Admitted(pod)

    def _is_of_another_scheduler(self, name: str) -> bool:
        if not name or name == self._settings.scheduler_name:
            return False
        return name != "default-scheduler" or not self._settings.force_overwrite_default_scheduler


def _beyond_bounds(pod: Pod) -> str | None:
    """Returns what *pod* has too much of, as a message for its author."""
    if len(pod.containers) > MAX_CONTAINERS:
        return f"pod has {len(pod.containers)} containers, expected at most {MAX_CONTAINERS}"
    for container in pod.containers:
        names = len(container.limits.keys() | container.requests.keys())
        if names > MAX_RESOURCES:
            return f"container {container.name} names {names} resources, expected at most {MAX_RESOURCES}"
    return None


def _mutate(vendors: Catalog, pod: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Returns *pod* after admission (the same object if it is unchanged), and whether it requests devices."""
    spec, metadata = dict(pod["spec"]), pod.get("metadata") or {}
    given, added = metadata.get("annotations") or {}, dict[str, str]()
    draft = {"spec": spec, "metadata": {"annotations": ChainMap(added, given)}}
    requests_devices = False
    for field in ("initContainers", "containers"):
        admitted = []
        for container in spec.get(field) or ():
            for vendor in _vendors_of(vendors, container):
                admission = admit(vendor, draft, container)
                container = admission.container
                spec |= admission.pod_spec
                added |= admission.annotations
                requests_devices = requests_devices or admission.found
            admitted.append(container)
        if admitted:
            spec[field] = admitted
    if added:
        pod = {**pod, "metadata": {**metadata, "annotations": {**given, **added}}}
    return pod if spec == pod["spec"] else {**pod, "spec": spec}, requests_devices


def _confine(vendors: Catalog, pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns *pod*, which another scheduler places, with its containers confined (the same object if unchanged)."""
    spec = dict(pod["spec"])
    for field in ("initContainers", "containers"):
        if containers := spec.get(field):
            spec[field] = [_confine_container(vendors, pod, container) for container in containers]
    return pod if spec == pod["spec"] else {**pod, "spec": spec}


def _confine_container(vendors: Catalog, pod: Mapping[str, Any], container: Mapping[str, Any]) -> Mapping[str, Any]:
    for vendor in vendors.confining:
        container = confine(vendor, pod, container)
    return container


def _vendors_of(vendors: Catalog, container: Mapping[str, Any]) -> Sequence[Vendor]:
    """Returns the vendors whose admission applies to *container*."""
    asked = _requested_by(vendors, container)
    return asked + tuple(vendor for vendor in vendors.admitting_all if vendor not in asked)


def _requested_by(vendors: Catalog, container: Mapping[str, Any]) -> tuple[Vendor, ...]:
    resources = container.get("resources") or {}
    return vendors.requested_by(resources.get("limits") or {}, resources.get("requests") or {})


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Returns the containers that are part of the pod from the beginning, init containers first."""
    return itertools.chain(spec.get("initContainers") or (), spec.get("containers") or ())


def _privileged(spec: Mapping[str, Any]) -> str | None:
    """Returns the name of the first privileged container, init containers first."""
    for container in _containers(spec):
        context = container.get("securityContext")
        if isinstance(context, dict) and context.get("privileged") is True:
            return str(container.get("name") or "")
    return None
