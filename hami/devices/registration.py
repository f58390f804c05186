"""Renders the node's cards for the kubelet (device ids) and for schedulers (node annotations). Does no I/O.

Source: HAMi v2.10, pkg/device-plugin/nvidiadevice/nvinternal/plugin/register.go; v2.4 to v2.7 for the ``csv`` format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import msgspec

from hami.codec.keys import ALLOCATION_MODE, GPU_COUNT, GPU_REPLICAS, LOCK_FREE, NODE_RESIZES
from hami.codec.mig import most_instances
from hami.codec.register import render_devices_brief, render_devices_json
from hami.codec.slices import is_claimable
from hami.codec.states import parse_lock_free, render_lock_free
from hami.devices.cards import Card
from hami.devices.config import BOTH, DRA, MEMORY_BY_DRIVER, PluginConfig
from hami.devices.inventory import InventorySnapshot
from hami.model import Device, Node
from hami.quantity import INT32_MAX
from hami.vendors.inventory import PAIR_SCORES
from hami.vendors.spec import Vendor

MIG = "mig"
VENDOR = "NVIDIA"
"""The vendor of this node's devices, in the catalog and in annotations."""
_UNANSWERED = ("Requesting", "Deleted")


def offered_card(
    card: Card, config: PluginConfig, *, ignore_mig_cards: bool = False
) -> Card | None:
    """Returns *card*, perhaps with a problem, or None if the node does not offer it.

    Not offered: filtered cards, cards with unknown memory, and in mode ``mig`` cards without profiles. An unreadable
    card is offered as unhealthy. So is a card in MIG mode on a node that shares whole cards; with *ignore_mig_cards* it
    is not offered, whatever its problem.
    """
    is_mig_node = config.operating_mode == MIG
    if is_filtered(card, config):
        return None
    if card.mig and ignore_mig_cards and not is_mig_node:
        return None
    if card.problem:
        return card
    if is_mig_node:
        return card if card.profiles else None
    if not _memory(card, config):
        return None
    if card.mig:
        return replace(card, problem="in MIG mode, while this node shares whole cards")
    return card


def is_filtered(card: Card, config: PluginConfig) -> bool:
    """Reports whether the configuration excludes *card*."""
    return card.uuid in config.filtered_uuids or card.index in config.filtered_indexes


def kubelet_ids(card: Card, config: PluginConfig) -> tuple[str, ...]:
    """Returns the kubelet's device ids of a card: ``<uuid>-<i>``."""
    return tuple(f"{card.uuid}-{part}" for part in range(config.nvidia.device_split_count))


def devices(snapshot: InventorySnapshot, config: PluginConfig) -> tuple[Device, ...]:
    """Returns the cards as schedulers see them, sorted by index."""
    return tuple(
        _device(card, card.uuid not in snapshot.unhealthy, config) for card in snapshot.cards
    )


def node_annotations(
    snapshot: InventorySnapshot, config: PluginConfig, vendor: Vendor
) -> dict[str, str | None]:
    """Returns the node's annotations; None for those to be removed. In the allocation mode ``dra``, it has devices for
    HAMi's scheduler only if that allocates its claims; then those that a claim can name."""
    offered = devices(snapshot, config)
    if config.is_managed:
        offered = tuple(filter(is_claimable, offered))
    elif config.allocation_mode == DRA:
        offered = ()
    annotations: dict[str, str | None] = dict.fromkeys(
        (vendor.annotations.register, PAIR_SCORES, ALLOCATION_MODE, NODE_RESIZES)
    )
    if not offered:
        return annotations
    annotations[vendor.annotations.register] = render_devices(offered, config)
    if config.topology_score:
        annotations[PAIR_SCORES] = _scores(snapshot.cards)
    if config.is_managed:
        annotations[ALLOCATION_MODE] = DRA
    if resizes(config):
        annotations[NODE_RESIZES] = "true"
    return annotations


def node_labels(snapshot: InventorySnapshot, config: PluginConfig) -> dict[str, str]:
    """Returns the labels that the node is to have, by which OpenCost prices its devices; empty if it is to have none.
    Source: opencost, pkg/costmodel/costmodel.go, getGPUCount, with the labels of NVIDIA's gpu-feature-discovery."""
    if not config.gpu_labels:
        return {}
    if not snapshot.cards:
        return {}
    return {
        GPU_COUNT: str(len(snapshot.cards)),
        GPU_REPLICAS: str(config.nvidia.device_split_count),
    }


def render_devices(registered: tuple[Device, ...], config: PluginConfig) -> str:
    """Returns the text of the annotation that registers these devices."""
    render = render_devices_brief if config.register_format == "csv" else render_devices_json
    return render(registered)


def resizes(config: PluginConfig) -> bool:
    """Reports whether the device plugin changes the limits of running containers. MIG instances and claims have sizes
    that cannot change, and without the node's control groups the driver's limit is set only when a container starts."""
    if config.memory_by in (BOTH, MEMORY_BY_DRIVER) and not config.cgroup_root:
        return False
    if config.operating_mode == MIG:
        return False
    return config.allocation_mode != DRA


def annotation_changes(
    node: Node,
    wanted: Mapping[str, str | None],
    config: PluginConfig,
    vendor: Vendor,
    now: datetime,
) -> dict[str, str | None]:
    """Returns the annotations to write so that *node* has the *wanted* ones; empty if it has.

    Handshake: schedulers from v2.8 on check what the kubelet offers, and repeat the request whenever its annotation
    changes. An answer would make both sides write forever, so there is none. Schedulers from v2.4 to v2.7, which read
    the ``csv`` format only, drop a node that leaves ``Requesting_…`` unanswered for 60 s: with ``csv`` it is answered.
    """
    changes = {key: text for key, text in wanted.items() if node.annotations.get(key) != text}
    handshake = vendor.annotations.handshake
    if config.register_format == "csv":
        if node.annotations.get(handshake, "").startswith(_UNANSWERED):
            changes[handshake] = f"Reported {now:%Y-%m-%d %H:%M:%S}"
    return changes


def lock_free_changes(node: Node, is_lock_free: bool) -> dict[str, str | None]:
    """Returns the change of the node's annotation after which it does or does not list this vendor; empty if it is
    right. Other vendors stay."""
    listed = parse_lock_free(node.annotations.get(LOCK_FREE))
    target = listed | {VENDOR} if is_lock_free else listed - {VENDOR}
    if target == listed:
        return {}
    return {LOCK_FREE: render_lock_free(target) or None}


def _device(card: Card, healthy: bool, config: PluginConfig) -> Device:
    model = card.model if card.model.startswith(VENDOR) else f"{VENDOR}-{card.model}"
    device = Device(
        uuid=card.uuid,
        vendor=VENDOR,
        model=model,
        index=card.index,
        numa=card.numa or 0,
        healthy=healthy,
        mode=config.operating_mode,
        slots=config.nvidia.device_split_count,
        memory_mib=min(_memory(card, config), INT32_MAX),
        cores=int(config.nvidia.device_core_scaling * 100),
    )
    if config.operating_mode != MIG:
        return device
    return replace(
        device,
        slots=most_instances(card.profiles),
        memory_mib=min(card.memory_mib, INT32_MAX),
        cores=100,
        mig_profiles=card.profiles,
    )


def _memory(card: Card, config: PluginConfig) -> int:
    """Returns the allocatable memory in MiB."""
    memory = card.memory_mib or config.nvidia.preconfigured_device_memory
    if config.nvidia.device_memory_scaling == 1:
        return memory
    return int(memory * config.nvidia.device_memory_scaling)


def _scores(cards: Sequence[Card]) -> str:
    pairs = []
    for card in cards:
        others = [other.uuid for other in cards if other is not card]
        pairs.append(
            {"uuid": card.uuid, "score": {uuid: card.links.get(uuid, 0) for uuid in others}}
        )
    return msgspec.json.encode(pairs).decode()
