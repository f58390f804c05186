"""The claims in the JSON of a pod: which it names, and the pod with one more, or with other containers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from hami.codec.claim_amounts import CLAIM, is_claim_name
from hami.codec.claim_spec import Inexpressible
from hami.codec.documents import entries

NO_OTHERS = "the scheduler that allocates claims for GPUs allocates no others"
MAX_ANNOTATIONS = 262_144  # bytes of all annotations of a pod


def claims_of(wire: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the claims that the pod *wire* names."""
    return entries((wire.get("spec") or {}).get("resourceClaims"))


def has_claim(wire: Mapping[str, Any]) -> bool:
    """Reports whether the pod *wire* has a claim that admission gave it."""
    for entry in claims_of(wire):
        if entry.get("name") == CLAIM and is_claim_name(str(entry.get("resourceClaimName"))):
            return True
    return False


def with_claim(
    wire: Mapping[str, Any],
    name: str,
    resources: Collection[str],
    users: Mapping[str, str],
    annotations: Mapping[str, str],
) -> dict[str, Any]:
    """Returns the pod *wire* with the claim *name* and *annotations*. *resources*: names to remove. *users*: the
    request that each container uses. Raises: Inexpressible if its annotations become too long."""

    def claiming(container: Mapping[str, Any]) -> Mapping[str, Any]:
        before = container.get("resources") or {}
        after = without_resources(container, resources)
        request = users.get(str(container.get("name")))
        if request:
            after["claims"] = [*(before.get("claims") or ()), {"name": CLAIM, "request": request}]
        if after == before:
            return container
        return {**container, "resources": after}

    meta = wire.get("metadata") or {}
    annotations = dict(meta.get("annotations") or {}, **annotations)
    _check_size(annotations)
    changed = with_containers(wire, claiming)
    claims = [*claims_of(wire), {"name": CLAIM, "resourceClaimName": name}]
    return {
        **changed,
        "metadata": {**meta, "annotations": annotations},
        "spec": {**changed["spec"], "resourceClaims": claims},
    }


def with_containers(
    wire: Mapping[str, Any], change: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns the pod *wire* with the result of *change* in place of each container."""
    spec = dict(wire["spec"])
    for key in ("initContainers", "containers"):
        if spec.get(key):
            spec[key] = list(map(change, spec[key]))
    return {**wire, "spec": spec}


def without_resources(container: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Returns the resources of *container* without *names* in limits and requests."""
    resources = dict(container.get("resources") or {})
    for part in ("limits", "requests"):
        amounts = dict(resources.pop(part, None) or {})
        for name in names:
            amounts.pop(name, None)
        if amounts:
            resources[part] = amounts
    return resources


def _check_size(annotations: Mapping[str, str]) -> None:
    """Raises Inexpressible if the API server does not accept *annotations* on a pod.

    Source: k8s.io/apimachinery, pkg/api/validation, TotalAnnotationSizeLimitB.
    """
    size = 0
    for key, text in annotations.items():
        size += len(f"{key}{text}".encode(errors="surrogatepass"))
    if size > MAX_ANNOTATIONS:
        raise Inexpressible(
            f"metadata.annotations: {size} bytes with that of the claim, and a pod has at most {MAX_ANNOTATIONS}"
        )
