"""Annotations of MetaX's node agent on nodes and pods.

Source: HAMi v2.10, pkg/device/metax/protocol.go and device.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from hami.codec.documents import decode
from hami.codec.register import Amount, Integer, check_number, count_items
from hami.errors import MalformedInput
from hami.model import Allocation, Device, Share


class _MetaxCard(msgspec.Struct, rename="camel"):
    uuid: Annotated[str, msgspec.Meta(pattern="^[^,:;]+$")]  # separators of an allocation
    model: str = ""
    total_dev_count: Amount = 0
    total_compute: Amount = 0
    total_v_ram: Amount = msgspec.field(name="totalVRam", default=0)
    numa: Integer = 0
    healthy: bool = False
    qos_policy: str = ""
    link_zone: Integer = 0


_CARDS = msgspec.json.Decoder(list[_MetaxCard])


def parse_cards(field: str, text: str, vendor: str) -> tuple[Device, ...]:
    """The devices of a node that are shared as sGPUs.

    Shape: ``[{"uuid", "model", "totalDevCount", "totalCompute", "totalVRam", "numa", "healthy", "qosPolicy",
    "linkZone"}]``; the agent omits zero, false and empty values. Memory in MiB, compute in percent. A device's
    position in the list is its index. ``Device.info``: ``qos``, ``model``, ``link_zone``.
    Raises: MalformedInput, also for a healthy device without capacity and for too many devices.
    """
    check_number(field, text, count_items(text))
    cards = decode(field, _CARDS, text, "a list of cards")
    devices = []
    for place, card in enumerate(cards):
        if card.healthy and 0 in (card.total_dev_count, card.total_compute, card.total_v_ram):
            raise MalformedInput(
                f"{field}[{place}]",
                card.uuid,
                "expected totalDevCount, totalCompute and totalVRam above 0 for a healthy card",
            )
        devices.append(
            Device(
                uuid=card.uuid,
                vendor=vendor,
                model=vendor,
                slots=card.total_dev_count,
                mode="",
                index=place,
                memory_mib=card.total_v_ram,
                cores=card.total_compute,
                numa=card.numa,
                healthy=card.healthy,
                info={"qos": card.qos_policy, "model": card.model, "link_zone": card.link_zone},
            )
        )
    return tuple(devices)


def render_allocated(containers: Allocation) -> str:
    """The shares of each container. Shape: ``[[{"uuid", "compute", "vRam"}]]`` without zeros."""
    allocated = [list(map(_allocated, shares)) for shares in containers]
    return msgspec.json.encode(allocated).decode()


def parse_topology(text: str | None) -> Mapping[int, int] | None:
    """A score for each number of devices, as in ``{"1": 100, "2": 200}``; ``None`` if *text* is not such a table."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[int, Integer])
    except (msgspec.DecodeError, RecursionError):
        return None


def _allocated(share: Share) -> dict[str, Any]:
    entry: dict[str, Any] = {"uuid": share.uuid}
    if share.cores:
        entry["compute"] = share.cores
    if share.memory_mib:
        entry["vRam"] = share.memory_mib
    return entry
