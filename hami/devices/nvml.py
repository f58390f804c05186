"""Cards as NVIDIA's driver knows them, through NVML: what they are, how they are linked, whether they are well.

Any call may fail for one card: that card has a problem then, or is left out, and the others are as they are. MIG
instances are made in ``nvml_mig``. Nothing is imported or opened before :func:`open_nvml`.
Source: HAMi v2.10, pkg/device-plugin/nvidiadevice/nvinternal/rm, pkg/device/nvidia/calculate_score.go.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hami.codec.device_config import MigAllowance
from hami.errors import HamiError
from hami.devices.cards import Card
from hami.devices.health import XidRules
from hami.devices.nvml_mig import NvmlInstances, offered_profiles
from hami.devices.mig_profiles import allowed_profiles

__all__ = ["NvmlCards", "library_path", "open_nvml"]

LIBRARY_FOLDERS = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64",
                   "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "usr/lib/wsl/lib")
log = logging.getLogger(__name__)

LIBRARY = "libnvidia-ml.so.1"
_DISPLAYS = frozenset({"DGX Display", "NVIDIA DGX Display"})  # cards that compute nothing
_MIB = 1 << 20

_WAIT_MS = 1000  # for an event; also the longest that a stop takes
_PAUSE_S = 1.0
_RETRY_S = 5.0
_NO_INSTANCE = 0xFFFFFFFF

_LINKS = 36
_LINK_SCORE = 100
_MOST_LINKS_COUNTED = 18


def library_path(root: str) -> str:
    """NVML in the driver that is seen at *root*; the plain name, for the linker to find, where it is not there."""
    if root not in ("", "/"):
        for folder in LIBRARY_FOLDERS:
            if (path := Path(root, folder, LIBRARY)).exists():
                return str(path.resolve())
    return LIBRARY


def open_nvml(root: str = "/") -> Any:
    """The functions of NVML, opened: pynvml. Raises: HamiError, saying what is missing."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise HamiError("nvidia-ml-py is not installed: pip install hami[node]") from error
    if (path := library_path(root)) != LIBRARY:
        try:
            # pynvml asks the linker for the plain name, and the linker gives it what is loaded under that name
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise HamiError(f"{path}: {error}") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise HamiError(f"no NVIDIA driver to talk to: {error}") from error
    return nvml


class NvmlCards:
    """A source of cards that asks NVML. Threads may share it, as NVML may be shared."""

    def __init__(self, nvml: Any, allowlist: Sequence[MigAllowance] = (), *, xids: XidRules = XidRules(),
                 links: bool = False, shared_node: str = "", sysfs: Path = Path("/sys"),
                 pause: Callable[[float], None] = time.sleep,
                 warn: Callable[[str, str], None] = lambda reason, message: None) -> None:
        """*nvml*: pynvml, or what looks like it. *links*: pairs are scored, which takes many calls. *shared_node*: the
        device node of all cards, if none has its own. *pause* waits while health cannot be watched. *warn* tells the
        node's owner of what is broken, by reason and message, once."""
        self._nvml = nvml
        self._allowlist = tuple(allowlist)
        self._xids = xids
        self._links = links
        self._shared_node = shared_node
        self._sysfs = sysfs
        self._pause = pause
        self._warn = warn
        self._said: set[str] = set()
        self._bad: dict[str, str] = {}  # by uuid, for good; an empty uuid is all of them
        self._told: dict[str, str] = {}
        self.instances = NvmlInstances(nvml, allowlist)

    def cards(self) -> Sequence[Card]:
        """The cards by index. Raises: HamiError when NVML does not even say how many there are."""
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            raise HamiError(f"NVML does not count the cards: {error}") from error
        found = [(card, handle) for index in range(count) if (handle := self._handle(index)) is not None
                 and (card := self._card(index, handle)) is not None]
        if not self._links:
            return [card for card, _ in found]
        handles = {card.uuid: handle for card, handle in found}
        return [replace(card, links=self._scores(card.uuid, handles)) for card, _ in found]

    def watch_health(self, report: Callable[[str, str], None], stopped: Callable[[], bool]) -> None:
        """Report cards that NVML loses, until it finds them again, and those with an XID that counts, for good: the
        driver never says that an error is over."""
        if self._xids.is_off:
            log.info("health is not watched: all XIDs are ignored")
            return
        while not stopped():
            try:
                events, incomplete = self._listen(report)
            except self._nvml.NVMLError as error:
                if self._is_unsupported(error):
                    log.info("health is not watched: the driver has no events", extra={"reason": str(error)})
                    return
                report("", f"health cannot be watched: {error}")
                self._told.clear()
                self._rest(_RETRY_S, stopped)
                continue
            try:
                self._hear(events, incomplete, report, stopped)
            finally:
                with suppress(self._nvml.NVMLError):
                    self._nvml.nvmlEventSetFree(events)

    # ---- cards

    def _handle(self, index: int) -> Any:
        try:
            return self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:
            self._leave_out(f"card {index}", error)
            return None

    def _card(self, index: int, handle: Any) -> Card | None:
        try:
            uuid = _text(self._nvml.nvmlDeviceGetUUID(handle))
        except self._nvml.NVMLError as error:
            self._leave_out(f"card {index}: its UUID", error)
            return None
        problems: list[str] = []

        def ask(what: str, default: Any, *calls: Callable[[Any], Any], unsupported: bool = False) -> Any:
            """The answer; *default* and a problem if it fails (no problem where *unsupported* answers are usual)."""
            try:
                answer = handle
                for call in calls:
                    answer = call(answer)
                return answer
            except self._nvml.NVMLError as error:
                if not (unsupported and self._is_unsupported(error)):
                    problems.append(f"{what}: {error}")
                return default
        nvml = self._nvml
        model = _text(ask("name", "", nvml.nvmlDeviceGetName))
        if model in _DISPLAYS:
            return None
        memory = ask("memory", 0, nvml.nvmlDeviceGetMemoryInfo, lambda info: info.total // _MIB, unsupported=True)
        minor = ask("minor number", index, nvml.nvmlDeviceGetMinorNumber, unsupported=True)
        mig = ask("MIG mode", None, nvml.nvmlDeviceGetMigMode, lambda modes: modes[0], unsupported=True)
        offered = () if mig is None else tuple(one.profile for one in offered_profiles(nvml, handle))
        return Card(
            uuid=uuid, index=index, minor=minor, model=model, memory_mib=memory, numa=self._numa(handle),
            mig=mig == nvml.NVML_DEVICE_MIG_ENABLE, problem="; ".join(problems), shared_node=self._shared_node,
            profiles=tuple(allowed_profiles(model, offered, self._allowlist).values()))

    def _numa(self, handle: Any) -> int | None:
        """The NUMA node of the card's place on the bus, as the kernel says it; it does not where there is but one."""
        try:
            bus = _text(self._nvml.nvmlDeviceGetPciInfo(handle).busId)
            node = int((self._sysfs / "bus/pci/devices" / bus.lower()[-12:] / "numa_node").read_text())
        except (self._nvml.NVMLError, OSError, ValueError):
            return None
        return node if node >= 0 else None

    def _is_unsupported(self, error: Any) -> bool:
        return bool(error.value in (self._nvml.NVML_ERROR_NOT_SUPPORTED, self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND))

    def _leave_out(self, what: str, error: Any) -> None:
        """Say it, once."""
        if self._is_news(said := f"{what}: {error}"):
            log.warning("a card is left out", extra={"reason": said})

    def _is_news(self, said: str) -> bool:
        if said in self._said:
            return False
        self._said.add(said)
        return True

    # ---- links

    def _scores(self, uuid: str, handles: Mapping[str, Any]) -> dict[str, int]:
        return {other: self._ancestor(handles[uuid], handle) + _LINK_SCORE * self._links_between(uuid, other, handles)
                for other, handle in handles.items() if other != uuid}

    def _ancestor(self, one: Any, other: Any) -> int:
        """10 for cards that meet across the whole system, up to 60 for those on one board; 0 if NVML cannot say."""
        nvml = self._nvml
        levels = {nvml.NVML_TOPOLOGY_SYSTEM: 10, nvml.NVML_TOPOLOGY_NODE: 20, nvml.NVML_TOPOLOGY_HOSTBRIDGE: 30,
                  nvml.NVML_TOPOLOGY_MULTIPLE: 40, nvml.NVML_TOPOLOGY_SINGLE: 50, nvml.NVML_TOPOLOGY_INTERNAL: 60}
        try:
            return levels.get(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other), 0)
        except nvml.NVMLError:
            return 0

    def _links_between(self, one: str, other: str, handles: Mapping[str, Any]) -> int:
        """NVLinks of a pair: direct ones, else as many as both have to a switch. 0 when the two sides do not say the
        same, for then a link is broken."""
        there, back = self._direct(handles[one], handles[other]), self._direct(handles[other], handles[one])
        if there != back:
            low, high = sorted((one, other))
            if self._is_news(f"{low} {high}"):
                self._warn("AsymmetricGPUP2PLink", f"{one} has {there} NVLinks to {other}, which has {back} back: "
                           "the pair counts as not linked")
            return 0
        if there:
            return min(there, _MOST_LINKS_COUNTED)
        return min(self._to_switches(handles[one]), self._to_switches(handles[other]), _MOST_LINKS_COUNTED)

    def _direct(self, one: Any, other: Any) -> int:
        nvml = self._nvml
        try:
            bus = _text(nvml.nvmlDeviceGetPciInfo(other).busId)
        except nvml.NVMLError:
            return 0
        return sum(_text(info.busId) == bus for info in self._over_links(one, nvml.nvmlDeviceGetNvLinkRemotePciInfo))

    def _to_switches(self, one: Any) -> int:
        nvml = self._nvml
        kinds = self._over_links(one, nvml.nvmlDeviceGetNvLinkRemoteDeviceType)
        return sum(kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH for kind in kinds)

    def _over_links(self, handle: Any, call: Callable[[Any, int], Any]) -> Iterable[Any]:
        """What *call* says of each link that is on; a link that it says nothing of is none."""
        for link in range(_LINKS):
            with suppress(self._nvml.NVMLError):
                if self._nvml.nvmlDeviceGetNvLinkState(handle, link) == self._nvml.NVML_FEATURE_ENABLED:
                    yield call(handle, link)

    # ---- health

    def _listen(self, report: Callable[[str, str], None]) -> tuple[Any, bool]:
        """An event set in which all cards are that can be watched, and whether one is missing."""
        nvml = self._nvml
        events = nvml.nvmlEventSetCreate()
        try:
            count = nvml.nvmlDeviceGetCount()
            missing = False
            for index in range(count):
                missing |= not self._listen_to(index, events, report)
            return events, missing
        except nvml.NVMLError:
            with suppress(nvml.NVMLError):
                nvml.nvmlEventSetFree(events)
            raise

    def _listen_to(self, index: int, events: Any, report: Callable[[str, str], None]) -> bool:
        nvml = self._nvml
        uuid = ""
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            if wanted := nvml.nvmlDeviceGetSupportedEventTypes(handle) & nvml.nvmlEventTypeXidCriticalError:
                nvml.nvmlDeviceRegisterEvents(handle, wanted, events)
        except nvml.NVMLError as error:
            if not uuid:
                self._leave_out(f"card {index}", error)
                return False
            if not self._is_unsupported(error):
                self._tell(uuid, f"its health cannot be watched: {error}", report)
                return False
            log.info("the health of a card cannot be watched", extra={"card": uuid, "reason": str(error)})
        self._tell(uuid, "", report)
        return True

    def _tell(self, uuid: str, reason: str, report: Callable[[str, str], None]) -> None:
        """Report what is wrong with a card, if that is new; what is wrong for good goes before."""
        now = self._bad.get(uuid) or self._bad.get("") or reason
        if self._told.get(uuid) != now:
            self._told[uuid] = now
            report(uuid, now)

    def _hear(self, events: Any, incomplete: bool, report: Callable[[str, str], None],
              stopped: Callable[[], bool]) -> None:
        """Hear events until *stopped*, or until it is time to begin anew: something failed, or a card was missing."""
        nvml = self._nvml
        left = _RETRY_S * 1000
        while not stopped() and not (incomplete and left <= 0):
            try:
                event = nvml.nvmlEventSetWait(events, _WAIT_MS)
            except nvml.NVMLError as error:
                left -= _WAIT_MS
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    continue
                log.warning("health events are interrupted", extra={"reason": str(error)})
                self._rest(_PAUSE_S, stopped)
                return
            self._judge(event, report)

    def _judge(self, event: Any, report: Callable[[str, str], None]) -> None:
        nvml = self._nvml
        if event.eventType != nvml.nvmlEventTypeXidCriticalError or not self._xids.is_critical(event.eventData):
            return
        reason = f"XID {event.eventData}"
        if event.gpuInstanceId != _NO_INSTANCE or event.computeInstanceId != _NO_INSTANCE:
            reason += f" in MIG instance {event.gpuInstanceId}/{event.computeInstanceId}"
        try:
            uuid = _text(nvml.nvmlDeviceGetUUID(event.device))
        except nvml.NVMLError as error:
            self._bad[""] = f"{reason}, of a card that cannot be named: {error}"
            report("", self._bad[""])
            return
        self._bad[uuid] = reason
        self._tell(uuid, reason, report)

    def _rest(self, seconds: float, stopped: Callable[[], bool]) -> None:
        while seconds > 0 and not stopped():
            self._pause(min(seconds, _PAUSE_S))
            seconds -= _PAUSE_S


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
