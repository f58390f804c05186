"""The files that the limiter shares: the region in HAMi's layout 1.2, the compute file, and the fake machine's."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FILE_SIZE", "MAGIC", "Bucket", "Machine", "Region", "Slot", "make_region"]

MAGIC, FILE_SIZE, SLOTS, SLOT, FIRST_SLOT = 19920718, 2_008_953, 1024, 1960, 1856
RECORDS = SLOTS * 16
SEMAPHORE = struct.pack("<QI20x", 1, 128)


@dataclass(frozen=True, slots=True)
class Slot:
    """What a process counts, by device. *space*: inode of its PID namespace."""

    number: int
    pid: int
    space: int
    status: int
    totals: tuple[int, ...]
    contexts: tuple[int, ...]
    modules: tuple[int, ...]
    data: tuple[int, ...]


def _record(number: int) -> int:
    slot, device = divmod(number, 16)
    return FIRST_SLOT + SLOT * slot + 1160 + 48 * device + 24


def make_region(
    path: Path,
    limits: list[int],
    cores: list[int] | None = None,
    uuids: list[str] | None = None,
    priority: int = 1,
) -> None:
    """A region as a device plugin makes it before the container starts."""
    content = bytearray(FILE_SIZE)
    struct.pack_into("<III", content, 0, MAGIC, 1, 2)
    content[24:56] = content[2_008_920:2_008_952] = SEMAPHORE
    struct.pack_into("<Q", content, 56, len(limits))
    for device, uuid in enumerate(uuids or []):
        content[64 + 96 * device : 64 + 96 * device + len(uuid)] = uuid.encode()
    struct.pack_into(f"<{len(limits)}Q", content, 1600, *limits)
    struct.pack_into(f"<{len(limits)}Q", content, 1728, *(cores or [100] * len(limits)))
    struct.pack_into("<iiii", content, 2_008_896, 0, 1, 0, priority)
    path.write_bytes(content)


class Region:
    """Reads and writes a region that processes have mapped."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)

    def number(self, offset: int, kind: str = "<i") -> int:
        value: int = struct.unpack_from(kind, self.memory, offset)[0]
        return value

    def write(self, offset: int, value: int, kind: str = "<i") -> None:
        struct.pack_into(kind, self.memory, offset, value)

    def uuid(self, device: int) -> str:
        at = 64 + 96 * device
        return self.memory[at : at + 96].split(b"\0")[0].decode()

    def limit(self, device: int) -> int:
        return self.number(1600 + 8 * device, "<Q")

    @property
    def used(self) -> int:
        return self.number(2_008_896)

    def slots(self) -> list[Slot]:
        """Those that belong to a process."""
        found = []
        for number in range(self.used):
            base = FIRST_SLOT + SLOT * number
            if pid := self.number(base):
                parts = [
                    struct.unpack_from("<5Q", self.memory, base + 8 + 64 * device)
                    for device in range(16)
                ]
                contexts, modules, data, _, totals = zip(*parts, strict=True)
                space = self.number(base + 1944, "<Q") >> 32
                found.append(
                    Slot(
                        number,
                        pid,
                        space,
                        self.number(base + 1928),
                        totals,
                        contexts,
                        modules,
                        data,
                    )
                )
        return found

    def total(self, device: int = 0) -> int:
        return sum(slot.totals[device] for slot in self.slots())

    def records(self) -> list[int]:
        """States of the records of memory that processes share, without the free ones."""
        states = (self.number(_record(number), "<Q") for number in range(1, RECORDS))
        return [state for state in states if state]

    def fill_records(self, slot: int) -> None:
        """No process finds a free one any more: all belong to that slot, and count nothing."""
        for number in range(1, RECORDS):
            if not self.number(_record(number), "<Q"):
                self.write(_record(number), slot + 1, "<Q")

    def sample(self, device: int, percent: dict[int, int], when: int) -> None:
        """Utilization as the monitor writes it: percent by process, then the time."""
        for slot in self.slots():
            base = FIRST_SLOT + SLOT * slot.number
            self.write(base + 1160 + 48 * device + 16, percent.get(slot.pid, 0), "<Q")
        for slot in self.slots():
            self.write(FIRST_SLOT + SLOT * slot.number + 1952, when, "<Q")


class Bucket:
    """The compute limit of a device, as `struct vgpu_bucket` has it."""

    def __init__(self, path: Path, device: int) -> None:
        self._path = path
        self._at = 256 + 128 * device

    def _seconds(self, offset: int) -> float:
        return struct.unpack_from("<q", self._path.read_bytes(), self._at + offset)[0] / 1e9

    @property
    def charged(self) -> float:
        """Seconds of GPU time."""
        return self._seconds(16)

    @property
    def waited(self) -> float:
        """Seconds for which launches have waited."""
        return self._seconds(24)


class Machine:
    """The fake cards, as `struct fake_machine` has them."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)

    def _numbers(self, offset: int, count: int = 16) -> tuple[int, ...]:
        return struct.unpack_from(f"<{count}q", self.memory, offset)

    def used(self, device: int = 0) -> int:
        """Bytes of processes that live."""
        total = 0
        for at in self._processes():
            (pid,) = struct.unpack_from("<i", self.memory, at)
            if pid and Path(f"/proc/{pid}/stat").exists() and not is_zombie(pid):
                total += self._numbers(at + 16)[device]
        return total

    def allocated(self, device: int = 0) -> int:
        """Bytes in use, also by processes that cannot be seen from here, or were killed."""
        return self._numbers(8)[device]

    def peak(self, device: int = 0) -> int:
        """The most that was ever in use at once."""
        return self._numbers(8 + 128)[device]

    def slices(self, device: int = 0) -> int:
        """How often the card has changed from one process to another."""
        return self._numbers(8 + 2 * 128)[device]

    def launches(self, device: int = 0) -> int:
        return self._numbers(8 + 3 * 128)[device]

    def busy(self, device: int = 0) -> dict[tuple[int, int], int]:
        """Nanoseconds of the device by PID namespace (its inode) and process, also of processes that have ended."""
        found: dict[tuple[int, int], int] = {}
        for at in self._processes():
            pid, _, space = struct.unpack_from("<iIQ", self.memory, at)
            found[space, pid] = found.get((space, pid), 0) + self._numbers(at + 16 + 128)[device]
        return found

    def _processes(self) -> range:
        (count,) = struct.unpack_from("<i", self.memory, 4)
        first = 8 + 4 * 128
        return range(first, first + 272 * count, 272)


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
