"""Annotations, capacities and labels that the agents of all vendors add to their nodes.

Each function returns an ``Outfit``; a node may have several (``Sandbox.add_node``). All texts are rendered here,
independently of ``hami.codec``, so that its faults are detected.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from testing.nodes import REGISTER, Gpu, register_text, registered

__all__ = [
    "Outfit",
    "amd",
    "ascend",
    "biren",
    "cambricon",
    "card",
    "drs",
    "gcu",
    "hygon",
    "iluvatar",
    "kunlun",
    "metax",
    "moore_threads",
    "neuron",
    "nvidia",
    "sgpu",
    "vastai",
    "vendor_node",
    "vxpu",
]

Object = dict[str, Any]
FAKE = {"kwok.x-k8s.io/node": "fake"}
DRS_PROFILES = {"1g.6gb": "0", "3g.20gb": "1", "6g.40gb": "2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outfit:
    """What one agent adds to its node. *capacity*: extended resources, all allocatable."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def vendor_node(
    name: str,
    outfits: Iterable[Outfit],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """Returns a node with *outfits*."""
    notes, marks = {**FAKE, **(annotations or {})}, dict(labels or {})
    room: dict[str, str] = {"cpu": "1000", "memory": "4Ti", "pods": "1000"}
    for outfit in outfits:
        notes |= outfit.annotations
        marks |= outfit.labels
        room |= {resource: str(amount) for resource, amount in outfit.capacity.items()}
    marks |= {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": marks, "annotations": notes},
        "status": {"capacity": room, "allocatable": room},
    }


def card(
    uuid: str,
    memory_mib: int = 0,
    *,
    slots: int = 10,
    cores: int = 100,
    model: str = "",
    numa: int = 0,
    healthy: bool = True,
    **more: Any,
) -> Object:
    """Returns a device of a register annotation. *more*: further keys, such as ``custominfo``."""
    return {
        "id": uuid,
        "count": slots,
        "devmem": memory_mib,
        "devcore": cores,
        "type": model,
        "numa": numa,
        "health": healthy,
        **more,
    }


def nvidia(*cards: Gpu) -> Outfit:
    """NVIDIA, with the UUIDs of *cards*."""
    return Outfit(
        annotations={REGISTER: register_text(registered("", cards))},
        capacity={"nvidia.com/gpu": sum(card.slots for card in cards)},
    )


def hygon(*cards: Object) -> Outfit:
    """Text form, seven fields for each device."""
    return Outfit(
        annotations={"hami.io/node-dcu-register": in_text(cards, "DCU-K100_AI", indexed=False)},
        capacity={"hygon.com/dcunum": slots(cards)},
    )


def iluvatar(chip: str, *cards: Object) -> Outfit:
    """Text form, nine fields for each device."""
    return Outfit(
        annotations={f"hami.io/node-{chip}-register": in_text(cards, chip, indexed=True)},
        capacity={f"iluvatar.ai/{chip}-vgpu": slots(cards)},
    )


def ascend(chip: str, *cards: Object) -> Outfit:
    return Outfit(
        annotations={f"hami.io/node-register-{chip}": in_json(cards, chip)},
        capacity={f"huawei.com/{chip}": slots(cards)},
    )


def amd(*cards: Object) -> Outfit:
    return Outfit(
        annotations={"hami.io/node-amd-register": in_json(cards, "AMD Instinct MI300X VF")},
        capacity={"amd.com/gpu": slots(cards)},
    )


def biren(*cards: Object) -> Outfit:
    return Outfit(
        annotations={"hami.io/node-biren-register": in_json(cards, "Biren")},
        capacity={"birentech.com/gpu": slots(cards)},
    )


def vastai(*cards: Object) -> Outfit:
    return Outfit(
        annotations={"hami.io/node-va-register": in_json(cards, "Vastai")},
        capacity={"vastaitech.com/va": slots(cards)},
    )


def vxpu(*cards: Object) -> Outfit:
    """Kunlun, slices of devices."""
    return Outfit(
        annotations={"hami.io/node-register-xpu": in_json(cards, "XPU")},
        capacity={"kunlunxin.com/vxpu": slots(cards)},
    )


def kunlun(cards: int = 8) -> Outfit:
    return Outfit(capacity={"kunlunxin.com/xpu": cards})


def cambricon(cards: int, *, units: int = 100) -> Outfit:
    """*units*: of 256 MiB, on each device."""
    return Outfit(
        capacity={
            "cambricon.com/vmlu": cards * 100,
            "cambricon.com/mlu.smlu.vcore": cards * 100,
            "cambricon.com/mlu.smlu.vmemory": cards * units,
        }
    )


def moore_threads(cards: int) -> Outfit:
    return Outfit(
        capacity={
            "mthreads.com/vgpu": cards,
            "mthreads.com/sgpu-core": cards * 16,
            "mthreads.com/sgpu-memory": cards * 96,
        }
    )


def metax(cards: int) -> Outfit:
    """Whole devices."""
    return Outfit(capacity={"metax-tech.com/gpu": cards})


def sgpu(*cards: str, memory_mib: int = 65_536, slots: int = 16, quality: str = "") -> Outfit:
    """MetaX, shared devices by UUID, without empty values."""
    found = [
        {
            "uuid": uuid,
            "bdf": f"0000:{place:02x}:00.0",
            "model": "MXC500",
            "totalDevCount": slots,
            "totalCompute": 100,
            "totalVRam": memory_mib,
            "availableDevCount": slots,
            "availableCompute": 100,
            "availableVRam": memory_mib,
            "numa": 0,
            "healthy": True,
            "qosPolicy": quality,
            "linkZone": 1,
        }
        for place, uuid in enumerate(cards)
    ]
    return Outfit(
        annotations={"metax-tech.com/node-gpu-devices": compact([filled(one) for one in found])},
        capacity={"metax-tech.com/sgpu": slots * len(cards)},
    )


def gcu(cards: int) -> Outfit:
    return Outfit(capacity={"enflame.com/gcu": cards})


def drs(cards: int, *, slices: int = 6) -> Outfit:
    """Enflame, devices in slices; numbers are written as texts."""
    devices = [
        {"index": str(index), "minor": str(index + 7), "capacity": slices} for index in range(cards)
    ]
    return Outfit(
        annotations={
            "enflame.com/gcu-drs-capacity": compact({"devices": devices, "profiles": DRS_PROFILES})
        },
        capacity={"enflame.com/drs-gcu": cards * slices},
    )


def neuron(kind: str | None, devices: int, *, cores: int = 2) -> Outfit:
    """AWS Neuron devices with *cores* cores each. *kind*: instance type; ``None``: no label."""
    return Outfit(
        capacity={"aws.amazon.com/neuron": devices, "aws.amazon.com/neuroncore": devices * cores},
        labels={} if kind is None else {"node.kubernetes.io/instance-type": kind},
    )


def slots(cards: Iterable[Object]) -> int:
    return sum(one["count"] for one in cards)


def in_json(cards: Iterable[Object], model: str) -> str:
    """Returns JSON without zero values."""
    return compact(
        [
            filled({**one, "index": place, "type": one["type"] or model})
            for place, one in enumerate(cards)
        ]
    )


def in_text(cards: Iterable[Object], model: str, *, indexed: bool) -> str:
    return "".join(
        ",".join(
            map(
                str,
                [
                    one["id"],
                    one["count"],
                    one["devmem"],
                    one["devcore"],
                    one["type"] or model,
                    one["numa"],
                    str(one["health"]).lower(),
                    *([place, "hami-core"] if indexed else []),
                ],
            )
        )
        + ":"
        for place, one in enumerate(cards)
    )


def filled(entry: Object) -> Object:
    return {key: value for key, value in entry.items() if value}


def compact(document: object) -> str:
    return json.dumps(document, separators=(",", ":"))
