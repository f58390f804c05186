"""Segments: the files of a recording, gzip with a line of JSON for each change, each closed with a checksum.

A segment that is still being written, or was when its machine crashed, lacks the checksum: it is read up to the last
whole line. A file is unpacked piece by piece, so one that unpacks to more than it may does not fill the memory.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from hami.errors import HamiError
from hami.inspect.recording import FORMAT, VERSION, Line, SegmentEnd

PIECE = 1 << 16
MAX_LINE = 4 << 20  # bytes
MAX_LINES = 50_000_000  # of a segment
MAX_SEGMENTS = 10_000
UNFINISHED = "is cut short: read up to line {}"
_BEGIN = f'"format":"{FORMAT}"'.encode()
_NAME = re.compile(r"hami-([0-9]{8})\.jsonl\.gz")
_GZIP = 31  # for zlib: with the head and the end of gzip
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Line)


class SegmentWriter:
    """Writes the segments of a recording into *folder*. *segment_bytes*: packed, after which a segment is full.
    *most_bytes*: of all segments; the oldest are deleted."""

    def __init__(self, folder: Path, *, segment_bytes: int, most_bytes: int) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._most_bytes = most_bytes
        self._number = max([number for number, _ in _numbered(folder)], default=0)
        self._file: gzip.GzipFile | None = None
        self._raw: BinaryIO | None = None
        self._path = folder
        self._lines = 0
        self._hash = hashlib.sha256()

    def begin(self) -> int:
        """Closes the current segment, begins the next one, and returns its number. Raises: OSError."""
        self.close()
        self._number += 1
        self._path = self._folder / f"hami-{self._number:08}.jsonl.gz"
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._raw = os.fdopen(handle, "wb")
        self._file = gzip.GzipFile(fileobj=self._raw, mode="wb", mtime=0)
        self._lines, self._hash = 0, hashlib.sha256()
        self._delete_oldest()
        return self._number

    def write(self, line: Line) -> None:
        """Appends *line*; it is safe after `sync`."""
        assert self._file is not None, "a segment has begun"
        data = _ENCODER.encode(line) + b"\n"
        self._file.write(data)
        self._hash.update(data)
        self._lines += 1

    def sync(self) -> bool:
        """Makes the lines so far readable. Reports whether the segment is full."""
        if self._file is None:
            return False
        self._file.flush()
        return self._path.stat().st_size >= self._segment_bytes

    def close(self) -> None:
        """Closes the current segment with its checksum."""
        if self._file is None or self._raw is None:
            return
        self.write(Line(end=SegmentEnd(lines=self._lines, sha256=self._hash.hexdigest())))
        self._file.close()
        self._raw.close()
        self._file = self._raw = None

    def _delete_oldest(self) -> None:
        """Deletes segments until the others leave room for a full one. Raises: OSError."""
        sizes = [(path, path.stat().st_size) for _, path in _numbered(self._folder)]
        total = self._segment_bytes + sum(size for _, size in sizes)
        for path, size in sizes[:-1]:
            if total <= self._most_bytes and len(sizes) <= MAX_SEGMENTS:
                return
            path.unlink()
            total -= size


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """Returns the segments in *folder*, the oldest first."""
    found: list[tuple[int, Path]] = []
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        if match is not None:
            found.append((int(match[1]), path))
    return sorted(found)


def segments_at(path: Path) -> list[Path]:
    """Returns the segments of a folder in their order, or the one file at *path*. Raises: HamiError."""
    if not path.is_dir():
        return [path]
    found = [segment for _, segment in _numbered(path)]
    if not found:
        raise HamiError(f"{path}: no recording: it has no files hami-NUMBER.jsonl.gz")
    return found[-MAX_SEGMENTS:]


def is_segment(path: Path) -> bool:
    """Reports whether the file at *path* is one of a recording, damaged or not. Raises: OSError."""
    unpacker = zlib.decompressobj(_GZIP)
    with path.open("rb") as file:
        try:
            return _BEGIN in unpacker.decompress(file.read(PIECE), len(_BEGIN) + 200)
        except zlib.error:
            return False


def read_segment(path: Path, note: Callable[[str], None]) -> Iterator[tuple[str, Line]]:
    """Yields the lines of a segment, each with its place for errors.

    *note*: is told that the segment is cut short. Raises: HamiError, which names the line and the field; OSError.
    """
    digest, number, end = hashlib.sha256(), 0, None
    for number, text in enumerate(_lines(path), start=1):
        place = f"{path}: line {number}"
        if number > MAX_LINES:
            raise HamiError(f"{path}: more than {MAX_LINES:,} lines")
        if end is not None:
            raise HamiError(f"{place}: it follows the end of the segment")
        line = _decoded(text, place)
        end = line.end
        if number == 1:
            _check_head(line, path)
        if end is None:
            digest.update(text)
            digest.update(b"\n")
            yield place, line
        elif (end.lines, end.sha256) != (number - 1, digest.hexdigest()):
            raise HamiError(f"{place}: end.sha256: the checksum is not that of the lines before")
    if end is None:
        if not number:
            raise HamiError(f"{path}: not a recording of hami: no whole line")
        note(f"{path} {UNFINISHED.format(number)}")


def _decoded(text: bytes, place: str) -> Line:
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HamiError(f"{place}: {error}") from error


def _check_head(line: Line, path: Path) -> None:
    """Raises: HamiError if the first line is not that of a recording that can be read."""
    head = line.head
    if head is None or head.format != FORMAT:
        raise HamiError(f"{path}: line 1: head.format: expected {FORMAT}")
    if head.version > VERSION:
        raise HamiError(
            f"{path}: line 1: head.version: {head.version}, this hami reads up to {VERSION}: use a newer hami"
        )


def _lines(path: Path) -> Iterator[bytes]:
    """Yields the whole lines of a packed file, without their ends. Raises: HamiError; OSError."""
    rest, count = b"", 0
    for piece in _unpacked(path):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            count += 1
            yield line
        if len(rest) > MAX_LINE:
            raise HamiError(f"{path}: line {count + 1}: longer than {MAX_LINE:,} bytes")


def _unpacked(path: Path) -> Iterator[bytes]:
    """Yields the unpacked content of a file, also of one whose end is missing. Raises: HamiError; OSError."""
    unpacker = zlib.decompressobj(_GZIP)
    try:
        for packed in _pieces(path):
            yield unpacker.decompress(packed, PIECE)
            while unpacker.unconsumed_tail:
                yield unpacker.decompress(unpacker.unconsumed_tail, PIECE)
            if unpacker.eof:
                return
        yield unpacker.flush()
    except zlib.error as error:
        raise HamiError(f"{path}: not a recording of hami: {error}") from error


def _pieces(path: Path) -> Iterable[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece
