"""Admission: what the mutating webhook changes in a new pod, and which pods it denies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hami.cache.cache import Cache
from hami.codec.admission import Review
from hami.codec.keys import is_scheduler_owned
from hami.codec.objects import convert_pod
from hami.errors import MalformedInput
from hami.scheduler.settings import Settings
from hami.vendors.admission import admit
from hami.vendors.spec import Admission, Catalog, Vendor


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
        if review.subresource == "ephemeralcontainers":
            return self._admit_ephemeral(pod)
        try:
            decoded = convert_pod(pod)
        except MalformedInput as error:
            return Denied(str(error), 400)
        spec = pod.get("spec") or {}
        if not spec.get("containers"):
            return Denied("pod has no containers")
        if forged := next((key for key in (*decoded.annotations, *decoded.labels) if is_scheduler_owned(key)), None):
            return Denied(f"{forged} is written by the HAMi scheduler alone and may not be set on a new pod")
        if self._is_of_another_scheduler(decoded.scheduler_name):
            return Admitted(pod, "pod already has different scheduler assigned")
        try:
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


def _mutate(vendors: Catalog, pod: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Returns *pod* after admission (the same object if it is unchanged), and whether it requests devices."""
    requests_devices = False
    for field in ("initContainers", "containers"):
        for index, container in enumerate(pod["spec"].get(field) or ()):
            for vendor in _vendors_of(vendors, container):
                admission = admit(vendor, pod, pod["spec"][field][index])
                pod = _changed(pod, field, index, admission)
                requests_devices = requests_devices or admission.found
    return pod, requests_devices


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


def _changed(pod: Mapping[str, Any], field: str, index: int, admission: Admission) -> Mapping[str, Any]:
    spec, metadata = pod["spec"], pod.get("metadata") or {}
    if admission.container is not spec[field][index]:
        spec = {**spec, field: [*spec[field][:index], admission.container, *spec[field][index + 1:]]}
    if admission.pod_spec:
        spec = {**spec, **admission.pod_spec}
    if admission.annotations:
        metadata = {**metadata, "annotations": {**(metadata.get("annotations") or {}), **admission.annotations}}
        pod = {**pod, "metadata": metadata}
    return pod if spec is pod["spec"] else {**pod, "spec": spec}


def _privileged(spec: Mapping[str, Any]) -> str | None:
    """Returns the name of the first privileged container, init containers first."""
    for container in _containers(spec):
        context = container.get("securityContext")
        if isinstance(context, dict) and context.get("privileged") is True:
            return str(container.get("name") or "")
    return None
