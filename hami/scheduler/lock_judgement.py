"""Whether a node lock may be taken over, decided from facts alone. `lock_holders` reads them, `locks` acts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hami.model import BindPhase, PodRef

# Seconds after which a lock may be taken over.
UNBOUND_S = 40.0  # the holder has not been bound (a bind gives up long before)
INHERITED_S = 2.0  # the same for a lock older than this replica's term: its writer can send no Binding any more
FINISHED_S = 5.0  # the holder has finished, and its device plugin should have released the lock
DELETED_S = 10.0
"""The holder was deleted after it was bound and before its device plugin answered. Its kubelet may still call Allocate
for it, and a plugin that trusts the lock would then serve the next holder's devices to that call, and serve every later
pod the devices of its predecessor. A kubelet hears of a deletion within a second, unless it stands still or is cut off.
It does not renew the Lease of its node then, either, which it does every ten seconds otherwise."""
RENEWED_S = 3.0  # such a kubelet has renewed its Lease again: it may still finish the call that it had begun


@dataclass(frozen=True, slots=True)
class Keep:
    """The lock may still be needed."""


@dataclass(frozen=True, slots=True)
class Replace:
    """The lock may be removed, or replaced by another one."""


@dataclass(frozen=True, slots=True)
class Revoke:
    """The lock may be replaced once no device plugin can allocate the devices of *pod*, which is at *version*, any
    more."""

    pod: PodRef
    version: str


Judgement = Keep | Replace | Revoke


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFacts:
    """A lock of *node*.

    *age_s*: since it was written, as far as that is proven. *seen_for_s*: since this process looked at it first.
    *inherited_for_s*: for how long this replica has led and seen it; 0 if it may be from its own term or its own
    process. *allocation_timeout_s*: the age after which its holder has not been allocated its devices in time.
    *is_leftover*: this process may have failed to release it. *is_readable*: it has a time, and names a pod if any.
    """

    node: str
    age_s: float
    seen_for_s: float
    inherited_for_s: float
    allocation_timeout_s: float
    is_leftover: bool = False
    is_readable: bool = True

    @property
    def is_late(self) -> bool:
        """Whether the holder has not been allocated its devices in time."""
        return self.age_s > self.allocation_timeout_s


@dataclass(frozen=True, slots=True)
class NoHolder:
    """The lock is only a time. *is_awaited*: a pod on the node may still need it."""

    is_awaited: bool


@dataclass(frozen=True, slots=True)
class GoneHolder:
    """The pod was found deleted *gone_for_s* seconds ago. *was_allocating*: it may have been bound and still without an
    answer of its device plugin; ``None`` if it is not known which pod of that name it was. *renewed_for_s*: since the
    kubelet was first seen to have renewed the Lease of its node afterwards; 0 if it has not, infinite without a Lease.
    """

    gone_for_s: float
    was_allocating: bool | None = None
    renewed_for_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class PodHolder:
    """The pod that the lock names. *node*: to which it is bound; empty if it is not. *has_devices*: there is something
    that a device plugin could allocate to it."""

    ref: PodRef
    version: str
    node: str
    bind_phase: str
    is_terminated: bool
    has_devices: bool = True


Holder = NoHolder | GoneHolder | PodHolder


def judge(lock: LockFacts, holder: Holder) -> Judgement:
    """Returns what may be done with *lock*: in each function below, the first line that applies."""
    if lock.is_leftover or not lock.is_readable:
        return Replace()
    match holder:
        case NoHolder(is_awaited):
            return _without_holder(lock, is_awaited)
        case GoneHolder():
            return _with_gone(lock, holder)
        case PodHolder():
            return _with_pod(lock, holder)


def _without_holder(lock: LockFacts, is_awaited: bool) -> Judgement:
    if lock.is_late:
        return Replace()
    # its writer was killed before it bound its pod, and will send no Binding
    if lock.inherited_for_s > INHERITED_S and not is_awaited:
        return Replace()
    return Keep()


def _with_gone(lock: LockFacts, holder: GoneHolder) -> Judgement:
    if holder.was_allocating is False:
        return Replace()
    if holder.was_allocating is None and lock.is_late:
        return Replace()
    if holder.gone_for_s > DELETED_S and holder.renewed_for_s > RENEWED_S:
        return Replace()
    if holder.gone_for_s > lock.allocation_timeout_s:
        return Replace()
    return Keep()


def _with_pod(lock: LockFacts, holder: PodHolder) -> Judgement:
    if holder.is_terminated or holder.node not in ("", lock.node):
        return Replace()
    if not holder.node:
        if lock.age_s <= UNBOUND_S and lock.inherited_for_s <= INHERITED_S:
            return Keep()
        return Revoke(holder.ref, holder.version) if holder.has_devices else Replace()
    if holder.bind_phase in (BindPhase.SUCCESS, BindPhase.FAILED):
        return Replace() if lock.seen_for_s > FINISHED_S else Keep()
    return Revoke(holder.ref, holder.version) if lock.is_late else Keep()
