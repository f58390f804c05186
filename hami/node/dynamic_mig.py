"""Dynamic MIG: creates instances when a container is allocated, and destroys them when no pod holds them any more.

The placement of each instance is in an annotation of its pod, where the scheduler has written it, or in its claim. The
instances on the cards, annotations and what is prepared for claims are the only state, so a restart loses nothing.
Instances are identified by placement, because their names may change. Nothing is destroyed on a card that cannot be
read, nor on the cards of a pod that cannot be read.
Source: HAMi v2.10, docs/develop/mig-dynamic-deallocate.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace

from hami.codec.allocation import parse_shares
from hami.codec.keys import MIG_ALLOCATIONS, is_allocation, is_scheduler_owned
from hami.codec.mig import (
    MigAllocation,
    cards_without_places,
    parse_mig_allocations,
    render_mig_allocations,
)
from hami.devices.cards import Card, Instance, Instances
from hami.errors import HamiError, MalformedInput, Rejected
from hami.model import Partition, Pod, Share
from hami.runtime.once import OncePerKey

log = logging.getLogger(__name__)

_ShareKey = tuple[str, int, int]  # UID of the pod, container, device
_Place = tuple[str, int, int]  # card, start, size


@dataclass(frozen=True, slots=True)
class _Held:
    """The instances held by live pods: *placements* (card, start, size) and entire *cards*. *unreadable*: the error
    of each pod with a malformed annotation."""

    placements: set[_Place] = field(default_factory=set)
    cards: set[str] = field(default_factory=set)
    unreadable: dict[str, str] = field(default_factory=dict)

    def covers(self, instance: Instance) -> bool:
        return (
            instance.gpu in self.cards
            or (instance.gpu, instance.start, instance.size) in self.placements
        )


class DynamicMig:
    """The MIG instances of one node's cards. Threads may share it; one at a time creates or destroys instances."""

    def __init__(
        self,
        list_pods: Callable[[], Sequence[Pod]],
        instances: Instances,
        cards: Callable[[], Sequence[Card]],
        *,
        publish: Callable[[Sequence[Instance]], None] = lambda instances: None,
        claimed: Callable[[], Iterable[MigAllocation]] = lambda: (),
        exclusive: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """*list_pods* returns the pods of the node. *publish* receives all instances whenever they change, before a new
        one is handed out. *claimed* returns what is prepared for claims. *exclusive* keeps others, also processes, from
        preparing claims. All may raise HamiError."""
        self._list_pods = list_pods
        self._instances = instances
        self._cards = cards
        self._publish = publish
        self._claimed = claimed
        self._exclusive = exclusive
        # guards _known; held during calls of the driver and the API server
        self._lock = threading.Lock()
        self._known: dict[str, list[Instance]] = {}  # by card, as last read
        self._unreadable_cards = OncePerKey()
        self._unreadable_pods = OncePerKey()

    def start(self) -> None:
        """Destroys the instances that no pod holds, and enables MIG mode where it is off.

        Failures are logged. A card that cannot be switched stays as it is, and containers that need it are refused.
        """
        try:
            self.reconcile()
        except HamiError as error:
            log.warning("MIG instances not reconciled", extra={"error": error})
        for card in self._cards():
            if card.profiles and not card.mig and not card.problem:
                try:
                    self._instances.enable_mig(card.uuid)
                except HamiError as error:
                    log.warning("MIG mode not enabled", extra={"card": card.uuid, "error": error})

    def reconcile(self) -> list[Instance]:
        """Destroys the instances that no live pod holds and no process uses. Returns the destroyed ones.

        A pod is live until its phase says that all containers have ended, even while it is being deleted. What is
        prepared for a claim is held, too.
        Raises: HamiError when the pods or claims cannot be listed; then nothing has been destroyed.
        """
        with self._exclusive(), self._lock:
            return self._reconcile(self._all_cards())

    def prepare(
        self, pod: Pod, container: int, shares: Sequence[Share]
    ) -> tuple[list[Instance], Mapping[str, str]]:
        """Returns the instances of a container (by its position in the annotation), in the order of its shares, and
        annotations of the pod that record them. Creates the missing ones.

        Raises: Rejected when the annotation does not match the shares, or a placement is occupied; HamiError
        of the driver. Instances that this call created are destroyed then.
        """
        allocations = parse_mig_allocations(
            MIG_ALLOCATIONS, pod.annotations.get(MIG_ALLOCATIONS, "[]")
        )
        wanted = [item for item in allocations if item.container == container]
        wanted.sort(key=lambda item: item.device)
        devices = [(item.device, item.gpu) for item in wanted]
        if devices != list(enumerate(share.uuid for share in shares)):
            raise Rejected(
                f"{MIG_ALLOCATIONS} has {len(wanted)} instances for container {container}, which "
                f"do not match its {len(shares)} shares"
            )
        with self._lock:
            prepared = self._prepare(wanted, pod.ref.uid)
        recorded = dict(zip(wanted, map(_with_instance, wanted, prepared), strict=True))
        text = render_mig_allocations(
            recorded.get(allocation, allocation) for allocation in allocations
        )
        if text == pod.annotations.get(MIG_ALLOCATIONS):
            return prepared, {}
        return prepared, {MIG_ALLOCATIONS: text}

    def prepare_claimed(self, wanted: Sequence[MigAllocation]) -> list[Instance]:
        """Returns the instances of a claim, in this order. Creates the missing ones.

        The caller keeps out all others by *exclusive* until *claimed* returns them. After a crash in between, nobody
        holds them: they are found again, or destroyed.
        Raises: as `prepare`.
        """
        with self._lock:
            return self._prepare(wanted)

    def _prepare(self, wanted: Sequence[MigAllocation], uid: str = "") -> list[Instance]:
        """*uid*: of the pod whose annotation has the placements; empty if they are those of a claim."""
        cards = list(dict.fromkeys(allocation.gpu for allocation in wanted))
        self._read(cards)
        self._clear(cards, wanted, uid)
        mig_enabled = {card.uuid for card in self._cards() if card.mig}
        prepared: list[Instance] = []
        with ExitStack() as undo:
            for allocation in wanted:
                instance = _usable(self._known, allocation)
                if instance is None:
                    enable_mig = allocation.gpu not in mig_enabled
                    instance = self._create(allocation, enable_mig=enable_mig)
                    undo.callback(self._destroy, instance)
                    mig_enabled.add(allocation.gpu)
                elif instance.busy and instance.uuid not in allocation.partition.instance[:1]:
                    raise Rejected(
                        f"MIG instance {instance.uuid} of card {allocation.gpu} is in use by "
                        "processes of no known pod"
                    )
                prepared.append(instance)
            self._read_all([card for card in self._all_cards() if card not in self._known])
            self._publish_known()
            undo.pop_all()
        return prepared

    def _clear(self, cards: Sequence[str], wanted: Iterable[MigAllocation], uid: str) -> None:
        """Destroys unused instances on *cards* if one of them is in the way. *uid*: as in `_prepare`."""
        ignored: set[_ShareKey] = set()
        places: set[_Place] = set()
        for item in wanted:
            if _usable(self._known, item) is not None or _obstacle(self._known, item) is None:
                continue
            if uid:
                ignored.add((uid, item.container, item.device))
            else:
                places.add(_place(item))
        if ignored or places:
            self._reconcile(cards, ignored, places)
            self._read(cards)

    def _create(self, allocation: MigAllocation, *, enable_mig: bool) -> Instance:
        profile, start = allocation.partition.name, allocation.partition.start
        other = _obstacle(self._known, allocation)
        if other is not None:
            name = other.uuid or f"{other.gpu_instance} (incomplete)"
            raise Rejected(
                f"MIG instance {name} ({other.profile}) is in the way of {profile} at {start} on "
                f"card {allocation.gpu}"
            )
        if enable_mig:
            self._instances.enable_mig(allocation.gpu)
        instance = self._instances.create(allocation.gpu, profile, start, allocation.partition.size)
        self._known[allocation.gpu].append(instance)
        log.info(
            "MIG instance created",
            extra={"card": allocation.gpu, "instance": instance.uuid, "profile": profile},
        )
        return instance

    def _reconcile(
        self,
        cards: Sequence[str],
        ignored: Collection[_ShareKey] = (),
        own: Collection[_Place] = (),
    ) -> list[Instance]:
        """Destroys the instances on *cards* that nobody holds. The shares in *ignored* do not hold the instances that
        exist at their placements, nor do claims hold those at the places in *own*."""
        held = _held(self._list_pods(), cards, ignored)
        held.placements.update({_place(item) for item in self._claimed()} - set(own))
        self._report_unreadable(held)
        destroyed = []
        for instance in self._read_all(cards):
            if not instance.busy and not held.covers(instance) and self._destroy(instance):
                destroyed.append(instance)
        try:
            self._publish_known()
        except HamiError as error:
            log.warning("MIG instances not published", extra={"error": error})
        return destroyed

    def _report_unreadable(self, held: _Held) -> None:
        self._unreadable_pods.keep_only(held.unreadable.keys())
        for pod, error in held.unreadable.items():
            if self._unreadable_pods.is_new(pod, error):
                log.warning(
                    "MIG instances of a pod unreadable: nothing is destroyed on its cards",
                    extra={"pod": pod, "error": error},
                )

    def _all_cards(self) -> list[str]:
        return [card.uuid for card in self._cards()]

    def _read(self, cards: Iterable[str]) -> None:
        """Reads the instances on *cards*. Raises: HamiError when any card cannot be read."""
        for card in cards:
            self._known[card] = list(self._instances.existing(card))

    def _read_all(self, cards: Iterable[str]) -> list[Instance]:
        """Returns the instances on the readable ones of *cards*. The others keep their last known instances."""
        instances: list[Instance] = []
        for card in cards:
            try:
                self._read([card])
                instances += self._known[card]
                self._unreadable_cards.clear(card)
            except HamiError as error:
                self._known.setdefault(card, [])
                if self._unreadable_cards.is_new(card, str(error)):
                    log.warning(
                        "MIG instances of a card unreadable: nothing is destroyed on it",
                        extra={"card": card, "error": error},
                    )
        return instances

    def _publish_known(self) -> None:
        known: list[Instance] = []
        for instances in self._known.values():
            known += instances
        self._publish(sorted(known, key=lambda instance: (instance.gpu, instance.start)))

    def _destroy(self, instance: Instance) -> bool:
        try:
            self._instances.destroy(instance)
        except HamiError as error:
            log.warning(
                "MIG instance not destroyed",
                extra={"card": instance.gpu, "instance": instance.uuid, "error": error},
            )
            return False
        self._known[instance.gpu].remove(instance)
        log.info("MIG instance destroyed", extra={"card": instance.gpu, "instance": instance.uuid})
        return True


def _usable(known: Mapping[str, Iterable[Instance]], allocation: MigAllocation) -> Instance | None:
    """Returns the known instance for a share. The recorded instance is usable under any profile name."""
    target = allocation.partition
    for other in known[allocation.gpu]:
        if other.uuid and (other.start, other.size) == (target.start, target.size):
            if other.profile == target.name or other.uuid in target.instance[:1]:
                return other
    return None


def _obstacle(
    known: Mapping[str, Iterable[Instance]], allocation: MigAllocation
) -> Instance | None:
    """Returns a known instance that overlaps the placement of a share."""
    for other in known[allocation.gpu]:
        if allocation.partition.overlaps(Partition(other.start, other.size)):
            return other
    return None


def _held(pods: Iterable[Pod], cards: Iterable[str], ignored: Collection[_ShareKey]) -> _Held:
    """Returns what live pods hold of *cards*, except for the shares in *ignored*.

    A pod with a malformed annotation holds its cards entirely, and all cards if those are unreadable too. So does a pod
    that HAMi v2.5 to v2.9 scheduled, because its annotation has no placements. An unscheduled pod holds nothing.
    """
    held = _Held()
    for pod in pods:
        if pod.is_terminated or pod.claim:  # what is prepared for its claim counts
            continue
        for key, text in pod.annotations.items():
            if is_scheduler_owned(key):
                held.cards.update(cards_without_places(text))
        try:
            allocations = parse_mig_allocations(
                MIG_ALLOCATIONS, pod.annotations.get(MIG_ALLOCATIONS, "[]")
            )
        except MalformedInput as error:
            if allocated := _allocated_cards(pod, cards):
                held.cards.update(allocated)
                held.unreadable[str(pod.ref)] = str(error)
            continue
        for item in allocations:
            if (pod.ref.uid, item.container, item.device) not in ignored:
                held.placements.add(_place(item))
    return held


def _place(allocation: MigAllocation) -> _Place:
    return allocation.gpu, allocation.partition.start, allocation.partition.size


def _allocated_cards(pod: Pod, cards: Iterable[str]) -> set[str]:
    """Returns the cards of which *pod* has shares; all of *cards* if its allocation cannot be read."""
    used: set[str] = set()
    try:
        for key, text in pod.annotations.items():
            if is_allocation(key) and key != MIG_ALLOCATIONS:
                for shares in parse_shares(key, text):
                    used.update(share.uuid for share in shares)
    except MalformedInput:
        return set(cards)
    return used


def _with_instance(allocation: MigAllocation, instance: Instance) -> MigAllocation:
    identity = instance.uuid, str(instance.gpu_instance), str(instance.compute_instance)
    return replace(allocation, partition=replace(allocation.partition, instance=identity))
