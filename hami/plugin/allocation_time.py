"""Decides whether containers get their devices at admission or when they start.

Start-time mode needs a kubelet and a container runtime that know CDI, and a folder of the host for specifications: a
container with a CDI device that the runtime does not find never starts. So in doubt the answer is admission.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hami.devices.config import AUTO, PluginConfig
from hami.errors import ClusterError, HamiError
from hami.kube.cluster import Cluster
from hami.model import Node
from hami.plugin.settings import ADMISSION, START, PluginSettings

log = logging.getLogger(__name__)

_RUNTIMES = {"containerd": (2, 0), "cri-o": (1, 28)}
"""The first versions with CDI switched on."""
_CAN_SWITCH_ON = {"containerd": (1, 7), "cri-o": (1, 23)}
"""The first versions in which a setting switches it on."""
_KUBELET = (1, 29)
"""The first kubelet that passes CDI devices of device plugins on."""
_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(\D.*)?")


def is_start_time(
    settings: PluginSettings, cluster: Cluster, recorded: bool | None, environ: Mapping[str, str]
) -> bool:
    """Reports whether containers get their devices when they start, and logs why.

    *recorded*: whether the kubelet's records are of start-time mode, which counts if the node cannot be read; ``None``
    without records. *environ*: of this process. Raises: HamiError if it cannot be decided, or if a runtime that does
    not know CDI would start containers without devices and limits.
    """
    name, mode, reason = settings.node, settings.allocate, "--allocate"
    if mode == AUTO:
        try:
            node = cluster.node(name)
            if node is None:
                raise ClusterError(f"there is no node {name}: check --node-name", 404)
            reason = why_not_start(settings, node, environ)
            mode = ADMISSION if reason else START
        except ClusterError as error:
            if recorded is None:
                raise
            reason, mode = (
                f"as before, since the node cannot be read: {error}",
                START if recorded else ADMISSION,
            )
    elif mode == START:
        _check_knows_cdi(cluster, name)
    log.info(
        "mode of allocation",
        extra={"node": name, "allocate": mode, "reason": reason or "CDI is available"},
    )
    return mode == START and bool(settings.kubelet_socket)


def _check_knows_cdi(cluster: Cluster, name: str) -> None:
    """Raises: HamiError if the runtime of the node does not. Logs if the node cannot be read."""
    try:
        node = cluster.node(name)
    except ClusterError as error:
        log.warning(
            "it is not known whether the container runtime knows CDI",
            extra={"node": name, "error": error},
        )
        return
    if node is None:
        return
    runtime, _, version = node.runtime_version.partition("://")
    first = _CAN_SWITCH_ON.get(runtime, (0, 0))
    if (0, 0) < _numbers(version) < first:
        raise HamiError(
            f"--allocate={START}: the container runtime {node.runtime_version} does not know CDI, so "
            f"containers would start without devices and limits; {runtime} {first[0]}.{first[1]} is needed"
        )


def start_time_config(config: PluginConfig) -> PluginConfig:
    """Returns *config* for start-time mode: edits of CDI devices replace annotations, and the kubelet's choice of cards
    is a hint.

    Specifications list the device nodes: the runtime does not know those that NVIDIA's hook adds, and a reload of
    systemd, or a change of a container's CPU, would take them away.
    """
    strategies = dict.fromkeys(
        "cdi-cri" if strategy == "cdi-annotations" else strategy
        for strategy in config.list_strategies
    )
    return replace(config, list_strategies=tuple(strategies), aligned=False, pass_device_specs=True)


def why_not_start(
    settings: PluginSettings,
    node: Node,
    environ: Mapping[str, str],
    mounts: Path = Path("/proc/self/mountinfo"),
) -> str:
    """Returns what keeps *node* from start-time mode; empty if nothing does.

    *environ*: of this process. *mounts*: of this process, which in a pod must include the folder of the host.
    """
    if not settings.kubelet_socket:
        return "there is no kubelet socket"
    if settings.aligned:
        return "enablegetpreferredallocation lets the kubelet choose cards, which must be checked at admission"
    runtime, _, version = node.runtime_version.partition("://")
    if runtime not in _RUNTIMES or _numbers(version) < _RUNTIMES[runtime]:
        return f"container runtime {node.runtime_version or 'unknown'}: CDI needs " + " or ".join(
            f"{name} {major}.{minor}" for name, (major, minor) in _RUNTIMES.items()
        )
    if _numbers(node.kubelet_version) < _KUBELET:
        return f"kubelet {node.kubelet_version or 'unknown'}: CDI needs 1.29"
    return why_not_writable(settings.cdi_root, environ, mounts)


def why_not_writable(folder: str, environ: Mapping[str, str], mounts: Path) -> str:
    """Returns why specifications that are written to *folder* do not reach the runtime; empty if they do."""
    if not folder:
        return "another program writes CDI specifications (--cdi-root is empty)"
    try:
        os.makedirs(folder, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            return f"--cdi-root {folder} is read-only"
        if "KUBERNETES_SERVICE_HOST" in environ and not _is_mounted(Path(folder).resolve(), mounts):
            return f"--cdi-root {folder} is no folder of the host: mount it"
    except OSError as error:
        return f"--cdi-root {folder}: {error.strerror}"
    return ""


def _is_mounted(folder: Path, mounts: Path) -> bool:
    """Reports whether *folder* lies in a file system other than that of ``/``."""
    points = {line.split()[4] for line in mounts.read_text().splitlines()}
    return any(str(path) in points for path in (folder, *folder.parents[:-1]))


def _numbers(version: str) -> tuple[int, int]:
    """Returns the major and the minor number of a version; zeros if it cannot be read."""
    match = _VERSION.fullmatch(version)
    return (int(match[1]), int(match[2])) if match is not None else (0, 0)
