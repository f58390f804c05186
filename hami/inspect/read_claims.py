"""Reads the claims that pods name, with their templates and classes: of the cluster, and of manifests before it."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from hami.codec.claims import parse_claim
from hami.codec.device_requests import (
    ClaimSource,
    DeviceClaim,
    claim_sources,
    classes_by_resource,
    extended_resources,
    parse_class_resource,
    parse_class_selectors,
    parse_device_claim,
    resource_claim,
)
from hami.codec.slices import DRIVER
from hami.errors import MalformedInput
from hami.inspect.claims import PodClaim, PodClaims
from hami.inspect.manifests import read_documents
from hami.inspect.read import MissingRight, Reader
from hami.model import PodRef

CLAIMS, TEMPLATES, CLASSES = "resourceclaims", "resourceclaimtemplates", "deviceclasses"
KINDS = {"ResourceClaim": CLAIMS, "ResourceClaimTemplate": TEMPLATES, "DeviceClass": CLASSES}

Documents = Mapping[tuple[str, str, str], Mapping[str, Any]]
"""Objects of manifests by resource, namespace (empty for none) and name."""


@dataclass(frozen=True, slots=True)
class ClaimDocuments:
    """Claims, templates and classes of a file. *titles*: their kinds and names."""

    by_name: Documents
    titles: frozenset[str]


_GetObject = Callable[[str, str, str], "Mapping[str, Any] | None"]


def claims_of_pod(reader: Reader, ref: PodRef) -> PodClaims | None:
    """Returns the claims of a pod of the cluster; ``None`` if it names none. Raises: HamiError."""
    pod = reader.get_object("pods", ref.namespace, ref.name)
    if pod is None:
        return None
    return resolve_claims(pod, ref.namespace, reader.get_object, reader.classes_by_resource)


def claims_of_manifest(
    reader: Reader | None, documents: Documents, pod: Mapping[str, Any], namespace: str
) -> PodClaims | None:
    """Returns the claims of *pod*, a manifest for *namespace*, also those that resources stand for; ``None`` if there
    are none.

    *documents*: are read first, whether or not they name a namespace. *reader*: of the cluster, if there is one.
    Raises: HamiError.
    """

    def get(resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        for place in (namespace, ""):
            if (document := documents.get((resource, place, name))) is not None:
                return document
        return reader.get_object(resource, namespace, name) if reader is not None else None

    def classes() -> dict[str, str]:
        own = [
            parse_class_resource(msgspec.Raw(msgspec.json.encode(document)))
            for (resource, _, _), document in documents.items()
            if resource == CLASSES
        ]
        return {
            **(reader.classes_by_resource() if reader is not None else {}),
            **classes_by_resource(own),
        }

    return resolve_claims(pod, namespace, get, classes)


def may_have_claims(pod: Mapping[str, Any], managed: Container[str]) -> bool:
    """Reports whether *pod*, as JSON, names claims, or resources other than *managed* ones, which may stand for claims.

    Raises: MalformedInput.
    """
    return bool(claim_sources(pod)) or any(
        resource not in managed for _, resource, _ in extended_resources(pod)
    )


def claim_documents(text: str, source: str) -> ClaimDocuments:
    """Returns the claims, templates and classes in *text*; *source* is the file's name. Raises: MalformedInput."""
    by_name: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    titles: set[str] = set()
    for _, document in read_documents(text, source) if any(kind in text for kind in KINDS) else ():
        meta = document.get("metadata") if isinstance(document, dict) else None
        if not isinstance(meta, dict) or (kind := document.get("kind")) not in KINDS:
            continue
        name = str(meta.get("name"))
        by_name[KINDS[kind], str(meta.get("namespace") or ""), name] = document
        titles.add(f"{kind.lower()}/{name}")
    return ClaimDocuments(by_name, frozenset(titles))


def resolve_claims(
    pod: Mapping[str, Any],
    namespace: str,
    get: _GetObject,
    classes: Callable[[], Mapping[str, str]],
) -> PodClaims | None:
    """Returns the claims of *pod* in *namespace*, also those that kube-scheduler makes for resources; ``None`` if there
    are none. *get* returns an object, *classes* the names of classes by the resource that each stands for.

    Raises: HamiError; but what may not be read, or is not there, is a problem of the answer.
    """
    sources, resources = claim_sources(pod), extended_resources(pod)
    by_resource = classes() if resources else {}
    reader = _ClaimReader(namespace, get)
    claims = [claim for source in sources if (claim := reader.read(source)) is not None]
    claims += [
        reader.of_resource(container, resource, by_resource[resource], count)
        for container, resource, count in resources
        if resource in by_resource
    ]
    if not claims and not sources:
        return None
    return PodClaims(tuple(claims), tuple(reader.problems), pod, reader.templates)


class _ClaimReader:
    """Reads claims of one pod."""

    def __init__(self, namespace: str, get: _GetObject) -> None:
        self.problems: list[str] = []
        self.templates: dict[str, Mapping[str, Any]] = {}  # also those whose claim is made already
        self._namespace = namespace
        self._get = get
        self._selectors: dict[str, tuple[str, ...]] = {}  # of classes

    def read(self, source: ClaimSource) -> PodClaim | None:
        """Returns the claim of *source*; ``None`` if it cannot be read."""
        kind, name = (
            ("ResourceClaim", source.claim)
            if source.claim
            else ("ResourceClaimTemplate", source.template)
        )
        title = f"{kind} {name}"
        document = self._read(kind, title, name)
        if document is None:
            return None
        if source.template:
            self.templates[source.template] = (
                {"spec": {"spec": document.get("spec")}} if source.claim else document
            )
        try:
            requested = parse_device_claim({**document, "kind": kind}, title)
            status = document.get("status")
            is_allocated = isinstance(status, dict) and status.get("allocation") is not None
            allocated = parse_claim(msgspec.json.encode(document)) if is_allocated else None
        except MalformedInput as error:
            self.problems.append(f"{title} cannot be read: {error}")
            return None
        return PodClaim(title, self._with_classes(requested), allocated, bool(source.template))

    def of_resource(self, container: str, resource: str, device_class: str, count: int) -> PodClaim:
        """Returns the claim for *count* of a *resource* in the limits of *container*."""
        return PodClaim(
            f"Resource {resource}",
            self._with_classes(resource_claim(container, device_class, count)),
        )

    def _with_classes(self, claim: DeviceClaim) -> DeviceClaim:
        for name in {sub.device_class for request in claim.requests for sub in request.subrequests}:
            if name in self._selectors:
                continue
            self._selectors[name] = ()
            title = f"DeviceClass {name}"
            if (document := self._read("DeviceClass", title, name)) is not None:
                try:
                    self._selectors[name] = parse_class_selectors(document, title)
                except MalformedInput as error:
                    self.problems.append(f"{title} cannot be read: {error}")
        return claim.with_classes(self._selectors)

    def _read(self, kind: str, title: str, name: str) -> Mapping[str, Any] | None:
        try:
            document = self._get(
                KINDS[kind], self._namespace if kind != "DeviceClass" else "", name
            )
        except MissingRight as error:
            self.problems.append(f"{title} is not known: {error}.")
            return None
        if document is None:
            self.problems.append(
                f"{title} does not exist"
                + (
                    ", so no claim for it can be allocated."
                    if name == DRIVER
                    else ", and the pod needs it."
                )
            )
        return document
