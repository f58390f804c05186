"""Dynamic MIG: instances are made when a container is given them, and destroyed when no pod has them any more.

Where each lies, the scheduler has decided and written on the pod. What exists on the cards and what the pods'
annotations say is all there is to know, so a restart loses nothing. An instance is known by its place, for what it is
called may change. Nothing is destroyed on a card that cannot be read, nor on those of a pod that cannot.
Source: HAMi v2.10, docs/develop/mig-dynamic-deallocate.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from hami.codec.allocation import parse_shares
from hami.codec.keys import MIG_ALLOCATIONS, is_allocation, is_scheduler_owned
from hami.codec.mig import MigAllocation, cards_without_places, parse_mig_allocations, render_mig_allocations
from hami.errors import AllocationRefused, HamiError, MalformedInput
from hami.model import Pod, Share, Partition
from hami.devices.cards import Card, Instance, Instances

__all__ = ["Made", "Mig"]

log = logging.getLogger(__name__)


class Pods(Protocol):
    """What is asked of the cluster."""

    def pods_on(self, node: str) -> list[Pod]: ...


@dataclass(frozen=True, slots=True)
class Made:
    """The instances of a container, in the order of its shares, and what is to be written on the pod about them."""

    instances: tuple[Instance, ...]
    writes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Holdings:
    """What live pods have: *places*, by card, start and size, and all that is on *cards*. *unread*: pods that do not
    say it, and why."""

    places: set[tuple[str, int, int]] = field(default_factory=set)
    cards: set[str] = field(default_factory=set)
    unread: dict[str, str] = field(default_factory=dict)

    def cover(self, instance: Instance) -> bool:
        return instance.gpu in self.cards or (instance.gpu, instance.start, instance.size) in self.places


class Mig:
    """The instances of one node's cards. One thread at a time makes or destroys."""

    def __init__(self, node: str, cluster: Pods, instances: Instances, cards: Callable[[], Sequence[Card]], *,
                 tell: Callable[[Sequence[Instance]], None] = lambda instances: None) -> None:
        """*tell* is told all instances there are, before anybody gets a new one. It may raise HamiError."""
        self._node = node
        self._cluster = cluster
        self._instances = instances
        self._cards = cards
        self._tell = tell
        self._guard = threading.Lock()
        self._there: dict[str, list[Instance]] = {}  # by card, as it was last read
        self._unread: dict[str, str] = {}  # what was said of cards
        self._unread_pods: dict[str, str] = {}

    def start(self) -> None:
        """Adopt the instances that pods have, remove the others, and switch cards to MIG mode that are not in it.

        What cannot be done is logged: a card in use stays as it is, and containers that need it are refused.
        """
        try:
            self.reconcile()
        except HamiError as error:
            log.warning("MIG instances are left as they are", extra={"node": self._node, "error": error})
        for card in self._cards():
            if card.profiles and not card.mig and not card.problem:
                try:
                    self._instances.enable_mig(card.uuid)
                except HamiError as error:
                    log.warning("card is not in MIG mode", extra={"card": card.uuid, "error": error})

    def reconcile(self, pods: Sequence[Pod] | None = None) -> list[Instance]:
        """Destroy the instances that no live pod of the node has and no process uses; those that were destroyed.

        A pod is live until its phase says that all its containers have ended: one that is being deleted still is.
        *pods* have to be listed while nothing was made meanwhile; without them they are asked for.
        Raises: HamiError when they cannot be listed; nothing has been destroyed then.
        """
        with self._guard:
            return self._reconcile(self._cluster.pods_on(self._node) if pods is None else pods, self._all())

    def make(self, pod: Pod, container: int, shares: Sequence[Share]) -> Made:
        """The instances of a container of *pod* (by its place in the annotation), made where they do not exist yet.

        Raises: AllocationRefused when the annotation does not fit the shares, or the place is taken; HamiError of the
        driver. What was made for this call is then gone again.
        """
        everything = parse_mig_allocations(MIG_ALLOCATIONS, pod.annotations.get(MIG_ALLOCATIONS, "[]"))
        wanted = sorted((one for one in everything if one.container == container), key=lambda one: one.device)
        if [(one.device, one.gpu) for one in wanted] != [(place, share.uuid) for place, share in enumerate(shares)]:
            raise AllocationRefused(f"{MIG_ALLOCATIONS} has {len(wanted)} instances for container {container}, which "
                                    f"do not match its {len(shares)} shares")
        with self._guard:
            made = self._make(pod, wanted)
        found = {(one.container, one.device): instance for one, instance in zip(wanted, made, strict=True)}
        text = render_mig_allocations(
            _recorded(one, found.get((one.container, one.device))) for one in everything)
        changed = text != pod.annotations.get(MIG_ALLOCATIONS)
        return Made(tuple(made), {MIG_ALLOCATIONS: text} if changed else {})

    def _make(self, pod: Pod, wanted: Sequence[MigAllocation]) -> list[Instance]:
        cards = list(dict.fromkeys(one.gpu for one in wanted))
        there = self._read(cards)
        if blocked := [one for one in wanted if _at(one, there) is None and _in_the_way(one, there)]:
            self._reconcile(self._cluster.pods_on(self._node), cards,
                            {(pod.ref.uid, one.container, one.device) for one in blocked})
            there = self._read(cards)
        in_mig_mode = {card.uuid for card in self._cards() if card.mig}
        found: list[Instance] = []
        made: list[Instance] = []
        try:
            for one in wanted:
                instance = _at(one, there)
                if instance is None:
                    instance = self._create(one, there, enable=one.gpu not in in_mig_mode)
                    in_mig_mode.add(one.gpu)
                    made.append(instance)
                    there.append(instance)
                elif instance.busy and instance.uuid not in one.partition.instance[:1]:
                    raise AllocationRefused(f"MIG instance {instance.uuid} of card {one.gpu} is in use by processes "
                                            "of which no pod is known")
                found.append(instance)
            self._look([card for card in self._all() if card not in self._there and card not in self._unread])
            self._tell_all()
        except HamiError:
            self._undo(made)
            raise
        return found

    def _create(self, one: MigAllocation, there: Sequence[Instance], *, enable: bool) -> Instance:
        profile, start = one.partition.name, one.partition.start
        if other := _in_the_way(one, there):
            raise AllocationRefused(f"MIG instance {_called(other)} ({other.profile}) is in the way of {profile} at "
                                    f"{start} on card {one.gpu}")
        if enable:
            self._instances.enable_mig(one.gpu)
        instance = self._instances.create(one.gpu, profile, start, one.partition.size)
        self._there[one.gpu].append(instance)
        log.info("MIG instance made", extra={"card": one.gpu, "instance": instance.uuid, "profile": profile})
        return instance

    def _undo(self, made: Sequence[Instance]) -> None:
        """Destroy what was made, the newest first."""
        for instance in reversed(made):
            self._destroy(instance)

    def _reconcile(self, pods: Sequence[Pod], cards: Sequence[str],
                   renewed: Collection[tuple[str, int, int]] = ()) -> list[Instance]:
        """Destroy what nobody has on *cards*. *renewed*: shares, by uid of the pod, container and device, that have
        nothing of what lies at their places now."""
        holdings = _holdings(pods, renewed, cards)
        for pod, error in holdings.unread.items():
            if self._unread_pods.get(pod) != error:
                log.warning("pod does not say which MIG instances it has: none is destroyed on its cards",
                            extra={"pod": pod, "error": error})
        self._unread_pods = holdings.unread
        stray = [one for one in self._look(cards) if not one.busy and not holdings.cover(one)]
        gone = [one for one in stray if self._destroy(one)]
        try:
            self._tell_all()
        except HamiError as error:
            log.warning("MIG instances are not told of", extra={"node": self._node, "error": error})
        return gone

    def _all(self) -> list[str]:
        return [card.uuid for card in self._cards()]

    def _read(self, cards: Iterable[str]) -> list[Instance]:
        """What is on *cards*. Raises: HamiError when one of them does not say it."""
        found: list[Instance] = []
        for card in cards:
            self._there[card] = list(self._instances.existing(card))
            found += self._there[card]
        return found

    def _look(self, cards: Iterable[str]) -> list[Instance]:
        """What is on those of *cards* that say it; what was known of the others is kept."""
        found: list[Instance] = []
        for card in cards:
            try:
                found += self._read([card])
                self._unread.pop(card, None)
            except HamiError as error:
                if self._unread.get(card) != str(error):
                    log.warning("card does not say which MIG instances it has: they are left as they are",
                                extra={"card": card, "error": error})
                self._unread[card] = str(error)
        return found

    def _tell_all(self) -> None:
        self._tell(sorted((one for there in self._there.values() for one in there),
                          key=lambda one: (one.gpu, one.start)))

    def _destroy(self, instance: Instance) -> bool:
        try:
            self._instances.destroy(instance)
        except HamiError as error:
            log.warning("MIG instance cannot be destroyed",
                        extra={"card": instance.gpu, "instance": instance.uuid, "error": error})
            return False
        self._there[instance.gpu].remove(instance)
        log.info("MIG instance destroyed", extra={"card": instance.gpu, "instance": instance.uuid})
        return True


def _holdings(pods: Iterable[Pod], renewed: Collection[tuple[str, int, int]], cards: Iterable[str]) -> _Holdings:
    """What live pods have of *cards*, but for shares that are *renewed*.

    Where a pod does not say which instances it has, nobody knows what is free on its cards, and on any if it does not
    say these either. That is so, too, of those that HAMi v2.5 to v2.9 placed. One that nobody placed has nothing.
    """
    found = _Holdings()
    for pod in pods:
        if pod.is_terminated:
            continue
        for key, text in pod.annotations.items():
            if is_scheduler_owned(key):
                found.cards.update(cards_without_places(text))
        try:
            allocations = parse_mig_allocations(MIG_ALLOCATIONS, pod.annotations.get(MIG_ALLOCATIONS, "[]"))
        except MalformedInput as error:
            if mine := _cards_of(pod, cards):
                found.cards.update(mine)
                found.unread[str(pod.ref)] = str(error)
            continue
        found.places.update((one.gpu, one.partition.start, one.partition.size) for one in allocations
                            if (pod.ref.uid, one.container, one.device) not in renewed)
    return found


def _cards_of(pod: Pod, cards: Iterable[str]) -> set[str]:
    """The cards of which *pod* has shares; all of *cards* if it has some and nobody can read which."""
    try:
        return {share.uuid for key, text in pod.annotations.items() if is_allocation(key) and key != MIG_ALLOCATIONS
                for shares in parse_shares(key, text) for share in shares}
    except MalformedInput:
        return set(cards)


def _at(one: MigAllocation, there: Iterable[Instance]) -> Instance | None:
    """The instance at a share's place that can be handed out for it; its own is, whatever its profile is called."""
    return next((instance for instance in there
                 if (instance.gpu, instance.start, instance.size) == (one.gpu, one.partition.start, one.partition.size)
                 and instance.uuid and (instance.profile == one.partition.name or instance.uuid in one.partition.instance[:1])),
                None)


def _in_the_way(one: MigAllocation, there: Iterable[Instance]) -> Instance | None:
    return next((other for other in there
                 if other.gpu == one.gpu and one.partition.overlaps(Partition(other.start, other.size))), None)


def _called(instance: Instance) -> str:
    return instance.uuid or f"{instance.gpu_instance}, made by half,"


def _recorded(one: MigAllocation, instance: Instance | None) -> MigAllocation:
    if instance is None:
        return one
    identity = instance.uuid, str(instance.gpu_instance), str(instance.compute_instance)
    return replace(one, partition=replace(one.partition, instance=identity))
