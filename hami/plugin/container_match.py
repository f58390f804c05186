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
from hami.errors import MalformedInput, Rejected
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


Outcome = ContainerMatch | PodRejection | NoMatch


def card_uuid(device_id: str, cards: Collection[str]) -> str:
    """Returns the UUID, one of *cards*, behind a device id of the kubelet; the id itself if there is none.

    Shape: ``<uuid>-<number>``, ``<uuid>::<number>`` (time slicing), or the UUID itself.
    """
    part, _, number = device_id.rpartition("-")
    if not number.isdecimal():
        part = device_id
    for shape in (device_id, device_id.partition("::")[0], part):
        if shape in cards:
            return shape
    return device_id


def check_card_ids(ids: Sequence[str], inventory: InventorySnapshot) -> None:
    """Raises Rejected unless *ids* are different ids of cards of this node."""
    uuids = {card.uuid for card in inventory.cards}
    check_ids(ids, lambda device_id: card_uuid(device_id, uuids) in uuids)


def check_ids(ids: Sequence[str], is_known: Callable[[str], bool]) -> None:
    """Raises Rejected unless *ids* are different device ids of this node, of which *is_known* is true."""
    if not ids:
        raise Rejected("the kubelet requested no devices")
    if len(set(ids)) < len(ids):
        raise Rejected(f"the kubelet requested a device twice: {', '.join(sorted(ids))}")
    unknown = sorted(device_id for device_id in ids if not is_known(device_id))
    if unknown:
        raise Rejected(
            f"the kubelet requested devices that are not on this node: {', '.join(unknown)}"
        )


def container_shares(pod: Pod, resource: str, vendor: Vendor) -> tuple[ContainerShares, ...]:
    """Returns the containers of *pod* that request *resource*, init containers first, with their shares.

    Reads the annotations of all HAMi versions: those with an entry for each container, and those that leave out
    containers without shares (v2.10) or init containers (up to v2.8), if the number of shares in each entry matches.
    A pod that was resized has the sizes that it is to have. Raises: MalformedInput if the annotations contradict each
    other or the pod's specification.
    """
    text = wanted_text(pod.annotations) or ""
    allocated = parse_shares(vendor.annotations.allocated, text)
    remaining = _remaining_shares(pod, vendor, allocated)
    requested = _requests(pod, resource)
    positions = container_positions(pod.containers, allocated, list(requested))
    counts = {name: len(allocated[position]) for name, position in positions.items()}
    if counts != requested or (any(allocated) and not counts):
        expected = ", ".join(f"{count} for {name}" for name, count in requested.items())
        raise MalformedInput(
            vendor.annotations.allocated,
            text,
            f"expected as many shares as the containers request: {expected or 'none'}",
        )
    shares = []
    for container in pod.containers:
        position = positions.get(container.name)
        if position is not None:
            outstanding = bool(remaining[position])
            shares.append(
                ContainerShares(
                    position=position,
                    name=container.name,
                    kind=container.kind,
                    shares=allocated[position],
                    outstanding=outstanding,
                )
            )
    return tuple(shares)


def _remaining_shares(
    pod: Pod, vendor: Vendor, allocated: Sequence[tuple[Share, ...]]
) -> Sequence[tuple[Share, ...]]:
    """Returns the shares that were not handed out yet, for each entry of *allocated*. Raises: MalformedInput unless
    they are a part of these."""
    key = vendor.annotations.to_allocate
    text = pod.annotations.get(key, "")
    remaining = parse_shares(key, text)
    remaining += ((),) * (len(allocated) - len(remaining))
    for index, shares in enumerate(remaining):
        if shares and not _is_part(shares, allocated[index : index + 1], pod):
            expected = f"expected a part of {vendor.annotations.allocated}"
            raise MalformedInput(key, text, expected)
    return remaining


def _is_part(
    remaining: tuple[Share, ...], allocated: Sequence[tuple[Share, ...]], pod: Pod
) -> bool:
    """Reports whether *remaining* is the one entry in *allocated*. Of a resized pod, the sizes are others."""
    if not pod.annotations.get(RESIZED):
        return [remaining] == [*allocated]
    uuids = [[share.uuid for share in shares] for shares in allocated]
    return uuids == [[share.uuid for share in remaining]]


def find_container(
    pods: Sequence[Pod], holder: tuple[str, str] | None, call: AllocateCall
) -> Outcome:
    """Returns the container that *call* is for.

    *pods*: all pods bound to the node, listed after the call arrived. *holder*: namespace and name of the pod that the
    node lock names. A pod without the lock is served too if no other pod can be meant: HAMi's scheduler up to v2.10
    takes no lock for pods in which only init containers request devices, and a kubelet that has lost its checkpoint
    asks again for pods that were served long ago.
    """
    candidates = []
    for pod in pods:
        if waits_on(pod, call.node):
            candidates += [(pod, name) for name in _candidates(pod, call)]
    if len(candidates) > 1:
        return NoMatch(_ambiguity([pod for pod, _ in candidates], call), is_transient=True)
    if candidates:
        return _match_candidate(*candidates[0], call)
    locked = find_pod(pods, holder)
    if locked is None:
        return NoMatch("no pod on the node is waiting for that many")
    return _match_holder(locked, call)


def find_pod(pods: Iterable[Pod], name: tuple[str, str] | None) -> Pod | None:
    """Returns the pod with this namespace and name."""
    for pod in pods:
        if (pod.ref.namespace, pod.ref.name) == name:
            return pod
    return None


def reason_not_allocated(pod: Pod, node: str, vendor: Vendor) -> str | None:
    """Returns why *pod* has no valid allocation on *node*, according to its annotations; ``None`` if it has one."""
    phase = pod.annotations.get(BIND_PHASE)
    if pod.annotations.get(ASSIGNED_NODE) != node:
        return f"it was not assigned to node {node} by HAMi's scheduler"
    if phase not in _ALLOCATED_PHASES:
        return f"its bind-phase is {phase}"
    if not pod.annotations.get(vendor.annotations.allocated):
        return "it has no allocation"
    return None


def waits_on(pod: Pod, node: str) -> bool:
    """Reports whether the kubelet of *node* may still start containers of *pod*."""
    return pod.node_name == node and not pod.is_terminated


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
    if not pod.node_name:
        return False
    phase = pod.annotations.get(BIND_PHASE)
    if phase == BindPhase.SUCCESS:
        return not any(has_outstanding(pod, key) for key in keys)
    return phase == BindPhase.FAILED


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
    Raises: Rejected.
    """
    is_limited = config.operating_mode != MIG
    by_uuid = {card.uuid: card for card in inventory.cards}
    shares, prefix = match.container.shares, f"container {match.container.name} was allocated"
    for share in shares:
        card = by_uuid.get(share.uuid)
        if card is None:
            raise Rejected(f"{prefix} card {share.uuid}, which is not on this node")
        problem = inventory.unhealthy.get(card.uuid)
        if match.pod.phase == "Running":
            problem = card.problem
        if problem:
            raise Rejected(f"{prefix} card {share.uuid}, which is unhealthy: {problem}")
        if is_limited:
            _check_limit(share, prefix)
    if is_limited:
        _check_once(shares, prefix)
        if config.aligned:
            _check_aligned(match, call, by_uuid, prefix)
    return tuple((by_uuid[share.uuid], share) for share in shares)


def _check_limit(share: Share, prefix: str) -> None:
    if share.memory_mib <= 0:
        raise Rejected(
            f"{prefix} {share.memory_mib} MiB of card {share.uuid}, which means no limit"
        )


def _check_once(shares: Sequence[Share], prefix: str) -> None:
    cards = {share.uuid for share in shares}
    if len(cards) < len(shares):
        raise Rejected(f"{prefix} one card twice: {', '.join(sorted(cards))}")


def _check_aligned(
    match: ContainerMatch, call: AllocateCall, cards: Collection[str], prefix: str
) -> None:
    allocated = Counter(share.uuid for share in match.container.shares)
    chosen = Counter(card_uuid(device_id, cards) for device_id in call.ids)
    if allocated != chosen and not match.inherits:
        raise Rejected(f"{prefix} {_counts(allocated)}, but the kubelet chose {_counts(chosen)}")


def preferred_ids(
    shares: Sequence[Share], available: Sequence[str], must_include: Sequence[str]
) -> tuple[str, ...]:
    """Returns the ids among *available* that lie on the cards of *shares*, those in *must_include* first; empty if
    there are not enough."""
    pool = list(dict.fromkeys((*must_include, *available)))
    taken: list[str] = []
    for share in shares:
        for device_id in pool:
            if card_uuid(device_id, {share.uuid}) == share.uuid:
                break
        else:
            return ()
        pool.remove(device_id)
        taken.append(device_id)
    return tuple(taken) if set(must_include) <= set(taken) else ()


def _requests(pod: Pod, resource: str) -> dict[str, int]:
    """Returns the number of devices by the containers of *pod* that request *resource*; a limit that is not a positive
    integer requests none."""
    requests: dict[str, int] = {}
    for container in pod.containers:
        count = strict_integer(container.limits.get(resource, "0")) or 0
        if count > 0:
            requests[container.name] = count
    return requests


def _reason_not_waiting(pod: Pod, call: AllocateCall) -> str | None:
    """Returns why *call* cannot be for *pod*. One that was bound without a node lock has nothing to allocate."""
    reason = reason_not_allocated(pod, call.node, call.vendor)
    if reason is not None:
        return reason
    is_allocating = pod.annotations.get(BIND_PHASE) == BindPhase.ALLOCATING
    if is_allocating and not pod.annotations.get(call.vendor.annotations.to_allocate):
        return "its allocation was revoked"
    return None


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
        place = f"{pod.phase or 'in no phase'} on {pod.node_name or 'no node'}"
        return NoMatch(f"{prefix} it is {place}")
    if reason := _reason_not_waiting(pod, call):
        return NoMatch(f"{prefix} {reason}")
    try:
        containers = container_shares(pod, call.resource, call.vendor)
    except MalformedInput as error:
        return NoMatch(str(error))
    served = _only_served(containers, call)
    if served is not None:
        return _match(pod, containers, served, call)
    for container in containers:
        if _waits(pod, container, call):
            size = len(container.shares)
            return NoMatch(f"{prefix} its next container, {container.name}, gets {size}")
    return NoMatch(f"{prefix} all its containers have their devices")


def _only_served(
    containers: Sequence[ContainerShares], call: AllocateCall
) -> ContainerShares | None:
    fitting = [container for container in containers if len(container.shares) == call.count]
    if call.served is not None or len(fitting) != 1 or fitting[0].outstanding:
        return None
    return fitting[0]


def _waits(pod: Pod, container: ContainerShares, call: AllocateCall) -> bool:
    if call.served is None:
        return container.outstanding
    return not call.has_served(pod, container.name)


def _candidates(pod: Pod, call: AllocateCall) -> tuple[str, ...]:
    """Returns the names of those containers that the call may be for. *pod*: on the node and not terminated."""
    requests = list(_requests(pod, call.resource).items())
    if call.served is not None:
        requests = [request for request in requests if not call.has_served(pod, request[0])]
        if pod.phase == "Pending":
            requests = requests[:1]  # the kubelet admits containers in order
    elif pod.phase == "Pending":
        requests = _outstanding(pod, call, requests)[:1]
    else:
        return ()
    return tuple(name for name, count in requests if count == call.count)


def _outstanding(
    pod: Pod, call: AllocateCall, requests: list[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Returns the containers that have not been given their devices, by the annotations of *pod*; *requests* if these
    do not say."""
    if pod.annotations.get(BIND_PHASE) not in _ALLOCATED_PHASES:
        return requests
    try:
        containers = container_shares(pod, call.resource, call.vendor)
    except MalformedInput:
        return requests
    return [(entry.name, len(entry.shares)) for entry in containers if entry.outstanding]


def _ambiguity(pods: Sequence[Pod], call: AllocateCall) -> str:
    """Explains that containers of all *pods* match.

    A running container is not ruled out: a kubelet that lost its checkpoint asks again when it restarts the container,
    and the API server may not know yet that it has stopped.
    Source: Kubernetes v1.36, pkg/kubelet/cm/devicemanager/manager.go, devicesToAllocate, GetDeviceRunContainerOptions.
    """
    text = f"{len(pods)} containers match, of {_names(pods)}"
    lost = _names(pod for pod in pods if _is_missing_from_checkpoint(pod, call))
    if not lost:
        return text
    return f"{text}; the kubelet's checkpoint has lost {lost}: delete these pods, or drain the node"


def _is_missing_from_checkpoint(pod: Pod, call: AllocateCall) -> bool:
    """Reports whether *pod*, a candidate, already received its devices and runs."""
    key = call.vendor.annotations.to_allocate
    if call.served is None or pod.phase != "Running" or not pod.annotations.get(key):
        return False
    return pod.annotations.get(BIND_PHASE) == BindPhase.SUCCESS and not has_outstanding(pod, key)


def _names(pods: Iterable[Pod]) -> str:
    return ", ".join(sorted({str(pod.ref) for pod in pods}))


def _match(
    pod: Pod, containers: Sequence[ContainerShares], container: ContainerShares, call: AllocateCall
) -> ContainerMatch:
    rest = _rest(pod, containers, container, call)
    finished = not rest and not any(has_outstanding(pod, key) for key in call.other_keys)
    kinds = {other.kind for other in containers}
    inherits = container.kind is not ContainerKind.INIT and ContainerKind.INIT in kinds
    annotations: dict[str, str] = {}
    if container.outstanding:
        last = max(other.position for other in containers)
        length = max(len(pod.containers), last + 1)
        annotations[call.vendor.annotations.to_allocate] = _render(rest, length)
    if finished and pod.annotations.get(BIND_PHASE) != BindPhase.SUCCESS:
        annotations[BIND_PHASE] = BindPhase.SUCCESS.value
    return ContainerMatch(
        pod=pod, container=container, annotations=annotations, finished=finished, inherits=inherits
    )


def _rest(
    pod: Pod, containers: Sequence[ContainerShares], container: ContainerShares, call: AllocateCall
) -> dict[int, tuple[Share, ...]]:
    """Returns the shares that the other containers are still to get, by their positions."""
    rest = {}
    for other in containers:
        if other is not container and other.outstanding and not call.has_served(pod, other.name):
            rest[other.position] = other.shares
    return rest


def _render(shares: Mapping[int, tuple[Share, ...]], length: int) -> str:
    return render_shares(tuple(shares.get(position, ()) for position in range(length)))


def _counts(cards: Counter[str]) -> str:
    return ", ".join(f"{count} of {uuid}" for uuid, count in sorted(cards.items()))
