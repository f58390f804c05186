"""``hami audit``: where annotations, inventories and specifications contradict each other, and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from hami.codec.allocation import parse_shares
from hami.codec.claims import AllocatedClaim
from hami.codec.keys import ALLOCATION_MODE, ASSIGNED_NODE, GPU_ALLOCATED, RESIZE_APPLIED, RESIZED
from hami.codec.own_claims import differing_containers
from hami.codec.resize import parse_applied, shares_in, wanted_text
from hami.codec.slices import device_name, mig_devices, pool_name
from hami.codec.states import parse_lock
from hami.codec.times import parse_time
from hami.errors import MalformedInput
from hami.inspect.cluster import ClusterRecord, InspectedCluster
from hami.inspect.resize_report import REQUESTED, resize_report
from hami.inspect.tables import counted, printable
from hami.inspect.top import age_text
from hami.model import Pod, PodRef
from hami.state.binding import assigned_at, bound_at
from hami.state.pods import FOREIGN_TTL_S
from hami.vendors.mig import with_places
from hami.vendors.request import most_shares

LOCK_TIMEOUT_S = 300.0  # as the scheduler's --node-lock-timeout
SHOWN = 200  # characters of a request
SETTLE_S = 10.0  # in which a resize that is under way is carried out
CLAIM_LATE_S = (
    60.0  # claims are listed before pods, perhaps by another clock than that of the Binding
)


class Finding(msgspec.Struct, rename="camel", frozen=True, order=True):
    """One inconsistency. *rule*: its kind, for scripts. *subject*: such as ``node n1``. *remedy*: what to do."""

    rule: str
    subject: str
    problem: str
    remedy: str


def audit(cluster: InspectedCluster) -> list[Finding]:
    """Returns every inconsistency, sorted by rule and subject."""
    return sorted(finding for check in _CHECKS for finding in check(cluster))


def render_audit(cluster: InspectedCluster, findings: Sequence[Finding]) -> str:
    """Returns *findings* as text, with what was looked at."""
    result = (
        counted(len(findings), "inconsistency", "inconsistencies") if findings else "consistent"
    )
    nodes, pods = counted(len(cluster.view.nodes), "node"), counted(len(cluster.pods), "pod")
    lines = [f"{nodes} with devices and {pods}: {result}"]
    for finding in findings:
        lines += [
            "",
            f"{finding.rule}: {finding.subject}: {finding.problem}",
            f"  → {finding.remedy}",
        ]
    return "\n".join(map(printable, lines))


def _overcommitted(cluster: InspectedCluster) -> Iterator[Finding]:
    for name, usage in cluster.usages():
        if usage.is_overcommitted:
            device = usage.device
            holders = cluster.holders(name, device.vendor, device.uuid)
            pods = sorted(str(pod.ref) for pod, _ in holders if pod is not None)
            yield Finding(
                "OverCommitted",
                f"card {device.index} ({device.uuid}) of node {name}",
                f"{usage.memory_used_mib:,} of {device.memory_mib:,} MiB, {usage.cores_used} of {device.cores} cores, "
                f"{usage.slots_used} of {device.slots} slots are given out",
                f"delete one of its pods: {', '.join(pods)}; check that only one scheduler places pods",
            )


def _unreadable(cluster: InspectedCluster) -> Iterator[Finding]:
    for record in cluster.view.facts.pods.values():
        for problem in record.problems:
            yield Finding(
                "UnreadableAllocation",
                f"pod {record.ref}",
                problem,
                "recreate the pod: until then all devices that it names count as taken",
            )
    for (name, vendor), problem in cluster.view.facts.problems.items():
        yield Finding(
            "UnreadableInventory",
            f"node {name}",
            f"{vendor}: {problem}",
            "restart the device plugin of the node: until then it offers no such devices",
        )
    for item in cluster.record.unreadable:
        yield Finding(
            "UnreadableObject",
            f"{item.kind} {item.name}",
            item.problem,
            "repair or recreate the object",
        )


def _missing_devices(cluster: InspectedCluster) -> Iterator[Finding]:
    without_plugin: Counter[tuple[str, str]] = Counter()
    unreadable = cluster.view.facts.problems  # which are findings of their own
    for booking in cluster.view.bookings.values():
        if (pod := cluster.pods.get(booking.uid)) is None:
            continue
        if booking.node not in cluster.nodes:
            yield Finding(
                "NodeGone",
                f"pod {pod.ref}",
                f"node {booking.node}, whose devices it holds, does not exist",
                "delete the pod if nothing else does",
            )
            continue
        offered = cluster.view.usages(booking.node)
        for vendor, charges in booking.charges:
            uuids = {usage.device.uuid for usage in offered.get(vendor, ())}
            if charges and not uuids:
                if (booking.node, vendor) not in unreadable:
                    without_plugin[booking.node, vendor] += 1
                continue
            for charge in charges:
                if charge.uuid not in uuids:
                    yield Finding(
                        "CardGone",
                        f"pod {pod.ref}",
                        f"it holds {charge.uuid}, which node {booking.node} does not offer",
                        "check the device and the device plugin of the node, then recreate the pod",
                    )
    for (node, vendor), count in without_plugin.items():
        yield Finding(
            "DevicePluginGone",
            f"node {node}",
            f"it offers no {vendor} devices, but pods hold some: {count}",
            "check its device plugin, which may be restarting; the pods keep their devices, so leave them",
        )


def _allocation_modes(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields devices that two allocators give out, and claims on devices that are gone."""
    for name, usages in cluster.claimed.view.nodes.items():
        registered = {
            usage.device.uuid for own in cluster.view.usages(name).values() for usage in own
        }
        for usage in (
            usage for own in usages.values() for usage in own if usage.device.uuid in registered
        ):
            yield Finding(
                "TwoAllocationModes",
                f"card {usage.device.index} ({usage.device.uuid}) of node {name}",
                "HAMi's scheduler gives it out by an annotation, and kube-scheduler by a ResourceSlice",
                f"check the label {ALLOCATION_MODE} and the device plugins of the node: only one may run there",
            )
    known = cluster.claimed.devices.keys() | {
        (pool_name(name), claimable)
        for name, usage in cluster.usages()
        if usage.device.by_claims
        for claimable in (
            device_name(usage.device.uuid),
            *mig_devices(usage.device.uuid, usage.device.mig_profiles),
        )
    }
    for claim in cluster.record.claims:
        gone = sorted(
            {
                device.device
                for request in claim.requests
                for device in request.devices
                if (device.pool, device.device) not in known
            }
        )
        if gone:
            yield Finding(
                "CardGone",
                f"claim {claim.namespace}/{claim.name}",
                f"it holds {', '.join(gone)}, which no ResourceSlice offers",
                "check the device and the device plugin of its node, then recreate the pod",
            )


def _own_claims(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields claims of HAMi's scheduler that say something else than their pods, where claims could be read, and nodes
    for which nobody makes them."""
    allocated = {(claim.namespace, claim.name): claim for claim in cluster.record.claims}
    for pod in cluster.pods.values():
        claim = allocated.get((pod.ref.namespace, pod.claim))
        if not pod.claim or pod.is_terminated:
            continue
        if not pod.node_name:
            if claim is not None and _age(cluster, parse_time(pod.created)) > LOCK_TIMEOUT_S:
                yield Finding(
                    "ClaimWithoutBinding",
                    f"claim {claim.namespace}/{claim.name}",
                    f"it is allocated, but its pod {pod.ref.name} is not bound",
                    "nothing: it reserves no devices, and goes with the pod",
                )
        elif (
            cluster.record.slices
            and _age(cluster, bound_at(pod)) > CLAIM_LATE_S
            and (problem := _claim_problem(pod, claim))
        ):
            yield Finding(
                "ClaimDiffers",
                f"pod {pod.ref}",
                f"its claim {pod.claim} {problem}",
                "see who may write the status of claims: HAMi's scheduler counts, and the node gives, what "
                "the annotations say",
            )
    managed = sorted({name for name, usage in cluster.usages() if usage.device.by_claims})
    schedulers = [
        scheduler for scheduler in cluster.record.installation.schedulers if not scheduler.is_hamis
    ]
    if managed and schedulers and not any(scheduler.allocates for scheduler in schedulers):
        yield Finding(
            "NobodyAllocates",
            f"deployment {schedulers[0].name}",
            f"it makes no claims, for which {counted(len(managed), 'node')} such as {managed[0]} wait",
            "set --dra=allocate, or --claim-allocator=kube-scheduler of the device plugins",
        )


def _claim_problem(pod: Pod, claim: AllocatedClaim | None) -> str:
    """Returns in what the claim of a bound pod differs from its annotations; empty if it does not."""
    if claim is None:
        return "has no devices"
    if pod.ref not in claim.pods:
        return "is not reserved for it"
    try:
        booked = with_places(
            pod.annotations, parse_shares(GPU_ALLOCATED, pod.annotations.get(GPU_ALLOCATED, ""))
        )
    except MalformedInput:
        return ""  # a finding of its own
    differing = differing_containers(claim, pod, booked)
    return (
        f"and its annotations say different things of container {differing[0]}" if differing else ""
    )


def _locks(cluster: InspectedCluster) -> Iterator[Finding]:
    remedy = "kubectl annotate node {} {}-, if the device plugin of the node does not release it"
    for name, key, text in cluster.view.facts.locks:
        subject = f"node {name}"
        try:
            lock = parse_lock(text)
        except MalformedInput as error:
            yield Finding("UnreadableLock", subject, str(error), remedy.format(name, key))
            continue
        age = (cluster.record.taken - lock.at).total_seconds()
        holder = cluster.pod_named(*lock.holder) if lock.holder is not None else None
        if age > LOCK_TIMEOUT_S:
            yield Finding(
                "StaleLock",
                subject,
                f"{key} is {age_text(int(age))} old: {text}",
                remedy.format(name, key),
            )
        elif lock.holder is not None and holder is None:
            yield Finding(
                "StaleLock",
                subject,
                f"pod {'/'.join(lock.holder)}, which holds {key}, does not exist",
                remedy.format(name, key),
            )


def _reservations(cluster: InspectedCluster) -> Iterator[Finding]:
    for pod in cluster.pods.values():
        node, age = pod.annotations.get(ASSIGNED_NODE, ""), _age(cluster, assigned_at(pod))
        if node and not pod.node_name and not pod.is_terminated and age > FOREIGN_TTL_S:
            yield Finding(
                "GhostReservation",
                f"pod {pod.ref}",
                f"its annotations have reserved devices of node {node} for {age_text(int(age))}, but it is "
                "not bound",
                "nothing, unless a scheduler of HAMi counts them: then recreate the pod",
            )


def _allocations(cluster: InspectedCluster) -> Iterator[Finding]:
    for pod in cluster.pods.values():
        record = cluster.view.facts.pods.get(pod.ref.uid)
        if record is None or not pod.node_name or pod.is_terminated:
            continue
        limits = most_shares(cluster.vendors, pod.containers)
        booking = cluster.view.bookings.get(pod.ref.uid)
        if limits and not record.problems and (booking is None or not booking.charges):
            yield Finding(
                "NoAllocation",
                f"pod {pod.ref}",
                f"it requests devices and is bound to {pod.node_name}, but has none",
                "recreate the pod without nodeName, so that HAMi's scheduler places it",
            )
        if extra := sorted(
            vendor.key
            for vendor in cluster.vendors.allocated_in(pod.annotations)
            if vendor.key not in limits
            and pod.annotations[vendor.annotations.allocated].strip(";:")
        ):
            yield Finding(
                "ForeignAllocation",
                f"pod {pod.ref}",
                f"it carries devices of {', '.join(extra)}, which its "
                "specification does not request",
                "nothing: they are not counted; see who writes annotations",
            )
        if record.allocating and _age(cluster, bound_at(pod)) > LOCK_TIMEOUT_S:
            yield Finding(
                "StuckAllocation",
                f"pod {pod.ref}",
                f"the device plugin of node {pod.node_name} has not allocated its devices",
                "check the device plugin of the node, then recreate the pod",
            )


def _resizes(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields resizes that the scheduler or the node of the pod has not carried out."""
    for pod in cluster.pods.values():
        if not pod.node_name or pod.is_terminated or pod.deleting:
            continue
        subject, report = f"pod {pod.ref}", resize_report(pod.annotations)
        if report is not None and report.state == REQUESTED:
            yield Finding(
                "ResizeUnanswered",
                subject,
                f"no scheduler has answered its request {report.request[:SHOWN]}",
                "check that HAMi's scheduler has a leader, and that no older version leads",
            )
        applied = parse_applied(pod.annotations.get(RESIZE_APPLIED))
        wanted = wanted_text(pod.annotations)
        if (
            wanted is None
            or (applied is None and RESIZED not in pod.annotations)
            or (applied is not None and shares_in(applied.sizes) == shares_in(wanted))
        ):
            continue
        sizes = (
            f"; its node enforces {applied.sizes}"
            if applied is not None
            else "; its node has not answered"
        )
        problem = f" and says: {applied.problem}" if applied is not None and applied.problem else ""
        if report is not None and (report.excess_mib or report.excess_cores):
            remedy = (
                "nothing, if it still uses more: hami top pods shows what stays booked; otherwise check the "
                f"device plugin and the monitor of node {pod.node_name}"
            )
        else:
            remedy = f"check the device plugin of node {pod.node_name}, and who may write {RESIZE_APPLIED}"
        yield Finding("ResizeHangs", subject, f"it is to have {wanted}{sizes}{problem}", remedy)


def settle(
    record: ClusterRecord, read: Callable[[PodRef], Pod | None], sleep: Callable[[float], None]
) -> ClusterRecord:
    """Returns *record* with the pods whose resize was under way as *read* returns them some seconds later."""
    moving = {finding.subject for finding in _resizes(InspectedCluster(record))}
    if not moving:
        return record
    sleep(SETTLE_S)
    later = (read(pod.ref) if f"pod {pod.ref}" in moving else pod for pod in record.pods)
    return replace(record, pods=tuple(pod for pod in later if pod is not None))


def _upgrade(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields what the first step of an upgrade from HAMi has left for the second."""
    state = cluster.record.installation
    policies = f"{', '.join(state.warning_policies)} only warn" if state.warning_policies else ""
    hamis = ", ".join(scheduler.name for scheduler in state.schedulers if scheduler.is_hamis)
    unfinished = [
        scheduler
        for scheduler in state.schedulers
        if not scheduler.is_hamis and (scheduler.counts_others or hamis)
    ]
    for scheduler in unfinished:
        left = [
            text
            for text, is_left in (
                (
                    "it counts what other schedulers write on pods (--foreign-reservations)",
                    scheduler.counts_others,
                ),
                (f"HAMi's scheduler {hamis} is installed beside it", hamis),
                (
                    f"{state.outdated_plugins} of {counted(state.plugins, 'device plugin')} are not replaced yet",
                    state.outdated_plugins,
                ),
                (f"the policies {policies}", policies),
            )
            if is_left
        ]
        if hamis:
            remedy = "helm uninstall the release of HAMi's chart, then take the flag from this one"
        elif state.outdated_plugins:
            remedy = "when all device plugins are replaced, run helm upgrade again, without takeOver=always"
        else:
            remedy = (
                "run helm upgrade again, without takeOver=always; or take the flag from the overlay. Keep it "
                "only for a scheduler of another vendor that writes on pods before it binds them"
            )
        yield Finding("UpgradeUnfinished", f"deployment {scheduler.name}", "; ".join(left), remedy)
    if policies and not unfinished:
        yield Finding(
            "PoliciesWarn",
            "policies of HAMi",
            f"{policies}: what they would refuse is allowed",
            "set policies.mode=deny when nobody needs a role any more",
        )


def _excess_bindings(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields the rights that kube-scheduler's account has kept from the time when it was that of the extender, too."""
    for binding in cluster.record.installation.excess_bindings:
        namespace, _, name = binding.name.rpartition("/")
        command = f"kubectl delete {binding.kind}/{name} {binding.role}" + (
            f" -n {namespace}" if namespace else ""
        )
        yield Finding(
            "LeftoverRights",
            f"{binding.kind} {binding.name}",
            f"it gives kube-scheduler's account {binding.account} "
            f"{binding.role}, which only the extender needs now that it has an account of its own",
            "when the rollout of the scheduler has ended, "
            + (
                "run helm upgrade again, without takeOver=always"
                if binding.has_extender
                else command
            ),
        )


def _device_classes(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields DeviceClasses for which kube-scheduler, from Kubernetes 1.36 on, looks for resources that nodes lack."""
    for name, resource in sorted(cluster.record.installation.device_classes.items()):
        for vendor in (vendor for vendor in cluster.vendors if resource in vendor.resources.names):
            others = [other for other in (vendor.resources.memory, vendor.resources.cores) if other]
            lacking = [
                node
                for node in cluster.record.nodes
                if vendor.key in cluster.view.usages(node.name)
                and not all(other in node.allocatable for other in others)
            ]
            if lacking:
                yield Finding(
                    "DeviceClassTakesResource",
                    f"device class {name}",
                    f"it stands for {resource}, so from Kubernetes "
                    f"1.36 on, pods that also request {' or '.join(others)} do not get to "
                    f"{counted(len(lacking), 'node')}, where kube-scheduler cannot fit these",
                    "take extendedResourceName from the class, or set --publish-capacity=requests of the device plugin",
                )


def _age(cluster: InspectedCluster, unix: int) -> float:
    """Returns the seconds from *unix* to the record; 0 if *unix* is unknown."""
    if not unix:
        return 0.0
    return (cluster.record.taken - datetime.fromtimestamp(unix, UTC)).total_seconds()


_CHECKS: tuple[Callable[[InspectedCluster], Iterator[Finding]], ...] = (
    _overcommitted,
    _unreadable,
    _missing_devices,
    _allocation_modes,
    _own_claims,
    _locks,
    _reservations,
    _allocations,
    _resizes,
    _upgrade,
    _excess_bindings,
    _device_classes,
)
