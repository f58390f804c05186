"""``hami audit``: where annotations, inventories and specifications contradict each other, and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from hami.codec.allocation import parse_shares
from hami.codec.claims import AllocatedClaim
from hami.codec.forms import nearest
from hami.codec.hami_claims import differing_containers
from hami.codec.health import parse_device_health
from hami.codec.keys import (
    ALLOCATION_MODE,
    ASSIGNED_NODE,
    CORDON,
    DEFAULT_SCHEDULER,
    DEVICE_HEALTH,
    GPU_ALLOCATED,
    HAMI_SCHEDULERS,
    RESIZE_APPLIED,
    RESIZED,
    WEBHOOK,
)
from hami.codec.node_template import VENDOR
from hami.codec.policies import parse_list
from hami.codec.resize import parse_applied, shares_in, wanted_text
from hami.codec.slices import device_name, mig_devices, pool_name
from hami.codec.states import parse_lock
from hami.codec.times import LATEST, parse_time
from hami.errors import MalformedInput
from hami.inspect.cluster import ClusterRecord, InspectedCluster
from hami.inspect.installation import Installation, SchedulerDeployment
from hami.inspect.resize_report import REQUESTED, ResizeReport, resize_report
from hami.inspect.tables import OutputRecord, printable
from hami.inspect.top import age_text
from hami.model import Node, Pod, PodRef
from hami.plurals import counted
from hami.scheduling.usage import Charge
from hami.state.pods import FOREIGN_TTL_S
from hami.state.read_pod import assigned_at, bound_at
from hami.vendors.inventory import read_inventory
from hami.vendors.mig import with_places
from hami.vendors.quota_entries import QuotaEntries
from hami.vendors.request import most_shares
from hami.vendors.spec import Catalog, Vendor
from hami.vendors.vocabulary import Vocabulary
from hami.vendors.wishes import Wishes

LOCK_TIMEOUT_S = 300.0  # as the scheduler's --node-lock-timeout
SHOWN = 200  # characters of a request
SETTLE_S = 10.0  # in which a resize that is under way is carried out
# claims are listed before pods, perhaps by another clock than that of the Binding
CLAIM_LATE_S = 60.0


class Finding(OutputRecord, frozen=True, order=True):
    """One inconsistency. *rule*: its kind, for scripts. *subject*: such as ``node n1``. *remedy*: what to do."""

    rule: str
    subject: str
    problem: str
    remedy: str


def audit(cluster: InspectedCluster) -> list[Finding]:
    """Returns every inconsistency, sorted by rule and subject."""
    findings: list[Finding] = []
    for check in _CHECKS:
        findings += check(cluster)
    return sorted(findings)


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
                f"{usage.slots_used} of {device.slots} slots are allocated",
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
        pod = cluster.pods.get(booking.uid)
        if pod is None:
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
            if uuids:
                yield from _gone_cards(pod, booking.node, uuids, charges)
            elif charges and (booking.node, vendor) not in unreadable:
                without_plugin[booking.node, vendor] += 1
    for (node, vendor), count in without_plugin.items():
        yield Finding(
            "DevicePluginGone",
            f"node {node}",
            f"it offers no {vendor} devices, but pods hold some: {count}",
            "check its device plugin, which may be restarting; the pods keep their devices, so leave them",
        )


def _gone_cards(
    pod: Pod, node: str, offered: Collection[str], charges: Iterable[Charge]
) -> Iterator[Finding]:
    for charge in charges:
        if charge.uuid not in offered:
            yield Finding(
                "CardGone",
                f"pod {pod.ref}",
                f"it holds {charge.uuid}, which node {node} does not offer",
                "check the device and the device plugin of the node, then recreate the pod",
            )


def _unhealthy_devices(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields devices whose node says why they are unhealthy, or no longer there, while pods hold them."""
    for name, usage in cluster.usages():
        device = usage.device
        told = parse_device_health(cluster.nodes[name].annotations.get(DEVICE_HEALTH))
        health = told.get(device.uuid)
        if health is None:
            continue
        holders = cluster.holders(name, device.vendor, device.uuid)
        pods = sorted({str(pod.ref) for pod, _ in holders if pod is not None})
        if pods:
            yield Finding(
                "CardUnhealthy",
                f"card {device.index} ({device.uuid}) of node {name}",
                f"{health.cause}; pods hold it: {', '.join(pods)}",
                health.remedy or "see the log of the device plugin; the pods keep the card",
            )


def _same_machine(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields GPUs that several nodes register: a machine that has joined under another name."""
    nodes: dict[str, list[str]] = {}
    for name, usage in cluster.usages():
        if usage.device.vendor == VENDOR and name not in nodes.get(usage.device.uuid, ()):
            nodes.setdefault(usage.device.uuid, []).append(name)
    for uuid, names in nodes.items():
        if len(names) > 1:
            yield Finding(
                "CardRegisteredTwice",
                f"card {uuid}",
                f"it is registered by the nodes {', '.join(sorted(names))}",
                "delete the Node that is gone: a machine has joined again under another name",
            )


def _two_allocation_modes(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields devices that two allocators allocate."""
    for name, usages in cluster.claimed.view.nodes.items():
        registered: set[str] = set()
        for of_vendor in cluster.view.usages(name).values():
            registered.update(usage.device.uuid for usage in of_vendor)
        for of_vendor in usages.values():
            for usage in of_vendor:
                if usage.device.uuid not in registered:
                    continue
                yield Finding(
                    "TwoAllocationModes",
                    f"card {usage.device.index} ({usage.device.uuid}) of node {name}",
                    "HAMi's scheduler gives it out by an annotation, and kube-scheduler by a ResourceSlice",
                    f"check the label {ALLOCATION_MODE} and the device plugins of the node: only one may run there",
                )


def _missing_claimed_devices(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields claims on devices that are gone."""
    known = set(cluster.claimed.devices)
    for name, usage in cluster.usages():
        device = usage.device
        if device.by_claims:
            known.add((pool_name(name), device_name(device.uuid)))
            instances = mig_devices(device.uuid, device.mig_profiles)
            known.update((pool_name(name), instance) for instance in instances)
    for claim in cluster.record.claims:
        gone: set[str] = set()
        for request in claim.requests:
            for claimed in request.devices:
                if (claimed.pool, claimed.device) not in known:
                    gone.add(claimed.device)
        if gone:
            yield Finding(
                "CardGone",
                f"claim {claim.namespace}/{claim.name}",
                f"it holds {', '.join(sorted(gone))}, which no ResourceSlice offers",
                "check the device and the device plugin of its node, then recreate the pod",
            )


def _hami_claims(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields claims of HAMi's scheduler that say something else than their pods, where claims could be read."""
    allocated = {(claim.namespace, claim.name): claim for claim in cluster.record.claims}
    for pod in cluster.pods.values():
        if not pod.claim or pod.is_terminated:
            continue
        claim = allocated.get((pod.ref.namespace, pod.claim))
        if pod.node_name:
            problem = _claim_problem(cluster, pod, claim)
            if problem:
                yield Finding(
                    "ClaimDiffers",
                    f"pod {pod.ref}",
                    f"its claim {pod.claim} {problem}",
                    "see who may write the status of claims: HAMi's scheduler counts, and the node gives, what "
                    "the annotations say",
                )
        elif claim is not None and _age(cluster, parse_time(pod.created)) > LOCK_TIMEOUT_S:
            yield Finding(
                "ClaimWithoutBinding",
                f"claim {claim.namespace}/{claim.name}",
                f"it is allocated, but its pod {pod.ref.name} is not bound",
                "nothing: it reserves no devices, and goes with the pod",
            )


def _nobody_allocates(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields the scheduler that makes no claims, if nodes wait for some."""
    managed = sorted({name for name, usage in cluster.usages() if usage.device.by_claims})
    schedulers = [
        scheduler for scheduler in cluster.record.installation.schedulers if not scheduler.is_hamis
    ]
    if not managed or not schedulers:
        return
    if any(scheduler.allocates for scheduler in schedulers):
        return
    yield Finding(
        "NobodyAllocates",
        f"deployment {schedulers[0].name}",
        f"it makes no claims, for which {counted(len(managed), 'node')} such as {managed[0]} wait",
        "set --dra=allocate, or --claim-allocator=kube-scheduler of the device plugins",
    )


def _claim_problem(cluster: InspectedCluster, pod: Pod, claim: AllocatedClaim | None) -> str:
    """Returns in what the claim of a bound pod differs from its annotations; empty if it does not, or may be late."""
    if not cluster.record.slices or _age(cluster, bound_at(pod)) <= CLAIM_LATE_S:
        return ""
    if claim is None:
        return "has no devices"
    if pod.ref not in claim.pods:
        return "is not reserved for it"
    try:
        shares = parse_shares(GPU_ALLOCATED, pod.annotations.get(GPU_ALLOCATED, ""))
        booked = with_places(pod.annotations, shares)
    except MalformedInput:
        return ""  # a finding of its own
    differing = differing_containers(claim, pod, booked)
    if not differing:
        return ""
    return f"and its annotations say different things of container {differing[0]}"


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
    own = _own_schedulers(cluster)
    for pod in cluster.pods.values():
        if pod.node_name and not pod.is_terminated:
            yield from _allocation(cluster, pod, own)


def _allocation(cluster: InspectedCluster, pod: Pod, own: Container[str]) -> Iterator[Finding]:
    record = cluster.view.facts.pods.get(pod.ref.uid)
    if record is None:
        return
    limits = most_shares(cluster.vendors, pod.containers)
    booking = cluster.view.bookings.get(pod.ref.uid)
    has_none = booking is None or not booking.charges
    if limits and not record.problems and has_none:
        yield Finding(
            "NoAllocation",
            f"pod {pod.ref}",
            f"it requests devices and is bound to {pod.node_name}, but has none",
            _placing_remedy(pod, own),
        )
    extra = _unrequested(cluster, pod, limits)
    if extra:
        yield Finding(
            "ForeignAllocation",
            f"pod {pod.ref}",
            f"it carries devices of {', '.join(extra)}, which its specification does not request",
            "nothing: they are not counted; see who writes annotations",
        )
    if pod.devices_forgotten:
        yield Finding(
            "DevicesForgotten",
            f"pod {pod.ref}",
            f"a container of it cannot start: the kubelet of node {pod.node_name} has lost its checkpoint and no "
            "longer knows its devices",
            "delete the pod",
        )
    if record.allocating and _age(cluster, bound_at(pod)) > LOCK_TIMEOUT_S:
        yield Finding(
            "StuckAllocation",
            f"pod {pod.ref}",
            f"the device plugin of node {pod.node_name} has not allocated its devices",
            "check the device plugin of the node, then recreate the pod",
        )


def _own_schedulers(cluster: InspectedCluster) -> set[str]:
    """Returns the names under which HAMi's schedulers place pods: the usual ones, and those of pods with devices."""
    names = set(HAMI_SCHEDULERS)
    for booking in cluster.view.bookings.values():
        pod = cluster.pods.get(booking.uid)
        if pod is not None and booking.charges:
            names.add(pod.scheduler_name)
    return names


def _placing_remedy(pod: Pod, own: Container[str]) -> str:
    """Returns how *pod*, which is bound without its devices, gets to HAMi's scheduler. *own*: the names of that."""
    if pod.scheduler_name in own:
        return "recreate the pod without nodeName, so that HAMi's scheduler places it"
    if pod.scheduler_name in ("", DEFAULT_SCHEDULER):
        return (
            "recreate the pod: it has not passed HAMi's webhook; check the webhook's configuration and the label "
            f"{WEBHOOK}"
        )
    return f"recreate the pod without schedulerName: {pod.scheduler_name} places it and gives it no devices"


def _unrequested(cluster: InspectedCluster, pod: Pod, requested: Container[str]) -> list[str]:
    """Returns the vendors of which *pod* carries devices beside those that are *requested*, sorted."""
    vendors: list[str] = []
    for vendor in cluster.vendors.allocated_in(pod.annotations):
        text = pod.annotations[vendor.annotations.allocated]
        if vendor.key not in requested and text.strip(";:"):
            vendors.append(vendor.key)
    return sorted(vendors)


def _resizes(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields resizes that the scheduler or the node of the pod has not carried out."""
    for pod in cluster.pods.values():
        if not pod.node_name or pod.is_terminated or pod.deleting:
            continue
        report = resize_report(pod.annotations)
        if report is not None and report.state == REQUESTED:
            yield Finding(
                "ResizeUnanswered",
                f"pod {pod.ref}",
                f"no scheduler has answered its request {report.request[:SHOWN]}",
                "check that HAMi's scheduler has a leader, and that no older version leads",
            )
        problem = _resize_problem(pod)
        if problem:
            remedy = _resize_remedy(pod.node_name, report)
            yield Finding("ResizeHangs", f"pod {pod.ref}", problem, remedy)


def _resize_remedy(node: str, report: ResizeReport | None) -> str:
    if report is not None and (report.excess_mib or report.excess_cores):
        return (
            "nothing, if it still uses more: hami top pods shows what stays booked; otherwise check the "
            f"device plugin and the monitor of node {node}"
        )
    return f"check the device plugin of node {node}, and who may write {RESIZE_APPLIED}"


def _resize_problem(pod: Pod) -> str:
    """Returns what the node of *pod* has not enforced yet; empty if it has."""
    target = wanted_text(pod.annotations)
    if target is None:
        return ""
    applied = parse_applied(pod.annotations.get(RESIZE_APPLIED))
    if applied is None:
        if RESIZED not in pod.annotations:
            return ""
        return f"it is to have {target}; its node has not answered"
    if shares_in(applied.sizes) == shares_in(target):
        return ""
    problem = f"it is to have {target}; its node enforces {applied.sizes}"
    if applied.problem:
        problem += f" and says: {applied.problem}"
    return problem


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
    remedy = _upgrade_remedy(state, hamis)
    unfinished = 0
    for scheduler in state.schedulers:
        if scheduler.is_hamis or not (scheduler.counts_others or hamis):
            continue
        unfinished += 1
        problem = "; ".join(_unfinished(state, scheduler, hamis, policies))
        yield Finding("UpgradeUnfinished", f"deployment {scheduler.name}", problem, remedy)
    if policies and not unfinished:
        yield Finding(
            "PoliciesWarn",
            "policies of HAMi",
            f"{policies}: what they would refuse is allowed",
            "set policies.mode=deny when nobody needs a role any more",
        )


def _upgrade_remedy(state: Installation, hamis: str) -> str:
    if hamis:
        return "helm uninstall the release of HAMi's chart, then take the flag from this one"
    if state.outdated_plugins:
        return (
            "when all device plugins are replaced, run helm upgrade again, without takeOver=always"
        )
    return (
        "run helm upgrade again, without takeOver=always; or take the flag from the overlay. Keep it "
        "only for a scheduler of another vendor that writes on pods before it binds them"
    )


def _unfinished(
    state: Installation, scheduler: SchedulerDeployment, hamis: str, policies: str
) -> Iterator[str]:
    """Yields what is left of an upgrade of *scheduler*. *hamis*: the schedulers of HAMi."""
    if scheduler.counts_others:
        yield "it counts what other schedulers write on pods (--foreign-reservations)"
    if hamis:
        yield f"HAMi's scheduler {hamis} is installed beside it"
    if state.outdated_plugins:
        yield f"{state.outdated_plugins} of {counted(state.plugins, 'device plugin')} are not replaced yet"
    if policies:
        yield f"the policies {policies}"


def _excess_bindings(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields the rights that kube-scheduler's account has kept from the time when it was that of the extender, too."""
    for binding in cluster.record.installation.excess_bindings:
        namespace, _, name = binding.name.rpartition("/")
        remedy = f"kubectl delete {binding.kind}/{name} {binding.role}"
        if namespace:
            remedy += f" -n {namespace}"
        if binding.has_extender:
            remedy = "run helm upgrade again, without takeOver=always"
        yield Finding(
            "LeftoverRights",
            f"{binding.kind} {binding.name}",
            f"it gives kube-scheduler's account {binding.account} "
            f"{binding.role}, which only the extender needs now that it has an account of its own",
            f"when the rollout of the scheduler has ended, {remedy}",
        )


def _device_classes(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields DeviceClasses for which kube-scheduler, from Kubernetes 1.36 on, looks for resources that nodes lack."""
    for name, resource in sorted(cluster.record.installation.device_classes.items()):
        for vendor in cluster.vendors:
            if resource not in vendor.resources.names:
                continue
            others = [other for other in (vendor.resources.memory, vendor.resources.cores) if other]
            lacking = _nodes_without(cluster, vendor, others)
            if lacking:
                yield Finding(
                    "DeviceClassTakesResource",
                    f"device class {name}",
                    f"it stands for {resource}, so from Kubernetes "
                    f"1.36 on, pods that also request {' or '.join(others)} do not get to "
                    f"{counted(lacking, 'node')}, where kube-scheduler cannot fit these",
                    "take extendedResourceName from the class, or set --publish-capacity=requests of the device plugin",
                )


def _nodes_without(cluster: InspectedCluster, vendor: Vendor, resources: Sequence[str]) -> int:
    """Returns how many nodes with devices of *vendor* lack one of *resources*."""
    count = 0
    for node in cluster.record.nodes:
        if vendor.key in cluster.view.usages(node.name):
            count += not all(resource in node.allocatable for resource in resources)
    return count


def _uncounted_quotas(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields entries of ResourceQuotas that look like limits of devices, and that nobody counts."""
    entries = QuotaEntries(cluster.vendors)
    for quota in cluster.record.quotas:
        for found in entries.uncounted(quota):
            yield Finding(
                "QuotaEntryNotCounted",
                f"quota {quota.namespace}/{quota.name}",
                f"{found.entry}: {found.problem}",
                found.remedy,
            )


def _cordons(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields names in cordons of nodes that are none of their devices."""
    for node in cluster.record.nodes:
        uuids = parse_list(node.annotations.get(CORDON))
        if not uuids:
            continue
        known = _uuids_on(node, cluster.vendors)
        for uuid in uuids:
            if uuid in known:
                continue
            near = nearest(uuid, known)
            remedy = f"write {near}" if near else "see hami top cards for the UUIDs of its devices"
            problem = f"{CORDON} names {uuid}, which is none of its devices"
            yield Finding("CordonMatchesNothing", f"node {node.name}", problem, remedy)


def _words_on_nodes(cluster: InspectedCluster) -> Iterator[Finding]:
    """Yields annotations and labels of nodes that mean something on pods alone."""
    wishes = Wishes(Vocabulary(cluster.vendors))
    for node in cluster.record.nodes:
        for key, kind in wishes.misplaced_on_node(node.annotations, node.labels):
            problem = f"{kind} {key} of a node has no effect"
            yield Finding("WishIgnored", f"node {node.name}", problem, "write it on pods")


def _uuids_on(node: Node, vendors: Catalog) -> list[str]:
    """Returns the UUIDs of all devices that *node* shows. Inventories that cannot be read are findings of their own."""
    uuids: list[str] = []
    for vendor in vendors:
        with suppress(MalformedInput):
            uuids += [device.uuid for device in read_inventory(vendor, node)]
    return uuids


def _age(cluster: InspectedCluster, unix: int) -> float:
    """Returns the seconds from *unix* to the record; 0 if *unix* is unknown, or no time that a datetime can have."""
    if not 0 < unix < LATEST:
        return 0.0
    return (cluster.record.taken - datetime.fromtimestamp(unix, UTC)).total_seconds()


_CHECKS: tuple[Callable[[InspectedCluster], Iterator[Finding]], ...] = (
    _overcommitted,
    _unreadable,
    _missing_devices,
    _unhealthy_devices,
    _same_machine,
    _two_allocation_modes,
    _missing_claimed_devices,
    _hami_claims,
    _nobody_allocates,
    _locks,
    _reservations,
    _allocations,
    _resizes,
    _upgrade,
    _excess_bindings,
    _device_classes,
    _uncounted_quotas,
    _cordons,
    _words_on_nodes,
)
