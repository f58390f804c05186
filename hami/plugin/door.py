"""Through which door pods get the cards of a node: the device plugin or Dynamic Resource Allocation, never both.

Two allocators cannot share a card: no write spans what the two of them decide on.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from hami.codec.keys import DOOR
from hami.devices.cards import Card
from hami.devices.config import PluginConfig
from hami.devices.registration import DRA, HAMI, KUBE_SCHEDULER, MIG, offered_card
from hami.dra.guard import PreparedRequest
from hami.errors import HamiError, NotFound
from hami.kube.cluster import Cluster
from hami.model import Pod
from hami.plugin.allocate_mode import why_not_writable
from hami.plugin.flags import AUTO, NODE_DOORS, OFF, PLUGIN
from hami.plugin.settings import PluginSettings
from hami.vendors.spec import Vendor

CLAIM_DEVICES = "claimdevices"
"""The key of the node configuration with the cards for claims of a node where the others are at the door ``plugin``."""


def open_door(
    settings: PluginSettings,
    cluster: Cluster,
    environ: Mapping[str, str] = os.environ,
    mounts: Path = Path("/proc/self/mountinfo"),
) -> PluginSettings:
    """Returns *settings* with the door of the node, ``plugin`` or ``dra``, and what goes with it. A node with the door
    ``plugin`` may have some cards at the other one, for which `claimed_part` returns the settings.

    *environ*, *mounts*: as for `why_not_writable`. Raises: HamiError if the node cannot have this door, or its label
    cannot be read.
    """
    door = settings.door if settings.door != AUTO else _labeled_door(settings.node, cluster)
    if door == PLUGIN:
        if settings.is_divided:
            _check_claims(settings, environ, mounts)
            if settings.operating_mode == MIG or settings.claim_allocator == HAMI:
                field = (
                    "the operating mode mig"
                    if settings.operating_mode == MIG
                    else f"--claim-allocator={HAMI}"
                )
                raise HamiError(
                    f"{CLAIM_DEVICES}: with {field}, all devices of a node have one door: set the label "
                    f"{DOOR}={DRA} on the node, or leave {CLAIM_DEVICES} out"
                )
        return replace(settings, door=PLUGIN)
    _check_claims(settings, environ, mounts)
    return replace(settings, door=DRA, publish_capacity=OFF, claimed_uuids=(), claimed_indexes=())


def claimed_part(settings: PluginSettings) -> PluginSettings | None:
    """Returns the settings for the cards at the door ``dra``, of the node whose *settings* `open_door` has returned;
    ``None`` if there are none."""
    if settings.door == PLUGIN and settings.is_divided:
        return replace(settings, door=DRA, publish_capacity=OFF)
    return settings if settings.door == DRA else None


class CardDoors:
    """The door of each card of a node. A card keeps its door while the process lives, even if its index changes:
    containers may use it."""

    def __init__(self, config: PluginConfig) -> None:
        self._config = config
        self._claimed: dict[str, bool] = {}  # by UUID, whether the card is for claims

    def offered(
        self, card: Card, config: PluginConfig, *, ignore_mig_cards: bool = False
    ) -> Card | None:
        """Returns *card* as :func:`offered_card`; ``None`` also if it is not at the door of *config*."""
        own = self._config
        is_claimed = self._claimed.setdefault(
            card.uuid, card.uuid in own.claimed_uuids or card.index in own.claimed_indexes
        )
        if own.is_divided and is_claimed != (config.door == DRA):
            return None
        return offered_card(card, config, ignore_mig_cards=ignore_mig_cards)


def _check_claims(settings: PluginSettings, environ: Mapping[str, str], mounts: Path) -> None:
    """Raises: HamiError if the node cannot give out cards by claims."""
    if settings.mig_strategy != "none":
        raise HamiError(
            f"door {DRA}: existing MIG instances are only available through the door {PLUGIN}; set "
            "--mig-strategy none, and the operating mode mig for instances that claims make"
        )
    if not settings.kubelet_socket:
        raise HamiError(f"door {DRA}: --kubelet-socket is empty, so the kubelet cannot be served")
    if reason := why_not_writable(settings.cdi_root, environ, mounts):
        raise HamiError(f"door {DRA}: {reason}")


def why_closed(
    config: PluginConfig, pods: Iterable[Pod], prepared: Collection[str], vendor: Vendor
) -> str:
    """Returns why the node cannot have the door of *config*, or its allocator, yet: pods still use its cards through
    another one. Empty if none does.

    *pods*: those of the node. *prepared*: uids of pods for which claims are prepared.
    """
    wanted = _way(config.door, config.claim_allocator)
    others: dict[str, list[str]] = {}
    for pod in (pod for pod in pods if not pod.is_terminated):
        if pod.claim or pod.ref.uid in prepared:
            way = _way(DRA, HAMI if pod.claim else KUBE_SCHEDULER)
        elif vendor.annotations.allocated in pod.annotations:
            way = PLUGIN
        else:
            continue
        if way != wanted:
            others.setdefault(way, []).append(str(pod.ref))
    if not others:
        return ""
    way, names = min(others.items())
    if PLUGIN in (way, wanted):
        door, other = (PLUGIN, DRA) if wanted == PLUGIN else (DRA, PLUGIN)
        setting = f"{DOOR}={other}, or {CLAIM_DEVICES}," if other == DRA else f"{DOOR}={other}"
        return (
            f"the door of the node cannot be {door} yet: {len(names)} pods have devices through the door {other}, "
            f"such as {min(names)}; set the label {setting} and drain the node before you change it"
        )
    return (
        f"{config.claim_allocator} cannot allocate the claims of the node yet: {len(names)} pods have claims that "
        f"{way} has allocated, such as {min(names)}; set --claim-allocator={way} and drain the node before you "
        "change it"
    )


def why_undivided(
    pods: Iterable[Pod],
    prepared: Iterable[PreparedRequest],
    claimed: Collection[str],
    vendor: Vendor,
) -> str:
    """Returns why the doors of a node cannot have these cards yet: a pod still uses one of them through the other door.
    Empty if none does.

    *pods*: those of the node. *prepared*: what is prepared for claims. *claimed*: the UUIDs of the cards for claims.
    """
    for pod in (pod for pod in pods if not pod.is_terminated):
        text = pod.annotations.get(vendor.annotations.allocated, "")
        if used := sorted(
            uuid for uuid in claimed if uuid in text
        ):  # also if it cannot be read, as for the scheduler
            return _still_used(used[0], f"pod {pod.ref}", PLUGIN)
    for request in prepared:
        if used := sorted({share.uuid for share in request.shares}.difference(claimed)):
            return _still_used(used[0], f"claim {request.namespace}/{request.claim}", DRA)
    return ""


def _still_used(uuid: str, user: str, door: str) -> str:
    return (
        f"device {uuid} cannot change its door yet: {user} has it through the door {door}; put {CLAIM_DEVICES} "
        "back, and drain the node before you change it"
    )


def _way(door: str, allocator: str) -> str:
    """Returns who gives out the devices: the door for the device plugin, else the allocator of claims."""
    return PLUGIN if door == PLUGIN else allocator


def _labeled_door(name: str, cluster: Cluster) -> str:
    node = cluster.node(name)
    if node is None:
        raise NotFound(f"there is no node {name}: check --node-name", 404)
    door = node.labels.get(DOOR, PLUGIN)
    if door not in NODE_DOORS or door == AUTO:
        raise HamiError(f"label {DOOR}={door} of node {name}: expected {PLUGIN} or {DRA}")
    return door
