"""Cards described by a file, for machines without a driver.

Shape (YAML)::

    cards:
    - uuid: GPU-7f0c…             # required, like memory
      index: 0                    # default: position in the list
      minor: 0                    # default: the index
      model: NVIDIA A100-SXM4-80GB
      memory: 81920               # MiB
      numa: 0
      health: true                # or false, or the reason why it is unhealthy
      links: {GPU-…: 160}         # link scores
      mig:
        enabled: false            # until MIG mode is enabled
        busy: [MIG-…]             # instances with running processes
        instances:                # existing instances that --mig-strategy offers
        - {uuid: MIG-…, profile: 1g.10gb, memory: 9728, gpu_instance: 1, compute_instance: 0}
        profiles:
        - {name: 1g.10gb, memory: 9728, cores: 15, slices: 1, placements: [{start: 0, size: 1}, …]}

The file is read again whenever it changes. Created MIG instances and enabled MIG modes are stored in ``<file>.state``,
so they survive a restart of the plugin as they would on a real card.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from hami.codec.device_config import Count, MigAllowance, Percent, PositiveCount
from hami.codec.documents import decode_yaml
from hami.codec.health import DeviceHealth
from hami.devices.cards import Card, HealthListener, Instance, MigDevice
from hami.devices.mig_profiles import allowed_profiles
from hami.errors import HamiError, MalformedInput
from hami.model import MigProfile, Partition
from hami.quantity import INT32_MAX
from hami.runtime.files import FileVersion, file_version, write_atomically
from hami.runtime.options import read_text

log = logging.getLogger(__name__)

POLL_S = 0.2

# 50 characters: the kubelet accepts device ids of 63, and an id is the UUID with a suffix
_Uuid = Annotated[
    str, Meta(min_length=1, max_length=50, description="a text, 50 characters at most")
]
_Name = Annotated[
    str, Meta(min_length=1, max_length=253, description="a text, 253 characters at most")
]


class _MockEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A mapping in the file."""


class _MockPlacementEntry(_MockEntry):
    start: Count
    size: PositiveCount


class _MockProfileEntry(_MockEntry):
    name: _Name
    memory: PositiveCount
    cores: Percent
    slices: PositiveCount
    placements: list[_MockPlacementEntry]


class _MockInstanceEntry(_MockEntry):
    uuid: _Uuid
    profile: _Name
    memory: Count
    gpu_instance: Count | None = None
    compute_instance: Count = 0


class _MockMigEntry(_MockEntry):
    enabled: bool = False
    busy: Annotated[list[str], Meta(description="a list of texts")] = []
    instances: list[_MockInstanceEntry] = []
    profiles: list[_MockProfileEntry] = []


class MockCard(_MockEntry):
    """One card of the file with all profiles that it supports."""

    uuid: _Uuid
    memory: Count
    index: Count | None = None
    minor: Count | None = None
    model: _Name = "NVIDIA Mock"
    numa: Annotated[
        int, Meta(ge=-1, le=INT32_MAX, description=f"a whole number from -1 to {INT32_MAX}")
    ] = -1
    health: Annotated[bool | str, Meta(description="true, false, or a text with the reason")] = True
    links: Annotated[
        dict[str, Count],
        Meta(description=f"a mapping of UUIDs to whole numbers from 0 to {INT32_MAX}"),
    ] = {}
    mig: _MockMigEntry = msgspec.field(default_factory=_MockMigEntry)

    @property
    def card(self) -> Card:
        """The card as a card source returns it."""
        index = self.index or 0
        profiles = tuple(
            MigProfile(
                name=profile.name,
                memory_mib=profile.memory,
                cores=profile.cores,
                slices=profile.slices,
                placements=tuple(
                    Partition(place.start, place.size) for place in profile.placements
                ),
            )
            for profile in self.mig.profiles
        )
        return Card(
            uuid=self.uuid,
            index=index,
            minor=index if self.minor is None else self.minor,
            model=self.model,
            memory_mib=self.memory,
            numa=None if self.numa < 0 else self.numa,
            mig=self.mig.enabled,
            profiles=profiles,
            links=self.links,
        )

    @property
    def devices(self) -> Sequence[MigDevice]:
        """The existing instances."""
        return [
            MigDevice(
                gpu=self.uuid,
                uuid=instance.uuid,
                profile=instance.profile,
                memory_mib=instance.memory,
                gpu_instance=number if instance.gpu_instance is None else instance.gpu_instance,
                compute_instance=instance.compute_instance,
            )
            for number, instance in enumerate(self.mig.instances, 1)
        ]

    @property
    def unhealthy(self) -> DeviceHealth | None:
        """Why the card is unhealthy; ``None`` if it is healthy."""
        if self.health is True:
            return None
        cause = self.health or "health is false"
        return DeviceHealth(cause=cause, remedy="change the file of mock cards", harms_pods=True)


class _MockFile(_MockEntry):
    cards: list[MockCard]


def parse_mock_cards(text: str, source: str) -> tuple[MockCard, ...]:
    """Returns the cards in *text*; *source* is the file's name, for errors. Raises: MalformedInput."""
    cards = decode_yaml(text, _MockFile, source, unique_keys=True).cards
    for position, card in enumerate(cards):
        card.index = position if card.index is None else card.index
    _check_unique(source, "uuid", [card.uuid for card in cards])
    _check_unique(source, "index", [card.index for card in cards])
    return tuple(cards)


class MockCards:
    """A card source that reads a file. *entries* holds the cards as last read. Threads may share it."""

    def __init__(
        self,
        path: Path,
        allowlist: Sequence[MigAllowance] = (),
        *,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`watch_health` calls *on_change* when the file has other cards than `cards` returned last. Raises: HamiError
        when the file cannot be read."""
        self._path = path
        self._allowlist = tuple(allowlist)
        self._on_change = on_change
        self._returned: tuple[MockCard, ...] | None = None
        self._version: FileVersion | None = None
        self._reported: Mapping[str, DeviceHealth | None] = {}
        self._lock = threading.Lock()  # held by the thread that reads the file and replaces entries
        self.entries: tuple[MockCard, ...] = ()
        self._read()
        self.instances = MockInstances(self, path.with_name(f"{path.name}.state"))

    def cards(self) -> Sequence[Card]:
        """Returns the current cards with the profiles that the device configuration allows, under its names."""
        self._refresh()
        enabled, entries = self.instances.enabled(), self.entries
        self._returned = entries
        cards = [entry.card for entry in entries]
        return [
            replace(card, mig=card.mig or card.uuid in enabled, profiles=self.allowed(card))
            for card in cards
        ]

    def look(
        self, listener: HealthListener, restored: Mapping[str, DeviceHealth] | None = None
    ) -> None:
        """Reports each change of a card's health; at first, the unhealthy cards. The file says all, so nothing is
        *restored*."""
        current = {entry.uuid: entry.unhealthy for entry in self.entries}
        for card, health in current.items():
            if self._reported.get(card) != health:
                listener.report(card, health, None)
        self._reported = current

    def watch_health(
        self,
        listener: HealthListener,
        stopped: threading.Event,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Looks, whenever the file changes."""
        while not stopped.is_set():
            beat()
            self._refresh()
            if self.entries is not self._returned:
                self._on_change()
            self.look(listener)
            stopped.wait(POLL_S)

    def allowed(self, card: Card) -> tuple[MigProfile, ...]:
        """Returns the allowed profiles of *card*."""
        return tuple(allowed_profiles(card.model, card.profiles, self._allowlist).values())

    def _read(self) -> None:
        """Reads the file. Raises: HamiError when it cannot be read, MalformedInput."""
        with suppress(OSError):  # reading it fails, too
            self._version = file_version(
                self._path
            )  # also if reading fails, so that each version fails once only
        self.entries = parse_mock_cards(read_text("--mock-devices", self._path), str(self._path))

    def _refresh(self) -> None:
        """Reads the file if it has changed. A malformed or missing file changes nothing."""
        with self._lock:
            try:
                if file_version(self._path) not in (None, self._version):
                    self._read()
            except (HamiError, OSError) as error:
                log.warning("mock devices not reloaded", extra={"error": error})


class _MockState(msgspec.Struct):
    """The state file: cards with enabled MIG mode, and instances. *serial*: number of instances ever created."""

    enabled: list[str] = []
    instances: list[Instance] = []
    serial: int = 0


_STATE = msgspec.json.Decoder(_MockState)


class MockInstances:
    """MIG instances of mock cards. Threads may share it."""

    def __init__(self, source: MockCards, path: Path) -> None:
        self._source = source
        self._path = path
        self._lock = threading.Lock()  # held from reading the state to replacing it

    def existing(self, gpu: str) -> Sequence[Instance]:
        """Returns the instances of a card, sorted by placement. Raises: HamiError when there is no such card, or the
        state cannot be read."""
        self._entry(gpu)
        busy = {name for entry in self._source.entries for name in entry.mig.busy}
        return sorted(
            (
                replace(instance, busy=instance.uuid in busy)
                for instance in self._load().instances
                if instance.gpu == gpu
            ),
            key=lambda instance: instance.start,
        )

    def devices(self, gpu: str) -> Sequence[MigDevice]:
        """Returns the MIG devices that the file lists for the card. Raises: HamiError when there is no such card."""
        return self._entry(gpu).devices

    def create(self, gpu: str, profile: str, start: int, size: int) -> Instance:
        """Creates an instance. Raises: HamiError when the card is not in MIG mode, or the placement is occupied."""
        card = self._entry(gpu).card
        wanted = Partition(start, size)
        self._check_placement(card, profile, wanted)
        with self._lock:
            state = self._load()
            if not card.mig and gpu not in state.enabled:
                raise HamiError(f"{gpu}: not in MIG mode")
            existing = [instance for instance in state.instances if instance.gpu == gpu]
            taken = [Partition(instance.start, instance.size) for instance in existing]
            if any(map(wanted.overlaps, taken)):
                raise HamiError(f"{gpu}: {profile} at {start}, size {size}: insufficient resources")
            state.serial += 1
            created = Instance(
                gpu=gpu,
                profile=profile,
                start=start,
                size=size,
                uuid=f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{gpu}/{state.serial}')}",
                gpu_instance=_free_number({instance.gpu_instance for instance in existing}),
                compute_instance=0,
            )
            state.instances.append(created)
            self._save(state)
        return created

    def _check_placement(self, card: Card, profile: str, wanted: Partition) -> None:
        profiles = {offer.name: offer for offer in self._source.allowed(card)}
        if profile not in profiles:
            names = ", ".join(profiles) or "none"
            raise HamiError(f"{card.uuid}: no profile {profile}, only {names}")
        if wanted not in profiles[profile].placements:
            place = f"{wanted.start}, size {wanted.size}"
            raise HamiError(f"{card.uuid}: {profile} has no placement at {place}")

    def destroy(self, instance: Instance) -> None:
        """Destroys *instance*. Raises: HamiError when it does not exist or is in use."""
        with self._lock:
            state = self._load()
            remaining = [other for other in state.instances if other.uuid != instance.uuid]
            if len(remaining) == len(state.instances):
                raise HamiError(f"{instance.gpu}: no instance {instance.uuid}")
            if any(instance.uuid in entry.mig.busy for entry in self._source.entries):
                raise HamiError(f"{instance.gpu}: {instance.uuid} is in use by another client")
            state.instances = remaining
            self._save(state)

    def enable_mig(self, gpu: str) -> None:
        """Enables MIG mode. Raises: HamiError when the card does not support it."""
        card = self._entry(gpu).card
        if not card.profiles:
            raise HamiError(f"{gpu}: not supported")
        with self._lock:
            state = self._load()
            if not card.mig and gpu not in state.enabled:
                state.enabled.append(gpu)
                self._save(state)

    def enabled(self) -> frozenset[str]:
        """Returns the cards with MIG mode enabled by `enable_mig`."""
        return frozenset(self._load().enabled)

    def _entry(self, gpu: str) -> MockCard:
        match = next((entry for entry in self._source.entries if entry.uuid == gpu), None)
        if match is None:
            raise HamiError(f"{gpu}: no such card")
        return match

    def _load(self) -> _MockState:
        try:
            return _STATE.decode(self._path.read_bytes())
        except FileNotFoundError:
            return _MockState()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise HamiError(
                f"{self._path}: cannot read the state of mock devices: {error}"
            ) from error

    def _save(self, state: _MockState) -> None:
        try:
            write_atomically(self._path, msgspec.json.encode(state))
        except OSError as error:
            raise HamiError(
                f"{self._path}: cannot write the state of mock devices: {error}"
            ) from error


def _check_unique(source: str, field: str, values: Sequence[object]) -> None:
    for position, value in enumerate(values):
        if value in values[:position]:
            raise MalformedInput(
                f"{source}: cards[{position}].{field}", value, "expected a value of no other card"
            )


def _free_number(used: set[int]) -> int:
    return next(number for number in range(1, INT32_MAX) if number not in used)
