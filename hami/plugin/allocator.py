"""Answers the kubelet's Allocate: reads, lets ``allocate`` decide, writes the outcome, hands the node on.

One call at a time. An outcome is one compare-and-swap on the pod; if that has changed meanwhile, everything is read
and decided again. When a pod's allocation has come to its end, well or not, the node's lock is released; what cannot
be written for now, or need not be waited for, is owed, and written before anything else.

Whose call it is, all pods of the node say. They are listed after the call came; a list costs more than all else,
though, so a watch is asked first, which may be late. Its answer counts only when it is proven: the swap comes back by
the same watch, after all that was written before, and the pods that have been told of by then must give the same
answer, with the node lock as it was read after the call came. Else the swap is undone, and a list says. So the lock
need not be waited for before the swap: both are under way at once.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from hami.kube.events import Recorder
from hami.codec.keys import BIND_PHASE, NODE_LOCK
from hami.codec.states import parse_lock
from hami.errors import AllocationRefused, ClusterError, Conflict, HamiError, MalformedInput, NotFound
from hami.model import BindPhase, Node, Pod, PodRef
from hami.plugin.allocate import (
    Call, ContainerShares, Elsewhere, Refuse, Serve, cards_of, is_over, physical, preferred, resumed, whose,
)
from hami.devices.config import PluginConfig
from hami.node.grant import Grant, HostFacts, Recipient, instances_grant, shares_grant
from hami.devices.mig import Mig
from hami.node.pods import NodePodsSnapshot
from hami.devices.inventory import InventorySnapshot
from hami.vendors.spec import Catalog

__all__ = ["Allocator", "AllocatorCalls", "Files"]

log = logging.getLogger(__name__)

PATIENCE = 20.0  # seconds for which an API server that is away is waited for; the kubelet waits that long, too
UNCLEAR = 3.0  # seconds for which a pod that the kubelet has refused may still look as if it waited for its devices
TOLD = 0.02  # seconds for which a watch may be behind the kubelet's, before a list is asked for
PROVEN = 0.1  # seconds within which a write comes back by the watch, before a list is asked for
RELEASE_ATTEMPTS = 8  # conflicts in a row: somebody else keeps changing the node
REASON = "AllocationFailed"

Edits = Mapping[str, str | None]
Ask = Callable[[], Node]


class AllocatorCalls(Protocol):
    """The calls of `hami.kube.cluster.Cluster` that are made here."""

    def node(self, name: str) -> Node | None: ...
    def pod(self, namespace: str, name: str) -> Pod | None: ...
    def pods_on(self, node: str) -> list[Pod]: ...
    def environment(self, ref: PodRef, container: str) -> Mapping[str, str]: ...
    def annotate_pod(self, ref: PodRef, annotations: Edits, *, resource_version: str = "") -> Pod: ...
    def annotate_node(self, name: str, annotations: Edits, resource_version: str = "") -> Node: ...


class Watch(Protocol):
    """What is asked of :class:`hami.node.pods.NodePods`."""

    def now(self) -> NodePodsSnapshot | None: ...
    def holding(self, namespace: str, name: str, timeout: float) -> NodePodsSnapshot | None: ...
    def after(self, view: NodePodsSnapshot, version: str, timeout: float) -> NodePodsSnapshot | None: ...


class Files(Protocol):
    """What is asked of :class:`hami.node.host.Host`."""

    def facts(self, *, limited: bool, instances: Sequence[tuple[int, int, int]] = ()) -> HostFacts: ...
    def prepare(self, uid: str, container: str) -> None: ...
    def served(self, resource: str) -> frozenset[tuple[str, str]] | None: ...
    def directories(self) -> frozenset[str]: ...
    def sweep(self, directories: frozenset[str], live: set[str]) -> list[str]: ...


class _Unclear(AllocationRefused):
    """Several containers may be meant, for now."""


@dataclass(frozen=True, slots=True)
class _Attempted:
    """The container that the call in progress has begun to serve, by what a list says, and the node lock that named its
    pod, if one did."""

    ref: PodRef
    claim: ContainerShares
    locked: str | None


@dataclass(frozen=True, slots=True)
class _Debt:
    """What is still to be written: a pod's failure, for *reason*; the release of the lock *locked*. *node*: as it was
    last seen with that lock."""

    reason: str = ""
    locked: str | None = None
    node: Node | None = None


@dataclass(frozen=True, slots=True)
class _Judged:
    """Whose call it is. *locked*: the node lock that names that pod. *stale*: a lock of which there is no use any more.
    *holder*: the pod that the lock names, when the call is not its."""

    verdict: Serve | Refuse | Elsewhere
    locked: str | None = None
    stale: str | None = None
    holder: PodRef | None = None


class Allocator:
    """Hands out the devices of one node. Threads may share it."""

    def __init__(self, config: PluginConfig, cluster: AllocatorCalls, vendors: Catalog, roll: Callable[[], InventorySnapshot],
                 host: Files, mig: Mig | None, events: Recorder, *, vendor: str = "NVIDIA",
                 watch: Watch | None = None, wake: Callable[[], None] | None = None,
                 beside: Callable[[Ask], Ask] | None = None,
                 clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
                 token: Callable[[], str] = lambda: str(uuid.uuid4())) -> None:
        """*vendor*: whose devices these are, by its key in *vendors*. *mig*: only in operating mode ``mig``.
        *roll*: of the node's cards. *watch*: of its pods; without it they are listed for each call. *wake*: has
        `settle` called soon, by another thread, so that the kubelet has its answer before the lock is released; without
        it that is done first.
        *beside* begins a call and returns what waits for its outcome; by a thread if ``None``. *token*: a text that is
        new each time."""
        self._config = config
        self._cluster = cluster
        self._vendor = vendors.named(vendor)
        self._awaited = tuple(one.to_allocate for one in vendors
                              if one is not self._vendor and one.lock == NODE_LOCK and one.to_allocate)
        self._roll = roll
        self._host = host
        self._mig = mig
        self._events = events
        self._watch = watch
        self._wake = wake
        self._beside = _thread() if beside is None else beside
        self._clock = clock
        self._token = token
        self._sleep = sleep
        self._turn = threading.Lock()
        self._holder: tuple[str, str] = ("", "")  # a node lock, and the uid that its pod had when it was first seen
        self._attempted: _Attempted | None = None
        self._owed: dict[PodRef | str, _Debt] = {}  # by the pod that is to fail, or the lock

    def allocate(self, device_ids: Sequence[str]) -> Grant:
        """What one container gets: the one whose turn it is, if it asks for as many devices.

        Raises: AllocationRefused with the reason; HostError; ClusterError when the API server stays away.
        """
        begun = self._clock()
        with self._turn:
            self._attempted = None
            try:
                ids = self._checked(device_ids)
                watches = [self._watch]  # for the first attempt: if that fails, a list has to say
                return self._patiently(lambda: self._answer(ids, begun, watches.pop() if watches else None))
            except HamiError as error:
                log.warning("devices not handed out", extra={
                    "node": self._config.node, "devices": len(device_ids), "error": error})
                if not isinstance(error, ClusterError):
                    raise
                self._owe(str(error))
                said = f"the API server does not let devices be handed out: {error}"
                raise ClusterError(said, error.status) from error

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        """The ids that lie on the cards of the container whose turn it is; empty when nothing can be said. Writes
        nothing. A watch may say whose turn it is, unproven, as long as devices are handed out whatever is chosen."""
        with self._turn:
            try:
                call = self._call(tuple(available[:size]))
                if not 0 < size == call.count:
                    return ()
                view = self._watch.now() if self._watch is not None and not self._config.aligned else None
                verdict = whose(view.pods, None, call) if view is not None else None
                if not isinstance(verdict, Serve):
                    verdict = self._judge_afresh(self._node().annotations.get(NODE_LOCK), call).verdict
            except HamiError as error:
                log.info("no devices are preferred", extra={"node": self._config.node, "error": error})
                return ()
            return preferred(verdict.claim.shares, available, must_include) if isinstance(verdict, Serve) else ()

    def settle(self) -> None:
        """Write what is owed. Asks the API server nothing when that is nothing. Never raises a HamiError."""
        with self._turn:
            self._settle()

    def sweep(self) -> None:
        """Put in order what former calls, processes and pods have left: what is owed, a lock that its pod has no use
        for, directories of containers whose pods are gone, MIG instances that no pod has. Logs what cannot be done."""
        with self._turn:
            self._settle()
            for chore in (self._release_stale, self._sweep_files):
                try:
                    chore()
                except HamiError as error:
                    log.warning("node not tidied", extra={"node": self._config.node, "error": error})

    # -- one call

    def _checked(self, ids: Sequence[str]) -> tuple[str, ...]:
        known = {card.uuid for card in self._roll().cards}
        if not ids:
            raise AllocationRefused("the kubelet asks for no device at all")
        if len(set(ids)) < len(ids):
            raise AllocationRefused(f"the kubelet asks for a device twice: {', '.join(sorted(ids))}")
        if unknown := sorted(one for one in ids if physical(one, known) not in known):
            raise AllocationRefused(f"the kubelet asks for devices that are not on this node: {', '.join(unknown)}")
        return tuple(ids)

    def _call(self, ids: tuple[str, ...]) -> Call:
        config = self._config
        return Call(node=config.node, resource=config.resource, ids=ids, vendor=self._vendor, awaited=self._awaited,
                    served=self._host.served(config.resource))

    def _patiently(self, step: Callable[[], Grant]) -> Grant:
        """Do *step*, again when the API server is away or somebody was faster."""
        return Retrying(retry=retry_if_exception(_passes), sleep=self._sleep, reraise=True,
                        wait=wait_random_exponential(multiplier=0.02, max=1.0),
                        stop=_patience_ends(self._clock, self._clock() + PATIENCE))(step)

    def _answer(self, ids: tuple[str, ...], begun: float, watch: Watch | None) -> Grant:
        self._settle()
        call, ask = self._call(ids), self._node
        if watch is not None and call.served is not None:
            ask = self._beside(ask)
            if (grant := self._told(watch, ask, call, begun)) is not None:
                return grant
        node = ask()
        judged = self._judge(node, call)
        if judged.stale is not None:
            self._release(judged.stale, node)
        match judged.verdict:
            case Serve():
                return self._serve(judged.verdict, call, node, judged.locked, begun)
            case Refuse(pod=pod, reason=reason):
                self._fail(pod, reason, node, judged.locked)
                raise AllocationRefused(reason)
            case Elsewhere(reason=reason, passing=passing):
                text = f"{call.count} of {call.resource} asked for, and nobody can tell for which container: {reason}"
                if passing and self._clock() - begun < UNCLEAR:
                    raise _Unclear(text)
                self._events.record(call.node, "Warning", REASON, text)
                if judged.holder is not None:
                    self._events.record(judged.holder, "Warning", REASON, text)
                raise AllocationRefused(text)

    def _node(self) -> Node:
        node = self._cluster.node(self._config.node)
        if node is None:
            raise AllocationRefused(f"node {self._config.node} is not known to the API server")
        return node

    def _judge(self, node: Node, call: Call) -> _Judged:
        """Whose call it is. Writes nothing."""
        lock = node.annotations.get(NODE_LOCK)
        if (tried := self._attempted) is not None:
            pod = self._cluster.pod(tried.ref.namespace, tried.ref.name)
            known = resumed(pod, call, tried.claim) if pod is not None and pod.ref.uid == tried.ref.uid else None
            if known is not None:
                return _Judged(known, locked=lock if lock == tried.locked else None)
        judged = self._judge_afresh(lock, call)
        verdict = judged.verdict
        if tried is None or (isinstance(verdict, Serve | Refuse) and verdict.pod.ref == tried.ref):
            return judged
        return replace(judged, verdict=Elsewhere(f"pod {tried.ref} has changed, or lost its turn, meanwhile"))

    def _judge_afresh(self, lock: str | None, call: Call, pods: Sequence[Pod] | None = None) -> _Judged:
        """The same, whatever was tried. *pods*: of the node; they are listed if ``None``."""
        try:
            holder = parse_lock(lock).holder if lock is not None else None
        except MalformedInput as error:
            return _Judged(Elsewhere(str(error)))
        pods = self._cluster.pods_on(call.node) if pods is None else pods
        if lock is None or holder is None:
            return _Judged(whose(pods, None, call))
        pod = _named(pods, holder) or self._cluster.pod(*holder)
        if pod is None:  # the call may well be for the pod that is gone, so nobody else is served
            return _Judged(Elsewhere(f"the node is locked for pod {'/'.join(holder)}, which is gone"), stale=lock)
        if self._holder[0] == lock and self._holder[1] != pod.ref.uid:
            return _Judged(Elsewhere(f"the node was locked for another pod {pod.ref} than there is now"))
        self._holder = lock, pod.ref.uid
        verdict = whose(pods, holder, call)
        if not isinstance(verdict, Elsewhere) and verdict.pod.ref == pod.ref:
            return _Judged(verdict, locked=lock)
        over = is_over(pod, call.node, (self._vendor.to_allocate, *self._awaited))
        here = pod.node_name == call.node and not pod.is_terminated
        return _Judged(verdict, stale=lock if over else None, holder=pod.ref if here else None)

    def _serve(self, verdict: Serve, call: Call, node: Node, locked: str | None, begun: float) -> Grant:
        pod = verdict.pod
        self._attempted = _Attempted(pod.ref, verdict.claim, locked)
        try:
            grant, made = self._make(verdict, call)
        except ClusterError:
            raise  # it says nothing about the pod
        except HamiError as error:
            self._fail(pod, str(error), node, locked)
            raise
        writes = {**verdict.writes, **made}
        if writes:
            self._cluster.annotate_pod(pod.ref, writes, resource_version=pod.resource_version)
        self._handed_out(verdict, node, locked, begun, by="list")
        return grant

    def _handed_out(self, verdict: Serve, node: Node, locked: str | None, begun: float, by: str) -> None:
        if verdict.finished and locked is not None:
            self._release(locked, node)
        log.info("devices handed out", extra={
            "pod": verdict.pod.ref, "container": verdict.claim.name, "node": node.name,
            "repeated": not verdict.claim.outstanding, "devices": [share.uuid for share in verdict.claim.shares],
            "by": by, "seconds": round(self._clock() - begun, 4)})

    def _make(self, verdict: Serve, call: Call, view: NodePodsSnapshot | None = None) -> tuple[Grant, Mapping[str, str]]:
        """The grant, and what is to be written on the pod about it. *view*: has its variables; else they are asked
        for."""
        config, pod, claim = self._config, verdict.pod, verdict.claim
        shared = self._mig is None
        parts = cards_of(verdict, call, self._roll(), limited=shared, aligned=config.aligned and shared)
        if self._mig is not None:
            made = self._mig.make(pod, claim.position, claim.shares)
            recipient = Recipient(pod_uid=pod.ref.uid, container=claim.name, token=self._token())
            cards = [card for card, _ in parts]
            facts = self._host.facts(limited=False, instances=[
                (card.minor, one.gpu_instance, one.compute_instance)
                for card, one in zip(cards, made.instances, strict=True)])
            return instances_grant(config, [one.uuid for one in made.instances], cards, facts, recipient), made.writes
        env = view.environment(pod.ref.uid, claim.name) if view else self._cluster.environment(pod.ref, claim.name)
        recipient = Recipient(pod_uid=pod.ref.uid, container=claim.name, token=self._token(), env=env)
        facts = self._host.facts(limited=True)
        self._host.prepare(pod.ref.uid, claim.name)
        return shares_grant(config, parts, facts, recipient), {}

    # -- by the watch

    def _told(self, watch: Watch, ask: Ask, call: Call, begun: float) -> Grant | None:
        """The answer by what *watch* tells, in the common case: one container can be meant, and no other. ``None`` when
        a list has to say; nothing has been written then. *ask*: for the node, which has been asked for already.

        Where the kubelet's record cannot be read, only the pods' annotations say what has been handed out, and none
        that was written on a mere assumption would do. With it, a container that looks served by a write of which we
        did not learn, or could not undo, is still one that waits.
        Raises: as `_answer`; `_Unclear` when what was told turns out to be too old.
        """
        view, verdict = self._guess(watch, ask, call)
        if view is None or not isinstance(verdict, Serve) or not verdict.writes:
            return None
        try:
            grant, made = self._make(verdict, call, view)
            writes = {**verdict.writes, **made}
            written = self._cluster.annotate_pod(
                verdict.pod.ref, writes, resource_version=verdict.pod.resource_version)
        except ClusterError as error:
            if not isinstance(error, Conflict | NotFound):
                raise
            return None
        except HamiError:
            return None  # a pod fails only by what a list says
        later = watch.after(view, written.resource_version, PROVEN)
        pods = later.pods if later is not None else self._cluster.pods_on(call.node)
        others = [pod for pod in pods if pod.ref.uid != verdict.pod.ref.uid]
        try:
            node = ask()
            judged = self._judge_afresh(node.annotations.get(NODE_LOCK), call, [verdict.pod, *others])
        except ClusterError:
            raise  # asked again, that container is handed the same
        except HamiError:
            self._take_back(verdict.pod, writes, written)
            raise
        if judged.verdict != verdict:
            self._take_back(verdict.pod, writes, written)
            raise _Unclear(f"another container than {verdict.claim.name} of pod {verdict.pod.ref} may be meant")
        if judged.stale is not None:
            self._release(judged.stale, node)
        by = "watch" if later is not None else "watch, then list"
        self._handed_out(verdict, node, judged.locked, begun, by)
        return grant

    def _guess(self, watch: Watch, ask: Ask, call: Call) -> tuple[NodePodsSnapshot | None, Serve | Refuse | Elsewhere | None]:
        """Whose call it is by what *watch* has told; if that is nobody's it may be late, and the pod that has the lock
        is waited for."""
        view = watch.now()
        verdict = whose(view.pods, None, call) if view is not None else None
        if isinstance(verdict, Serve):
            return view, verdict
        holder = _holder_of(ask().annotations.get(NODE_LOCK))
        view = watch.holding(*holder, TOLD) if holder is not None else None
        return view, whose(view.pods, holder, call) if view is not None else None

    def _take_back(self, before: Pod, writes: Mapping[str, str], written: Pod) -> None:
        """Undo *writes*, by which the pod *before* became *written*, if it has not changed since."""
        log.info("taken back: another container may be meant", extra={"pod": before.ref, "node": before.node_name})
        undone = {key: before.annotations.get(key) for key in writes}
        try:
            self._cluster.annotate_pod(before.ref, undone, resource_version=written.resource_version)
        except ClusterError as error:
            log.warning("not taken back, looks served until it asks", extra={"pod": before.ref, "error": error})

    # -- ends that are not good

    def _fail(self, pod: Pod, reason: str, node: Node, locked: str | None) -> None:
        """End the allocation of *pod*: nobody can be handed its devices any more.

        Raises: Conflict when the pod has changed.
        """
        if pod.annotations.get(BIND_PHASE) == BindPhase.ALLOCATING:
            writes = {BIND_PHASE: BindPhase.FAILED.value, self._vendor.to_allocate: ""}
            try:
                self._cluster.annotate_pod(pod.ref, writes, resource_version=pod.resource_version)
            except NotFound:
                pass
        self._events.record(pod.ref, "Warning", REASON, reason)
        if locked is not None:
            self._release(locked, node)

    def _owe(self, reason: str) -> None:
        """The kubelet is told that the container which was tried gets nothing; so it must not look served."""
        tried = self._attempted
        if tried is not None and tried.claim.outstanding:
            self._owed[tried.ref] = _Debt(reason, tried.locked)

    def _settle(self) -> None:
        """Write what is owed as far as that is possible now."""
        for subject, debt in list(self._owed.items()):
            try:
                if isinstance(subject, PodRef):
                    self._end(subject, debt.reason)
                if debt.locked is not None:
                    self._release_now(debt.locked, debt.node)
                del self._owed[subject]
            except ClusterError as error:
                log.warning("outcome cannot be written yet", extra={"subject": str(subject), "error": error})

    def _end(self, ref: PodRef, reason: str) -> None:
        try:
            self._cluster.annotate_pod(ref, {BIND_PHASE: BindPhase.FAILED.value, self._vendor.to_allocate: ""})
        except (NotFound, Conflict):
            return  # gone; another pod of that name is not concerned
        self._events.record(ref, "Warning", REASON, reason)

    # -- the node lock

    def _release(self, lock: str, node: Node) -> None:
        """Release *lock*, of which *node* is the last that is known, or have that done soon; what fails is owed."""
        if self._wake is not None:
            self._owed[lock] = _Debt(locked=lock, node=node)
            self._wake()
            return
        try:
            self._release_now(lock, node)
        except ClusterError as error:
            log.warning("node lock cannot be released yet", extra={"node": node.name, "error": error})
            self._owed[lock] = _Debt(locked=lock)

    def _release_now(self, lock: str, node: Node | None) -> None:
        """Release *lock* unless it has become another's, by compare-and-swap. Raises: ClusterError."""
        if self._holder[0] == lock:
            self._holder = "", ""  # the same text may come again, within the same second, for a later pod of that name
        for _ in range(RELEASE_ATTEMPTS):
            node = node or self._cluster.node(self._config.node)
            if node is None or node.annotations.get(NODE_LOCK) != lock:
                return
            try:
                self._cluster.annotate_node(node.name, {NODE_LOCK: None}, node.resource_version)
                return
            except Conflict:
                node = None
            except NotFound:
                return
        raise ClusterError(f"node {self._config.node}: lock still contended after {RELEASE_ATTEMPTS} attempts")

    def _release_stale(self) -> None:
        """Release the lock of a pod that is gone, or has no use for it any more."""
        node = self._cluster.node(self._config.node)
        lock = node.annotations.get(NODE_LOCK) if node is not None else None
        if node is None or lock is None or (holder := parse_lock(lock).holder) is None:
            return
        pod = self._cluster.pod(*holder)
        if pod is None or is_over(pod, node.name, (self._vendor.to_allocate, *self._awaited)):
            log.info("node lock left behind is released", extra={"node": node.name, "pod": "/".join(holder)})
            self._release_now(lock, node)

    def _sweep_files(self) -> None:
        directories = self._host.directories()  # before the pods: see Host.sweep
        if not directories and self._mig is None:
            return
        pods = self._cluster.pods_on(self._config.node) if directories else []
        removed = self._host.sweep(directories, {pod.ref.uid for pod in pods})
        if removed:
            log.info("directories of containers removed", extra={"directories": removed})
        if self._mig is not None:
            self._mig.reconcile()


def _thread() -> Callable[[Ask], Ask]:
    """One thread that makes calls beside."""
    pool = ThreadPoolExecutor(1, "node")
    return lambda call: pool.submit(call).result


def _holder_of(lock: str | None) -> tuple[str, str] | None:
    """Namespace and name of the pod that *lock* names, if it can be read and does."""
    try:
        return parse_lock(lock).holder if lock is not None else None
    except MalformedInput:
        return None


def _named(pods: Sequence[Pod], holder: tuple[str, str] | None) -> Pod | None:
    return next((pod for pod in pods if (pod.ref.namespace, pod.ref.name) == holder), None)


def _passes(error: BaseException) -> bool:
    """It may be otherwise at the next attempt, which reads everything again."""
    return isinstance(error, Conflict | NotFound | _Unclear) or (isinstance(error, ClusterError) and _is_away(error))


def _is_away(error: ClusterError) -> bool:
    """The API server has not answered, or not with an answer."""
    return error.status is None or error.status == 429 or error.status >= 500


def _patience_ends(clock: Callable[[], float], deadline: float) -> Callable[[RetryCallState], bool]:
    return lambda state: clock() >= deadline
