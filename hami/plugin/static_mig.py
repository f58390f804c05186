"""Static MIG: instances that somebody else has cut are handed out as the kubelet chooses them, whoever placed the pod.

Each is one device of the kubelet, under its own UUID. Nothing of HAMi's has a say: no scheduler is asked, no pod, no
lock; the hardware holds the limits. The cards themselves are not offered.
Source: k8s-device-plugin 0.17, internal/rm/device_map.go; HAMi v2.10, pkg/device-plugin/nvidiadevice/nvinternal/rm.
"""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hami.errors import AllocationRefused, HamiError
from hami.devices.cards import Card, MigDevice
from hami.devices.config import PluginConfig
from hami.node.grant import Grant, HostFacts, Recipient, instances_grant
from hami.devices.registration import is_filtered
from hami.devices.inventory import DeviceInventory

__all__ = ["MIXED", "SINGLE", "InstanceResource", "StaticMig", "offers"]

log = logging.getLogger(__name__)

SINGLE, MIXED = "single", "mixed"
DOMAIN = "nvidia.com"
_PART = re.compile(r"\d+c\.")  # a compute instance that is not all of its GPU instance


class Devices(Protocol):
    """Who knows what is on a card."""

    def devices(self, gpu: str) -> Sequence[MigDevice]: ...


class Facts(Protocol):
    """What is asked of :class:`hami.node.host.Host`."""

    def facts(self, *, limited: bool, instances: Sequence[tuple[int, int, int]] = ()) -> HostFacts: ...


@dataclass(frozen=True, slots=True)
class InstanceResource:
    """A resource of the kubelet's, and what there is of it: the instances in *inventory*, handed out by *allocator*."""

    resource: str
    inventory: DeviceInventory
    allocator: InstanceAllocator


def offers(strategy: str, resource: str, cards: Sequence[Card],
           devices: Sequence[MigDevice]) -> Mapping[str, tuple[MigDevice, ...]]:
    """The instances by the resource under which they are offered.

    ``mixed``: ``nvidia.com/mig-<profile>``, ``+`` in it being a dot; parts of an instance have no such name and are not
    offered. ``single``: all under *resource*, which only means one thing if they are alike, and no card is whole.
    Raises: HamiError when they are not.
    """
    if strategy == MIXED:
        names = {one.profile: f"{DOMAIN}/mig-{one.profile.replace('+', '.')}" for one in devices
                 if not _PART.match(one.profile)}
        return {name: tuple(one for one in devices if one.profile == profile) for profile, name in names.items()}
    cut = {one.gpu for one in devices}
    if not any(card.mig for card in cards):
        return {}
    for says, wrong in (
        ("is not in MIG mode, while others are", [card.uuid for card in cards if not (card.mig or card.problem)]),
        ("has no MIG instances", [card.uuid for card in cards if card.mig and card.uuid not in cut]),
    ):
        if wrong:
            raise HamiError(f"--mig-strategy {SINGLE}: card {wrong[0]} {says}")
    if len(profiles := {one.profile for one in devices}) > 1:
        raise HamiError(f"--mig-strategy {SINGLE}: there are MIG instances of several sizes, "
                        f"{', '.join(sorted(profiles))}: --mig-strategy {MIXED} tells them apart")
    return {resource: tuple(devices)}


class StaticMig:
    """The instances of one node. Threads may share it."""

    def __init__(self, config: PluginConfig, strategy: str, source: Devices, host: Facts, *,
                 serve: Callable[[InstanceResource], None], tell: Callable[[Sequence[MigDevice]], None]) -> None:
        """*serve* is called once for each resource, as soon as there is anything of it. *tell* is told all instances
        before they are offered; it may raise HamiError."""
        self._config = config
        self._strategy = strategy
        self._source = source
        self._host = host
        self._serve = serve
        self._tell = tell
        self._guard = threading.Lock()
        self._devices: dict[str, MigDevice] = {}
        self._offers: dict[str, InstanceResource] = {}
        self._parents: dict[str, Card] = {}
        self._unwell: dict[str, str] = {}  # by card

    def cards_are(self, cards: Sequence[Card]) -> None:
        """There are these cards: look at what is on them. Raises: HamiError when that cannot be offered."""
        with self._guard:
            cards = [card for card in cards if not is_filtered(card, self._config)]
            found, problems = self._look(cards)
            grouped = offers(self._strategy, self._config.resource, cards, found)
            self._tell(found)
            self._devices |= {one.uuid: one for one in found}
            self._parents |= {card.uuid: card for card in cards}
            fresh = [self._offer(resource) for resource in grouped if resource not in self._offers]
            for resource, offer in self._offers.items():
                members = grouped.get(resource, ())
                for one in members:
                    offer.inventory.report(one.uuid, self._unwell.get(one.gpu, ""))
                offer.inventory.update([_as_card(place, one, self._parents[one.gpu], problems.get(one.gpu, ""))
                                        for place, one in enumerate(members)])
        for offer in fresh:
            self._serve(offer)

    def report(self, gpu: str, reason: str) -> None:
        """A card (all of them if *gpu* is empty) has turned bad, or is well again if *reason* is empty; and so is all
        that is on it."""
        with self._guard:
            ill = [gpu] if gpu else list(self._parents)
            self._unwell |= dict.fromkeys(ill, reason)
            concerned = [one.uuid for one in self._devices.values() if one.gpu in ill]
            for offer in self._offers.values():
                for one in concerned:
                    offer.inventory.report(one, reason)

    def close(self) -> None:
        """No more changes: whoever waits goes on."""
        with self._guard:
            for offer in self._offers.values():
                offer.inventory.close()

    def _look(self, cards: Sequence[Card]) -> tuple[list[MigDevice], dict[str, str]]:
        """The instances by card and number, those of a card that does not answer as they were; and what is wrong with
        which card."""
        found: list[MigDevice] = []
        problems: dict[str, str] = {}
        for card in cards:
            if card.mig:
                try:
                    found += self._source.devices(card.uuid)
                    problems[card.uuid] = card.problem
                except HamiError as error:
                    found += [one for one in self._devices.values() if one.gpu == card.uuid]
                    problems[card.uuid] = str(error)
        return found, problems

    def _offer(self, resource: str) -> InstanceResource:
        inventory = DeviceInventory()
        made = self._offers[resource] = InstanceResource(
            resource, inventory, InstanceAllocator(self._config, self._host, inventory, self._devices))
        return made


class InstanceAllocator:
    """Hands out the instances of one resource. Threads may share it."""

    def __init__(self, config: PluginConfig, host: Facts, inventory: DeviceInventory,
                 devices: Mapping[str, MigDevice]) -> None:
        """*devices*: those of *inventory*, and others; it grows."""
        self._config = config
        self._host = host
        self._inventory = inventory
        self._devices = devices

    def allocate(self, device_ids: Sequence[str]) -> Grant:
        """Just these. Raises: AllocationRefused with the reason; HostError."""
        try:
            return self._allocate(device_ids)
        except HamiError as error:
            log.warning("MIG instances not handed out", extra={"node": self._config.node, "error": error})
            raise

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        """None: they are all alike."""
        return ()

    def _allocate(self, device_ids: Sequence[str]) -> Grant:
        roll = self._inventory.snapshot()
        chosen = [card for card in roll.cards if card.uuid in device_ids]
        if unknown := sorted(set(device_ids) - {card.uuid for card in chosen}):
            raise AllocationRefused(f"the kubelet asks for MIG instances that are not on this node: "
                                    f"{', '.join(unknown)}")
        if ill := next((card.uuid for card in chosen if card.uuid in roll.unhealthy), None):
            raise AllocationRefused(f"MIG instance {ill} cannot be used: {roll.unhealthy[ill]}")
        if not chosen or len(chosen) < len(device_ids):
            raise AllocationRefused(f"the kubelet asks for {len(device_ids)} MIG instances: "
                                    f"{', '.join(sorted(device_ids)) or 'none at all'}")
        devices = [self._devices[card.uuid] for card in chosen]
        facts = self._host.facts(limited=False, instances=[
            (card.minor, one.gpu_instance, one.compute_instance) for card, one in zip(chosen, devices, strict=True)])
        recipient = Recipient(pod_uid="", container="", token=str(uuid.uuid4()))
        log.info("MIG instances handed out",
                 extra={"node": self._config.node, "devices": [one.uuid for one in devices]})
        return instances_grant(self._config, [one.uuid for one in devices], chosen, facts, recipient)


def _as_card(place: int, one: MigDevice, parent: Card, problem: str) -> Card:
    """An instance as what the kubelet is offered: a device with its card's node and place."""
    return Card(uuid=one.uuid, index=place, minor=parent.minor, model=f"{parent.model} MIG {one.profile}",
                memory_mib=one.memory_mib, numa=parent.numa, mig=True, problem=problem)
