"""A card source that asks NVIDIA's driver through NVML, and scores the links between cards: PCIe topology and NVLinks.

Any call may fail for a single card. That card then has a problem or is skipped, and the others are unaffected.
Source: HAMi v2.10, pkg/device-plugin/nvidiadevice/nvinternal/rm; pkg/device/nvidia/calculate_score.go for the scores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hami.codec.device_config import MigAllowance
from hami.codec.health import DeviceHealth
from hami.devices.cards import Card, HealthListener
from hami.devices.health import HealthWatch
from hami.devices.mig_profiles import allowed_profiles
from hami.devices.nvml_library import (
    PartReader,
    card_handles,
    check_library_version,
    check_readers,
    decode,
    driver_error,
)
from hami.devices.nvml_mig import NvmlInstances, offered_profiles
from hami.devices.xids import XidRules
from hami.quantity import MIB
from hami.runtime.once import OncePerKey

NVLINK_PORTS = 36
NVLINK_SCORE = 100
MAX_SCORED_NVLINKS = 18
_DISPLAYS = frozenset({"DGX Display", "NVIDIA DGX Display"})  # cards that cannot compute


class NvmlCards:
    """A card source that asks NVML. Threads may share it, because NVML is thread-safe."""

    def __init__(
        self,
        nvml: Any,
        allowlist: Sequence[MigAllowance] = (),
        *,
        xids: XidRules = XidRules(),
        links: bool = False,
        shared_node: str = "",
        driver_root: str = "",
        sysfs: Path = Path("/sys"),
        warn: Callable[[str, str], None] = lambda reason, message: None,
    ) -> None:
        """*nvml*: the module pynvml. *links*: score the links between cards, which takes many calls. *shared_node*: the
        device node that all cards share, if any. *driver_root*: of the libraries that containers are given; empty if
        unknown. *warn* receives reason and message of a broken link, once."""
        self._nvml = nvml
        self._driver_root = driver_root
        self._allowlist = tuple(allowlist)
        self._links = NvLinks(nvml, warn) if links else None
        self._shared_node = shared_node
        self._sysfs = sysfs
        self._health = HealthWatch(nvml, xids)
        self._skipped = OncePerKey()
        self.instances = NvmlInstances(nvml, allowlist)

    def cards(self) -> Sequence[Card]:
        """Returns the cards sorted by index. Raises: DriverError when NVML cannot even count them, or containers could
        not use them."""
        try:
            handles, _ = card_handles(self._nvml, self._skipped)
        except self._nvml.NVMLError as error:
            raise driver_error(self._nvml, "NVML cannot count the cards", error) from error
        check_library_version(self._nvml, self._driver_root)
        cards = []
        readers = []
        for index, uuid, handle in handles:
            parts = PartReader(self._nvml)
            card = self._card(index, uuid, handle, parts)
            readers.append(parts)
            if card is not None:
                cards.append(card)
        check_readers(self._nvml, readers)
        if self._links is None:
            return cards
        uuids = {card.uuid for card in cards}
        linked = {uuid: handle for _, uuid, handle in handles if uuid in uuids}
        return [replace(card, links=self._links.scores(card.uuid, linked)) for card in cards]

    def look(
        self, listener: HealthListener, restored: Mapping[str, DeviceHealth] | None = None
    ) -> None:
        """Reports the health of the cards once: see `CardSource`."""
        self._health.look(listener, restored)

    def watch_health(
        self,
        listener: HealthListener,
        stopped: threading.Event,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Reports changes of the cards' health. Returns when *stopped*, or at once if health need not be watched."""
        self._health.run(listener, stopped, beat)

    def _card(self, index: int, uuid: str, handle: Any, parts: PartReader) -> Card | None:
        """Returns the card; None for one that cannot compute."""
        nvml = self._nvml
        model = decode(
            parts.read("name", lambda: nvml.nvmlDeviceGetName(handle), required=True) or ""
        )
        if model in _DISPLAYS:
            return None
        memory = (
            parts.read("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total // MIB) or 0
        )
        minor = parts.read("minor number", lambda: nvml.nvmlDeviceGetMinorNumber(handle))
        mig = parts.read("MIG mode", lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
        offered = () if mig is None else tuple(offered_profiles(nvml, handle).values())
        return Card(
            uuid=uuid,
            index=index,
            minor=index if minor is None else minor,
            model=model,
            memory_mib=memory,
            numa=self._numa(handle),
            mig=mig == nvml.NVML_DEVICE_MIG_ENABLE,
            problem="; ".join(parts.problems),
            shared_node=self._shared_node,
            profiles=tuple(allowed_profiles(model, offered, self._allowlist).values()),
        )

    def _numa(self, handle: Any) -> int | None:
        """Returns the NUMA node of the card's PCI device as the kernel reports it; None if there is only one."""
        try:
            bus = decode(self._nvml.nvmlDeviceGetPciInfo(handle).busId)
            node = int(
                (self._sysfs / "bus/pci/devices" / bus.lower()[-12:] / "numa_node").read_text()
            )
        except (self._nvml.NVMLError, OSError, ValueError):
            return None
        return node if node >= 0 else None


class NvLinks:
    """Scores pairs of cards. A property that NVML does not report scores 0."""

    def __init__(self, nvml: Any, warn: Callable[[str, str], None]) -> None:
        """*warn* receives reason and message of a broken link, once."""
        self._nvml = nvml
        self._warn = warn
        self._reported = OncePerKey()
        self._ancestor_scores = {
            nvml.NVML_TOPOLOGY_SYSTEM: 10,
            nvml.NVML_TOPOLOGY_NODE: 20,
            nvml.NVML_TOPOLOGY_HOSTBRIDGE: 30,
            nvml.NVML_TOPOLOGY_MULTIPLE: 40,
            nvml.NVML_TOPOLOGY_SINGLE: 50,
            nvml.NVML_TOPOLOGY_INTERNAL: 60,
        }

    def scores(self, uuid: str, handles: Mapping[str, Any]) -> dict[str, int]:
        """Returns the scores of a card's links, by UUID of the other card."""
        return {
            other: self._ancestor_score(handles[uuid], handle)
            + NVLINK_SCORE * self._nvlinks(uuid, other, handles)
            for other, handle in handles.items()
            if other != uuid
        }

    def _ancestor_score(self, card: Any, other: Any) -> int:
        """Returns 10 for cards connected across the system, up to 60 for cards on one board."""
        try:
            return self._ancestor_scores.get(
                self._nvml.nvmlDeviceGetTopologyCommonAncestor(card, other), 0
            )
        except self._nvml.NVMLError:
            return 0

    def _nvlinks(self, uuid: str, other: str, handles: Mapping[str, Any]) -> int:
        """Returns the number of NVLinks between two cards: direct ones, or else those that both have to a switch.

        It is 0 if the two cards report different numbers of direct links, because then a link is broken.
        """
        there, back = (
            self._direct(handles[uuid], handles[other]),
            self._direct(handles[other], handles[uuid]),
        )
        if there != back:
            if self._reported.is_new(frozenset((uuid, other))):
                self._warn(
                    "AsymmetricGPUP2PLink",
                    f"{uuid} has {there} NVLinks to {other}, which has {back} back: "
                    "the pair counts as not linked",
                )
            return 0
        return min(
            there or min(self._to_switches(handles[uuid]), self._to_switches(handles[other])),
            MAX_SCORED_NVLINKS,
        )

    def _direct(self, card: Any, other: Any) -> int:
        nvml = self._nvml
        try:
            bus = decode(nvml.nvmlDeviceGetPciInfo(other).busId)
        except nvml.NVMLError:
            return 0
        return sum(
            decode(info.busId) == bus
            for info in self._active(card, nvml.nvmlDeviceGetNvLinkRemotePciInfo)
        )

    def _to_switches(self, card: Any) -> int:
        nvml = self._nvml
        types = self._active(card, nvml.nvmlDeviceGetNvLinkRemoteDeviceType)
        return sum(type == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH for type in types)

    def _active(self, handle: Any, call: Callable[[Any, int], Any]) -> Iterable[Any]:
        """Yields the result of *call* for each active link. A link for which it fails is skipped."""
        for link in range(NVLINK_PORTS):
            with suppress(self._nvml.NVMLError):
                if (
                    self._nvml.nvmlDeviceGetNvLinkState(handle, link)
                    == self._nvml.NVML_FEATURE_ENABLED
                ):
                    yield call(handle, link)
