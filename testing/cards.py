"""Builders of cards with defaults, so that tests name only what matters. By default, a card is an A100 with 80 GB."""

import threading

from hami.codec.device_config import MigAllowance, NvidiaConfig
from hami.devices.cards import Card
from hami.devices.config import PluginConfig
from hami.model import MigProfile, Partition


class Stop(threading.Event):
    """Set whenever *is_set* says so. *wait* gets the seconds of each wait."""

    def __init__(self, is_set, wait=lambda seconds: None):
        super().__init__()
        self.is_set, self.wait = is_set, wait


class Reports:
    """Hears of the health of cards. *causes*: by UUID, empty for a healthy card; *xids*: the errors."""

    def __init__(self):
        self.causes, self.health, self.actions, self.xids = [], {}, {}, []

    def report(self, gpu, health, action):
        self.causes.append((gpu, "" if health is None else health.cause))
        self.health[gpu], self.actions[gpu] = health, action

    def report_xid(self, event):
        self.xids.append(event)


ALLOWLIST = (MigAllowance(("A100-SXM4-80GB",), ("1g.10gb", "3g.40gb", "7g.79gb")),)
SMALL = MigProfile(
    name="1g.10gb",
    memory_mib=9728,
    cores=15,
    slices=1,
    placements=tuple(Partition(at, 1) for at in range(7)),
)
HALF = MigProfile(
    name="3g.40gb",
    memory_mib=40192,
    cores=43,
    slices=3,
    placements=(Partition(0, 4), Partition(4, 4)),
)
WHOLE = MigProfile(
    name="7g.80gb", memory_mib=81038, cores=100, slices=7, placements=(Partition(0, 8),)
)

A100_PLACEMENTS = {
    "1g.10gb": (9728, 1, range(7), 1),
    "1g.20gb": (19968, 1, (0, 2, 4, 6), 2),
    "2g.20gb": (19968, 2, (0, 2, 4), 2),
    "3g.40gb": (40192, 3, (0, 4), 4),
    "4g.40gb": (40192, 4, (0,), 4),
    "7g.80gb": (81038, 7, (0,), 8),
}
"""The table of NVIDIA's guide for an A100 of 80 GB: memory, compute slices, first memory slices, and their number."""
A100_PROFILES = tuple(
    MigProfile(
        name=name,
        memory_mib=memory,
        cores=min(15 * slices, 100),
        slices=slices,
        placements=tuple(Partition(start, size) for start in starts),
    )
    for name, (memory, slices, starts, size) in A100_PLACEMENTS.items()
)


def card(uuid="GPU-0", **fields):
    """A card."""
    return Card(
        **{
            "uuid": uuid,
            "index": 0,
            "minor": 0,
            "model": "NVIDIA A100-SXM4-80GB",
            "memory_mib": 81920,
        }
        | fields
    )


def cards(*uuids, **fields):
    """Cards with these UUIDs, indexed in order."""
    return [card(uuid, index=index, minor=index, **fields) for index, uuid in enumerate(uuids)]


def config(**fields):
    """Settings of a node; those of the section nvidia by their names there."""
    nvidia = {name: fields.pop(name) for name in NvidiaConfig.__struct_fields__ if name in fields}
    return PluginConfig(**{"node": "n1", "nvidia": NvidiaConfig(**nvidia)} | fields)
