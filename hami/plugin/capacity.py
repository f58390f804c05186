"""Publishes the sums of the node's devices in the status of the node: for autoscalers, Kueue and kube-state-metrics.

No pod requests a name with ``total-``, so nobody enforces it. The names that pods request are another matter: a kubelet
ignores those that its node lacks, and fails pods that exceed those that it has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from hami.codec.keys import CAPACITY
from hami.codec.policies import parse_list
from hami.devices.config import OFF, REQUESTS
from hami.errors import MalformedInput
from hami.kube.cluster import Cluster
from hami.model import Device, Node, Pod
from hami.quantity import INT32_MAX, rounded_up
from hami.state.inventories import devices_on
from hami.vendors.capacity import device_sums, offered_devices, request_sums, total_name
from hami.vendors.request import WHOLE
from hami.vendors.shares import read_allocation
from hami.vendors.spec import Vendor

log = logging.getLogger(__name__)


def publish_capacity(
    cluster: Cluster,
    node: Node,
    vendor: Vendor,
    mode: str,
    watched: Callable[[], Collection[Pod] | None] = lambda: None,
) -> None:
    """Makes the status of *node* show the sums of the devices that it registers, unless it does.

    *mode*: ``off``, ``totals`` or ``requests``. Names that were published and no longer are to be, are removed; those
    of others stay. *watched*: returns the pods of the node as a watch shows them, ``None`` if it does not yet. They may
    be late, so they only tell that nothing is to be written: what is written is decided with a list.
    Raises: ClusterError, MalformedInput.
    """
    pods = watched() if mode == REQUESTS else ()
    if pods is None or (mode == REQUESTS and _changes(node, vendor, mode, pods)[0]):
        pods = cluster.pods_on(node.name)
    texts, edits = _changes(node, vendor, mode, pods)
    if texts or edits:
        cluster.publish_capacity(node.name, texts, edits)
        log.info("node capacity published", extra={"node": node.name, "capacity": texts})


def _changes(
    node: Node, vendor: Vendor, mode: str, pods: Collection[Pod]
) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """Returns the amounts and annotations of *node* that are to be written, if *pods* are bound to it."""
    devices, _ = devices_on(vendor, node)
    wanted: dict[str, int] = {}
    if devices and mode != OFF:
        sums = device_sums(vendor.resources, devices)
        wanted = {total_name(name): amount for name, amount in sums.items()}
        if mode == REQUESTS:
            wanted |= with_bound(
                request_sums(vendor.resources, devices), vendor, offered_devices(devices), pods
            )
    earlier = set(parse_list(node.annotations.get(CAPACITY)) or ())
    texts: dict[str, str | None] = dict.fromkeys(
        sorted((earlier - wanted.keys()) & node.capacity.keys())
    )
    texts |= {
        name: str(amount)
        for name, amount in wanted.items()
        if not all(_shows(status, name, amount) for status in (node.capacity, node.allocatable))
    }
    names = ",".join(sorted(wanted)) or None
    return texts, {CAPACITY: names} if node.annotations.get(CAPACITY) != names else {}


def with_bound(
    sums: Mapping[str, int], vendor: Vendor, offered: Sequence[Device], pods: Collection[Pod]
) -> dict[str, int]:
    """Returns *sums* with what the *pods* of the node request and no device that is *offered* is charged, and not below
    what they request together: otherwise the kubelet would fail the next pod."""
    live, uuids = (
        [pod for pod in pods if not pod.is_terminated],
        {device.uuid for device in offered},
    )
    elsewhere = [pod for pod in live if not _holds_only(pod, vendor, uuids)]
    memory, percent, cores = (
        vendor.resources.memory,
        vendor.resources.memory_percent,
        vendor.resources.cores,
    )
    uncharged = {
        percent: [pod for pod in live if pod in elsewhere or _requested(memory, [pod])]
    }  # MiB take precedence
    rounding = {
        cores: sum(device.slots for device in offered if device.is_partitioned),  # seven of 15
        percent: sum((WHOLE * device.slots - 1) // max(device.memory_mib, 1) for device in offered),
    }  # to MiB
    return {
        name: max(
            amount + rounding.get(name, 0) + _requested(name, uncharged.get(name, elsewhere)),
            _requested(name, live),
        )
        for name, amount in sums.items()
    }


def _requested(name: str, pods: Collection[Pod]) -> int:
    """Returns what *pods* request: no less than what the kubelet counts, which adds up only containers that run at the
    same time."""
    return sum(
        rounded_up(container.requests.get(name, "0"))
        for pod in pods
        for container in pod.containers
    )


def _holds_only(pod: Pod, vendor: Vendor, offered: Collection[str]) -> bool:
    if vendor.annotations.allocated not in pod.annotations:
        return False
    try:
        allocation = read_allocation(pod, vendor, INT32_MAX)
    except MalformedInput:
        return False
    return all(share.uuid in offered for shares in allocation for share in shares)


def _shows(status: Mapping[str, str], name: str, amount: int) -> bool:
    """Reports whether *status* has this amount. The API server writes ``1000`` as ``1k``."""
    return name in status and rounded_up(status[name]) == amount
