"""Grants: the environment, mounts, device nodes and CDI names that a container gets for its shares.

Pure; the state of the host comes in as :class:`HostFacts`.
Source: HAMi v2.10, pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go, getAllocateResponse and Allocate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hami.codec.register import parse_bool
from hami.devices.cards import Card
from hami.devices.config import PluginConfig
from hami.model import Share
from hami.node.cdi import ALL, CLASSES, EXTRAS, GPU, IMEX, VENDOR
from hami.node.limits import LIMITS
from hami.node.region_layout import COMPUTE_SUFFIX, REGION_SUFFIX

CDI = frozenset({"cdi-annotations", "cdi-cri"})
"""The list strategies that name devices to the container runtime."""
LISTED = "/var/run/nvidia-container-devices"  # its entries tell NVIDIA's runtime which devices are visible
CONTROL_NODES = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
)
LOCK_DIRECTORY = "/tmp/vgpulock"  # where HAMi's older libraries lock a file
LOCKS = "lock"
"""The directory in that of a container to which its processes may write, with libraries that need it."""
_INVISIBLE = ("none", "void")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host path that is mounted into the container. *is_data*: nothing in it is to be executed or opened as a device,
    which a CDI specification can forbid, but not an answer to Allocate."""

    container_path: str
    host_path: str
    read_only: bool = False
    is_data: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device node of the host that the container may use; *permissions*: letters of ``rwm``."""

    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A program of the host that runs before that of the container, with the state of the container. Only a CDI
    specification can name it. *args*: begin with the name of the program."""

    path: str
    args: tuple[str, ...]
    timeout_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Everything that one container gets, as the kubelet passes it to the container runtime. *hooks*: only for a
    container that gets its devices when it starts."""

    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    cdi_devices: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The state of the host. *library*: path of the limiter. *locks*: it needs a directory for locks. *license*: a
    license file exists. *nodes*: the driver's control nodes, without the configured prefix. *absent*: device nodes of
    cards that do not exist, as of mock cards. *instance_nodes*: those of the MIG instances that are allocated.
    *classes*: CDI classes that have a specification, besides the cards.
    """

    library: str
    locks: bool = True
    license: bool = False
    nodes: tuple[str, ...] = CONTROL_NODES
    absent: frozenset[str] = frozenset()
    instance_nodes: tuple[str, ...] = ()
    classes: frozenset[str] = frozenset(CLASSES)


def shares_grant(
    config: PluginConfig,
    parts: Sequence[tuple[Card, Share]],
    host: HostFacts,
    *,
    own: str,
    token: str,
    variables: Mapping[str, str],
) -> Grant:
    """Returns the grant of a container that shares cards. *parts*: its shares with their cards, in any order.

    *own*: the path of its directory on the host. *token*: a unique text, a random UUID. *variables*: those in its
    specification.
    Limits are numbered in the driver's order, which CUDA follows with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``; a grant of
    several devices sets that variable, and a core limit for each device.
    """
    parts = sorted(parts, key=lambda part: part[0].index)
    cards = [card for card, _ in parts]
    ids = [str(card.index) if config.id_strategy == "index" else card.uuid for card in cards]
    base = visible_devices_grant(config, ids, cards, host, token)
    directory = f"{config.hook_path}/vgpu"
    env = dict(base.env)
    if variables.get("NVIDIA_VISIBLE_DEVICES") in _INVISIBLE:
        env.pop("NVIDIA_VISIBLE_DEVICES", None)  # the specification asks for the limits only
    for place, (_, share) in enumerate(parts):
        env[f"CUDA_DEVICE_MEMORY_LIMIT_{place}"] = f"{share.memory_mib}m"
        if len(parts) > 1:
            env[f"CUDA_DEVICE_SM_LIMIT_{place}"] = str(share.cores)
    env["CUDA_DEVICE_SM_LIMIT"] = str(parts[0][1].cores)
    env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{directory}/{token}{REGION_SUFFIX}"
    if config.nvidia.device_memory_scaling > 1:
        env["CUDA_OVERSUBSCRIBE"] = "true"
    env |= overridable_env(config, len(parts))
    mounts = (*base.mounts, *_limiter_mounts(directory, host, own, token, variables))
    return replace(base, env=env, mounts=mounts)


def _limiter_mounts(
    directory: str, host: HostFacts, own: str, token: str, variables: Mapping[str, str]
) -> Iterator[Mount]:
    """Yields what the limiter needs: the directory is root's; the container may write to what is data."""
    yield _read_only(f"{directory}/libvgpu.so", host.library)
    yield _read_only(f"{directory}/{LIMITS}", f"{own}/{LIMITS}")
    for suffix in (REGION_SUFFIX, COMPUTE_SUFFIX):
        yield _data(f"{directory}/{token}{suffix}", f"{own}/{token}{suffix}")
    if host.locks:
        yield _data(LOCK_DIRECTORY, f"{own}/{LOCKS}")
    if not parse_bool(variables.get("CUDA_DISABLE_CONTROL", "")):
        # the specification can disable the limiter
        yield _read_only("/etc/ld.so.preload", f"{directory}/ld.so.preload")
    if host.license:
        yield _read_only("/tmp/license", f"{directory}/license")
        yield _read_only("/usr/bin/vgpuvalidator", f"{directory}/vgpuvalidator")


def _read_only(path: str, source: str) -> Mount:
    return Mount(container_path=path, host_path=source, read_only=True)


def _data(path: str, source: str) -> Mount:
    return Mount(container_path=path, host_path=source, is_data=True)


def overridable_env(config: PluginConfig, count: int) -> dict[str, str]:
    """Returns the variables of a container with *count* devices that its specification may override."""
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if count > 1 else {}
    if config.log_level:
        env["LIBCUDA_LOG_LEVEL"] = config.log_level
    if config.nvidia.disable_core_limit:
        env["GPU_CORE_UTILIZATION_POLICY"] = "disable"
    return env


def wanted_extras(config: PluginConfig) -> tuple[str, ...]:
    """Returns those of `EXTRAS` that are enabled."""
    return tuple(name for name in EXTRAS if getattr(config, name))


def visible_devices_grant(
    config: PluginConfig, ids: Sequence[str], cards: Sequence[Card], host: HostFacts, token: str
) -> Grant:
    """Returns a grant that only makes devices visible, which is enough for MIG instances: the hardware enforces their
    limits.

    *ids*: the names of the devices for NVIDIA's runtime. *cards*: those that the devices are, or lie on. *token*: a
    unique text.
    """
    strategies = set(config.list_strategies)
    ids = list(dict.fromkeys(ids))
    grant = _cdi_grant(config, ids, host, token)
    if strategies <= CDI:
        return grant
    env: dict[str, str] = {}
    mounts: list[Mount] = []
    if "envvar" in strategies:
        env["NVIDIA_VISIBLE_DEVICES"] = ",".join(ids)
        if config.imex_channels:
            env["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, config.imex_channels))
    if "volume-mounts" in strategies:
        env["NVIDIA_VISIBLE_DEVICES"] = LISTED
        mounts = [_listed(name) for name in ids]
        mounts += [_listed(f"imex/{channel}") for channel in config.imex_channels]
    for name in wanted_extras(config):
        env[f"NVIDIA_{name.upper()}"] = "enabled"
    if config.pass_device_specs:
        grant = replace(grant, devices=_nodes(config, cards, host))
    return replace(grant, env=env, mounts=tuple(mounts))


def _cdi_grant(config: PluginConfig, ids: Sequence[str], host: HostFacts, token: str) -> Grant:
    grant = Grant()
    names = _cdi_names(config, ids, host)
    if names and "cdi-annotations" in config.list_strategies:
        key = f"{config.cdi_prefix}nvidia-device-plugin_{token}"
        grant = replace(grant, annotations={key: ",".join(names)})
    if "cdi-cri" in config.list_strategies:
        grant = replace(grant, cdi_devices=names)
    return grant


def _listed(name: str) -> Mount:
    return Mount(container_path=f"{LISTED}/{name}", host_path="/dev/null")


def _cdi_names(config: PluginConfig, ids: Sequence[str], host: HostFacts) -> tuple[str, ...]:
    """Returns the CDI names of the devices, and of the extras that have a specification: a name without one would
    prevent the container from starting."""
    extras = [
        *((IMEX, str(channel)) for channel in config.imex_channels),
        *((name, ALL) for name in wanted_extras(config)),
    ]
    return (
        *(f"{VENDOR}/{GPU}={device_id}" for device_id in ids),
        *(f"{VENDOR}/{kind}={name}" for kind, name in extras if kind in host.classes),
    )


def _nodes(config: PluginConfig, cards: Sequence[Card], host: HostFacts) -> tuple[DeviceNode, ...]:
    own = dict.fromkeys(card.node for card in sorted(cards, key=lambda card: card.minor))
    for path in host.absent:
        own.pop(path, None)
    paths = (
        *host.nodes,
        *own,
        *host.instance_nodes,
        *(f"/dev/nvidia-caps-imex-channels/channel{channel}" for channel in config.imex_channels),
    )
    return tuple(
        DeviceNode(container_path=path, host_path=config.dev_root.rstrip("/") + path)
        for path in paths
    )
