"""Dynamic MIG: instances are made when a container is given them, and destroyed when no pod has them any more.

Where each lies, the scheduler has decided and written on the pod. What exists on the cards and what the pods'
annotations say is all there is to know, so a restart loses nothing. Whenever one of the two cannot be read, nothing is
destroyed.
Source: HAMi v2.10, docs/develop/mig-dynamic-deallocate.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hami.codec.keys import MIG_ALLOCATIONS, is_scheduler_owned
from hami.codec.mig import MigAllocation, cards_without_places, parse_mig_allocations, render_mig_allocations
from hami.errors import AllocationRefused, HamiError
from hami.model import Pod, Share, Spot
from hami.plugin.cards import Card, Instance, Instances

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


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    gpu: str
    start: int
    size: int
    profile: str

    def overlaps(self, other: _Place) -> bool:
        return self.gpu == other.gpu and Spot(self.start, self.size).overlaps(Spot(other.start, other.size))


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
        Raises: HamiError when pods or instances cannot be read; nothing has been destroyed then.
        """
        with self._guard:
            return self._reconcile(self._cluster.pods_on(self._node) if pods is None else pods)

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
            made = self._make(wanted)
        found = {(one.container, one.device): instance for one, instance in zip(wanted, made, strict=True)}
        text = render_mig_allocations(
            _recorded(one, found.get((one.container, one.device))) for one in everything)
        changed = text != pod.annotations.get(MIG_ALLOCATIONS)
        return Made(tuple(made), {MIG_ALLOCATIONS: text} if changed else {})

    def _make(self, wanted: Sequence[MigAllocation]) -> list[Instance]:
        there = {_place_of(instance): instance for instance in self._instances.existing()}
        places = [_place(one) for one in wanted]
        if any(place not in there and _in_the_way(place, there) for place in places):
            self._reconcile(self._cluster.pods_on(self._node))
            there = {_place_of(instance): instance for instance in self._instances.existing()}
        in_mig_mode = {card.uuid for card in self._cards() if card.mig}
        found: list[Instance] = []
        made: list[Instance] = []
        try:
            for one, place in zip(wanted, places, strict=True):
                instance = there.get(place)
                if instance is None:
                    instance = self._create(place, there, enable=place.gpu not in in_mig_mode)
                    in_mig_mode.add(place.gpu)
                    made.append(instance)
                    there[place] = instance
                elif instance.busy and instance.uuid not in one.spot.instance[:1]:
                    raise AllocationRefused(f"MIG instance {instance.uuid} of card {place.gpu} is in use by processes "
                                            "of which no pod is known")
                found.append(instance)
            self._tell(list(there.values()))
        except HamiError:
            self._undo(made)
            raise
        return found

    def _create(self, place: _Place, there: Mapping[_Place, Instance], *, enable: bool) -> Instance:
        if other := _in_the_way(place, there):
            raise AllocationRefused(f"MIG instance {there[other].uuid} ({other.profile}) is in the way of "
                                    f"{place.profile} at {place.start} on card {place.gpu}")
        if enable:
            self._instances.enable_mig(place.gpu)
        instance = self._instances.create(place.gpu, place.profile, place.start, place.size)
        log.info("MIG instance made", extra={"card": place.gpu, "instance": instance.uuid, "profile": place.profile})
        return instance

    def _undo(self, made: Sequence[Instance]) -> None:
        """Destroy what was made, the newest first."""
        for instance in reversed(made):
            self._destroy(instance)

    def _reconcile(self, pods: Sequence[Pod]) -> list[Instance]:
        needed, kept, existing = _needed(pods), _kept(pods), self._instances.existing()
        stray = [one for one in existing
                 if _place_of(one) not in needed and one.gpu not in kept and not one.busy]
        gone = [one for one in stray if self._destroy(one)]
        try:
            self._tell([one for one in existing if one not in gone])
        except HamiError as error:
            log.warning("MIG instances are not told of", extra={"node": self._node, "error": error})
        return gone

    def _destroy(self, instance: Instance) -> bool:
        try:
            self._instances.destroy(instance)
        except HamiError as error:
            log.warning("MIG instance cannot be destroyed",
                        extra={"card": instance.gpu, "instance": instance.uuid, "error": error})
            return False
        log.info("MIG instance destroyed", extra={"card": instance.gpu, "instance": instance.uuid})
        return True


def _needed(pods: Iterable[Pod]) -> set[_Place]:
    """Places of instances that live pods have. Raises: MalformedInput, as then nobody knows."""
    return {_place(one) for pod in pods if not pod.is_terminated
            for one in parse_mig_allocations(MIG_ALLOCATIONS, pod.annotations.get(MIG_ALLOCATIONS, "[]"))}


def _kept(pods: Iterable[Pod]) -> set[str]:
    """Cards on which live pods have instances since HAMi v2.5 to v2.9: nobody can say which, so all of them stay."""
    return {card for pod in pods if not pod.is_terminated
            for key, text in pod.annotations.items() if is_scheduler_owned(key)
            for card in cards_without_places(text)}


def _place(one: MigAllocation) -> _Place:
    return _Place(one.gpu, one.spot.start, one.spot.size, one.spot.name)


def _place_of(instance: Instance) -> _Place:
    return _Place(instance.gpu, instance.start, instance.size, instance.profile)


def _in_the_way(place: _Place, there: Iterable[_Place]) -> _Place | None:
    return next((other for other in sorted(there) if place.overlaps(other)), None)


def _recorded(one: MigAllocation, instance: Instance | None) -> MigAllocation:
    if instance is None:
        return one
    identity = instance.uuid, str(instance.gpu_instance), str(instance.compute_instance)
    return replace(one, spot=replace(one.spot, instance=identity))
