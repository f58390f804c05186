"""Which pods of the node hold a card."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

from hami.codec.keys import MIG_ALLOCATIONS
from hami.codec.mig import parse_mig_allocations
from hami.devices.cards import MigDevice
from hami.dra.guard import PreparedRequest
from hami.errors import MalformedInput
from hami.model import Pod, PodRef
from hami.node.checkpoint import CheckpointEntry
from hami.quantity import INT32_MAX
from hami.vendors.shares import read_allocation
from hami.vendors.spec import Vendor

Instance = tuple[int, int]
"""The numbers of a GPU instance and of a compute instance on its card."""


class CardHolders:
    """Finds the pods that hold a card: by what HAMi's scheduler gave them, by their claims, or by MIG instances that
    the kubelet gave them. Threads may share it."""

    def __init__(
        self,
        vendor: Vendor,
        watched_pods: Callable[[], Collection[Pod] | None],
        prepared: Callable[[], Iterable[PreparedRequest]],
        allocations: Callable[[], Iterable[CheckpointEntry] | None],
    ) -> None:
        """*watched_pods*: the pods of the node, ``None`` if not all are known. *prepared*, *allocations*: those of
        claims, and those of the kubelet; they may raise HamiError."""
        self._vendor = vendor
        self._watched_pods = watched_pods
        self._prepared = prepared
        self._allocations = allocations
        self._offered: Mapping[str, MigDevice] = {}  # by UUID; replaced as a whole

    def update_instances(self, instances: Collection[MigDevice]) -> None:
        """Takes the MIG instances that the kubelet allocates."""
        self._offered = {instance.uuid: instance for instance in instances}

    def find(self, gpu: str, instance: Instance | None = None) -> list[PodRef] | None:
        """Returns the pods that hold the card, or the *instance* on it; ``None`` if the pods of the node are not known.

        Raises: HamiError.
        """
        pods = self._watched_pods()
        if pods is None:
            return None
        uids = self._by_claims(gpu, instance) | self._by_kubelet(gpu, instance)
        found = []
        for pod in pods:
            if pod.is_terminated:
                continue
            if pod.ref.uid in uids or self._is_allocated(pod, gpu, instance):
                found.append(pod.ref)
        return found

    def cards_of(self, uid: str) -> set[str] | None:
        """Returns the cards that a pod holds by what HAMi's scheduler gave it, or by a claim; ``None`` if the pods of
        the node are not known.

        Raises: HamiError.
        """
        pods = self._watched_pods()
        if pods is None:
            return None
        cards = set()
        for pod in pods:
            if pod.ref.uid == uid:
                cards |= _allocated_cards(pod, self._vendor)
        for request in self._prepared():
            if request.pod == uid:
                cards |= {share.uuid for share in request.shares}
        return cards

    def are_here(self, uids: Collection[str]) -> bool:
        """Reports whether one of these pods is on the node and has not ended."""
        for pod in self._watched_pods() or ():
            if pod.ref.uid in uids and not pod.is_terminated:
                return True
        return False

    def _is_allocated(self, pod: Pod, gpu: str, instance: Instance | None) -> bool:
        """Reports whether the scheduler gave the card, or the *instance* on it, to *pod*."""
        if instance is None:
            return gpu in _allocated_cards(pod, self._vendor)
        if self._vendor.annotations.allocated not in pod.annotations:
            return False
        try:
            return _has_instance(pod, gpu, instance)
        except MalformedInput:
            return False

    def _by_claims(self, gpu: str, instance: Instance | None) -> set[str]:
        uids = set()
        for request in self._prepared():
            if instance is not None:
                places = [each.partition.instance for each in request.instances if each.gpu == gpu]
                holds = _numbers(instance) in [place[1:] for place in places]
            else:
                holds = gpu in [share.uuid for share in request.shares]
            if holds:
                uids.add(request.pod)
        return uids

    def _by_kubelet(self, gpu: str, instance: Instance | None) -> set[str]:
        uuids = set()
        for device in self._offered.values():
            numbers = device.gpu_instance, device.compute_instance
            if device.gpu == gpu and instance in (None, numbers):
                uuids.add(device.uuid)
        if not uuids:
            return set()
        entries = self._allocations() or ()
        return {entry.pod_uid for entry in entries if entry.ids & uuids}


def _allocated_cards(pod: Pod, vendor: Vendor) -> set[str]:
    """Returns the cards that the scheduler gave to *pod*. An allocation that cannot be read has none."""
    cards: set[str] = set()
    if vendor.annotations.allocated not in pod.annotations:
        return cards
    with suppress(MalformedInput):
        for shares in read_allocation(pod, vendor, INT32_MAX):
            cards.update([share.uuid for share in shares])
    return cards


def _has_instance(pod: Pod, gpu: str, instance: Instance) -> bool:
    """Reports whether *pod* has this MIG instance. Raises: MalformedInput."""
    text = pod.annotations.get(MIG_ALLOCATIONS)
    if not text:
        return False
    for allocation in parse_mig_allocations(MIG_ALLOCATIONS, text):
        if allocation.gpu == gpu and allocation.partition.instance[1:] == _numbers(instance):
            return True
    return False


def _numbers(instance: Instance) -> tuple[str, ...]:
    """Returns an instance as a `Partition` names it."""
    return tuple(map(str, instance))
