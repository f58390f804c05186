"""Decides what a viewer of the dashboard may see, by the rights that the viewer has in the cluster."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from hami.dashboard.caches import Answers
from hami.dashboard.errors import NotListable, PageError
from hami.errors import ClusterError, MalformedInput
from hami.kube.reviews import Identity, Reviews

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_NAMESPACES = 20  # that one request may ask for
TOKEN_LIMIT = 16_384  # characters
ACCEPTED_S = 60.0  # for which an answer of the API server is believed
REFUSED_S = 10.0
MAX_CONCURRENT_REVIEWS = 4

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})

_BEARER = re.compile(r"[Bb]earer +([-A-Za-z0-9._~+/]+=*)")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Scope:
    """The namespaces whose pods a viewer sees; ``None``: all. Other pods have no names."""

    namespaces: frozenset[str] | None = None

    def __contains__(self, namespace: object) -> bool:
        return self.namespaces is None or namespace in self.namespaces


class Access:
    """Checks viewers with *reviewer*; ``None``: everyone who can reach the address may see everything."""

    def __init__(self, reviewer: Reviews | None, *, clock: Callable[[], float]) -> None:
        self._reviewer = reviewer
        self._identities = Answers[Identity | None](
            clock, accepted_s=ACCEPTED_S, refused_s=REFUSED_S
        )
        self._rights = Answers[bool](clock, accepted_s=ACCEPTED_S, refused_s=REFUSED_S)
        self._free = threading.BoundedSemaphore(MAX_CONCURRENT_REVIEWS)

    def scope(self, authorization: str, requested: Collection[str], of_page: str = "") -> Scope:
        """Returns what a viewer sees who requests the pods of the namespaces *requested*; of all if it is empty.

        *authorization*: the header of the request. *of_page*: the namespace that the page is about. Where the viewer
        may not see all pods and requests no namespace, that of the page is seen alone.
        Raises: PageError.
        """
        if len(set(requested)) > MAX_NAMESPACES or not all(map(_NAMESPACE.fullmatch, requested)):
            raise PageError(
                f"namespace: expected names of at most {MAX_NAMESPACES} namespaces", 400
            )
        namespaces = frozenset([*requested, of_page]) - {""}
        if self._reviewer is None:
            return Scope(namespaces if requested else None)
        viewer = self._identity(self._reviewer, authorization)
        if not requested and self._may_list(self._reviewer, viewer, ""):
            return Scope()
        if not namespaces:
            raise NotListable(
                "you may not list pods in the whole cluster: name the namespaces that you may see, as "
                "?namespace=NAME"
            )
        for namespace in sorted(namespaces):
            if not self._may_list(self._reviewer, viewer, namespace):
                raise NotListable(
                    f"you may not list pods in namespace {namespace}: ask for the verb list on pods there"
                )
        return Scope(namespaces)

    def check(self, authorization: str) -> None:
        """Raises: PageError unless the API server accepts the viewer with this header."""
        if self._reviewer is not None:
            self._identity(self._reviewer, authorization)

    def _identity(self, reviewer: Reviews, authorization: str) -> Identity:
        bearer = None
        if len(authorization) <= TOKEN_LIMIT:
            bearer = _BEARER.fullmatch(authorization)
        if bearer is None:
            raise PageError(
                "sign in with a bearer token of the cluster, or send it in the header Authorization",
                401,
            )
        token = bearer[1]
        key = hashlib.sha256(token.encode()).hexdigest()  # tokens are not kept
        viewer = self._identities.get(key, lambda: self._ask(lambda: reviewer.identity(token)))
        if viewer is None:
            raise PageError("the API server does not accept the bearer token", 401)
        return viewer

    def _may_list(self, reviewer: Reviews, viewer: Identity, namespace: str) -> bool:
        return self._rights.get(
            (msgspec.json.encode(viewer, order="sorted"), namespace),
            lambda: self._ask(lambda: reviewer.may_list_pods(viewer, namespace)),
        )

    def check_namespace(self, viewer: Identity, namespace: str) -> None:
        """Raises: PageError unless *viewer* may list the pods of the namespace."""
        reviewer = self._reviewer
        if reviewer is None or _NAMESPACE.fullmatch(namespace) is None:
            raise PageError("expected the name of a namespace", 400)
        if not self._may_list(reviewer, viewer, namespace):
            raise PageError(f"you may not list pods in namespace {namespace}", 403)

    def check_pod(self, viewer: Identity, namespace: str, name: str) -> None:
        """Raises: PageError unless *viewer* may get the pod."""
        reviewer = self._reviewer
        if reviewer is None or _NAMESPACE.fullmatch(namespace) is None:
            raise PageError("expected the name of a namespace", 400)
        may_get = self._rights.get(
            (msgspec.json.encode(viewer, order="sorted"), namespace, name),
            lambda: self._ask(lambda: reviewer.may_get_pod(viewer, namespace, name)),
        )
        if not may_get:
            raise PageError(f'you may not get pods "{name}" in namespace {namespace}', 403)

    def _ask(self, ask: Callable[[], T]) -> T:
        """Asks the API server. Viewers without rights cannot occupy more than some of its connections."""
        if not self._free.acquire(timeout=5.0):
            raise PageError("too many requests at once, try again later", 503)
        try:
            return ask()
        except (ClusterError, MalformedInput) as error:
            log.warning(
                "dashboard: rights of a viewer cannot be checked", extra={"error": str(error)}
            )
            raise PageError(
                "the API server cannot be asked about your rights now, see the log", 503
            ) from error
        finally:
            self._free.release()


def check_host(host: str) -> None:
    """Raises: PageError unless a viewer of a loopback address asks it by its own name. A foreign site may point its
    name at loopback. *host*: of the request, with its port."""
    name = host
    if ":" in host and not host.endswith("]"):
        name = host.rpartition(":")[0]
    if name not in LOOPBACK_HOSTS:
        raise PageError("this address is served as localhost only", 403)
