"""AdmissionReview requests and responses, v1 and v1beta1. The patch is the difference between two pods."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jsonpatch
import msgspec

from hami.codec.documents import convert, decode

# entries; jsonpatch takes quadratic time to find those that were removed, added or moved
SHORT_LIST = 32
MIRROR = "kubernetes.io/config.mirror"
_V1 = ("admission.k8s.io/v1", "AdmissionReview")


@dataclass(frozen=True, slots=True)
class Review:
    """A request of the API server. *pod*: the object as received, ``None`` if there is none. *subresource*: the part
    of the pod that is written, empty for the pod itself. *before*: the pod before an update, ``None`` for a new one.
    *groups*: those of who writes it."""

    uid: str
    namespace: str
    pod: Mapping[str, Any] | None
    api_version: str
    kind: str
    subresource: str = ""
    before: Mapping[str, Any] | None = None
    groups: tuple[str, ...] = ()

    @property
    def is_mirror(self) -> bool:
        """Reports whether a kubelet writes the pod for one that it runs from a file of its node."""
        if "system:nodes" not in self.groups or self.pod is None:
            return False
        meta = self.pod.get("metadata")
        if not isinstance(meta, dict):
            return False
        annotations = meta.get("annotations")
        if not isinstance(annotations, dict):
            return False
        return MIRROR in annotations


class _User(msgspec.Struct):
    groups: tuple[str, ...] | None = None


class _Request(msgspec.Struct):
    uid: str | None = None
    user: _User | None = msgspec.field(name="userInfo", default=None)
    subresource: str | None = msgspec.field(name="subResource", default=None)
    namespace: str | None = None
    object: Annotated[dict[str, Any] | None, msgspec.Meta(description="a Pod")] = None
    before: Annotated[dict[str, Any] | None, msgspec.Meta(description="a Pod")] = msgspec.field(
        name="oldObject", default=None
    )


class _AdmissionReview(msgspec.Struct, rename="camel"):
    request: _Request
    api_version: str | None = None
    kind: str | None = None


_JSON = msgspec.json.Decoder()


def parse_review(body: bytes) -> Review:
    """The review in *body*. Raises: MalformedInput."""
    wire = convert(decode("body", _JSON, body), _AdmissionReview, lambda path: path or _V1[1])
    return Review(
        uid=wire.request.uid or "",
        namespace=wire.request.namespace or "",
        pod=wire.request.object,
        api_version=wire.api_version or _V1[0],
        kind=wire.kind or _V1[1],
        subresource=wire.request.subresource or "",
        before=wire.request.before,
        groups=(wire.request.user or _User()).groups or (),
    )


def render_allowed(
    review: Review,
    pod: Mapping[str, Any] | None,
    message: str = "",
    warnings: Sequence[str] = (),
) -> bytes:
    """Allows the pod, changed to *pod*; without a patch if it equals the pod received. *warnings*: what ``kubectl``
    shows; the API server may cut each after 256 characters."""
    response: dict[str, Any] = {"uid": review.uid, "allowed": True}
    if pod is not None:
        operations = list(_difference(review.pod or {}, pod))
        if operations:
            response["patch"] = base64.b64encode(msgspec.json.encode(operations)).decode()
            response["patchType"] = "JSONPatch"
    if message:
        response["status"] = {"code": 200, "message": message}
    if warnings:
        response["warnings"] = list(warnings)
    return _rendered(review, response)


_REASONS = {
    403: "Forbidden",
    400: "BadRequest",
    413: "RequestEntityTooLarge",
    422: "Invalid",
    503: "ServiceUnavailable",
}


def render_denied(review: Review | None, code: int, message: str) -> bytes:
    """Denies the pod. *code*: the HTTP status shown to the user; the response itself is always 200."""
    reason = _REASONS.get(code, "InternalError")
    response = {
        "uid": review.uid if review else "",
        "allowed": False,
        "status": {"status": "Failure", "message": message, "reason": reason, "code": code},
    }
    return _rendered(review, response)


def _rendered(review: Review | None, response: Mapping[str, Any]) -> bytes:
    api_version, kind = (review.api_version, review.kind) if review else _V1
    return msgspec.json.encode({"apiVersion": api_version, "kind": kind, "response": response})


def _difference(before: Any, after: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """Yields RFC 6902 operations from *before* to *after*. Identical objects are skipped: most of a pod is shared,
    since a changed pod is a copy of the changed parts only."""
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _object_difference(before, after, path)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _list_difference(before, after, path)
    elif before != after or type(before) is not type(after):  # True equals 1
        yield {"op": "replace", "path": path, "value": after}


def _object_difference(
    before: Mapping[str, Any], after: Mapping[str, Any], path: str
) -> Iterator[dict[str, Any]]:
    for key in before:
        if key not in after:
            yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
    for key, value in after.items():
        place = f"{path}/{_escaped(key)}"
        if key in before:
            yield from _difference(before[key], value, place)
        else:
            yield {"op": "add", "path": place, "value": value}


def _list_difference(
    before: Sequence[Any], after: Sequence[Any], path: str
) -> Iterator[dict[str, Any]]:
    if len(before) == len(after):
        for place, (item, other) in enumerate(zip(before, after)):
            yield from _difference(item, other, f"{path}/{place}")
    elif len(before) > SHORT_LIST:
        yield {"op": "replace", "path": path, "value": after}
    else:
        for operation in jsonpatch.make_patch(before, after).patch:
            for field in ("path", "from"):
                if field in operation:
                    operation[field] = path + operation[field]
            yield operation


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
