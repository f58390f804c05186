"""Cards that stand in a file: what the driver would say, for machines that have none.

Shape (YAML)::

    cards:
    - uuid: GPU-7f0c…             # needed, as is memory
      index: 0                    # without: its place in the list; minor: without: its index
      minor: 0
      model: NVIDIA A100-SXM4-80GB
      memory: 81920               # MiB
      numa: 0
      health: true                # or false, or why it is not well
      links: {GPU-…: 160}         # scores of pairs
      mig:
        enabled: false            # until it is switched on
        busy: [MIG-…]             # instances in which something runs
        instances:                # cut by somebody else: --mig-strategy hands them out
        - {uuid: MIG-…, profile: 1g.10gb, memory: 9728, gpu_instance: 1, compute_instance: 0}
        profiles:
        - {name: 1g.10gb, memory: 9728, cores: 15, slices: 1, placements: [{start: 0, size: 1}, …]}

The file is looked at again whenever it has changed. MIG instances, and MIG modes that were switched on, are kept in
``<file>.state``, so that a plugin that starts again finds them as it would find them on a card.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec
import yaml

from hami.codec.device_config import MigAllowance
from hami.errors import HamiError, MalformedInput
from hami.model import MigProfile, Partition
from hami.devices.cards import Card, Instance, MigDevice
from hami.devices.mig_profiles import allowed_profiles
from hami.quantity import INT32_MAX
from hami.runtime.options import read_text

__all__ = ["MockCard", "MockCards", "parse_mock_cards"]

log = logging.getLogger(__name__)

T = TypeVar("T")

POLL_S = 0.2
_RESOLVER = yaml.resolver.Resolver()
_MERGE = "tag:yaml.org,2002:merge"  # of the key <<
_ID_LIMIT = 50  # characters of a uuid: the kubelet takes 63, with the number of the part


@dataclass(frozen=True, slots=True, kw_only=True)
class MockCard:
    """One entry of the file: the card with all profiles it can be cut into. *unwell*: why, empty if it is well.
    *busy*: instances in which something runs. *devices*: what somebody else has cut."""

    card: Card
    unwell: str = ""
    busy: frozenset[str] = frozenset()
    devices: tuple[MigDevice, ...] = ()


def parse_mock_cards(text: str, source: str) -> tuple[MockCard, ...]:
    """The cards in *text*; *source* is the file's name, for errors.

    Raises: MalformedInput, naming file, line and field.
    """
    node = _compose(text, source)
    if node is None:
        raise MalformedInput(f"{source}: line 1", "", "expected cards, a list")
    _check(source, "", node, set())
    top = _MockEntry(source, "", node)
    cards: list[MockCard] = []
    for place, entry in enumerate(top.entries("cards", needed=True)):
        card = _card(entry, place)
        for what, mine, others in (("uuid", card.card.uuid, [one.card.uuid for one in cards]),
                                   ("index", card.card.index, [one.card.index for one in cards])):
            if mine in others:
                raise entry.wrong(what, mine, "another one than that of an earlier card")
        cards.append(card)
    top.check_all_known()
    return tuple(cards)


class MockCards:
    """A source of cards that reads them from a file. Threads may share it."""

    def __init__(self, path: Path, allowlist: Sequence[MigAllowance] = (), *,
                 pause: Callable[[float], None] = time.sleep, changed: Callable[[], None] = lambda: None) -> None:
        """*pause* waits between two looks at the file. *changed* is called, by who watches health, when there are other
        cards than `cards` has told of. Raises: HamiError when the file cannot be read."""
        self._path = path
        self._allowlist = tuple(allowlist)
        self._pause = pause
        self._changed = changed
        self._told: tuple[MockCard, ...] | None = None
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._cards: tuple[MockCard, ...] = ()
        self.instances = MockInstances(self, path.with_name(f"{path.name}.state"))
        self.read()

    def cards(self) -> Sequence[Card]:
        """The cards now, with the profiles that the device configuration allows, by its names."""
        self._refresh()
        enabled, known = self.instances.enabled(), self.known()
        self._told = known
        return [replace(one.card, mig=one.card.mig or one.card.uuid in enabled,
                        profiles=tuple(self.allowed(one.card).values())) for one in known]

    def watch_health(self, report: Callable[[str, str], None], stopped: Callable[[], bool]) -> None:
        """Report each card whose health in the file is another than before; at first those that are not well."""
        said: dict[str, str] = {}
        while not stopped():
            self._refresh()
            known = self.known()
            if known is not self._told:
                self._changed()
            now = {one.card.uuid: one.unwell for one in known}
            for card, reason in now.items():
                if said.get(card, "") != reason:
                    report(card, reason)
            said = now
            self._pause(POLL_S)

    def known(self) -> tuple[MockCard, ...]:
        """The entries of the file as it was last read."""
        with self._lock:
            return self._cards

    def allowed(self, card: Card) -> dict[str, MigProfile]:
        """The profiles that may be cut on *card*, by the file's names."""
        return dict(allowed_profiles(card.model, card.profiles, self._allowlist))

    def read(self) -> None:
        """Read the file. Raises: HamiError when it cannot be read, MalformedInput."""
        stamp = self._stamp_now()
        with self._lock:
            self._stamp = stamp  # also when it cannot be read, so that this is said once
        cards = parse_mock_cards(read_text("--mock-devices", self._path), str(self._path))
        with self._lock:
            self._cards = cards

    def _refresh(self) -> None:
        """Read the file if it has changed; one that is broken, or away, changes nothing."""
        try:
            if self._stamp_now() not in (None, self._stamp):
                self.read()
        except HamiError as error:
            log.warning("the mock devices stay as they were", extra={"error": error})

    def _stamp_now(self) -> tuple[int, int, int] | None:
        """Tells this version of the file from others; ``None`` between two of them. Raises: HamiError."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise HamiError(f"--mock-devices {self._path}: {error.strerror}") from error
        return found.st_ino, found.st_mtime_ns, found.st_size


class _MockState(msgspec.Struct):
    """The file beside: cards whose MIG mode was switched on, and instances. *serial*: how many were ever made."""

    enabled: list[str] = []
    instances: list[Instance] = []
    serial: int = 0


class MockInstances:
    """MIG instances of cards that stand in a file. Threads may share it."""

    def __init__(self, source: MockCards, path: Path) -> None:
        self._source = source
        self._path = path
        self._lock = threading.Lock()

    def existing(self, gpu: str) -> Sequence[Instance]:
        """The instances on a card, by place. Raises: HamiError when there is no such card, or the state cannot be
        read."""
        self._entry(gpu)
        busy = {name for one in self._source.known() for name in one.busy}
        with self._lock:
            found = self._load().instances
        return sorted((replace(one, busy=one.uuid in busy) for one in found if one.gpu == gpu),
                      key=lambda one: one.start)

    def devices(self, gpu: str) -> Sequence[MigDevice]:
        """What the file says was cut on the card. Raises: HamiError when there is no such card."""
        return self._entry(gpu).devices

    def create(self, gpu: str, profile: str, start: int, size: int) -> Instance:
        """A new instance. Raises: HamiError when the card is not in MIG mode, or has no room there."""
        card = self._card(gpu)
        sizes = {one.name: one for one in self._source.allowed(card).values()}
        if profile not in sizes:
            raise HamiError(f"{gpu}: no profile {profile}, only {', '.join(sizes) or 'none'}")
        wanted = Partition(start, size)
        if not any((place.start, place.size) == (start, size) for place in sizes[profile].placements):
            raise HamiError(f"{gpu}: {profile} cannot lie at {start}, size {size}")
        with self._lock:
            state = self._load()
            if not card.mig and gpu not in state.enabled:
                raise HamiError(f"{gpu}: not in MIG mode")
            ours = [one for one in state.instances if one.gpu == gpu]
            if any(wanted.overlaps(Partition(one.start, one.size)) for one in ours):
                raise HamiError(f"{gpu}: {profile} at {start}, size {size}: insufficient resources")
            taken = {one.gpu_instance for one in ours}
            state.serial += 1
            made = Instance(
                gpu=gpu, profile=profile, start=start, size=size,
                uuid=f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{gpu}/{state.serial}')}",
                gpu_instance=next(number for number in range(1, INT32_MAX) if number not in taken), compute_instance=0)
            state.instances.append(made)
            self._save(state)
        return made

    def destroy(self, instance: Instance) -> None:
        """The instance is no more. Raises: HamiError when there is none, or something runs in it."""
        with self._lock:
            state = self._load()
            left = [one for one in state.instances if one.uuid != instance.uuid]
            if len(left) == len(state.instances):
                raise HamiError(f"{instance.gpu}: no instance {instance.uuid}")
            if any(instance.uuid in one.busy for one in self._source.known()):
                raise HamiError(f"{instance.gpu}: {instance.uuid} is in use by another client")
            state.instances = left
            self._save(state)

    def enable_mig(self, gpu: str) -> None:
        """Switch MIG mode on. Raises: HamiError for a card that has none."""
        card = self._card(gpu)
        if not card.profiles:
            raise HamiError(f"{gpu}: not supported")
        with self._lock:
            state = self._load()
            if not card.mig and gpu not in state.enabled:
                state.enabled.append(gpu)
                self._save(state)

    def enabled(self) -> frozenset[str]:
        """The cards whose MIG mode was switched on."""
        with self._lock:
            return frozenset(self._load().enabled)

    def _card(self, gpu: str) -> Card:
        return self._entry(gpu).card

    def _entry(self, gpu: str) -> MockCard:
        found = next((one for one in self._source.known() if one.card.uuid == gpu), None)
        if found is None:
            raise HamiError(f"{gpu}: no such card")
        return found

    def _load(self) -> _MockState:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_MockState)
        except FileNotFoundError:
            return _MockState()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise HamiError(f"{self._path}: the state of the mock devices cannot be read: {error}") from error

    def _save(self, state: _MockState) -> None:
        temporary = self._path.with_name(f"{self._path.name}.new")
        try:
            temporary.write_bytes(msgspec.json.encode(state))
            temporary.replace(self._path)
        except OSError as error:
            raise HamiError(f"{self._path}: the state of the mock devices cannot be kept: {error}") from error


class _MockEntry:
    """One mapping of the file, which knows on which line its fields stand."""

    def __init__(self, source: str, path: str, node: yaml.Node) -> None:
        self._source = source
        self._path = path
        self._line = node.start_mark.line + 1
        if not isinstance(node, yaml.MappingNode):
            raise MalformedInput(_place(source, path, node), _shown(node), "expected a mapping")
        constructor = yaml.constructor.SafeConstructor()
        constructor.flatten_mapping(node)  # <<: what is common to several cards
        self._nodes = {_shown(key): value for key, value in node.value}
        self._known: set[str] = set()

    def wrong(self, key: str, value: object, right: str) -> MalformedInput:
        """The error for what stands at *key*."""
        line = self._nodes[key].start_mark.line + 1 if key in self._nodes else self._line
        path = f"{self._path}.{key}" if self._path else key
        return MalformedInput(f"{self._source}: line {line}: {path}", value, f"expected {right}")

    def text(self, key: str, default: str | None = None, most: int = 253) -> str:
        right = f"a text, {most} characters at most"
        return self._get(key, default, right, lambda value: (
            value if isinstance(value, str) and 0 < len(value) <= most else None))

    def integer(self, key: str, default: int | None = None, *, least: int = 0, most: int = INT32_MAX) -> int:
        right = f"a whole number from {least} to {most}"
        return self._get(key, default, right, lambda value: (
            value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else None))

    def flag(self, key: str) -> bool:
        return self._get(key, False, "true or false", lambda value: value if isinstance(value, bool) else None)

    def health(self) -> str:
        """Why the card is not well; empty if it is."""
        def reason(value: object) -> str | None:
            if isinstance(value, bool):
                return "" if value else "health is false"
            return value if isinstance(value, str) else None
        return self._get("health", "", "true, false, or a text that says what is wrong", reason)

    def words(self, key: str) -> tuple[str, ...]:
        none: tuple[str, ...] = ()
        return self._get(key, none, "a list of texts", lambda value: (
            tuple(value) if isinstance(value, list) and all(isinstance(one, str) for one in value) else None))

    def scores(self, key: str) -> dict[str, int]:
        none: dict[str, int] = {}
        return self._get(key, none, f"a mapping of uuids to whole numbers from 0 to {INT32_MAX}", lambda value: (
            value if isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, int) and 0 <= v <= INT32_MAX
                                                     for k, v in value.items()) else None))

    def entry(self, key: str) -> _MockEntry | None:
        """The mapping at *key*, if there is one."""
        self._known.add(key)
        node = self._nodes.get(key)
        return None if node is None else _MockEntry(self._source, f"{self._path}.{key}", node)

    def entries(self, key: str, *, needed: bool = False) -> list[_MockEntry]:
        """The mappings in the list at *key*."""
        self._known.add(key)
        node = self._nodes.get(key)
        if node is None and not needed:
            return []
        if not isinstance(node, yaml.SequenceNode):
            raise self.wrong(key, "" if node is None else _shown(node), "a list of mappings")
        path = f"{self._path}.{key}" if self._path else key
        return [_MockEntry(self._source, f"{path}[{place}]", value) for place, value in enumerate(node.value)]

    def check_all_known(self) -> None:
        """Refuse a field that nobody asked for: it would be a typing error, and go unseen."""
        for key, node in self._nodes.items():
            if key not in self._known:
                raise self.wrong(key, _shown(node), f"one of {', '.join(sorted(self._known))}")

    def _get(self, key: str, default: T | None, right: str, convert: Callable[[object], T | None]) -> T:
        self._known.add(key)
        if key not in self._nodes:
            if default is None:
                raise self.wrong(key, "", f"{right}; it is missing")
            return default
        node = self._nodes[key]
        try:
            value = yaml.constructor.SafeConstructor().construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
            raise self.wrong(key, _shown(node), right) from error
        if (converted := convert(value)) is None:
            raise self.wrong(key, _shown(node), right)
        return converted


def _card(entry: _MockEntry, place: int) -> MockCard:
    index = entry.integer("index", place)
    numa = entry.integer("numa", -1, least=-1)
    gpu, mig = entry.text("uuid", most=_ID_LIMIT), entry.entry("mig")
    enabled, busy = False, frozenset[str]()
    devices: tuple[MigDevice, ...] = ()
    profiles: tuple[MigProfile, ...] = ()
    if mig is not None:
        profiles = tuple(_profile(one) for one in mig.entries("profiles"))
        enabled, busy = mig.flag("enabled"), frozenset(mig.words("busy"))
        devices = tuple(_device(one, gpu, place) for place, one in enumerate(mig.entries("instances")))
        mig.check_all_known()
    card = Card(
        uuid=gpu, index=index, minor=entry.integer("minor", index),
        model=entry.text("model", "NVIDIA Mock"), memory_mib=entry.integer("memory"),
        numa=None if numa < 0 else numa, mig=enabled, profiles=profiles, links=entry.scores("links"))
    unwell = entry.health()
    entry.check_all_known()
    return MockCard(card=card, unwell=unwell, busy=busy, devices=devices)


def _device(entry: _MockEntry, gpu: str, place: int) -> MigDevice:
    device = MigDevice(
        gpu=gpu, uuid=entry.text("uuid", most=_ID_LIMIT), profile=entry.text("profile"),
        memory_mib=entry.integer("memory"), gpu_instance=entry.integer("gpu_instance", place + 1),
        compute_instance=entry.integer("compute_instance", 0))
    entry.check_all_known()
    return device


def _profile(entry: _MockEntry) -> MigProfile:
    places = []
    for place in entry.entries("placements", needed=True):
        places.append(Partition(place.integer("start"), place.integer("size", least=1)))
        place.check_all_known()
    profile = MigProfile(
        name=entry.text("name"), memory_mib=entry.integer("memory", least=1), cores=entry.integer("cores", most=100),
        slices=entry.integer("slices", least=1), placements=tuple(places))
    entry.check_all_known()
    return profile


def _compose(text: str, source: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{source}: line {mark.line + 1}" if mark is not None else source
        raise MalformedInput(line, "", f"not YAML: {getattr(error, 'problem', None) or error}") from error
    except RecursionError as error:
        raise MalformedInput(source, "", "not YAML that can be read: lists or mappings lie too deep") from error
    except (ValueError, OverflowError) as error:  # characters beyond Unicode by their number
        raise MalformedInput(source, "", f"not YAML: {error}") from error


def _check(source: str, path: str, node: yaml.Node, seen: set[int]) -> None:
    """Refuse a key that stands twice in a mapping, of which one would go unseen, a tag that says of a value what it
    does not look like, and what cannot be taken in at ``<<``. To be called before anything is.

    *seen*: nodes, by id, that were looked at; each is where its anchor stands.
    """
    if id(node) in seen:
        return
    seen.add(id(node))
    plain = _RESOLVER.resolve(type(node), node.value, (True, False))  # type: ignore[no-untyped-call]
    if node.tag != plain and (node.tag != _RESOLVER.DEFAULT_SCALAR_TAG or not isinstance(node, yaml.ScalarNode)):
        raise MalformedInput(_place(source, path, node), node.tag, "expected no tag")
    if isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            _check(source, f"{path}[{place}]", value, seen)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            inner = f"{path}.{_shown(key)}" if path else _shown(key)
            if isinstance(key, yaml.ScalarNode) and key.value in lines:
                raise MalformedInput(_place(source, inner, key), _shown(value),
                                     f"expected once, it stands in line {lines[key.value]} too")
            lines[_shown(key)] = key.start_mark.line + 1
            taken = value.value if isinstance(value, yaml.SequenceNode) else [value]
            if key.tag == _MERGE and not all(isinstance(one, yaml.MappingNode) for one in taken):
                raise MalformedInput(_place(source, inner, value), _shown(value),
                                     "expected a mapping or a list of mappings")
            _check(source, inner, key, seen)
            _check(source, inner, value, seen)


def _place(source: str, path: str, node: yaml.Node) -> str:
    return f"{source}: line {node.start_mark.line + 1}: {path or 'the file'}"


def _shown(node: yaml.Node) -> str:
    """A scalar as it stands there; for the rest, what it is."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
