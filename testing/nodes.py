"""Fake GPU nodes: kwok keeps them Ready, and they have the annotations of NVIDIA's device plugin.

``vendor_nodes`` contains those of other vendors. The register annotation is rendered here, independently of
``hami.codec``, so that its faults are detected.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["REGISTER", "Gpu", "MigProfile", "fake_node", "gpu", "gpus", "mig_gpu", "register_text"]

REGISTER = "hami.io/node-nvidia-register"
A100 = "NVIDIA A100-SXM4-80GB"


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A MIG profile, and the memory slices at which its instances may start."""

    name: str
    memory_mb: int
    cores: int
    slices: int
    size: int
    starts: tuple[int, ...]


A100_40GB_PROFILES = (
    MigProfile("1g.5gb", 4864, 15, 1, 1, (0, 1, 2, 3, 4, 5, 6)),
    MigProfile("2g.10gb", 9984, 29, 2, 2, (0, 2, 4)),
    MigProfile("3g.20gb", 19_968, 43, 3, 4, (0, 4)),
    MigProfile("7g.40gb", 40_192, 100, 7, 8, (0,)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as its device plugin registers it."""

    uuid: str = ""
    slots: int = 10
    memory_mib: int = 81_920
    cores: int = 100
    model: str = A100
    index: int = 0
    numa: int = 0
    mode: str = "hami-core"
    healthy: bool = True
    profiles: tuple[MigProfile, ...] = ()


def gpu(**fields: Any) -> Gpu:
    return Gpu(**fields)


LOCK_FREE = {"hami.io/lock-free": "NVIDIA"}
"""Annotations of a node whose device plugin needs no lock."""


def gpus(count: int, **fields: Any) -> tuple[Gpu, ...]:
    """Returns *count* equal GPUs, the first half on NUMA node 0."""
    return tuple(Gpu(**{"numa": 2 * index // count} | fields) for index in range(count))


def mig_gpu(**fields: Any) -> Gpu:
    """Returns a GPU in MIG mode; its slots are the instances of the smallest profile."""
    made: dict[str, Any] = {
        "mode": "mig",
        "slots": 7,
        "memory_mib": 40_960,
        "model": "NVIDIA A100-SXM4-40GB",
        "profiles": A100_40GB_PROFILES,
    }
    return Gpu(**made | fields)


def registered(node: str, cards: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Returns *cards* with their indexes, and with UUIDs derived from the node's name if they have none."""
    return tuple(
        replace(card, index=index, uuid=card.uuid or f"GPU-{node}-{index}")
        for index, card in enumerate(cards)
    )


def register_text(cards: Iterable[Gpu]) -> str:
    """Returns the register annotation, without zero values."""
    fields = [
        {
            "id": card.uuid,
            "index": card.index,
            "count": card.slots,
            "devmem": card.memory_mib,
            "devcore": card.cores,
            "type": card.model,
            "numa": card.numa,
            "mode": card.mode,
            "health": card.healthy,
            "migProfiles": [
                {
                    "name": one.name,
                    "memoryMB": one.memory_mb,
                    "core": one.cores,
                    "sliceCount": one.slices,
                    "placements": [{"start": start, "size": one.size} for start in one.starts],
                }
                for one in card.profiles
            ],
        }
        for card in cards
    ]
    kept = [{key: value for key, value in entry.items() if value} for entry in fields]
    return json.dumps(kept, separators=(",", ":"))


def fake_node(
    name: str,
    cards: Iterable[Gpu],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Returns a node object. Allocatable ``nvidia.com/gpu`` is the sum of the slots."""
    cards = registered(name, cards)
    room = {
        "cpu": "1000",
        "memory": "4Ti",
        "pods": "1000",
        "nvidia.com/gpu": str(sum(card.slots for card in cards)),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "type": "kwok",
                "gpu": "on",
                **(labels or {}),
            },
            "annotations": {
                "kwok.x-k8s.io/node": "fake",
                REGISTER: register_text(cards),
                **(annotations or {}),
            },
        },
        "status": {"capacity": room, "allocatable": room},
    }
