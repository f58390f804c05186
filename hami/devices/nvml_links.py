"""Scores the links between cards: PCIe topology and NVLinks.

Source: HAMi v2.10, pkg/device/nvidia/calculate_score.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from hami.devices.nvml_library import decode
from hami.runtime.once import OncePerKey

NVLINK_PORTS = 36
NVLINK_SCORE = 100
MAX_SCORED_NVLINKS = 18


class NvLinks:
    """Scores pairs of cards. A property that NVML does not report scores 0."""

    def __init__(self, nvml: Any, warn: Callable[[str, str], None]) -> None:
        """*warn* receives reason and message of a broken link, once."""
        self._nvml = nvml
        self._warn = warn
        self._reported = OncePerKey()
        self._ancestor_scores = {
            nvml.NVML_TOPOLOGY_SYSTEM: 10, nvml.NVML_TOPOLOGY_NODE: 20, nvml.NVML_TOPOLOGY_HOSTBRIDGE: 30,
            nvml.NVML_TOPOLOGY_MULTIPLE: 40, nvml.NVML_TOPOLOGY_SINGLE: 50, nvml.NVML_TOPOLOGY_INTERNAL: 60}

    def scores(self, uuid: str, handles: Mapping[str, Any]) -> dict[str, int]:
        """Returns the scores of a card's links, by UUID of the other card."""
        return {other: self._ancestor_score(handles[uuid], handle) + NVLINK_SCORE * self._nvlinks(uuid, other, handles)
                for other, handle in handles.items() if other != uuid}

    def _ancestor_score(self, card: Any, other: Any) -> int:
        """Returns 10 for cards connected across the system, up to 60 for cards on one board."""
        try:
            return self._ancestor_scores.get(self._nvml.nvmlDeviceGetTopologyCommonAncestor(card, other), 0)
        except self._nvml.NVMLError:
            return 0

    def _nvlinks(self, uuid: str, other: str, handles: Mapping[str, Any]) -> int:
        """Returns the number of NVLinks between two cards: direct ones, or else those that both have to a switch.

        It is 0 if the two cards report different numbers of direct links, because then a link is broken.
        """
        there, back = self._direct(handles[uuid], handles[other]), self._direct(handles[other], handles[uuid])
        if there != back:
            if self._reported.is_new(frozenset((uuid, other))):
                self._warn("AsymmetricGPUP2PLink", f"{uuid} has {there} NVLinks to {other}, which has {back} back: "
                           "the pair counts as not linked")
            return 0
        return min(there or min(self._to_switches(handles[uuid]), self._to_switches(handles[other])),
                   MAX_SCORED_NVLINKS)

    def _direct(self, card: Any, other: Any) -> int:
        nvml = self._nvml
        try:
            bus = decode(nvml.nvmlDeviceGetPciInfo(other).busId)
        except nvml.NVMLError:
            return 0
        return sum(decode(info.busId) == bus for info in self._active(card, nvml.nvmlDeviceGetNvLinkRemotePciInfo))

    def _to_switches(self, card: Any) -> int:
        nvml = self._nvml
        types = self._active(card, nvml.nvmlDeviceGetNvLinkRemoteDeviceType)
        return sum(type == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH for type in types)

    def _active(self, handle: Any, call: Callable[[Any, int], Any]) -> Iterable[Any]:
        """Yields the result of *call* for each active link. A link for which it fails is skipped."""
        for link in range(NVLINK_PORTS):
            with suppress(self._nvml.NVMLError):
                if self._nvml.nvmlDeviceGetNvLinkState(handle, link) == self._nvml.NVML_FEATURE_ENABLED:
                    yield call(handle, link)
