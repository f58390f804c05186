"""What the node says of its cards: the kubelet's device ids, and the annotations that schedulers read.

Pure: cards and settings in, text out.
Source: HAMi v2.10, pkg/device-plugin/nvidiadevice/nvinternal/plugin/register.go; v2.4 to v2.7 for the older text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from hami.codec.register import render_devices_brief, render_devices_json
from hami.model import Device, Node
from hami.devices.cards import Card
from hami.devices.config import PluginConfig
from hami.devices.mig_profiles import most_instances
from hami.devices.inventory import InventorySnapshot
from hami.quantity import INT32_MAX

__all__ = ["MIG", "SCORES", "Keys", "devices", "edits", "is_filtered", "judge", "kubelet_ids", "node_annotations"]

MIG = "mig"
SCORES = "hami.io/node-nvidia-score"

_VENDOR = "NVIDIA"
_UNANSWERED = ("Requesting", "Deleted")


@dataclass(frozen=True, slots=True)
class Keys:
    """Which annotations are the register and the handshake."""

    register: str
    handshake: str


def judge(config: PluginConfig, *, leaves_mig: bool = False) -> Callable[[Card], Card | None]:
    """What this node makes of a card: the card, with a problem perhaps; ``None`` for one that is not offered.

    Not offered: what is filtered out, what nobody knows the memory of, in mode ``mig`` what cannot be cut. A card that
    cannot be read is offered, as an unwell one, and so is one in MIG mode on a node that shares whole cards, unless
    such are left to others (*leaves_mig*), whatever is wrong with them.
    """
    def judged(card: Card) -> Card | None:
        if is_filtered(card, config) or card.mig and leaves_mig and config.operating_mode != MIG:
            return None
        if card.problem:
            return card
        if config.operating_mode == MIG:
            return card if card.profiles else None
        if not _memory(card, config):
            return None
        return replace(card, problem="in MIG mode, while this node shares whole cards") if card.mig else card
    return judged


def is_filtered(card: Card, config: PluginConfig) -> bool:
    """The node's owner does not want *card* to be offered."""
    return card.uuid in config.filtered_uuids or card.index in config.filtered_indexes


def kubelet_ids(card: Card, config: PluginConfig) -> tuple[str, ...]:
    """The ids under which the kubelet knows the parts of a card: ``<uuid>-<i>``."""
    return tuple(f"{card.uuid}-{part}" for part in range(config.split_count))


def devices(roll: InventorySnapshot, config: PluginConfig) -> tuple[Device, ...]:
    """The cards as schedulers see them, by index."""
    return tuple(_device(card, card.uuid not in roll.unwell, config) for card in roll.cards)


def node_annotations(roll: InventorySnapshot, config: PluginConfig, keys: Keys) -> dict[str, str | None]:
    """What the node's annotations should be; ``None`` for one that should not be there."""
    render = render_devices_brief if config.register_format == "csv" else render_devices_json
    return {keys.register: render(devices(roll, config)) if roll.cards else None,
            SCORES: _scores(roll.cards) if config.topology_score and roll.cards else None}


def edits(node: Node, wanted: Mapping[str, str | None], config: PluginConfig, keys: Keys,
          now: datetime) -> dict[str, str | None]:
    """What has to be written so that *node* says what is *wanted*; empty when it does.

    Handshake: a scheduler of v2.8 or later judges a node by what the kubelet offers, and asks again as soon as anything
    else stands in the place of its question, so an answer would make each of them write for ever: it is left alone.
    One of v2.4 to v2.7, which reads nothing but the text form, forgets a node that leaves ``Requesting_…`` unanswered
    for 60 s: with ``csv`` it is answered, once each time.
    """
    changes = {key: text for key, text in wanted.items() if node.annotations.get(key) != text}
    if config.register_format == "csv" and node.annotations.get(keys.handshake, "").startswith(_UNANSWERED):
        changes[keys.handshake] = f"Reported {now:%Y-%m-%d %H:%M:%S}"
    return changes


def _device(card: Card, healthy: bool, config: PluginConfig) -> Device:
    mig = config.operating_mode == MIG
    model = card.model if card.model.startswith(_VENDOR) else f"{_VENDOR}-{card.model}"
    return Device(
        uuid=card.uuid, vendor=_VENDOR, model=model, index=card.index, numa=card.numa or 0, healthy=healthy,
        mode=config.operating_mode,
        slots=most_instances(card.profiles) if mig else config.split_count,
        memory_mib=min(card.memory_mib if mig else _memory(card, config), INT32_MAX),
        cores=100 if mig else int(config.core_scaling * 100),
        mig_profiles=card.profiles if mig else ())


def _memory(card: Card, config: PluginConfig) -> int:
    """MiB that can be given out."""
    memory = card.memory_mib or config.preconfigured_memory
    return memory if config.memory_scaling == 1 else int(memory * config.memory_scaling)


def _scores(cards: Sequence[Card]) -> str:
    uuids = [card.uuid for card in cards]
    return msgspec.json.encode([
        {"uuid": card.uuid, "score": {uuid: card.links.get(uuid, 0) for uuid in uuids if uuid != card.uuid}}
        for card in cards]).decode()
