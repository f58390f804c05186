"""Decides what a viewer of the dashboard may see, by the rights that the viewer has in the cluster."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from hami.errors import ClusterError, HamiError, MalformedInput
from hami.kube.reviews import Identity

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_NAMESPACES = 20  # that one request may ask for
TOKEN_LIMIT = 16_384  # characters
MAX_ANSWERS = 512  # answers of each kind
ACCEPTED_S = 60.0  # for which an answer of the API server is believed
REFUSED_S = 10.0
MAX_CONCURRENT_REVIEWS = 4

_BEARER = re.compile(r"[Bb]earer +([-A-Za-z0-9._~+/]+=*)")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class AccessDenied(HamiError):
    """The viewer may not see the page. *status*: of the answer."""

    def __init__(self, message: str, status: int) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Scope:
    """The namespaces whose pods a viewer sees; ``None``: all. Other pods have no names."""

    namespaces: frozenset[str] | None = None

    def __contains__(self, namespace: object) -> bool:
        return self.namespaces is None or namespace in self.namespaces


class Reviewer(Protocol):
    """Asks the API server, as :class:`hami.kube.reviews.Reviews` does."""

    def identity(self, token: str) -> Identity | None:
        """Returns the user of *token*; ``None`` if it is not accepted."""

    def may_list_pods(self, who: Identity, namespace: str) -> bool:
        """Reports whether *who* may list the pods of *namespace*; of all namespaces if it is empty."""


class Access:
    """Checks viewers with *reviewer*; ``None``: everyone who can reach the address may see everything."""

    def __init__(self, reviewer: Reviewer | None, *, clock: Callable[[], float]) -> None:
        self._reviewer = reviewer
        self._identities = _Answers[Identity | None](clock)
        self._rights = _Answers[bool](clock)
        self._free = threading.BoundedSemaphore(MAX_CONCURRENT_REVIEWS)

    def scope(self, authorization: str, asked: Collection[str], of_page: str = "") -> Scope:
        """Returns what a viewer sees who asks for the pods of the namespaces *asked*; of all if it is empty.

        *authorization*: the header of the request. *of_page*: the namespace that the page is about. Where the viewer
        may not see all pods and asks for no namespace, that of the page is seen alone.
        Raises: AccessDenied.
        """
        wanted = frozenset(asked)
        if len(wanted) > MAX_NAMESPACES or not all(map(_NAMESPACE.fullmatch, wanted)):
            raise AccessDenied(f"namespace: expected names of at most {MAX_NAMESPACES} namespaces", 400)
        if wanted and of_page:
            wanted |= {of_page}
        if self._reviewer is None:
            return Scope(wanted or None)
        who = self._identity(self._reviewer, authorization)
        if not wanted and self._may_list(self._reviewer, who, ""):
            return Scope()
        if not wanted and of_page:
            wanted = frozenset({of_page})
        if not wanted:
            raise AccessDenied("you may not list pods in the whole cluster: name the namespaces that you may see, as "
                               "?namespace=NAME", 403)
        for namespace in sorted(wanted):
            if not self._may_list(self._reviewer, who, namespace):
                raise AccessDenied(f"you may not list pods in namespace {namespace}: ask for the verb list on pods "
                                   "there", 403)
        return Scope(wanted)

    def _identity(self, reviewer: Reviewer, authorization: str) -> Identity:
        found = _BEARER.fullmatch(authorization) if len(authorization) <= TOKEN_LIMIT else None
        if found is None:
            raise AccessDenied("a bearer token of the cluster is needed, in the header Authorization", 401)
        token = found[1]
        key = hashlib.sha256(token.encode()).hexdigest()  # tokens are not kept
        who = self._identities.get(key, lambda: self._ask(lambda: reviewer.identity(token)))
        if who is None:
            raise AccessDenied("the API server does not accept the bearer token", 401)
        return who

    def _may_list(self, reviewer: Reviewer, who: Identity, namespace: str) -> bool:
        return self._rights.get((msgspec.json.encode(who, order="sorted"), namespace),
                                lambda: self._ask(lambda: reviewer.may_list_pods(who, namespace)))

    def _ask(self, ask: Callable[[], T]) -> T:
        """Asks the API server. Viewers without rights cannot occupy more than some of its connections."""
        if not self._free.acquire(timeout=5.0):
            raise AccessDenied("too many requests at once, try again later", 503)
        try:
            return ask()
        except (ClusterError, MalformedInput) as error:
            log.warning("dashboard: rights of a viewer cannot be checked", extra={"error": str(error)})
            raise AccessDenied("the API server cannot be asked about your rights now, see the log",
                               503) from error
        finally:
            self._free.release()


class _Answers(Generic[T]):
    """Answers that are believed for some time: refusals shorter than others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards _kept; not held while the API server is asked
        self._kept: OrderedDict[object, tuple[float, T]] = OrderedDict()

    def get(self, key: object, ask: Callable[[], T]) -> T:
        """Returns the answer to *key*, with *ask* if none is kept."""
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None and self._clock() < kept[0]:
            return kept[1]
        found = ask()
        with self._lock:
            self._kept[key] = self._clock() + (ACCEPTED_S if found else REFUSED_S), found
            self._kept.move_to_end(key)
            if len(self._kept) > MAX_ANSWERS:
                self._kept.popitem(last=False)
        return found
