"""Asks the API server who a bearer token belongs to, and what that user, or the own one, may do."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hami.codec.documents import decode
from hami.kube.api import Api


class Identity(msgspec.Struct, frozen=True):
    """A user of the API server."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class _ReviewStatus(msgspec.Struct):
    """*authenticated*, *user*: of a TokenReview. *allowed*, *denied*: of a SubjectAccessReview."""

    authenticated: bool = False
    user: Identity | None = None
    allowed: bool = False
    denied: bool = False


class _AuthReview(msgspec.Struct):
    status: _ReviewStatus | None = None


_REVIEW = msgspec.json.Decoder(_AuthReview)


class Reviews:
    """Asks one API server. Calls raise ClusterError if there is no answer, MalformedInput for an unreadable one."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def identity(self, token: str) -> Identity | None:
        """Returns the user of *token*; ``None`` if the API server does not accept it."""
        status = self._create("authentication.k8s.io/v1", "TokenReview", {"token": token})
        return status.user if status.authenticated else None

    def may_list_pods(self, who: Identity, namespace: str) -> bool:
        """Reports whether *who* may list the pods of *namespace*; of all namespaces if it is empty."""
        return self._may(who, {"verb": "list", "resource": "pods", "namespace": namespace})

    def may_get_pod(self, who: Identity, namespace: str, name: str) -> bool:
        """Reports whether *who* may get a pod."""
        return self._may(
            who, {"verb": "get", "resource": "pods", "namespace": namespace, "name": name}
        )

    def _may(self, who: Identity, attributes: Mapping[str, str]) -> bool:
        spec = {
            "user": who.username,
            "uid": who.uid,
            "groups": who.groups,
            "extra": who.extra,
            "resourceAttributes": attributes,
        }
        status = self._create("authorization.k8s.io/v1", "SubjectAccessReview", spec)
        return status.allowed and not status.denied

    def may_i(self, verb: str, resource: str, namespace: str = "", name: str = "") -> bool:
        """Reports whether the user of this connection has a right. *resource*: of the core group, as
        ``pods`` or ``services/proxy``."""
        resource, _, subresource = resource.partition("/")
        attributes = {
            "verb": verb,
            "resource": resource,
            "subresource": subresource,
            "namespace": namespace,
            "name": name,
        }
        status = self._create(
            "authorization.k8s.io/v1",
            "SelfSubjectAccessReview",
            {"resourceAttributes": attributes},
        )
        return status.allowed and not status.denied

    def _create(self, version: str, kind: str, spec: Mapping[str, object]) -> _ReviewStatus:
        path = f"/apis/{version}/{kind.lower()}s"
        body = msgspec.json.encode({"apiVersion": version, "kind": kind, "spec": spec})
        return (
            decode(kind, _REVIEW, self._api.request("POST", path, body=body)).status
            or _ReviewStatus()
        )
