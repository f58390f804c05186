"""Inventories that nodes write into an annotation: the common way to say which devices are there."""

from __future__ import annotations

from dataclasses import replace

from hami.codec.keys import CORDON
from hami.codec.policies import parse_list
from hami.codec.register import parse_devices, parse_pair_scores
from hami.errors import MalformedInput
from hami.model import Device, Node
from hami.vendors.spec import Vendor

__all__ = ["PAIR_SCORES", "registered"]

PAIR_SCORES = "hami.io/node-nvidia-score"


def registered(vendor: Vendor, node: Node) -> tuple[Device, ...] | None:
    """The devices in *vendor*'s register annotation, in its order; a uuid that stands there twice counts once.

    Operators take devices out with the node annotation ``hami.io/device-cordon``.
    Raises: MalformedInput when the text cannot be read or names no device.
    """
    text = node.annotations.get(vendor.register)
    if text is None:
        return None
    devices = parse_devices(vendor.register, text, vendor.key)
    if not devices:
        raise MalformedInput(vendor.register, text, "no gpu found on node")
    cordoned = parse_list(node.annotations.get(CORDON)) or ()
    scores = parse_pair_scores(PAIR_SCORES, node.annotations.get(PAIR_SCORES) or "[]")
    known = {device.uuid: device for device in reversed(devices) if device.uuid}
    return tuple(replace(known[uuid], cordoned=uuid in cordoned, pair_scores=scores.get(uuid, {}))
                 for uuid in dict.fromkeys(device.uuid for device in devices if device.uuid))
