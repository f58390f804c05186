"""Annotation and label keys shared by all vendors, and the syntax of label values."""

from __future__ import annotations

import re

ASSIGNED_NODE = "hami.io/vgpu-node"  # annotation and label
ASSIGNED_TIME = "hami.io/vgpu-time"
BIND_PHASE = "hami.io/bind-phase"
BIND_TIME = "hami.io/bind-time"
GPU_ALLOCATED = "hami.io/vgpu-devices-allocated"  # the allocation of a pod, of NVIDIA's
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
# on a pod that waits: the node on which others are evicted for it
PREEMPTING = "hami.io/preempting-on"

RESIZE = "hami.io/resize"  # on a bound pod: the sizes that its owner wants its containers to have
RESIZED = "hami.io/vgpu-devices-resized"  # what it holds since: GPU_ALLOCATED as a scheduler has changed it
# what it is to have, while that is less than what it holds
RESIZE_TARGET = "hami.io/vgpu-devices-target"
# by the device plugin of its node: the sizes that are enforced
RESIZE_APPLIED = "hami.io/resize-applied"
RESIZE_STATUS = "hami.io/resize-status"  # by the scheduler: what has become of RESIZE
MEMORY_WALL = "hami.io/memory-wall"  # on a node, by its device plugin: how the driver limits memory, or why it does not
NODE_RESIZES = "hami.io/node-resizes"  # on a node, "true": its device plugin changes the limits of running containers
CORES_LIMIT = "nvidia.com/gpucores-limit"  # on a pod: percent of a GPU that a container may use while nobody else does

NODE_LOCK = "hami.io/mutex.lock"
LOCK_FREE = "hami.io/lock-free"  # on a node: the vendors whose device plugins need no node lock
ROOM = "hami.io/room-for-waiting-pods"
CORDON = "hami.io/device-cordon"
CAPACITY = "hami.io/node-capacity"  # the names that the device plugin has published in the status of the node

# labels of a node, of GPU feature discovery: its GPUs, and the slots of each
GPU_COUNT = "nvidia.com/gpu.count"
GPU_REPLICAS = "nvidia.com/gpu.replicas"
GPU_LABELS = (GPU_COUNT, GPU_REPLICAS)

DEVICE_HEALTH = "hami.io/device-health"  # on a node: its unhealthy devices (JSON)

# a label of nodes (device-plugin, dra), and of namespaces and pods (dra, dra-preferred); on a node also an annotation:
# its registered devices are given by claims (dra)
ALLOCATION_MODE = "hami.io/allocation-mode"
# of ALLOCATION_MODE on namespaces and pods that get claims
PREFERRED = "dra-preferred"
CLAIM_ALLOCATION_MODES = ("dra", PREFERRED)
CORDONED_TAINT = "hami.io/cordoned"  # of a card in a ResourceSlice
UNHEALTHY_TAINT = "hami.io/unhealthy"  # likewise
MANAGED_TAINT = "hami.io/managed"  # likewise: HAMi's scheduler allocates its claims
CLAIM_AMOUNTS = "hami.io/claim-amounts"  # on a pod: the resources of its containers that admission has made a claim
CLAIM_RESOURCE = "hami.io/claim"  # requested by pods with such a claim, so that kube-scheduler calls the extender

NODE_POLICY = "hami.io/node-scheduler-policy"
KUBE_POLICY = "kube"  # a value of NODE_POLICY: kube-scheduler's scores choose the node
GPU_POLICY = "hami.io/gpu-scheduler-policy"
WEIGHTS = "hami.io/device-scoring-weights"
NUMA_BIND = "nvidia.com/numa-bind"
HAMI_SCHEDULERS = ("hami-scheduler", "hami-scheduler-claims")  # in manifests and charts
DEFAULT_SCHEDULER = "default-scheduler"
# whether containers that request no devices see none: of the pod, and of containers by name (JSON)
OVERWRITE_ENV = "hami.io/overwrite-env"
OVERWRITE_ENV_CONTAINERS = "hami.io/overwrite-env-containers"
WEBHOOK = "hami.io/webhook"  # a label of pods and namespaces that the webhook does not see
IGNORE = "ignore"  # the value of WEBHOOK
# a label; "false": the pod is never evicted for one of higher priority
PREEMPTIBLE = "hami.io/preemptible"
# on a pod, "true": it is not moved so that another one fits
DO_NOT_MOVE = "hami.io/do-not-move"
# of cluster-autoscaler, on a pod: whether it may be evicted, and its local volumes (names) that may be lost
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
SAFE_VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
# a label of a pod that waits: how many other pods may be moved so that it fits
MAKE_ROOM = "hami.io/make-room"
MOVES = "hami.io/moves"  # by the scheduler, on such a pod: the moves that are being made
GPU_HOURS = "hami.io/gpu-hours"  # on a namespace: the budget of its pods
# on a pod, by admission: why it has another priority class than it asked for
OVER_BUDGET = "hami.io/over-budget"
MOVE_KEYS = (DO_NOT_MOVE, SAFE_TO_EVICT, SAFE_VOLUMES)

SCHEDULERS_ALONE = frozenset({RESIZED, RESIZE_TARGET, RESIZE_STATUS, MOVES})
"""Keys of pods that device plugins may not write, not even on their own node."""
SCHEDULER_OWNED = SCHEDULERS_ALONE | {
    ASSIGNED_NODE,
    ASSIGNED_TIME,
    BIND_PHASE,
    BIND_TIME,
    MIG_ALLOCATIONS,
    PREEMPTING,
    RESIZE_APPLIED,
}
# also in the policies: RE2
ALLOCATION_PATTERN = r"hami\.io/[^/]+-(devices-to-allocate|devices-allocated|allocated)"
_ALLOCATION_KEY = re.compile(ALLOCATION_PATTERN)
_ALLOCATIONS = frozenset({MIG_ALLOCATIONS, RESIZED, RESIZE_TARGET})
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


def is_scheduler_owned(key: str) -> bool:
    """Reports whether only the scheduler and node agents may write *key* on a pod; users are denied."""
    return key in SCHEDULER_OWNED or is_allocation(key)


def is_allocation(key: str) -> bool:
    """Reports whether *key* holds a pod's devices, or places on them."""
    return key in _ALLOCATIONS or _ALLOCATION_KEY.fullmatch(key) is not None


def is_label_value(text: str) -> bool:
    """Reports whether *text* is a valid label value (at most 63 characters). Some node names are not."""
    return _LABEL_VALUE.fullmatch(text) is not None
