"""Asks the API server who a bearer token belongs to, and whether that user may list pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from hami.codec.documents import decode
from hami.kube.api import Api

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _ReviewStatus(msgspec.Struct):
    """*authenticated*, *user*: of a TokenReview. *allowed*, *denied*: of a SubjectAccessReview."""

    authenticated: bool = False
    user: _User | None = None
    allowed: bool = False
    denied: bool = False


class _AuthReview(msgspec.Struct):
    status: _ReviewStatus | None = None


_REVIEW = msgspec.json.Decoder(_AuthReview)


@dataclass(frozen=True, slots=True)
class Identity:
    """A user of the API server."""

    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


class Reviews:
    """Asks one API server. Calls raise ClusterError if there is no answer, MalformedInput for an unreadable one."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def identity(self, token: str) -> Identity | None:
        """Returns the user of *token*; ``None`` if the API server does not accept it."""
        status = self._create(_TOKEN_REVIEWS, "authentication.k8s.io/v1", "TokenReview", {"token": token})
        if not status.authenticated or (user := status.user) is None:
            return None
        extra = {key: tuple(values) for key, values in (user.extra or {}).items()}
        return Identity(user.username, user.uid, tuple(user.groups or ()), extra)

    def may_list_pods(self, who: Identity, namespace: str) -> bool:
        """Reports whether *who* may list the pods of *namespace*; of all namespaces if it is empty."""
        spec = {"user": who.username, "uid": who.uid, "groups": who.groups, "extra": who.extra,
                "resourceAttributes": {"verb": "list", "resource": "pods", "namespace": namespace}}
        status = self._create(_ACCESS_REVIEWS, "authorization.k8s.io/v1", "SubjectAccessReview", spec)
        return status.allowed and not status.denied

    def _create(self, path: str, version: str, kind: str, spec: Mapping[str, object]) -> _ReviewStatus:
        body = msgspec.json.encode({"apiVersion": version, "kind": kind, "spec": spec})
        return decode(kind, _REVIEW, self._api.request("POST", path, body=body)).status or _ReviewStatus()
