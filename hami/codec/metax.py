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
from hami.model import Device, Share


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
    for place, card in enumerate(cards):
        if card.healthy and not (card.total_dev_count and card.total_compute and card.total_v_ram):
            raise MalformedInput(
                f"{field}[{place}]",
                card.uuid,
                "expected totalDevCount, totalCompute and totalVRam above 0 for a healthy card",
            )
    return tuple(
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
        for place, card in enumerate(cards)
    )


def render_allocated(containers: tuple[tuple[Share, ...], ...]) -> str:
    """The shares of each container. Shape: ``[[{"uuid", "compute", "vRam"}]]`` without zeros."""
    return msgspec.json.encode(
        [[_allocated(share) for share in shares] for shares in containers]
    ).decode()


def parse_topology(text: str | None) -> Mapping[int, int] | None:
    """A score for each number of devices, as in ``{"1": 100, "2": 200}``; ``None`` if *text* is not such a table."""
    try:
        return msgspec.json.decode(text, type=dict[int, Integer]) if text is not None else None
    except (msgspec.DecodeError, RecursionError):
        return None


def _allocated(share: Share) -> dict[str, Any]:
    amounts = {"compute": share.cores, "vRam": share.memory_mib}
    return {"uuid": share.uuid, **{key: amount for key, amount in amounts.items() if amount}}
