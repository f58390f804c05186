"""Through which door pods get the cards of a node: the device plugin or Dynamic Resource Allocation, never both.

Two allocators cannot share a card: no write spans what the two of them decide on.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from hami.codec.keys import DOOR
from hami.devices.registration import DRA, MIG
from hami.errors import HamiError, NotFound
from hami.kube.cluster import Cluster
from hami.model import Pod
from hami.plugin.allocate_mode import why_not_writable
from hami.plugin.flags import AUTO, DOORS, OFF, PLUGIN
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
    if settings.operating_mode == MIG or settings.mig_strategy != "none":
        raise HamiError(f"door {DRA}: MIG instances are only available through the door {PLUGIN}; set the operating "
                        "mode hami-core and --mig-strategy none")
    if not settings.kubelet_socket:
        raise HamiError(f"door {DRA}: --kubelet-socket is empty, so the kubelet cannot be served")
    if reason := why_not_writable(settings.cdi_root, environ, mounts):
        raise HamiError(f"door {DRA}: {reason}")
    return replace(settings, door=DRA, publish_capacity=OFF)


def why_closed(door: str, pods: Iterable[Pod], prepared: Collection[str], vendor: Vendor) -> str:
    """Returns why the node cannot have this *door* yet: pods still use its cards through the other one. Empty if none
    does.

    *pods*: those of the node. *prepared*: uids of pods for which claims are prepared.
    """
    other = DRA if door == PLUGIN else PLUGIN
    names = sorted(str(pod.ref) for pod in pods if not pod.is_terminated and (
        pod.ref.uid in prepared if other == DRA else vendor.annotations.allocated in pod.annotations))
    if not names:
        return ""
    return (f"the door of the node cannot be {door} yet: {len(names)} pods have devices through the door {other}, such "
            f"as {names[0]}; set the label {DOOR}={other} and drain the node before you change it")


def _labeled_door(name: str, cluster: Cluster) -> str:
    node = cluster.node(name)
    if node is None:
        raise NotFound(f"there is no node {name}: check --node-name", 404)
    door = node.labels.get(DOOR, PLUGIN)
    if door not in DOORS or door == AUTO:
        raise HamiError(f"label {DOOR}={door} of node {name}: expected {PLUGIN} or {DRA}")
    return door
