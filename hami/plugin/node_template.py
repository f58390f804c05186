"""The template of a node group: labels, annotations and amounts by which autoscalers count its devices. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping

from hami.codec.node_template import NODE_TEMPLATE, parse_node_template, render_node_template
from hami.devices.cards import Card
from hami.devices.inventory import InventorySnapshot
from hami.devices.registration import VENDOR, devices, node_annotations
from hami.model import Node
from hami.plugin.settings import PluginSettings
from hami.vendors.capacity import device_sums, request_sums, total_name
from hami.vendors.catalog import vendors

CLUSTER_AUTOSCALER, KARPENTER = "cluster-autoscaler", "karpenter"
TEMPLATE_FORMS = ("node", CLUSTER_AUTOSCALER, KARPENTER)
TAG = "k8s.io/cluster-autoscaler/node-template/"
"""Prefix of tags from which cluster-autoscaler makes up nodes of an empty group.
Source: kubernetes/autoscaler, cluster-autoscaler/cloudprovider/aws/README.md."""


def template_node(settings: PluginSettings, model: str, count: int, memory_mib: int) -> Node:
    """Returns a node with *count* cards as the device plugin registers and publishes it under *settings*.

    *memory_mib*: the memory of one card, as the driver shows it.
    Raises: MalformedInput if the model does not fit into a label, or there are too many cards.
    """
    cards = tuple(
        Card(
            uuid=f"GPU-template-{index}",
            index=index,
            minor=index,
            model=model,
            memory_mib=memory_mib,
        )
        for index in range(count)
    )
    snapshot, vendor = InventorySnapshot(0, cards), vendors(settings.devices)[VENDOR]
    registered = devices(snapshot, settings)
    label = render_node_template(registered[0], count)
    parse_node_template(label)
    amounts = {
        vendor.resources.count: sum(device.slots for device in registered),
        **request_sums(vendor.resources, registered),
        **{
            total_name(name): amount
            for name, amount in device_sums(vendor.resources, registered).items()
        },
    }
    capacity = {name: str(amount) for name, amount in amounts.items()}
    annotations = {
        key: text
        for key, text in node_annotations(snapshot, settings, vendor).items()
        if text is not None
    }
    return Node(
        name=settings.node,
        labels={"gpu": "on", NODE_TEMPLATE: label},
        annotations=annotations,
        capacity=capacity,
        allocatable=capacity,
    )


def render_template(node: Node, form: str, instance_type: str) -> Mapping[str, object]:
    """Returns the document for who reads it: *form* is one of TEMPLATE_FORMS.

    *instance_type*: the nodes to which Karpenter adds the capacity.
    """
    if form == CLUSTER_AUTOSCALER:
        return {f"{TAG}label/{key}": text for key, text in node.labels.items()} | {
            f"{TAG}resources/{name}": amount for name, amount in node.capacity.items()
        }
    if form == KARPENTER:
        types = {
            "key": "node.kubernetes.io/instance-type",
            "operator": "In",
            "values": [instance_type],
        }
        return {
            "apiVersion": "karpenter.sh/v1alpha1",
            "kind": "NodeOverlay",
            "metadata": {"name": node.name},
            "spec": {"requirements": [types], "capacity": dict(node.capacity)},
        }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            "labels": dict(node.labels),
            "annotations": dict(node.annotations),
        },
        "status": {"capacity": dict(node.capacity), "allocatable": dict(node.allocatable)},
    }
