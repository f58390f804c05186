"""Writes the lines of a recording under other names.

Names are hashed with a salt that stays in the folder of the recording: who has the files alone cannot try names.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from hami.inspect.cluster import catalog_of
from hami.inspect.recording import FORMAT, KINDS, VERSION, Head, Line, RecordedDevice, RecordStruct
from hami.inspect.segments import SegmentWriter
from hami.inspect.snapshot import Kind, Replacer, Texts, known_config
from hami.state.view import Policies

log = logging.getLogger(__name__)

TEXTS = 4096  # of annotations, whose reduced forms are remembered
_LINE = msgspec.json.Decoder(Line)


class _HashedNames(dict[str, str]):
    """The other names of one kind of object. None is kept: each is computed again."""

    def __init__(self, word: str, salt: bytes) -> None:
        super().__init__()
        self._word = word
        self._salt = salt

    def __missing__(self, name: str) -> str:
        data = f"{self._word}\0{name}".encode()
        digest = hashlib.blake2b(data, key=self._salt, digest_size=8)
        return f"{self._word}-{digest.hexdigest()}"


class _Words(dict[str, Mapping[str, str]]):
    """The other names of objects, by their kinds."""

    def __init__(self, salt: bytes) -> None:
        super().__init__()
        self._salt = salt

    def __missing__(self, word: str) -> Mapping[str, str]:
        self[word] = names = _HashedNames(word, self._salt)
        return names


class LineWriter:
    """Writes lines with *writer*. *salt*: of the names, at most 64 bytes. *now*: Unix seconds."""

    def __init__(
        self,
        writer: SegmentWriter,
        device_config: str,
        policies: Policies,
        salt: bytes,
        now: Callable[[], float],
    ) -> None:
        self.vendors = catalog_of(device_config)
        self._writer = writer
        self._now = now
        self._names = _Words(salt)
        self._head = Head(
            format=FORMAT,
            version=VERSION,
            recording=self._names["recording"][""],
            segment=0,
            node_policy=policies.node,
            device_policy=policies.device,
            device_config=known_config(device_config, {}),
        )
        self._uuids: dict[str, str] = {}
        self._models: set[str] = set()
        self._text = self._new_texts()

    def begin(self) -> None:
        """Begins the next segment. Raises: OSError."""
        number = self._writer.begin()
        self.put(Line(head=msgspec.structs.replace(self._head, segment=number)))

    def write(self, **change: RecordStruct) -> bool:
        """Appends a line with one record, under other names. Reports whether it could be recorded."""
        ((name, record),) = change.items()
        return self.put(Line(**{name: self.anonymous(record)}))

    def write_node_gone(self, name: str) -> None:
        """Appends that a node has gone."""
        self.put(Line(node_gone=self._names["node"][name]))

    def put(self, line: Line) -> bool:
        """Appends *line* with the time, unless who reads it would refuse it, since it has too much of something."""
        line = msgspec.structs.replace(line, at=round(self._now(), 3))
        try:
            _LINE.decode(msgspec.json.encode(line))
        except msgspec.DecodeError as error:
            log.warning("not recorded", extra={"error": str(error)})
            return False
        self._writer.write(line)
        return True

    def anonymous(self, record: Any) -> Any:
        """Returns *record* under other names."""
        values: dict[Kind, Callable[[Any], object]] = {
            Kind.KEPT: lambda value: value,
            Kind.TEXT: self._text,
            Kind.WORDS: lambda words: {key: self._text(text) for key, text in words.items()},
        }
        return Replacer(values, self._names).value(record, KINDS[type(record)])

    def learn(self, devices: Iterable[RecordedDevice]) -> None:
        """Learns the names of *devices*, which annotations of pods may mention."""
        for device in devices:
            if device.uuid not in self._uuids or device.model not in self._models:
                self._uuids[device.uuid] = self._names["device"][device.uuid]
                self._models.add(device.model)
                self._text = self._new_texts()

    def sync(self) -> bool:
        """Makes the lines so far safe. Reports whether the segment is full. Raises: OSError."""
        return self._writer.sync()

    def close(self) -> None:
        """Closes the segment. Raises: OSError."""
        self._writer.close()

    def _new_texts(self) -> Callable[[str], str]:
        """Returns what reduces texts of annotations; the patterns are made when the first text comes."""
        made: list[Texts] = []

        def reduce(text: str) -> str:
            if not made:
                made.append(Texts(self._uuids, self._models, self.vendors))
            return made[0].anonymous(text)

        return lru_cache(TEXTS)(reduce)
