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
    target = _amounts(node, vendor, mode, pods)
    earlier = set(parse_list(node.annotations.get(CAPACITY)) or ())
    gone = (earlier - target.keys()) & node.capacity.keys()
    texts: dict[str, str | None] = dict.fromkeys(sorted(gone))
    for name, amount in target.items():
        if not _shows(node.capacity, name, amount) or not _shows(node.allocatable, name, amount):
            texts[name] = str(amount)
    names = ",".join(sorted(target)) or None
    if node.annotations.get(CAPACITY) == names:
        return texts, {}
    return texts, {CAPACITY: names}


def _amounts(node: Node, vendor: Vendor, mode: str, pods: Collection[Pod]) -> dict[str, int]:
    """Returns the amounts that the status of *node* is to show, if *pods* are bound to it."""
    devices, _ = devices_on(vendor, node)
    if not devices or mode == OFF:
        return {}
    sums = device_sums(vendor.resources, devices)
    amounts = {total_name(name): amount for name, amount in sums.items()}
    if mode == REQUESTS:
        requests = request_sums(vendor.resources, devices)
        amounts |= with_bound(requests, vendor, offered_devices(devices), pods)
    return amounts


def with_bound(
    sums: Mapping[str, int], vendor: Vendor, offered: Sequence[Device], pods: Collection[Pod]
) -> dict[str, int]:
    """Returns *sums* with what the *pods* of the node request and no device that is *offered* is charged, and not below
    what they request together: otherwise the kubelet would fail the next pod."""
    memory, percent = vendor.resources.memory, vendor.resources.memory_percent
    uuids = {device.uuid for device in offered}
    live = [pod for pod in pods if not pod.is_terminated]
    elsewhere = []
    uncharged = []  # of those who request percent: MiB take precedence
    for pod in live:
        if not _holds_only(pod, vendor, uuids):
            elsewhere.append(pod)
            uncharged.append(pod)
        elif _requested(memory, [pod]):
            uncharged.append(pod)
    rounding = _rounding(vendor, offered)
    bound: dict[str, int] = {}
    for name, amount in sums.items():
        free = _requested(name, uncharged if name == percent else elsewhere)
        bound[name] = max(amount + rounding.get(name, 0) + free, _requested(name, live))
    return bound


def _rounding(vendor: Vendor, offered: Sequence[Device]) -> dict[str | None, int]:
    """Returns what rounding to MiB, or to sevenths of a card, may add to requests, by their names."""
    cores, percent = vendor.resources.cores, vendor.resources.memory_percent
    rounding: dict[str | None, int] = dict.fromkeys((cores, percent), 0)
    for device in offered:
        rounding[percent] += (WHOLE * device.slots - 1) // max(device.memory_mib, 1)
        if device.is_partitioned:
            rounding[cores] += device.slots  # seven of 15
    return rounding


def _requested(name: str, pods: Collection[Pod]) -> int:
    """Returns what *pods* request: no less than what the kubelet counts, which adds up only containers that run at the
    same time."""
    total = 0
    for pod in pods:
        for container in pod.containers:
            total += rounded_up(container.requests.get(name, "0"))
    return total


def _holds_only(pod: Pod, vendor: Vendor, offered: Collection[str]) -> bool:
    if vendor.annotations.allocated not in pod.annotations:
        return False
    try:
        allocation = read_allocation(pod, vendor, INT32_MAX)
    except MalformedInput:
        return False
    for shares in allocation:
        if any(share.uuid not in offered for share in shares):
            return False
    return True


def _shows(status: Mapping[str, str], name: str, amount: int) -> bool:
    """Reports whether *status* has this amount. The API server writes ``1000`` as ``1k``."""
    return name in status and rounded_up(status[name]) == amount
