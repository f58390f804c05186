"""The label that tells the devices of a node which does not exist yet, or has not registered them: of a node group.

An autoscaler makes up nodes from the labels and amounts of their group. A label has too few characters for the register
annotation, but the devices of a new node are equal, idle and healthy.
"""

from __future__ import annotations

import re

from hami.codec.keys import is_label_value
from hami.codec.register import check_number
from hami.errors import MalformedInput
from hami.model import Device
from hami.quantity import parse_integer

NODE_TEMPLATE = "hami.io/node-template"
VENDOR = "NVIDIA"
"""The vendor of the devices in the catalog."""
_SHAPE = re.compile(r"([0-9]+)x([0-9]+)\.([0-9]+)\.([0-9]+)\.(.+)")


def parse_node_template(text: str) -> tuple[Device, ...]:
    """Devices in the label :data:`NODE_TEMPLATE`.

    Shape: ``‹count›x‹MiB›.‹slots›.‹cores›.‹model›``; memory, slots and cores are those of one device, and the model has
    ``_`` for each space. Raises: MalformedInput, also for more than MAX_DEVICES devices.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise _unreadable(text)
    amounts = []
    for digits in match.groups()[:4]:
        amount = parse_integer(digits)
        if amount is None:
            raise _unreadable(text)
        amounts.append(amount)
    count, memory_mib, slots, cores = amounts
    check_number(NODE_TEMPLATE, text, count)
    return tuple(
        Device(
            uuid=f"GPU-template-{index}",
            vendor=VENDOR,
            model=match[5].replace("_", " "),
            slots=slots,
            memory_mib=memory_mib,
            cores=cores,
            index=index,
        )
        for index in range(count)
    )


def _unreadable(text: str) -> MalformedInput:
    return MalformedInput(NODE_TEMPLATE, text, "expected ‹count›x‹MiB›.‹slots›.‹cores›.‹model›")


def render_node_template(device: Device, count: int) -> str:
    """The label for *count* devices like *device*. Raises: MalformedInput if the model does not fit into a label."""
    text = f"{count}x{device.memory_mib}.{device.slots}.{device.cores}.{device.model.replace(' ', '_')}"
    if not is_label_value(text):
        raise MalformedInput(
            "model",
            device.model,
            "expected letters, digits, spaces, -, _ and ., and at most 63 "
            f"characters in the label {text}",
        )
    return text
