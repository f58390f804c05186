"""Replicas of the scheduler over a few nodes."""

from dataclasses import replace

from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE
from testing.builders import NVIDIA, gpu, gpus, node, pod
from testing.world import Clock, Replica, WatchedCluster


def cards(name, *taken):
    """A node of A40s."""
    return node(
        name, *(gpu(f"GPU-{name}-{n}", index=n, **fields) for n, fields in enumerate(taken))
    )


def holding(name, on, text, **fields):
    return pod(
        gpus(),
        name=name,
        node_name=on,
        annotations={ASSIGNED_NODE: on, BIND_PHASE: "success", NVIDIA.annotations.allocated: text},
        **fields,
    )


def replica(*nodes, pods=(), policies=None, copies_labels=True, **options):
    fake = WatchedCluster(nodes=nodes, pods=pods, copies_labels=copies_labels)
    return Replica(fake, Clock(), policies=policies, **options)


def without_names(requests):
    """The requests of a claim, with shares that have no names."""
    return tuple(
        replace(request, devices=tuple(replace(device, share_id="") for device in request.devices))
        for request in requests
    )
