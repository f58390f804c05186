"""Whose Allocate it is, and which shares are meant. The kubelet does not say; nothing here guesses.

The node lock names the pod whose turn it is, but the kubelet may be late: with a pod whose turn was taken back long
ago, or one that was never given any. So a call is answered only when of all containers on the node one alone can be
meant. Which have their devices already, the kubelet's own record says, where it can be read; what each is to get, the
annotations of its pod. Decides only; ``allocator`` carries out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hami.codec.allocation import parse_shares, render_shares
from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE
from hami.errors import AllocationRefused, MalformedInput
from hami.model import BindPhase, ContainerKind, Pod, Share
from hami.devices.cards import Card
from hami.devices.inventory import InventorySnapshot
from hami.quantity import strict_integer
from hami.vendors.spec import Vendor

__all__ = [
    "Call", "ContainerShares", "Elsewhere", "Refuse", "Serve", "cards_of", "claims", "is_over", "physical", "preferred",
    "resumed", "whose",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the kubelet. *ids*: the devices it asks for; *node*, *resource*: where, and of what.

    *vendor*: whose annotations they are in. *awaited*: to-allocate annotations of other vendors that share the lock.
    *served*: uid and name of the containers that have such devices by the kubelet's own record; ``None`` when that
    cannot be read, and containers are then taken to be served in their order.
    """

    node: str
    resource: str
    ids: tuple[str, ...]
    vendor: Vendor
    awaited: tuple[str, ...] = ()
    served: frozenset[tuple[str, str]] | None = None

    @property
    def count(self) -> int:
        """Devices asked for."""
        return len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerShares:
    """A container that asks for devices. *position*: of its shares in the annotation. *outstanding*: not handed out."""

    position: int
    name: str
    kind: ContainerKind
    shares: tuple[Share, ...]
    outstanding: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """This container of *pod* is meant. *writes*: annotations by which that is recorded, none when it was before.
    *finished*: nothing of the pod is outstanding then, of no vendor."""

    pod: Pod
    claim: ContainerShares
    writes: Mapping[str, str]
    finished: bool
    inherits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """*pod* asks, and cannot be served: its allocation ends here."""

    pod: Pod
    reason: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Nobody can tell for which container the call is. *passing*: there are several, and some may be on their way
    out."""

    reason: str
    passing: bool = False


def physical(device_id: str, cards: Collection[str]) -> str:
    """Which of *cards* (their UUIDs) is behind an id that the kubelet was given; the id itself if none is.

    Shape: ``<uuid>-<number>``, ``<uuid>::<number>`` (time slicing), or the UUID itself.
    """
    part, _, number = device_id.rpartition("-")
    shapes = (device_id, device_id.partition("::")[0], part if number.isdecimal() else device_id)
    return next((shape for shape in shapes if shape in cards), device_id)


def claims(pod: Pod, resource: str, vendor: Vendor) -> tuple[ContainerShares, ...]:
    """The containers of *pod* that ask for *resource*, init containers first, with what each was allocated.

    Texts of all versions are read: those that name each container, and those in which containers without shares are
    left out (HAMi v2.10 leaves them out, up to v2.8 init containers are), where each entry has to match in number.
    Raises: MalformedInput when the annotations, or they and the pod's specification, contradict each other.
    """
    given = parse_shares(vendor.allocated, pod.annotations.get(vendor.allocated, ""))
    left = parse_shares(vendor.to_allocate, pod.annotations.get(vendor.to_allocate, ""))
    left += ((),) * (len(given) - len(left))
    if any(one not in ((), given[place] if place < len(given) else ()) for place, one in enumerate(left)):
        raise MalformedInput(vendor.to_allocate, pod.annotations.get(vendor.to_allocate),
                             f"expected a part of what {vendor.allocated} says")
    asking = [(place, container.name, container.kind, count) for place, container in enumerate(pod.containers)
              if (count := asked(container.limits.get(resource)))]
    positions = _positions([len(shares) for shares in given], [(place, count) for place, _, _, count in asking])
    if positions is None:
        raise MalformedInput(
            vendor.allocated, pod.annotations.get(vendor.allocated, ""),
            "expected as many shares as the containers ask for, which is "
            + (", ".join(f"{count} for {name}" for _, name, _, count in asking) or "none"))
    return tuple(ContainerShares(position=at, name=name, kind=kind, shares=given[at], outstanding=bool(left[at]))
                 for at, (_, name, kind, _) in zip(positions, asking))


def asked(limit: str | None) -> int:
    """Devices that a limit asks for; 0 for what is none."""
    try:
        return max(strict_integer(limit) or 0, 0) if limit is not None else 0
    except MalformedInput:
        return 0


def whose(pods: Sequence[Pod], holder: tuple[str, str] | None, call: Call) -> Serve | Refuse | Elsewhere:
    """What becomes of *call*. *pods*: all that are bound to the node, listed after the call came. *holder*: namespace
    and name of the pod that the node lock names.

    A container whose pod has no lock is served all the same, if no other can be meant: HAMi's scheduler up to v2.10
    locks no node for pods of which only init containers ask, and a kubelet that has lost its record asks again for pods
    that were served long ago.
    """
    meant = [(pod, name) for pod in pods if pod.node_name == call.node and not pod.is_terminated
             for name in _possible(pod, call)]
    locked = next((pod for pod in pods if (pod.ref.namespace, pod.ref.name) == holder), None)
    if len(meant) > 1:
        return Elsewhere(_several([pod for pod, _ in meant], call), passing=True)
    if locked is not None and (not meant or meant[0][0] is locked):
        return _turn(locked, call)
    if not meant:
        return Elsewhere("no pod on the node waits for so many")
    return _unlocked(*meant[0], call)


def resumed(pod: Pod, call: Call, tried: ContainerShares) -> Serve | None:
    """The outcome of *call* if it was recorded already, by an attempt of this call that did not learn so; else
    ``None``. *tried*: the container of *pod* that was served."""
    if _objection(pod, call) or not pod.annotations.get(call.vendor.to_allocate):
        return None
    try:
        known = claims(pod, call.resource, call.vendor)
    except MalformedInput:
        return None
    found = next((claim for claim in known if claim == replace(tried, outstanding=False)), None)
    return None if found is None else _serve(pod, known, found, call)


def is_over(pod: Pod, node: str, keys: Iterable[str]) -> bool:
    """*pod* has no use any more for the lock of *node* that names it. *keys*: all to-allocate annotations."""
    if pod.is_terminated or pod.node_name not in ("", node):
        return True
    phase = pod.annotations.get(BIND_PHASE)
    return bool(pod.node_name) and (phase == BindPhase.FAILED or (
        phase == BindPhase.SUCCESS and not any(_outstanding(pod, key) for key in keys)))


def cards_of(served: Serve, call: Call, roll: InventorySnapshot, *, limited: bool,
             aligned: bool) -> tuple[tuple[Card, Share], ...]:
    """The shares that are handed out, each with its card.

    *limited*: memory and cores are held by the limiter, to which no memory means no limit. *aligned*: the kubelet has
    been told which cards to take. What counts is then which cards its devices lie on, and how many on each, for their
    order says nothing. A container that comes after init containers is given their devices without further question.
    A pod that is already running keeps a card that has turned bad since, as it would if the kubelet had not had to ask
    again, unless that cannot even be read: what is known of it may be wrong.
    Raises: AllocationRefused.
    """
    by_uuid = {card.uuid: card for card in roll.cards}
    shares, name = served.claim.shares, served.claim.name
    for share in shares:
        card = by_uuid.get(share.uuid)
        if card is None:
            raise AllocationRefused(f"container {name} was allocated card {share.uuid}, which is not on this node")
        if problem := card.problem if served.pod.phase == "Running" else roll.unwell.get(card.uuid):
            raise AllocationRefused(f"container {name} was allocated card {share.uuid}, which cannot be used: "
                                    f"{problem}")
        if limited and share.memory_mib <= 0:
            raise AllocationRefused(f"container {name} was allocated {share.memory_mib} MiB of card {share.uuid}, "
                                    "which would mean all of it")
    booked = Counter(share.uuid for share in shares)
    offered = Counter(physical(device_id, by_uuid) for device_id in call.ids)
    if limited and len(booked) < len(shares):
        raise AllocationRefused(f"container {name} was allocated one card twice: {', '.join(sorted(booked))}")
    if aligned and booked != offered and not served.inherits:
        raise AllocationRefused(f"container {name} was allocated {_counted(booked)}, "
                                f"but the kubelet has chosen {_counted(offered)}")
    return tuple((by_uuid[share.uuid], share) for share in shares)


def preferred(shares: Sequence[Share], available: Sequence[str], must_include: Sequence[str]) -> tuple[str, ...]:
    """The ids among *available* that lie on the cards of *shares*, those in *must_include* first; none if there are
    not enough."""
    pool = list(dict.fromkeys((*must_include, *available)))
    taken: list[str] = []
    for share in shares:
        found = next((one for one in pool if physical(one, {share.uuid}) == share.uuid), None)
        if found is None:
            return ()
        pool.remove(found)
        taken.append(found)
    return tuple(taken) if set(must_include) <= set(taken) else ()


def _turn(pod: Pod, call: Call) -> Serve | Refuse | Elsewhere:
    """What becomes of *call* if it is the turn of *pod*, which the node lock names."""
    if objection := _objection(pod, call):
        return Elsewhere(f"pod {pod.ref} has the lock, but {objection}")
    try:
        known = claims(pod, call.resource, call.vendor)
    except MalformedInput as error:
        return Refuse(pod=pod, reason=str(error)) if _possible(pod, call) else Elsewhere(str(error))
    if not pod.annotations.get(call.vendor.to_allocate):
        return Elsewhere(f"pod {pod.ref} has the lock, but its devices have been taken back")
    caller = _caller(pod, known, call)
    if caller is None:
        return Elsewhere(f"pod {pod.ref} has the lock, but {_unlike(pod, known, call)}")
    return _serve(pod, known, caller, call)


def _unlocked(pod: Pod, name: str, call: Call) -> Serve | Refuse:
    """What becomes of *call* if container *name* of *pod* alone can be meant, without a lock that names it."""
    if pod.annotations.get(ASSIGNED_NODE) != call.node:
        return Refuse(pod=pod, reason=f"pod {pod.ref} was not placed on node {call.node} by HAMi's scheduler")
    if pod.annotations.get(BIND_PHASE) not in (BindPhase.ALLOCATING, BindPhase.SUCCESS) or \
            not pod.annotations.get(call.vendor.to_allocate):
        return Refuse(pod=pod, reason=f"pod {pod.ref} has no devices that could be handed out: it was given none, or "
                                      "they have been taken back")
    try:
        known = claims(pod, call.resource, call.vendor)
    except MalformedInput as error:
        return Refuse(pod=pod, reason=str(error))
    return _serve(pod, known, next(claim for claim in known if claim.name == name), call)


def _objection(pod: Pod, call: Call) -> str | None:
    """Why the kubelet cannot be asking for this pod, as its annotations stand."""
    phase, assigned = pod.annotations.get(BIND_PHASE), pod.annotations.get(ASSIGNED_NODE)
    rules = (
        (f"it is bound to {pod.node_name or 'no node'}", pod.node_name != call.node),
        (f"it was placed on {assigned}", assigned != call.node),
        (f"it is {pod.phase or 'in no phase'}, not Pending", pod.phase != "Pending"),
        (f"its bind-phase is {phase}", phase not in (BindPhase.ALLOCATING, BindPhase.SUCCESS)),
    )
    return next((reason for reason, broken in rules if broken), None)


def _positions(sizes: Sequence[int], asking: Sequence[tuple[int, int]]) -> list[int] | None:
    """Where in the annotation the shares of each asking container (its place and count) stand; ``None`` if they do not
    match. *sizes*: the shares in each entry."""
    filled = [(at, size) for at, size in enumerate(sizes) if size]
    if filled == list(asking) or [size for _, size in filled] == [count for _, count in asking]:
        return [at for at, _ in filled]
    return None


def _caller(pod: Pod, known: Sequence[ContainerShares], call: Call) -> ContainerShares | None:
    """The container of *pod* that the kubelet asks for, if it is one of its."""
    if call.served is not None:
        waiting = [claim for claim in known if (pod.ref.uid, claim.name) not in call.served]
        return waiting[0] if waiting and len(waiting[0].shares) == call.count else None
    first = next((claim for claim in known if claim.outstanding), None)
    if first is not None and len(first.shares) == call.count:
        return first
    alike = [claim for claim in known if len(claim.shares) == call.count]
    return alike[0] if len(alike) == 1 and not alike[0].outstanding else None


def _possible(pod: Pod, call: Call) -> tuple[str, ...]:
    """Names of the containers of *pod*, not terminated and on the node, for which the kubelet may be asking."""
    asking = [(container.name, count) for container in pod.containers
              if (count := asked(container.limits.get(call.resource)))]
    if call.served is not None:
        asking = [(name, count) for name, count in asking if (pod.ref.uid, name) not in call.served]
        if pod.phase == "Pending":
            asking = asking[:1]  # it is being admitted, which goes by the order
        return tuple(name for name, count in asking if count == call.count)
    if pod.phase != "Pending":
        return ()
    if pod.annotations.get(BIND_PHASE) in (BindPhase.ALLOCATING, BindPhase.SUCCESS):
        try:
            left = [claim for claim in claims(pod, call.resource, call.vendor) if claim.outstanding]
            asking = [(claim.name, len(claim.shares)) for claim in left[:1]]
        except MalformedInput:
            pass
    return tuple(name for name, count in asking[:1] if count == call.count)


def _several(pods: Sequence[Pod], call: Call) -> str:
    """Why nobody is served while each of *pods* may be meant, by one container or more.

    That a container has been started does not rule it out: a kubelet that has lost its record asks anew when it starts
    it again, after its end or that of the node, and the API server may not know of that end yet.
    Source: Kubernetes v1.36, pkg/kubelet/cm/devicemanager/manager.go, devicesToAllocate, GetDeviceRunContainerOptions.
    """
    text = f"{len(pods)} containers may be meant, of {_named(pods)}"
    lost = _named(pod for pod in pods if _is_lost(pod, call))
    return f"{text}; the kubelet's record has lost {lost}: delete such pods, or drain the node" if lost else text


def _is_lost(pod: Pod, call: Call) -> bool:
    """The containers of *pod*, which is not all in the kubelet's record, have been handed their devices and started."""
    return (call.served is not None and pod.phase == "Running" and bool(pod.annotations.get(call.vendor.to_allocate))
            and pod.annotations.get(BIND_PHASE) == BindPhase.SUCCESS and not _outstanding(pod, call.vendor.to_allocate))


def _named(pods: Iterable[Pod]) -> str:
    return ", ".join(sorted({str(pod.ref) for pod in pods}))


def _serve(pod: Pod, known: Sequence[ContainerShares], caller: ContainerShares, call: Call) -> Serve:
    rest = [claim for claim in known if claim.outstanding and claim is not caller
            and (pod.ref.uid, claim.name) not in (call.served or ())]
    finished = not rest and not any(_outstanding(pod, key) for key in call.awaited)
    inherits = caller.kind is not ContainerKind.INIT and any(
        claim.kind is ContainerKind.INIT for claim in known)
    writes: dict[str, str] = {}
    if caller.outstanding:
        kept = {claim.position: claim.shares for claim in rest}
        entries = max([len(pod.containers), *(claim.position + 1 for claim in known)])
        writes[call.vendor.to_allocate] = render_shares(tuple(kept.get(at, ()) for at in range(entries)))
    if finished and pod.annotations.get(BIND_PHASE) != BindPhase.SUCCESS:
        writes[BIND_PHASE] = BindPhase.SUCCESS.value
    return Serve(pod=pod, claim=caller, writes=writes, finished=finished, inherits=inherits)


def _outstanding(pod: Pod, key: str) -> bool:
    """Devices of the annotation *key* still have to be handed out; so does what nobody can read."""
    try:
        return any(parse_shares(key, pod.annotations.get(key, "")))
    except MalformedInput:
        return True


def _unlike(pod: Pod, known: Sequence[ContainerShares], call: Call) -> str:
    if call.served is not None:
        left = [claim for claim in known if (pod.ref.uid, claim.name) not in call.served]
    else:
        left = [claim for claim in known if claim.outstanding]
    if not left:
        return "all its containers have their devices"
    return f"its next container, {left[0].name}, gets {len(left[0].shares)}"


def _counted(cards: Counter[str]) -> str:
    return ", ".join(f"{count} of {uuid}" for uuid, count in sorted(cards.items()))
