"""Asks the API server who a bearer token belongs to, and whether that user may list pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from hami.codec.documents import decode
from hami.kube.api import Api

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class _User(msgspec.Struct, omit_defaults=True):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _User | None = None


class _TokenReview(msgspec.Struct):
    status: _TokenStatus | None = None


class _AccessStatus(msgspec.Struct):
    allowed: bool = False
    denied: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus | None = None


_TOKEN_REVIEW = msgspec.json.Decoder(_TokenReview)
_ACCESS_REVIEW = msgspec.json.Decoder(_AccessReview)


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
        review = decode("TokenReview", _TOKEN_REVIEW, self._create(_TOKEN_REVIEWS, "authentication.k8s.io/v1",
                                                                   "TokenReview", {"token": token}))
        if review.status is None or not review.status.authenticated or review.status.user is None:
            return None
        user = review.status.user
        extra = {key: tuple(values) for key, values in (user.extra or {}).items()}
        return Identity(user.username, user.uid, tuple(user.groups or ()), extra)

    def may_list_pods(self, who: Identity, namespace: str) -> bool:
        """Reports whether *who* may list the pods of *namespace*; of all namespaces if it is empty."""
        spec = {"user": who.username, "uid": who.uid, "groups": who.groups, "extra": who.extra,
                "resourceAttributes": {"verb": "list", "resource": "pods", "namespace": namespace}}
        review = decode("SubjectAccessReview", _ACCESS_REVIEW, self._create(
            _ACCESS_REVIEWS, "authorization.k8s.io/v1", "SubjectAccessReview", spec))
        return review.status is not None and review.status.allowed and not review.status.denied

    def _create(self, path: str, version: str, kind: str, spec: Mapping[str, object]) -> bytes:
        body = msgspec.json.encode({"apiVersion": version, "kind": kind, "spec": spec})
        return self._api.request("POST", path, body=body)
