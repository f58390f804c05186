"""Answers Allocate: reads the node and its pods, matches the call to a container, records the allocation.

The allocation is recorded by one compare-and-swap of the pod. If the pod has changed meanwhile, everything is read and
decided again, until a deadline. The pods are listed from the API server after the call arrived: a watch may be late,
and a container that it has not reported yet may be the requesting one. When the allocation of a pod ends, successfully
or not, the node lock that names it is released, after the kubelet has its answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hami.codec.keys import BIND_PHASE, NODE_LOCK
from hami.codec.states import parse_lock
from hami.devices.config import PluginConfig
from hami.devices.registration import VENDOR
from hami.errors import (
    ClusterError,
    Conflict,
    HamiError,
    MalformedInput,
    NotFound,
    Rejected,
)
from hami.kube.cluster import Cluster
from hami.kube.retry import CONFLICT_S, brief_retry
from hami.model import BindPhase, Node, Pod, PodRef
from hami.node.grant import Grant
from hami.node.grant_builder import GrantBuilder
from hami.node.host import Host
from hami.node.pods import NodePods
from hami.plugin.container_match import (
    AllocateCall,
    ContainerMatch,
    NoMatch,
    Outcome,
    PodRejection,
    cards_of,
    check_card_ids,
    find_container,
    find_pod,
    is_done_with_lock,
    preferred_ids,
    waits_on,
)
from hami.plugin.deferred_writes import DeferredWrites
from hami.vendors.spec import Catalog

log = logging.getLogger(__name__)

DEADLINE_S = 20.0
"""Seconds for which an API server that does not answer is retried; the kubelet waits that long, too."""
QUEUED_S = 10.0
"""Seconds of these in which writes that earlier calls have left are begun."""
AMBIGUOUS_S = 3.0
"""Seconds for which a pod that the kubelet has just rejected may still look as if it waited for devices."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Monotonic seconds, and a way to let them pass."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class _Ambiguous(Rejected):
    """Several containers match, which may change soon."""


@dataclass(frozen=True, slots=True)
class _Decision:
    """The outcome of a call. *lock*: the node lock, if it names the outcome's pod. *stale_lock*: a node lock that its
    pod no longer needs. *holder*: the pod that the node lock names, if the call is not for that pod."""

    outcome: Outcome
    lock: str | None = None
    stale_lock: str | None = None
    holder: PodRef | None = None


@dataclass(slots=True)
class _CallProgress:
    """The results of earlier attempts of one call.

    *match*, *lock*: the container to be served, and the node lock that names its pod; a later attempt must not find
    another pod. *annotations*, *grant*: what was written for it, perhaps, as the answer to that write may have been
    lost.
    """

    started: float
    match: ContainerMatch | None = None
    lock: str | None = None
    annotations: Mapping[str, str] | None = None
    grant: Grant | None = None

    def is_written(self, pods: Sequence[Pod]) -> bool:
        """Reports whether an earlier attempt has recorded the allocation, according to *pods*."""
        if self.match is None or self.annotations is None:
            return False
        for pod in pods:
            if pod.ref == self.match.pod.ref:
                return self.annotations.items() <= pod.annotations.items()
        return False


class Allocator:
    """Hands out shares of the node's cards. Threads may share it."""

    def __init__(
        self,
        config: PluginConfig,
        cluster: Cluster,
        vendors: Catalog,
        host: Host,
        grants: GrantBuilder,
        deferred: DeferredWrites,
        *,
        node_pods: NodePods | None = None,
        clock: Clock = Clock(),
    ) -> None:
        """*node_pods*: the watched pods, which are good enough for a hint."""
        self._config = config
        self._cluster = cluster
        self._vendor = vendors[VENDOR]
        other_keys = other_allocation_keys(vendors)
        self._keys = (self._vendor.annotations.to_allocate, *other_keys)
        self._call = AllocateCall(
            node=config.node,
            resource=config.resource,
            ids=(),
            vendor=self._vendor,
            other_keys=other_keys,
        )
        """What all calls have in common."""
        self._host = host
        self._grants = grants
        self._deferred = deferred
        self._node_pods = node_pods
        self._clock = clock
        self._lock = threading.Lock()
        """Held for a whole call, I/O included: the kubelet makes one at a time."""
        self._lock_holder: tuple[str, str] = "", ""
        """A node lock, and the uid of its pod when it was first seen."""

    def allocate(self, device_ids: Sequence[str]) -> Grant:
        """Returns the grant of the requesting container.

        Raises: Rejected with the reason; HostError; ClusterError if requests keep failing until the deadline.
        """
        with self._lock:
            progress = _CallProgress(self._clock.now())
            try:
                check_card_ids(device_ids, self._grants.inventory.snapshot())
                retry = brief_retry(
                    _is_retriable,
                    self._clock.sleep,
                    stop=lambda state: self._clock.now() - progress.started >= DEADLINE_S,
                    first_s=CONFLICT_S,
                )
                return retry(self._attempt, tuple(device_ids), progress)
            except HamiError as error:
                log.warning(
                    "allocation failed",
                    extra={"node": self._config.node, "devices": len(device_ids), "error": error},
                )
                if not isinstance(error, ClusterError):
                    raise
                if progress.match is not None and progress.match.container.outstanding:
                    # the kubelet fails the container, which must not look served
                    self._forget_holder(progress.lock)
                    self._deferred.fail_pod(progress.match.pod.ref, str(error), progress.lock)
                raise ClusterError(
                    f"a request to the API server failed: {error}", error.status
                ) from error

    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Returns the ids that lie on the cards of the requesting container; empty if it cannot be determined.

        Writes nothing. The watched pods are good enough, unless Allocate insists on the preferred ids.
        """
        with self._lock:
            try:
                call = self._with_ids(available[:size])
                if not 0 < size == call.count:
                    return ()
                outcome: Outcome | None = None
                if self._node_pods is not None and not self._config.aligned:
                    outcome = find_container(self._node_pods.pods() or (), None, call)
                if not isinstance(outcome, ContainerMatch):
                    node = self._node()
                    pods = self._cluster.pods_on(call.node)
                    outcome = self._decide(node, pods, call).outcome
            except HamiError as error:
                log.info("no preferred devices", extra={"node": self._config.node, "error": error})
                return ()
            if not isinstance(outcome, ContainerMatch):
                return ()
            return preferred_ids(outcome.container.shares, available, must_include)

    def release_stale_lock(self) -> None:
        """Releases the node lock if its pod is gone or no longer needs it. Raises: HamiError."""
        node = self._cluster.node(self._config.node)
        if node is None or NODE_LOCK not in node.annotations:
            return
        lock = node.annotations[NODE_LOCK]
        holder = parse_lock(lock).holder
        if holder is None:
            return
        pod = self._cluster.pod(*holder)
        if pod is None or is_done_with_lock(pod, self._config.node, self._keys):
            log.info("stale node lock released", extra={"node": node.name, "pod": "/".join(holder)})
            with self._lock:  # not while the API server is read: calls of the kubelet wait for it
                self._release(lock, node)

    def _attempt(self, ids: tuple[str, ...], progress: _CallProgress) -> Grant:
        call = self._with_ids(ids)
        node = self._node()  # before the pods: the pod that it is locked for is bound afterwards
        if self._deferred.flush(lambda: progress.started + QUEUED_S - self._clock.now()):
            node = self._node()
        pods = self._cluster.pods_on(call.node)
        if progress.match is not None and progress.grant is not None and progress.is_written(pods):
            self._finish(progress.match, node, progress)
            return progress.grant
        decision = self._decide(node, pods, call)
        if decision.stale_lock is not None:
            self._release(decision.stale_lock, node)
        outcome = _kept(decision.outcome, progress.match)
        match outcome:
            case ContainerMatch():
                progress.match, progress.lock = outcome, decision.lock
                return self._serve(outcome, call, node, progress)
            case PodRejection(pod=pod, reason=reason):
                self._fail(pod, reason, node, decision.lock)
                raise Rejected(reason)
            case NoMatch():
                raise self._refusal(outcome, call, decision, progress)

    def _refusal(
        self, outcome: NoMatch, call: AllocateCall, decision: _Decision, progress: _CallProgress
    ) -> HamiError:
        """Returns the error of *call*, after which it is tried again if that may help; else records an event."""
        text = f"cannot determine the requesting container ({call.count} of {call.resource}): {outcome.reason}"
        if outcome.is_transient and self._clock.now() - progress.started < AMBIGUOUS_S:
            return _Ambiguous(text)
        self._deferred.record_failure(call.node, text)
        if decision.holder is not None:
            self._deferred.record_failure(decision.holder, text)
        return Rejected(text)

    def _with_ids(self, ids: Sequence[str]) -> AllocateCall:
        served = self._host.served(self._config.resource)
        return replace(self._call, ids=tuple(ids), served=served)

    def _node(self) -> Node:
        node = self._cluster.node(self._config.node)
        if node is None:
            raise Rejected(f"node {self._config.node} is not known to the API server")
        return node

    def _decide(self, node: Node, pods: Sequence[Pod], call: AllocateCall) -> _Decision:
        """Returns the outcome of *call*, given the node and all its pods. Writes nothing."""
        lock = node.annotations.get(NODE_LOCK)
        if lock is None:
            return _Decision(find_container(pods, None, call))
        try:
            holder = parse_lock(lock).holder
        except MalformedInput as error:
            return _Decision(NoMatch(str(error)))
        if holder is None:
            return _Decision(find_container(pods, None, call))
        return self._decide_for(lock, holder, pods, call)

    def _decide_for(
        self, lock: str, holder: tuple[str, str], pods: Sequence[Pod], call: AllocateCall
    ) -> _Decision:
        """Returns the outcome of *call* while the node is locked. *holder*: the pod that *lock* names."""
        pod = find_pod(pods, holder) or self._cluster.pod(*holder)
        if pod is None:  # the call may be for the deleted pod, so no other pod is served
            name = "/".join(holder)
            gone = NoMatch(f"the node is locked for pod {name}, which is gone")
            return _Decision(gone, stale_lock=lock)
        if self._lock_holder[0] == lock and self._lock_holder[1] != pod.ref.uid:
            return _Decision(NoMatch(f"the node is locked for an earlier pod {pod.ref}"))
        self._lock_holder = lock, pod.ref.uid
        outcome = find_container(pods, holder, call)
        if not isinstance(outcome, NoMatch) and outcome.pod.ref == pod.ref:
            return _Decision(outcome, lock=lock)
        return _Decision(
            outcome,
            stale_lock=lock if is_done_with_lock(pod, self._config.node, self._keys) else None,
            holder=pod.ref if waits_on(pod, call.node) else None,
        )

    def _serve(
        self, match: ContainerMatch, call: AllocateCall, node: Node, progress: _CallProgress
    ) -> Grant:
        pod = match.pod
        try:
            parts = cards_of(match, call, self._grants.inventory.snapshot(), self._config)
            grant, annotations = self._grants.build(
                pod, match.container.name, match.container.position, parts
            )
        except ClusterError:
            raise  # it says nothing about the pod
        except HamiError as error:
            self._fail(pod, str(error), node, progress.lock)
            raise
        if annotations := {**match.annotations, **annotations}:
            progress.annotations, progress.grant = annotations, grant
            self._cluster.annotate_pod(pod.ref, annotations, resource_version=pod.resource_version)
        self._finish(match, node, progress)
        return grant

    def _finish(self, match: ContainerMatch, node: Node, progress: _CallProgress) -> None:
        if match.finished and progress.lock is not None:
            self._release(progress.lock, node)
        log.info(
            "devices allocated",
            extra={
                "pod": match.pod.ref,
                "container": match.container.name,
                "node": node.name,
                "repeated": not match.container.outstanding,
                "devices": [share.uuid for share in match.container.shares],
                "seconds": round(self._clock.now() - progress.started, 4),
            },
        )

    def _fail(self, pod: Pod, reason: str, node: Node, lock: str | None) -> None:
        """Ends the allocation of *pod*, which cannot be served."""
        if pod.annotations.get(BIND_PHASE) == BindPhase.ALLOCATING:
            self._forget_holder(lock)
            self._deferred.fail_pod(pod.ref, reason, lock)
            return
        self._deferred.record_failure(pod.ref, reason)
        if lock is not None:
            self._release(lock, node)

    def _release(self, lock: str, node: Node) -> None:
        self._forget_holder(lock)
        self._deferred.release_lock(lock, node)

    def _forget_holder(self, lock: str | None) -> None:
        """Forgets the pod of *lock*, which is released: a later pod of that name may lock the node within the same
        second."""
        if self._lock_holder[0] == lock:
            self._lock_holder = "", ""


def other_allocation_keys(vendors: Catalog) -> tuple[str, ...]:
    """Returns the to-allocate annotations of the other vendors that share the node lock."""
    others = (vendor.annotations for vendor in vendors if vendor is not vendors[VENDOR])
    return tuple(keys.to_allocate for keys in others if keys.lock == NODE_LOCK and keys.to_allocate)


def _kept(outcome: Outcome, earlier: ContainerMatch | None) -> Outcome:
    """Returns *outcome*, unless an earlier attempt of the call has found a container of another pod."""
    if earlier is None or (not isinstance(outcome, NoMatch) and outcome.pod.ref == earlier.pod.ref):
        return outcome
    return NoMatch(f"pod {earlier.pod.ref} was changed or deleted during the call")


def _is_retriable(error: BaseException) -> bool:
    """Reports whether another attempt, which reads everything again, may succeed."""
    return isinstance(error, Conflict | NotFound | _Ambiguous) or (
        isinstance(error, ClusterError) and error.is_temporary
    )
