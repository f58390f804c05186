"""The tables of events and reasons in ``docs/events.md``: every one that the programs write, with its meaning.

``python -m tools.generate`` writes them. The meanings are here, since only people need them; a test compares the names
with the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from hami.model import Reason
from hami.scheduler.filter import UNREGISTERED
from tools.marked import marked

__all__ = ["EVENTS", "REASONS", "rendered_page"]

EVENTS: Mapping[str, str] = MappingProxyType(
    {
        "FilteringFailed": (
            "no node fits: how many devices which [reason](#reasons) excludes, and what the nearest one lacks. A pod "
            "has one such event, with the latest message; if that stays, it is updated when its count has "
            "doubled, or after a minute"
        ),
        "FilteringSucceed, BindingSucceed": "the chosen node with the scores; the pod is bound",
        "BindingFailed": "the message contains the cause; kube-scheduler retries",
        "NotAdmitted": (
            "the webhook did not see the pod: check its configuration, its certificate, and the label "
            "`hami.io/webhook=ignore`"
        ),
        "AllocationFailed": (
            "the device plugin could not allocate the devices; the message contains the cause. On a node: it "
            "cannot determine the pod"
        ),
        "AllocationExpired, AllocationRevoked": (
            "the device plugin did not allocate the devices within `--node-lock-timeout`; the allocation was "
            "revoked"
        ),
        "AllocationUnreadable": (
            "the allocation was changed and cannot be parsed. Its devices count as fully used until the pod "
            "ends. After a repair, restart the scheduler"
        ),
        "AllocationEditRefused": "the annotations of a bound pod were changed; the devices of its Binding still count",
        "Preempting": "pods of lower priority were evicted; their devices are kept for this pod",
        "Preempted": "the pod was evicted for one of higher priority; the message contains its uid",
        "Evicted, NotEvicted": (
            "the pod was evicted since its device harms it (`--remediation`); why it was not, though its device does"
        ),
        "MovePlanned, Moved": (
            "other pods are [moved](room.md#carry-the-moves-out) so that this one fits, or would be; how many of the "
            "moves are made. On a moved pod: it was evicted for that"
        ),
        "MoveStopped": "no more pods are moved for this one; the message contains the fact. Ask again",
        "DeviceGone": (
            "a container of the pod has been refused five times, or a claim three times, as where its device is gone; "
            "the message says what to do"
        ),
        "DevicesNotReady": (
            "the kubelet rejected the pod for good because of its devices, as after a reboot until the device plugin "
            "runs, and no controller, or one that HAMi does not know, replaces it"
        ),
        "RejectedPodDeleted": (
            "on the controller of such a pod: a pod that replaces it runs, so it was deleted (`--clean-rejected`)"
        ),
        "PreemptionFailed": "the API server refuses evictions; HAMi retries after a minute",
        "Resizing, Resized": "a new [size](resize.md) is allocated; it is enforced",
        "ResizePending": (
            "the size does not fit now, the container uses more than it, or the monitor does not report the "
            "usage"
        ),
        "ResizeRefused": "the pod can never have that size; the message contains the cause",
        "GpuUnhealthy, GpuHealthy": (
            "a GPU that the pod holds is [unhealthy](failures.md#unhealthy-gpus); it is healthy again"
        ),
        "GpuApplicationError": "the driver reports an XID on a GPU of the pod that a program has caused",
        "DevicesForgotten": (
            "the kubelet has lost its checkpoint: containers of this pod cannot start again; delete it"
        ),
        "UnknownXid": "the driver of the node reports an XID that NVIDIA's catalog does not explain",
        "RegionEnlarged": (
            "a container enlarged a file that it shares with the limiter, as if to fill the node's disk; the "
            "device plugin truncated it. If that fails, the monitor ends the containers of the pod"
        ),
        "WishIgnored": (
            "something in a pod that requests devices has no effect: an annotation or label named like a resource, "
            "a misspelled name, a word that does not exist, more memory than any device has, memory without a "
            "device count, or another schedulerName. `kubectl apply` prints the same, also for other pods. On a node: "
            "an annotation or label that only pods may have"
        ),
        "QuotaEntryNotCounted": (
            "nobody counts this entry of a ResourceQuota; the message contains [what to "
            "write](usage.md#quotas)"
        ),
        "BudgetNearlyUsed, BudgetExceeded": (
            "on a namespace: 80 % of its [budget](accounting.md#budgets) is used; all of it is used"
        ),
        "BudgetUnreadable": "on a namespace: its budget counts as none; the message contains the valid forms",
        "AssignmentCleared": "the assignment of an earlier scheduler that was never bound was removed",
        "InventoryUnreadable": (
            "on a node: an annotation with devices is malformed or too long, or the node has more than 256 "
            "devices. Running pods keep theirs"
        ),
        "DevicesUnknown": "on a node: the device plugin offers no devices, for the reason in the message",
        "CardRegisteredTwice": (
            "on nodes: they register the same GPU, as when a machine has joined again under another name; delete the "
            "Node that is gone"
        ),
        "AllocationModeConflict": (
            "on a node: the device plugin does not start, since pods have GPUs in the other allocation mode "
            "or claims of the other allocator. Revert `hami.io/allocation-mode`, `claimdevices` or `--claim-"
            "allocator`, drain the node, then change it"
        ),
        "AsymmetricGPUP2PLink": "on a node: two GPUs report different links to each other; they count as not linked",
    }
)
"""What an event tells, by name; several names together."""
REASONS: Mapping[tuple[str, ...], str] = MappingProxyType(
    {
        (
            Reason.NO_MEMORY,
            Reason.NO_CORES,
        ): "the device lacks memory or compute",
        (Reason.NO_SLOT,): "the maximum number of containers shares the device",
        (Reason.NO_CORES_LEFT,): "other containers have all compute of the device",
        (
            Reason.NOT_ALONE,
        ): "the pod requests the device exclusively (`gpucores: 100`, or `mutex`), and others use it",
        (
            Reason.TYPE_MISMATCH,
            Reason.UUID_MISMATCH,
            Reason.NUMA,
        ): "annotations of the pod exclude the device",
        (
            Reason.UNHEALTHY,
            Reason.SGPU_UNHEALTHY,
            Reason.CORDONED,
        ): "the device is unhealthy (`CardUnhealthy` for MetaX) or cordoned",
        (Reason.ALLOCATION_MODE,): (
            "the pod has a [claim](dra.md#claims-that-hamis-scheduler-allocates) and the node uses the device "
            "plugin, or the reverse"
        ),
        (Reason.MIG_TOPOLOGY,): "no allowed MIG profile is large enough and has a free placement",
        (
            Reason.TOO_FEW_FITTING,
            Reason.TOO_FEW_DEVICES,
        ): "fewer devices fit than requested; fewer devices exist than requested",
        (Reason.QUOTA,): "the quota of the namespace is exhausted",
        (
            Reason.CUSTOM_RULE,
        ): "a rule of the vendor, such as one device for all containers of a pod",
        (
            Reason.MODE,
        ): "the node does not divide its devices in the requested way (Ascend, Enflame)",
        (
            Reason.QOS,
            Reason.APP_CLASS,
        ): "the device serves another quality of service or application class (MetaX)",
        (
            UNREGISTERED,
        ): "the node has registered no such devices, or its device plugin is not alive",
    }
)
"""What excludes a device or node, by reason; several reasons together."""


def rendered_page(page: str) -> str:
    """Returns *page* with both tables."""
    events = ((tuple(names.split(", ")), meaning) for names, meaning in EVENTS.items())
    page = replaced(page, "events", ("event", *rows(events)))
    return replaced(page, "reasons", ("reason", *rows(REASONS.items())))


def replaced(page: str, name: str, table: tuple[str, ...]) -> str:
    """Returns *page* with *table*, the heading of its first column and its rows, between the marks of *name*."""
    head, *body = table
    text = f"\n| {head} | meaning |\n|---|---|\n{''.join(body)}\n"
    return marked(page, f"python -m tools.events_reference {name}", text)


def rows(meanings: Iterable[tuple[tuple[str, ...], str]]) -> Iterator[str]:
    """Yields a row for each of *meanings*."""
    for names, meaning in meanings:
        yield f"| {', '.join(f'`{name}`' for name in names)} | {meaning} |\n"
