"""In which allocation mode pods get the cards of a node: the device plugin or Dynamic Resource Allocation, never both.

Two allocators cannot share a card: no write spans what the two of them decide on.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from hami.codec.keys import ALLOCATION_MODE
from hami.devices.cards import Card
from hami.devices.config import (
    AUTO,
    DEVICE_PLUGIN,
    DRA,
    HAMI,
    KUBE_SCHEDULER,
    NODE_ALLOCATION_MODES,
    OFF,
    PluginConfig,
)
from hami.devices.registration import MIG, offered_card
from hami.dra.guard import PreparedRequest
from hami.errors import HamiError, NotFound
from hami.kube.cluster import Cluster
from hami.model import Pod
from hami.plugin.allocation_time import why_not_writable
from hami.plugin.settings import PluginSettings
from hami.vendors.spec import Vendor

CLAIM_DEVICES = "claimdevices"
"""The key of the node configuration with the cards for claims, of a node where the others are in the allocation mode
``device-plugin``."""


def with_allocation_mode(
    settings: PluginSettings,
    cluster: Cluster,
    environ: Mapping[str, str] = os.environ,
    mounts: Path = Path("/proc/self/mountinfo"),
) -> PluginSettings:
    """Returns *settings* with the allocation mode of the node, ``device-plugin`` or ``dra``, and what goes with it.
    A node with ``device-plugin`` may have some cards in the other mode: `claimed_part` returns their settings.

    *environ*, *mounts*: as for `why_not_writable`. Raises: HamiError if the node cannot have this allocation mode,
    or its label cannot be read.
    """
    allocation_mode = (
        settings.allocation_mode
        if settings.allocation_mode != AUTO
        else _labeled_allocation_mode(settings.node, cluster)
    )
    if allocation_mode == DEVICE_PLUGIN:
        if settings.is_divided:
            _check_claims(settings, environ, mounts)
            if settings.operating_mode == MIG or settings.claim_allocator == HAMI:
                field = (
                    "the operating mode mig"
                    if settings.operating_mode == MIG
                    else f"--claim-allocator={HAMI}"
                )
                raise HamiError(
                    f"{CLAIM_DEVICES}: with {field}, all devices of a node have one allocation mode: set the label "
                    f"{ALLOCATION_MODE}={DRA} on the node, or leave {CLAIM_DEVICES} out"
                )
        return replace(settings, allocation_mode=DEVICE_PLUGIN)
    _check_claims(settings, environ, mounts)
    return replace(
        settings, allocation_mode=DRA, publish_capacity=OFF, claimed_uuids=(), claimed_indexes=()
    )


def claimed_part(settings: PluginSettings) -> PluginSettings | None:
    """Returns the settings for the cards in the allocation mode ``dra``, of the node whose *settings*
    `with_allocation_mode` has returned; ``None`` if there are none."""
    if settings.allocation_mode == DEVICE_PLUGIN and settings.is_divided:
        return replace(settings, allocation_mode=DRA, publish_capacity=OFF)
    return settings if settings.allocation_mode == DRA else None


class CardAllocationModes:
    """The allocation mode of each card of a node. A card keeps it while the process lives, even if its index changes:
    containers may use it."""

    def __init__(self, config: PluginConfig) -> None:
        self._config = config
        self._claimed: dict[str, bool] = {}  # by UUID, whether the card is for claims

    def offered(
        self, card: Card, config: PluginConfig, *, ignore_mig_cards: bool = False
    ) -> Card | None:
        """Returns *card* as :func:`offered_card`; ``None`` also if it is not in the allocation mode of *config*."""
        own = self._config
        is_claimed = self._claimed.setdefault(
            card.uuid, card.uuid in own.claimed_uuids or card.index in own.claimed_indexes
        )
        if own.is_divided and is_claimed != (config.allocation_mode == DRA):
            return None
        return offered_card(card, config, ignore_mig_cards=ignore_mig_cards)


def _check_claims(settings: PluginSettings, environ: Mapping[str, str], mounts: Path) -> None:
    """Raises: HamiError if the node cannot allocate cards to claims."""
    if settings.mig_strategy != "none":
        raise HamiError(
            f"allocation mode {DRA}: existing MIG instances are only available in the "
            f"allocation mode {DEVICE_PLUGIN}; set "
            "--mig-strategy none, and the operating mode mig for instances that claims make"
        )
    if not settings.kubelet_socket:
        raise HamiError(
            f"allocation mode {DRA}: --kubelet-socket is empty, so the kubelet cannot be served"
        )
    if reason := why_not_writable(settings.cdi_root, environ, mounts):
        raise HamiError(f"allocation mode {DRA}: {reason}")


def why_closed(
    config: PluginConfig, pods: Iterable[Pod], prepared: Collection[str], vendor: Vendor
) -> str:
    """Returns why the node cannot have the allocation mode of *config*, or its allocator, yet: pods still use its cards
    through another one. Empty if none does.

    *pods*: those of the node. *prepared*: uids of pods for which claims are prepared.
    """
    target = _way(config.allocation_mode, config.claim_allocator)
    others: dict[str, list[str]] = {}
    for pod in pods:
        way = "" if pod.is_terminated else _way_of(pod, prepared, vendor)
        if way not in ("", target):
            others.setdefault(way, []).append(str(pod.ref))
    if not others:
        return ""
    way, names = min(others.items())
    example = f"such as {min(names)}"
    if DEVICE_PLUGIN not in (way, target):
        return (
            f"{config.claim_allocator} cannot allocate the claims of the node yet: {len(names)} pods have claims that "
            f"{way} has allocated, {example}; set --claim-allocator={way} and drain the node before you "
            "change it"
        )
    mode, other, setting = DEVICE_PLUGIN, DRA, f"{ALLOCATION_MODE}={DRA}, or {CLAIM_DEVICES},"
    if target != DEVICE_PLUGIN:
        mode, other, setting = DRA, DEVICE_PLUGIN, f"{ALLOCATION_MODE}={DEVICE_PLUGIN}"
    return (
        f"the allocation mode of the node cannot be {mode} yet: {len(names)} "
        f"pods have devices in the allocation mode {other}, "
        f"{example}; set the label {setting} and drain the node before you change it"
    )


def _way_of(pod: Pod, prepared: Collection[str], vendor: Vendor) -> str:
    """Returns who has given devices to *pod*, as `_way`; empty if it has none."""
    if pod.claim:
        return HAMI
    if pod.ref.uid in prepared:
        return KUBE_SCHEDULER
    return DEVICE_PLUGIN if vendor.annotations.allocated in pod.annotations else ""


def why_undivided(
    pods: Iterable[Pod],
    prepared: Iterable[PreparedRequest],
    claimed: Collection[str],
    vendor: Vendor,
) -> str:
    """Returns why the allocation modes of a node cannot have these cards yet: a pod still uses one of them in the other
    mode. Empty if none does.

    *pods*: those of the node. *prepared*: what is prepared for claims. *claimed*: the UUIDs of the cards for claims.
    """
    for pod in pods:
        if pod.is_terminated:
            continue
        # also if it cannot be read, as for the scheduler
        text = pod.annotations.get(vendor.annotations.allocated, "")
        used = sorted(uuid for uuid in claimed if uuid in text)
        if used:
            return _still_used(used[0], f"pod {pod.ref}", DEVICE_PLUGIN)
    for request in prepared:
        used = sorted({share.uuid for share in request.shares}.difference(claimed))
        if used:
            return _still_used(used[0], f"claim {request.namespace}/{request.claim}", DRA)
    return ""


def _still_used(uuid: str, user: str, allocation_mode: str) -> str:
    return (
        f"device {uuid} cannot change its allocation mode yet: {user} has it in the "
        f"allocation mode {allocation_mode}; put {CLAIM_DEVICES} "
        "back, and drain the node before you change it"
    )


def _way(allocation_mode: str, allocator: str) -> str:
    """Returns who allocates the devices: the allocation mode for the device plugin, else the allocator of claims."""
    return DEVICE_PLUGIN if allocation_mode == DEVICE_PLUGIN else allocator


def _labeled_allocation_mode(name: str, cluster: Cluster) -> str:
    node = cluster.node(name)
    if node is None:
        raise NotFound(f"there is no node {name}: check --node-name", 404)
    allocation_mode = node.labels.get(ALLOCATION_MODE, DEVICE_PLUGIN)
    if allocation_mode not in NODE_ALLOCATION_MODES or allocation_mode == AUTO:
        raise HamiError(
            f"label {ALLOCATION_MODE}={allocation_mode} of node {name}: expected {DEVICE_PLUGIN} or {DRA}"
        )
    return allocation_mode
