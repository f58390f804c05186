"""Through which door pods get the cards of a node: the device plugin or Dynamic Resource Allocation, never both.

Two allocators cannot share a card: no write spans what the two of them decide on.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from hami.codec.keys import DOOR
from hami.devices.config import PluginConfig
from hami.devices.registration import DRA, HAMI, KUBE_SCHEDULER
from hami.errors import HamiError, NotFound
from hami.kube.cluster import Cluster
from hami.model import Pod
from hami.plugin.allocate_mode import why_not_writable
from hami.plugin.flags import AUTO, NODE_DOORS, OFF, PLUGIN
from hami.plugin.settings import PluginSettings
from hami.vendors.spec import Vendor


def open_door(settings: PluginSettings, cluster: Cluster, environ: Mapping[str, str] = os.environ,
              mounts: Path = Path("/proc/self/mountinfo")) -> PluginSettings:
    """Returns *settings* with the door of the node, ``plugin`` or ``dra``, and what goes with it.

    *environ*, *mounts*: as for `why_not_writable`. Raises: HamiError if the node cannot have this door, or its label
    cannot be read.
    """
    door = settings.door if settings.door != AUTO else _labeled_door(settings.node, cluster)
    if door == PLUGIN:
        return replace(settings, door=PLUGIN)
    if settings.mig_strategy != "none":
        raise HamiError(f"door {DRA}: existing MIG instances are only available through the door {PLUGIN}; set "
                        "--mig-strategy none, and the operating mode mig for instances that claims make")
    if not settings.kubelet_socket:
        raise HamiError(f"door {DRA}: --kubelet-socket is empty, so the kubelet cannot be served")
    if reason := why_not_writable(settings.cdi_root, environ, mounts):
        raise HamiError(f"door {DRA}: {reason}")
    return replace(settings, door=DRA, publish_capacity=OFF)


def why_closed(config: PluginConfig, pods: Iterable[Pod], prepared: Collection[str], vendor: Vendor) -> str:
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
        return (f"the door of the node cannot be {door} yet: {len(names)} pods have devices through the door {other}, "
                f"such as {min(names)}; set the label {DOOR}={other} and drain the node before you change it")
    return (f"{config.claim_allocator} cannot allocate the claims of the node yet: {len(names)} pods have claims that "
            f"{way} has allocated, such as {min(names)}; set --claim-allocator={way} and drain the node before you "
            "change it")


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
