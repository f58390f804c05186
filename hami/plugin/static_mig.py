"""Static MIG: offers the MIG instances that an administrator has created, each as one device under its own UUID.

The kubelet chooses the instances; HAMi's scheduler, annotations and node lock play no part, and the hardware enforces
the limits. The cards themselves are not offered.
Source: k8s-device-plugin 0.17, internal/rm/device_map.go; HAMi v2.10, pkg/device-plugin/nvidiadevice/nvinternal/rm.
"""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence

from hami.devices.cards import Card, Instances, MigDevice
from hami.devices.config import PluginConfig
from hami.devices.inventory import DeviceInventory
from hami.devices.registration import is_filtered
from hami.errors import HamiError, Rejected
from hami.node.grant import Grant
from hami.node.grant_builder import instances_grant
from hami.node.host import Host
from hami.plugin.container_match import check_ids

log = logging.getLogger(__name__)

SINGLE, MIXED = "single", "mixed"
DOMAIN = "nvidia.com"
_PARTIAL = re.compile(r"\d+c\.")  # a compute instance that is only a part of its GPU instance


def instances_by_resource(
    strategy: str, resource: str, cards: Sequence[Card], devices: Sequence[MigDevice]
) -> Mapping[str, Sequence[MigDevice]]:
    """Returns the instances by the resource that offers them.

    ``mixed``: ``nvidia.com/mig-<profile>``, with ``+`` replaced by a dot; parts of a GPU instance have no such name and
    are not offered. ``single``: all under *resource*, provided that they are alike and all cards are in MIG mode.
    Raises: HamiError if they are not.
    """
    grouped: dict[str, list[MigDevice]] = {}
    if strategy == MIXED:
        for device in devices:
            if not _PARTIAL.match(device.profile):
                name = f"{DOMAIN}/mig-{device.profile.replace('+', '.')}"
                grouped.setdefault(name, []).append(device)
    elif any(card.mig for card in cards):
        _check_alike(cards, devices)
        grouped[resource] = list(devices)
    return grouped


def _check_alike(cards: Sequence[Card], devices: Sequence[MigDevice]) -> None:
    """Raises: HamiError unless all *cards* are in MIG mode, with *devices* of one profile."""
    for card in cards:
        if not card.mig and not card.problem:
            raise HamiError(
                f"--mig-strategy {SINGLE}: card {card.uuid} is not in MIG mode, while others are"
            )
    partitioned = {device.gpu for device in devices}
    for card in cards:
        if card.mig and card.uuid not in partitioned:
            raise HamiError(f"--mig-strategy {SINGLE}: card {card.uuid} has no MIG instances")
    profiles = sorted({device.profile for device in devices})
    if len(profiles) > 1:
        raise HamiError(
            f"--mig-strategy {SINGLE}: MIG instances have different profiles, "
            f"{', '.join(profiles)}: use --mig-strategy {MIXED}"
        )


class StaticMig:
    """Offers the instances of one node. Threads may share it."""

    def __init__(
        self,
        config: PluginConfig,
        strategy: str,
        source: Instances,
        host: Host,
        *,
        on_instances: Callable[[Sequence[MigDevice]], None],
        on_resource: Callable[[InstanceResource], None],
    ) -> None:
        """*on_instances*: called with all instances before they are offered. *on_resource*: called with a resource that
        is offered for the first time. Both may raise HamiError."""
        self._config = config
        self._strategy = strategy
        self._source = source
        self._host = host
        self._on_instances = on_instances
        self._on_resource = on_resource
        # guards what follows; held while the driver is read and specifications written
        self._lock = threading.Lock()
        self._devices: dict[str, MigDevice] = {}
        self._resources: dict[str, InstanceResource] = {}
        self._parents: dict[str, Card] = {}
        self._unhealthy: dict[str, str] = {}  # reasons, by card

    def update_cards(self, cards: Sequence[Card]) -> None:
        """Reads the instances of *cards*. Raises: HamiError if they cannot be offered."""
        with self._lock:
            cards = [card for card in cards if not is_filtered(card, self._config)]
            devices, problems = self._read(cards)
            grouped = instances_by_resource(self._strategy, self._config.resource, cards, devices)
            self._on_instances(devices)
            self._devices |= {device.uuid: device for device in devices}
            self._parents |= {card.uuid: card for card in cards}
            added = []
            for name in grouped:
                if name not in self._resources:
                    resource = InstanceResource(name, self._config, self._host, self._devices)
                    self._resources[name] = resource
                    added.append(resource)
            for name, resource in self._resources.items():
                self._offer(resource, grouped.get(name, ()), problems)
        for resource in added:
            self._on_resource(resource)

    def _offer(
        self,
        resource: InstanceResource,
        members: Sequence[MigDevice],
        problems: Mapping[str, str],
    ) -> None:
        reasons: dict[str, str] = {}
        cards: list[Card] = []
        for index, device in enumerate(members):
            reasons[device.uuid] = self._unhealthy.get(device.gpu, "")
            problem = problems.get(device.gpu, "")
            cards.append(_as_card(index, device, self._parents[device.gpu], problem))
        resource.inventory.report_all(reasons)
        resource.inventory.update(cards)

    def report(self, gpu: str, reason: str) -> None:
        """Marks the instances of a card (of all cards if *gpu* is empty) as unhealthy, or as healthy if *reason* is
        empty."""
        with self._lock:
            cards = [gpu] if gpu else list(self._parents)
            self._unhealthy |= dict.fromkeys(cards, reason)
            reasons = {
                device.uuid: reason for device in self._devices.values() if device.gpu in cards
            }
            for resource in self._resources.values():
                resource.inventory.report_all(reasons)

    def report_unknown(self, cause: str, reason: str) -> None:
        """Marks the state of all instances as unknown, or as known if *reason* is empty, as far as *cause* is
        concerned."""
        with self._lock:
            for resource in self._resources.values():
                resource.inventory.report_unknown(cause, reason)

    def close(self) -> None:
        """Closes the inventories of all resources: their waiters return."""
        with self._lock:
            for resource in self._resources.values():
                resource.inventory.close()

    def _read(self, cards: Sequence[Card]) -> tuple[list[MigDevice], dict[str, str]]:
        """Returns the instances by card and number, and the problems by card. A card that cannot be read keeps the
        instances known before."""
        devices: list[MigDevice] = []
        problems: dict[str, str] = {}
        for card in cards:
            if not card.mig:
                continue
            try:
                devices += self._source.devices(card.uuid)
                problems[card.uuid] = card.problem
            except HamiError as error:
                devices += [known for known in self._devices.values() if known.gpu == card.uuid]
                problems[card.uuid] = str(error)
        return devices, problems


class InstanceResource:
    """A resource that the kubelet knows. Hands out the instances in its *inventory*. Threads may share it."""

    def __init__(
        self, resource: str, config: PluginConfig, host: Host, devices: Mapping[str, MigDevice]
    ) -> None:
        """*devices*: those of this resource and of others; it grows."""
        self.resource = resource
        self.inventory = DeviceInventory()
        self._config = config
        self._host = host
        self._devices = devices

    def allocate(self, device_ids: Sequence[str]) -> Grant:
        """Returns the grant of exactly these instances. Raises: Rejected with the reason; HostError."""
        try:
            grant = self._grant(device_ids)
        except HamiError as error:
            log.warning("MIG allocation failed", extra={"node": self._config.node, "error": error})
            raise
        log.info(
            "MIG instances allocated",
            extra={"node": self._config.node, "devices": sorted(device_ids)},
        )
        return grant

    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Returns no preference: the instances of a resource are all alike."""
        return ()

    def _grant(self, device_ids: Sequence[str]) -> Grant:
        snapshot = self.inventory.snapshot()
        cards = {card.uuid: card for card in snapshot.cards}
        check_ids(device_ids, lambda device_id: device_id in cards)
        chosen = [card for name, card in cards.items() if name in device_ids]
        for card in chosen:
            if card.uuid in snapshot.unhealthy:
                reason = snapshot.unhealthy[card.uuid]
                raise Rejected(f"MIG instance {card.uuid} is unhealthy: {reason}")
        devices = [self._devices[card.uuid] for card in chosen]
        return instances_grant(self._config, self._host, chosen, devices, str(uuid.uuid4()))


def _as_card(index: int, device: MigDevice, parent: Card, problem: str) -> Card:
    """Returns an instance in the form in which devices are offered, with its card's device node and NUMA node."""
    return Card(
        uuid=device.uuid,
        index=index,
        minor=parent.minor,
        model=f"{parent.model} MIG {device.profile}",
        memory_mib=device.memory_mib,
        numa=parent.numa,
        mig=True,
        problem=problem,
    )
