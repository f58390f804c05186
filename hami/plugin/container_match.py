"""Matches an Allocate call to a container: the kubelet does not say for which one it asks.

The node lock names the pod that the scheduler expects next, but the kubelet may be late: it may ask for a pod whose
allocation was revoked, or for one that never had any. A call is therefore answered only when exactly one container on
the node can be the requesting one. The kubelet's checkpoint, where it can be read, tells which containers already have
devices; the pod's annotations tell what each container gets. This module only decides; ``allocator`` does the I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hami.codec.allocation import container_positions, parse_shares, render_shares
from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE, RESIZED
from hami.codec.resize import wanted_text
from hami.devices.cards import Card
from hami.devices.config import PluginConfig
from hami.devices.inventory import InventorySnapshot
from hami.devices.registration import MIG
from hami.errors import AllocationRefused, MalformedInput
from hami.model import BindPhase, ContainerKind, Pod, Share
from hami.quantity import strict_integer
from hami.vendors.spec import Vendor

_ALLOCATED_PHASES = (BindPhase.ALLOCATING, BindPhase.SUCCESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateCall:
    """One Allocate call of the kubelet, and what is needed to match it.

    *ids*: the device ids it asks for. *vendor*: the vendor whose annotations hold the shares. *other_keys*: to-allocate
    annotations of other vendors that share the node lock. *served*: pod uid and name of the containers that have
    devices according to the kubelet's checkpoint; ``None`` if it cannot be read, in which case containers are assumed
    to be served in order.
    """

    node: str
    resource: str
    ids: tuple[str, ...]
    vendor: Vendor
    other_keys: tuple[str, ...] = ()
    served: frozenset[tuple[str, str]] | None = None

    @property
    def count(self) -> int:
        """Number of devices requested."""
        return len(self.ids)

    def has_served(self, pod: Pod, container: str) -> bool:
        """Reports whether the kubelet's checkpoint lists the container."""
        return self.served is not None and (pod.ref.uid, container) in self.served


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerShares:
    """The shares of a container that requests devices. *position*: index in the annotation. *outstanding*: not handed
    out yet."""

    position: int
    name: str
    kind: ContainerKind
    shares: tuple[Share, ...]
    outstanding: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerMatch:
    """The requesting container, of *pod*.

    *annotations*: the edits that record the allocation; empty if it was recorded before. *finished*: nothing of the pod
    is outstanding afterwards, for any vendor. *inherits*: the kubelet may hand on the devices of init containers.
    """

    pod: Pod
    container: ContainerShares
    annotations: Mapping[str, str]
    finished: bool
    inherits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRejection:
    """The requesting container belongs to *pod*, which cannot be served: its allocation fails."""

    pod: Pod
    reason: str


@dataclass(frozen=True, slots=True)
class NoMatch:
    """The requesting container cannot be determined. *is_transient*: several match, and some may disappear soon."""

    reason: str
    is_transient: bool = False


def card_uuid(device_id: str, cards: Collection[str]) -> str:
    """Returns the UUID, one of *cards*, behind a device id of the kubelet; the id itself if there is none.

    Shape: ``<uuid>-<number>``, ``<uuid>::<number>`` (time slicing), or the UUID itself.
    """
    part, _, number = device_id.rpartition("-")
    shapes = (device_id, device_id.partition("::")[0], part if number.isdecimal() else device_id)
    return next((shape for shape in shapes if shape in cards), device_id)


def check_card_ids(ids: Sequence[str], inventory: InventorySnapshot) -> None:
    """Raises AllocationRefused unless *ids* are different ids of cards of this node."""
    uuids = {card.uuid for card in inventory.cards}
    check_ids(ids, lambda device_id: card_uuid(device_id, uuids) in uuids)


def check_ids(ids: Sequence[str], is_known: Callable[[str], bool]) -> None:
    """Raises AllocationRefused unless *ids* are different device ids of this node, of which *is_known* is true."""
    if not ids:
        raise AllocationRefused("the kubelet requested no devices")
    if len(set(ids)) < len(ids):
        raise AllocationRefused(f"the kubelet requested a device twice: {', '.join(sorted(ids))}")
    if unknown := sorted(device_id for device_id in ids if not is_known(device_id)):
        raise AllocationRefused(
            f"the kubelet requested devices that are not on this node: {', '.join(unknown)}"
        )


def container_shares(pod: Pod, resource: str, vendor: Vendor) -> tuple[ContainerShares, ...]:
    """Returns the containers of *pod* that request *resource*, init containers first, with their shares.

    Reads the annotations of all HAMi versions: those with an entry for each container, and those that leave out
    containers without shares (v2.10) or init containers (up to v2.8), if the number of shares in each entry matches.
    A pod that was resized has the sizes that it is to have. Raises: MalformedInput if the annotations contradict each
    other or the pod's specification.
    """
    wanted = wanted_text(pod.annotations) or ""
    allocated = parse_shares(vendor.annotations.allocated, wanted)
    remaining = parse_shares(
        vendor.annotations.to_allocate, pod.annotations.get(vendor.annotations.to_allocate, "")
    )
    remaining += ((),) * (len(allocated) - len(remaining))
    if any(
        shares and (index >= len(allocated) or not _is_part(shares, allocated[index], pod))
        for index, shares in enumerate(remaining)
    ):
        raise MalformedInput(
            vendor.annotations.to_allocate,
            pod.annotations.get(vendor.annotations.to_allocate),
            f"expected a part of {vendor.annotations.allocated}",
        )
    requested = {
        container.name: count
        for container in pod.containers
        if (count := _requested(container.limits.get(resource)))
    }
    positions = container_positions(
        pod.containers, allocated, lambda container: container.name in requested
    )
    found = {name: len(allocated[position]) for name, position in positions.items()}
    if found != requested or (any(allocated) and not found):
        raise MalformedInput(
            vendor.annotations.allocated,
            wanted,
            "expected as many shares as the containers request: "
            + (", ".join(f"{count} for {name}" for name, count in requested.items()) or "none"),
        )
    return tuple(
        ContainerShares(
            position=position,
            name=container.name,
            kind=container.kind,
            shares=allocated[position],
            outstanding=bool(remaining[position]),
        )
        for container in pod.containers
        if (position := positions.get(container.name)) is not None
    )


def _is_part(remaining: tuple[Share, ...], allocated: tuple[Share, ...], pod: Pod) -> bool:
    """Reports whether a container is still to get what it was allocated. Of a resized pod, the sizes are others."""
    if not pod.annotations.get(RESIZED):
        return remaining == allocated
    return [share.uuid for share in remaining] == [share.uuid for share in allocated]


def find_container(
    pods: Sequence[Pod], holder: tuple[str, str] | None, call: AllocateCall
) -> ContainerMatch | PodRejection | NoMatch:
    """Returns the container that *call* is for.

    *pods*: all pods bound to the node, listed after the call arrived. *holder*: namespace and name of the pod that the
    node lock names. A pod without the lock is served too if no other pod can be meant: HAMi's scheduler up to v2.10
    takes no lock for pods in which only init containers request devices, and a kubelet that has lost its checkpoint
    asks again for pods that were served long ago.
    """
    candidates = [
        (pod, name)
        for pod in pods
        if pod.node_name == call.node and not pod.is_terminated
        for name in _candidates(pod, call)
    ]
    if len(candidates) > 1:
        return NoMatch(_ambiguity([pod for pod, _ in candidates], call), is_transient=True)
    if candidates:
        return _match_candidate(*candidates[0], call)
    locked = next((pod for pod in pods if (pod.ref.namespace, pod.ref.name) == holder), None)
    return (
        NoMatch("no pod on the node is waiting for that many")
        if locked is None
        else _match_holder(locked, call)
    )


def reason_not_allocated(pod: Pod, node: str, vendor: Vendor) -> str | None:
    """Returns why *pod* has no valid allocation on *node*, according to its annotations; ``None`` if it has one."""
    phase = pod.annotations.get(BIND_PHASE)
    rules = (
        (
            f"it was not assigned to node {node} by HAMi's scheduler",
            pod.annotations.get(ASSIGNED_NODE) != node,
        ),
        (f"its bind-phase is {phase}", phase not in _ALLOCATED_PHASES),
        ("it has no allocation", not pod.annotations.get(vendor.annotations.allocated)),
    )
    return next((reason for reason, broken in rules if broken), None)


def has_outstanding(pod: Pod, key: str) -> bool:
    """Reports whether the annotation *key* lists devices that were not handed out yet, or cannot be read."""
    try:
        return any(parse_shares(key, pod.annotations.get(key, "")))
    except MalformedInput:
        return True


def is_done_with_lock(pod: Pod, node: str, keys: Iterable[str]) -> bool:
    """Reports whether *pod* no longer needs the lock of *node* that names it. *keys*: all to-allocate annotations."""
    if pod.is_terminated or pod.node_name not in ("", node):
        return True
    phase = pod.annotations.get(BIND_PHASE)
    return bool(pod.node_name) and (
        phase == BindPhase.FAILED
        or (phase == BindPhase.SUCCESS and not any(has_outstanding(pod, key) for key in keys))
    )


def cards_of(
    match: ContainerMatch, call: AllocateCall, inventory: InventorySnapshot, config: PluginConfig
) -> tuple[tuple[Card, Share], ...]:
    """Returns the shares of the matched container, each with its card.

    Except in operating mode ``mig``, the limiter enforces memory and cores; it reads a limit of 0 as no limit. With
    *aligned* of the configuration, the kubelet was told which cards to prefer, so its ids must lie on the allocated
    cards, as many on each; their order carries no meaning. Containers that inherit devices of init containers are
    exempt.
    A running pod keeps a card that became unhealthy, as it would if the kubelet did not ask again, unless the card
    cannot even be read.
    Raises: AllocationRefused.
    """
    limited = config.operating_mode != MIG
    by_uuid = {card.uuid: card for card in inventory.cards}
    shares, prefix = match.container.shares, f"container {match.container.name} was allocated"
    for share in shares:
        card = by_uuid.get(share.uuid)
        if card is None:
            raise AllocationRefused(f"{prefix} card {share.uuid}, which is not on this node")
        if (
            problem := card.problem
            if match.pod.phase == "Running"
            else inventory.unhealthy.get(card.uuid)
        ):
            raise AllocationRefused(f"{prefix} card {share.uuid}, which is unhealthy: {problem}")
        if limited and share.memory_mib <= 0:
            raise AllocationRefused(
                f"{prefix} {share.memory_mib} MiB of card {share.uuid}, which means no limit"
            )
    allocated = Counter(share.uuid for share in shares)
    chosen = Counter(card_uuid(device_id, by_uuid) for device_id in call.ids)
    if limited and len(allocated) < len(shares):
        raise AllocationRefused(f"{prefix} one card twice: {', '.join(sorted(allocated))}")
    if limited and config.aligned and allocated != chosen and not match.inherits:
        raise AllocationRefused(
            f"{prefix} {_counts(allocated)}, but the kubelet chose {_counts(chosen)}"
        )
    return tuple((by_uuid[share.uuid], share) for share in shares)


def preferred_ids(
    shares: Sequence[Share], available: Sequence[str], must_include: Sequence[str]
) -> tuple[str, ...]:
    """Returns the ids among *available* that lie on the cards of *shares*, those in *must_include* first; empty if
    there are not enough."""
    pool = list(dict.fromkeys((*must_include, *available)))
    taken: list[str] = []
    for share in shares:
        device_id = next(
            (item for item in pool if card_uuid(item, {share.uuid}) == share.uuid), None
        )
        if device_id is None:
            return ()
        pool.remove(device_id)
        taken.append(device_id)
    return tuple(taken) if set(must_include) <= set(taken) else ()


def _requested(limit: str | None) -> int:
    """Returns the number of devices that a limit requests; 0 if it is not a positive integer."""
    return max(strict_integer(limit) or 0, 0) if limit is not None else 0


def _reason_not_waiting(pod: Pod, call: AllocateCall) -> str | None:
    """Returns why *call* cannot be for *pod*. One that was bound without a node lock has nothing to allocate."""
    is_revoked = pod.annotations.get(
        BIND_PHASE
    ) == BindPhase.ALLOCATING and not pod.annotations.get(call.vendor.annotations.to_allocate)
    return reason_not_allocated(pod, call.node, call.vendor) or (
        "its allocation was revoked" if is_revoked else None
    )


def _match_candidate(pod: Pod, name: str, call: AllocateCall) -> ContainerMatch | PodRejection:
    """Matches *call* to container *name* of *pod*, the only candidate."""
    if reason := _reason_not_waiting(pod, call):
        return PodRejection(pod=pod, reason=f"pod {pod.ref} cannot be served: {reason}")
    try:
        containers = container_shares(pod, call.resource, call.vendor)
    except MalformedInput as error:
        return PodRejection(pod=pod, reason=str(error))
    return _match(
        pod, containers, next(container for container in containers if container.name == name), call
    )


def _match_holder(pod: Pod, call: AllocateCall) -> ContainerMatch | NoMatch:
    """Matches *call* to *pod*, which holds the node lock, though no container seems to wait for so many devices.

    Without a checkpoint, that may be a repeated call for a container that was served before.
    """
    prefix = f"pod {pod.ref} holds the node lock, but"
    if pod.node_name != call.node or pod.phase != "Pending":
        return NoMatch(
            f"{prefix} it is {pod.phase or 'in no phase'} on {pod.node_name or 'no node'}"
        )
    if reason := _reason_not_waiting(pod, call):
        return NoMatch(f"{prefix} {reason}")
    try:
        containers = container_shares(pod, call.resource, call.vendor)
    except MalformedInput as error:
        return NoMatch(str(error))
    fitting = [container for container in containers if len(container.shares) == call.count]
    if call.served is None and len(fitting) == 1 and not fitting[0].outstanding:
        return _match(pod, containers, fitting[0], call)
    waiting = [
        container
        for container in containers
        if (
            not call.has_served(pod, container.name)
            if call.served is not None
            else container.outstanding
        )
    ]
    if not waiting:
        return NoMatch(f"{prefix} all its containers have their devices")
    return NoMatch(f"{prefix} its next container, {waiting[0].name}, gets {len(waiting[0].shares)}")


def _candidates(pod: Pod, call: AllocateCall) -> tuple[str, ...]:
    """Returns the names of the containers of *pod*, which is on the node and not terminated, that the
    call may be for."""
    requesting = [
        (container.name, count)
        for container in pod.containers
        if (count := _requested(container.limits.get(call.resource)))
    ]
    if call.served is not None:
        requesting = [(name, count) for name, count in requesting if not call.has_served(pod, name)]
        if pod.phase == "Pending":
            requesting = requesting[:1]  # the kubelet admits containers in order
        return tuple(name for name, count in requesting if count == call.count)
    if pod.phase != "Pending":
        return ()
    if pod.annotations.get(BIND_PHASE) in _ALLOCATED_PHASES:
        try:
            requesting = [
                (container.name, len(container.shares))
                for container in container_shares(pod, call.resource, call.vendor)
                if container.outstanding
            ]
        except MalformedInput:
            pass
    return tuple(name for name, count in requesting[:1] if count == call.count)


def _ambiguity(pods: Sequence[Pod], call: AllocateCall) -> str:
    """Explains that containers of all *pods* match.

    A running container is not ruled out: a kubelet that lost its checkpoint asks again when it restarts the container,
    and the API server may not know yet that it has stopped.
    Source: Kubernetes v1.36, pkg/kubelet/cm/devicemanager/manager.go, devicesToAllocate, GetDeviceRunContainerOptions.
    """
    text = f"{len(pods)} containers match, of {_names(pods)}"
    lost = _names(pod for pod in pods if _is_missing_from_checkpoint(pod, call))
    return (
        f"{text}; the kubelet's checkpoint has lost {lost}: delete these pods, or drain the node"
        if lost
        else text
    )


def _is_missing_from_checkpoint(pod: Pod, call: AllocateCall) -> bool:
    """Reports whether *pod*, a candidate, already received its devices and runs."""
    return (
        call.served is not None
        and pod.phase == "Running"
        and bool(pod.annotations.get(call.vendor.annotations.to_allocate))
        and pod.annotations.get(BIND_PHASE) == BindPhase.SUCCESS
        and not has_outstanding(pod, call.vendor.annotations.to_allocate)
    )


def _names(pods: Iterable[Pod]) -> str:
    return ", ".join(sorted({str(pod.ref) for pod in pods}))


def _match(
    pod: Pod, containers: Sequence[ContainerShares], container: ContainerShares, call: AllocateCall
) -> ContainerMatch:
    rest = [
        other
        for other in containers
        if other.outstanding and other is not container and not call.has_served(pod, other.name)
    ]
    finished = not rest and not any(has_outstanding(pod, key) for key in call.other_keys)
    inherits = container.kind is not ContainerKind.INIT and any(
        other.kind is ContainerKind.INIT for other in containers
    )
    annotations: dict[str, str] = {}
    if container.outstanding:
        kept = {other.position: other.shares for other in rest}
        entries = max([len(pod.containers), *(other.position + 1 for other in containers)])
        annotations[call.vendor.annotations.to_allocate] = render_shares(
            tuple(kept.get(at, ()) for at in range(entries))
        )
    if finished and pod.annotations.get(BIND_PHASE) != BindPhase.SUCCESS:
        annotations[BIND_PHASE] = BindPhase.SUCCESS.value
    return ContainerMatch(
        pod=pod, container=container, annotations=annotations, finished=finished, inherits=inherits
    )


def _counts(cards: Counter[str]) -> str:
    return ", ".join(f"{count} of {uuid}" for uuid, count in sorted(cards.items()))
