"""The free devices of a view that are of no use to the usual pods, and the room that there is for these.

It takes as long as some decisions on a large cluster: it is for people and metrics, and no decision waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy

from hami.scheduling.room import UsualPods, device_room, node_room, sums_by_node
from hami.scheduling.stranded import FreeDevices, free_devices
from hami.scheduling.usual_pods import UsualPod, has_room
from hami.state.rooms import blocks, free_cpu
from hami.state.view import View


@dataclass(frozen=True, slots=True)
class Stranded:
    """The use of what is free of a cluster. *devices*: by node and model. *room*: how many more of each kind of usual
    pods fit, if only such pods come, the most common kind first."""

    devices: Mapping[tuple[str, str], FreeDevices]
    room: Mapping[UsualPod, int]

    def by_model(self) -> dict[str, FreeDevices]:
        """Returns what is free of each model."""
        models: dict[str, FreeDevices] = {}
        for (_, model), free in sorted(self.devices.items()):
            models[model] = models.get(model, FreeDevices()) + free
        return models

    def by_node(self) -> dict[str, FreeDevices]:
        """Returns what is free on each node."""
        nodes: dict[str, FreeDevices] = {}
        for (node, _), free in self.devices.items():
            nodes[node] = nodes.get(node, FreeDevices()) + free
        return nodes


def stranded_in(view: View) -> Stranded | None:
    """Returns what is stranded in *view*; ``None`` if the usual pods are not known."""
    kinds = view.facts.usual.kinds
    if not kinds:
        return None
    table = view.merged.table
    table.refresh()
    vendors: list[str] = []
    for vendor in view.vendors:
        if has_room(vendor):
            vendors.append(vendor.key)
    pods = UsualPods.of(kinds, table.columns.all())
    devices: dict[tuple[str, str], FreeDevices] = {}
    room = numpy.zeros(len(pods))
    for rows in blocks(numpy.array(sorted(table.names), dtype=numpy.intp)):
        names = [table.names[row] for row in rows.tolist()]
        milli_cpu = numpy.array([free_cpu(table, name) for name in names], dtype=float)
        of_rows = table.columns.of(rows)
        for place, model, free in free_devices(of_rows, milli_cpu, pods, vendors):
            devices[names[place], model] = free
        nodes, sums = sums_by_node(device_room(of_rows.facts, pods), of_rows.owner)
        room += numpy.floor(node_room(sums, milli_cpu[nodes], pods)).sum(axis=0)
    ordered = sorted(zip(kinds.items(), room.tolist()), key=lambda item: -item[0][1])
    return Stranded(devices, {kind: int(count) for (kind, _), count in ordered})
