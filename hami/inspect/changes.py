"""The smallest changes with which a waiting pod would fit, each found by asking the decision itself.

What a pod can ask for is loosened until it fits, with as few kinds of changes as possible; then each loosened amount is
tightened again as far as the decision allows. Beside that, nodes and cards are uncordoned, quotas lifted and other pods
ended, one at a time, each in a view of its own. Only where neither is enough they are combined.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hami.codec.keys import CORDON, GPU_POLICY, NUMA_BIND
from hami.codec.policies import parse_list
from hami.inspect.cluster import InspectedCluster
from hami.inspect.tables import OutputRecord
from hami.model import Container, Device, Pod, QuotaLimits, Request
from hami.plurals import counted
from hami.scheduling.amounts import cores_of
from hami.scheduling.pod_request import is_numa_bound
from hami.scheduling.refusal import Choice
from hami.state import dry_run
from hami.state.bookings import Booking
from hami.state.view import View
from hami.vendors.request import WHOLE, device_request
from hami.vendors.spec import Catalog, Vendor

MAX_KINDS = 3  # kinds of changes to a pod that are combined
MAX_NODES = 50  # nodes, nearest first, on which pods are ended and cards uncordoned
MAX_ENDED = 1000  # pods of the namespace of a quota that are ended, one at a time
MAX_OF_A_KIND = 3  # changes of the cluster that are reported of each kind
KINDS = (
    "less memory, fewer cores, fewer devices, another type, other UUIDs, another mode, no NUMA binding, shared "
    "devices, a node or card uncordoned, a higher quota, another pod ended"
)
"""The kinds that are tried, for an answer without a change."""


class ChangePart(OutputRecord, frozen=True, omit_defaults=True):
    """One change of a pod or of the cluster. *kind*: of a pod LessMemory, FewerCores, FewerDevices, Annotation; of the
    cluster Uncordon, RaiseQuota, LiftQuotas, EndPod. *text*: all of it in words. *vendor*: whose devices. *memory_mib*,
    *cores*: what it may ask of each device at most. *devices*: how many devices each container may ask for at most.
    *name*: of the annotation or the object that changes.
    """

    kind: str
    text: str
    vendor: str = ""
    memory_mib: int = 0
    cores: int = 0
    devices: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Changes after which a pod fits *node*. *pod*, *view*: pod and cluster as they would be."""

    parts: tuple[ChangePart, ...]
    pod: Pod
    node: str
    view: View


def find_changes(
    inspected: InspectedCluster, view: View, pod: Pod, nearest: Sequence[str]
) -> list[Change]:
    """Returns the smallest changes with which *pod* fits, changes of the pod first. Empty if no known change suffices.

    *view*: the cluster in which it waits. *nearest*: the nodes that do not fit, in the order in which changes of the
    cluster are tried.
    """
    search = _Search(inspected, view, pod, nearest[:MAX_NODES])
    here = _Cluster(view, inspected.offered)
    quotas = _quotas_of(pod, view)
    changes = search.changes(here)
    if changes or not quotas:
        return changes
    names = ", ".join(quota.name for quota in quotas.values())
    lifted = here.but(
        ChangePart("LiftQuotas", f"the namespace has no quota of devices (now {names})"),
        view.what_if(quotas={pod.ref.namespace: {}}),
    )
    choice = lifted.fits(pod)
    if choice is None:
        return search.changes(lifted)
    return [lifted.change(pod, choice.node)]


@dataclass(frozen=True, slots=True)
class _Cluster:
    """A cluster that differs by *parts* from the one in which the pod waits. *names*: the nodes that the pod may
    get."""

    view: View
    names: Sequence[str]
    parts: tuple[ChangePart, ...] = ()

    def but(
        self, part: ChangePart, view: View | None = None, names: Sequence[str] = ()
    ) -> _Cluster:
        """Returns this cluster with another view, or other nodes that the pod may get."""
        return _Cluster(view or self.view, names or self.names, (*self.parts, part))

    def fits(self, pod: Pod) -> Choice | None:
        """Returns the decision about *pod*."""
        return dry_run.choose(self.view, pod, self.names)

    def change(self, pod: Pod, node: str, parts: tuple[ChangePart, ...] = ()) -> Change:
        """Returns the change that makes this cluster, beside those of the pod in *parts*."""
        return Change(parts=(*parts, *self.parts), pod=pod, node=node, view=self.view)


_Groups = Iterable[Iterable[_Cluster]]
"""Changes of one kind. One that suffices is enough of each group."""


class _Search:
    """The search for one pod."""

    def __init__(
        self, inspected: InspectedCluster, view: View, pod: Pod, nearest: Sequence[str]
    ) -> None:
        self._inspected = inspected
        self._pod = pod
        self._nearest = nearest
        self._relaxations = _relaxations(inspected, pod)
        others: list[Booking] = []
        for booking in view.bookings.values():
            if booking.uid != pod.ref.uid and inspected.ref(booking.uid) is not None:
                others.append(booking)
        self._bookings = sorted(others, key=partial(_size, inspected.vendors))

    def changes(self, here: _Cluster) -> list[Change]:
        """Returns the changes of the pod alone and those of the cluster *here* alone; else of both."""
        return [*self._loosened(here), *self._alone(here)] or list(self._together(here))

    def _alone(self, here: _Cluster) -> Iterator[Change]:
        """Yields the changes of the cluster alone."""
        for groups in self._kinds(here):
            enough = filter(None, (_first(group, self._pod) for group in groups))
            for cluster, choice in itertools.islice(enough, MAX_OF_A_KIND):
                yield cluster.change(self._pod, choice.node)

    def _together(self, here: _Cluster) -> Iterator[Change]:
        """Yields changes of the pod together with one of the cluster, the first of each kind, and pods that end on
        nodes that are uncordoned."""
        loosest = _applied([relaxation.loosest for relaxation in self._relaxations], self._pod)
        for groups in (*self._kinds(here), self._uncordoned_and_ended(here)):
            answer = next(filter(None, (_first(group, loosest) for group in groups)), None)
            if answer is None:
                continue
            cluster, _ = answer
            choice = cluster.fits(self._pod)
            if choice is None:
                yield from self._loosened(cluster)[:1]
            else:
                yield cluster.change(self._pod, choice.node)

    def _loosened(self, cluster: _Cluster) -> list[Change]:
        """Returns changes of the pod, in *cluster*: all that need the smallest number of kinds."""
        kinds = len(self._relaxations)
        sizes = [*range(1, min(MAX_KINDS, kinds) + 1)]
        if kinds > MAX_KINDS:
            sizes.append(kinds)
        for size in sizes:
            changes: list[Change] = []
            for chosen in itertools.combinations(self._relaxations, size):
                change = self._tightened(chosen, cluster)
                if change is not None:
                    changes.append(change)
            if changes:
                return changes
        return []

    def _tightened(self, chosen: Sequence[_Relaxation], cluster: _Cluster) -> Change | None:
        """Returns the change by *chosen*, each as little as possible; ``None`` if not even the most is enough."""
        steps = [relaxation.loosest for relaxation in chosen]
        if cluster.fits(_applied(steps, self._pod)) is None:
            return None
        for place, relaxation in enumerate(chosen):
            others = _applied([*steps[:place], *steps[place + 1 :]], self._pod)
            steps[place] = relaxation.tighten(partial(_is_enough, others, cluster))
        changed = _applied(steps, self._pod)
        choice = cluster.fits(changed)
        if choice is None:
            return None
        return cluster.change(changed, choice.node, tuple(step.part for step in steps))

    # Changes of the cluster

    def _kinds(self, here: _Cluster) -> Iterator[_Groups]:
        yield ([cluster] for cluster in self._uncordoned_nodes(here))
        yield ([cluster] for cluster in self._uncordoned_devices(here))
        yield ([cluster] for cluster in self._raised_quotas(here))
        yield self._ended(here)

    def _uncordoned_nodes(self, here: _Cluster) -> Iterator[_Cluster]:
        for name in sorted(self._inspected.cordoned):
            text = f"node {name} is uncordoned (kubectl uncordon {name})"
            yield here.but(ChangePart("Uncordon", text, name=name), names=[name])

    def _uncordoned_and_ended(self, here: _Cluster) -> _Groups:
        """Yields the pods of cordoned nodes that end where the node is uncordoned, too."""
        for uncordoned in self._uncordoned_nodes(here):
            yield (
                self._end(booking, uncordoned, uncordoned.names)
                for booking in self._bookings
                if booking.node in uncordoned.names
            )

    def _uncordoned_devices(self, here: _Cluster) -> Iterator[_Cluster]:
        for name in self._nearest:
            node = self._inspected.nodes[name]
            uuids = parse_list(node.annotations.get(CORDON))
            if uuids is None:
                continue
            for uuid in uuids:
                rest = ",".join(other for other in uuids if other != uuid)
                changed = replace(node, annotations={**node.annotations, CORDON: rest})
                text = f"card {uuid} of node {name} is uncordoned (annotation {CORDON})"
                yield here.but(
                    ChangePart("Uncordon", text, name=uuid),
                    here.view.what_if(nodes=[changed]),
                    [name],
                )

    def _raised_quotas(self, here: _Cluster) -> Iterator[_Cluster]:
        namespace = self._pod.ref.namespace
        for uid, quota in _quotas_of(self._pod, here.view).items():
            for resource, limit in sorted(quota.limits.items()):
                limits = dict(quota.limits)
                del limits[resource]
                raised = replace(quota, limits=limits)
                text = f"the quota {quota.name} allows more of limits.{resource} than {limit}"
                yield here.but(
                    ChangePart("RaiseQuota", text, name=quota.name),
                    here.view.what_if(
                        quotas={namespace: {**here.view.facts.quotas[namespace], uid: raised}}
                    ),
                )

    def _ended(self, here: _Cluster) -> _Groups:
        """Yields the pods that end, smallest first: those that a quota of the pod counts, too, then those of each of
        the nearest nodes."""
        quotas = _quotas_of(self._pod, here.view).values()
        counted: list[Booking] = []
        for booking in self._bookings:
            if booking.namespace != self._pod.ref.namespace:
                continue
            if any(quota.matches(booking.scope) for quota in quotas):
                counted.append(booking)
        yield (self._end(booking, here, here.names) for booking in counted[:MAX_ENDED])
        for name in self._nearest:
            yield (
                self._end(booking, here, [name])
                for booking in self._bookings
                if booking.node == name
            )

    def _end(self, booking: Booking, cluster: _Cluster, names: Sequence[str]) -> _Cluster:
        name = str(self._inspected.ref(booking.uid))
        return cluster.but(
            ChangePart("EndPod", f"pod {name} ends", name=name),
            cluster.view.what_if(without=[booking.uid]),
            names,
        )


def _quotas_of(pod: Pod, view: View) -> dict[str, QuotaLimits]:
    """Returns the quotas that count *pod*, by uid, in the order of their names."""
    quotas = view.facts.quotas.get(pod.ref.namespace, {})
    in_order = sorted(quotas.items(), key=lambda item: (item[1].name, item[0]))
    return {uid: quota for uid, quota in in_order if quota.matches(pod.scope)}


def _first(group: Iterable[_Cluster], pod: Pod) -> tuple[_Cluster, Choice] | None:
    """Returns the first of *group* in which *pod* fits, and where; ``None`` if there is none."""
    for cluster in group:
        choice = cluster.fits(pod)
        if choice is not None:
            return cluster, choice
    return None


def _size(vendors: Catalog, booking: Booking) -> tuple[int, int, str]:
    memory_mib = cores = 0
    for key, charges in booking.charges:
        for charge in charges:
            memory_mib += charge.memory_mib
            cores += cores_of(vendors[key], charge.cores)
    return memory_mib, cores, booking.uid


def _is_enough(pod: Pod, cluster: _Cluster, step: _Step) -> bool:
    return cluster.fits(step.apply(pod)) is not None


def _applied(steps: Iterable[_Step], pod: Pod) -> Pod:
    for step in steps:
        pod = step.apply(pod)
    return pod


@dataclass(frozen=True, slots=True)
class _Step:
    """One change of a pod, as a record and as a function."""

    part: ChangePart
    apply: Callable[[Pod], Pod]


@dataclass(frozen=True, slots=True)
class _Relaxation:
    """A kind of change in *degrees*, of which the last is the most that it can do. *step*: returns the change in a
    degree from 0. *is_ordered*: where a degree is enough, all that follow are."""

    step: Callable[[int], _Step]
    degrees: int = 1
    is_ordered: bool = False

    @property
    def loosest(self) -> _Step:
        """The most that it can do."""
        return self.step(self.degrees - 1)

    def tighten(self, is_enough: Callable[[_Step], bool]) -> _Step:
        """Returns the smallest change that is enough; the loosest must be."""
        degrees = range(self.degrees - 1)
        if self.is_ordered:
            return self.step(
                bisect_left(degrees, True, key=lambda degree: is_enough(self.step(degree)))
            )
        for degree in degrees:
            step = self.step(degree)
            if is_enough(step):
                return step
        return self.loosest


# Kinds of changes of a pod


def _relaxations(inspected: InspectedCluster, pod: Pod) -> list[_Relaxation]:
    """Returns the kinds of changes that *pod* permits."""
    relaxations, steps = list[_Relaxation](), list[_Step]()
    for vendor in inspected.vendors:
        requests = list(filter(None, (device_request(vendor, item) for item in pod.containers)))
        if not requests:
            continue
        devices: list[Device] = []
        for usages in inspected.view.nodes.values():
            devices += [usage.device for usage in usages.get(vendor.key, ())]
        relaxations += _amounts(vendor, requests, devices)
        relaxations += _selections(vendor, pod, devices)
    if "mutex" in pod.annotations.get(GPU_POLICY, inspected.record.policies.device):
        steps.append(_annotate("its devices may be shared with other pods", {GPU_POLICY: "spread"}))
    if is_numa_bound(pod.annotations):
        steps.append(_annotate("its devices may be on several NUMA nodes", {NUMA_BIND: None}))
    return [*relaxations, *(_Relaxation([step].__getitem__) for step in steps)]


def _amounts(
    vendor: Vendor, requests: Sequence[Request], devices: Sequence[Device]
) -> Iterator[_Relaxation]:
    """Yields the amounts of *requests* that can be lower."""
    factor = max(vendor.resources.memory_factor, 1)
    largest = max((device.memory_mib for device in devices), default=0)
    memory = cores = count = 0
    for request in requests:
        percent = request.memory_percent or 0
        memory = max(memory, request.memory_mib or largest * percent // WHOLE)
        cores, count = max(cores, request.cores), max(count, request.count)
    if vendor.resources.memory and memory > factor:
        yield _lowered(
            vendor,
            memory // factor - 1,
            lambda request, value: _with_memory(request, value * factor),
            lambda value: _less_memory(vendor, value * factor),
        )
    if vendor.resources.cores and cores > 1:
        yield _lowered(
            vendor,
            cores - 1,
            lambda request, value: replace(request, cores=min(request.cores, value)),
            lambda value: _fewer_cores(vendor, value),
        )
    if count > 1:
        yield _lowered(
            vendor,
            count - 1,
            lambda request, value: replace(request, count=min(request.count, value)),
            lambda value: _fewer_devices(vendor, value),
        )


def _less_memory(vendor: Vendor, most: int) -> ChangePart:
    text = f"it asks for at most {most:,} MiB of each {vendor.key} device"
    return ChangePart("LessMemory", text, vendor.key, memory_mib=most)


def _fewer_cores(vendor: Vendor, most: int) -> ChangePart:
    text = f"it asks for at most {most} cores of each {vendor.key} device"
    return ChangePart("FewerCores", text, vendor.key, cores=most)


def _fewer_devices(vendor: Vendor, most: int) -> ChangePart:
    text = f"each container asks for at most {counted(most, f'{vendor.key} device')}"
    return ChangePart("FewerDevices", text, vendor.key, devices=most)


def _selections(vendor: Vendor, pod: Pod, devices: Sequence[Device]) -> Iterator[_Relaxation]:
    """Yields the selections of devices that can be left out."""
    keys = vendor.annotations.selectors
    for name, chosen in (
        ("type", (keys.use_types, keys.nouse_types)),
        ("UUID", (*keys.use_uuids, *keys.nouse_uuids)),
        ("mode", (keys.mode,)),
    ):
        present = [key for key in chosen if key and key in pod.annotations]
        if not present:
            continue
        removed: dict[str, str | None] = dict.fromkeys(present)
        steps: list[_Step] = []
        if name == "type" and keys.use_types:
            for model in sorted({device.model for device in devices}):
                text = f"it asks for the type {model} (annotation {keys.use_types})"
                steps.append(_annotate(text, {**removed, keys.use_types: model}))
        text = f"its devices may be of any {name} (annotation {', '.join(present)})"
        steps.append(_annotate(text, removed))
        yield _Relaxation(steps.__getitem__, len(steps))


def _annotate(text: str, annotations: Mapping[str, str | None]) -> _Step:
    """Returns the change to these annotations; ``None`` removes one."""

    def apply(pod: Pod) -> Pod:
        changed = dict(pod.annotations)
        for key, value in annotations.items():
            changed.pop(key, None)
            if value is not None:
                changed[key] = value
        return replace(pod, annotations=changed)

    part = ChangePart("Annotation", text, name=", ".join(annotations))
    return _Step(part, apply)


def _lowered(
    vendor: Vendor,
    limit: int,
    lower: Callable[[Request, int], Request],
    part: Callable[[int], ChangePart],
) -> _Relaxation:
    """Returns the kind of change that lowers an amount of each device to *limit* at most, and not below 1."""

    def step(degree: int) -> _Step:
        value = limit - degree
        return _Step(
            part(value),
            lambda pod: replace(
                pod,
                containers=tuple(
                    _limited(vendor, container, lower, value) for container in pod.containers
                ),
            ),
        )

    return _Relaxation(step, limit, is_ordered=True)


def _with_memory(request: Request, memory_mib: int) -> Request:
    if request.memory_percent is None and request.memory_mib <= memory_mib:
        return request
    return replace(request, memory_mib=memory_mib, memory_percent=None)


def _limited(
    vendor: Vendor, container: Container, lower: Callable[[Request, int], Request], value: int
) -> Container:
    request = device_request(vendor, container)
    if request is None:
        return container
    before, after = _amounts_of(vendor, request), _amounts_of(vendor, lower(request, value))
    changes = {name: amount for name, amount in after.items() if amount != before[name]}
    limits = {name: text for name, text in container.limits.items() if name not in changes}
    requests = {name: text for name, text in container.requests.items() if name not in changes}
    limits |= {name: str(amount) for name, amount in changes.items() if amount}
    return replace(container, limits=limits, requests=requests)


def _amounts_of(vendor: Vendor, request: Request) -> dict[str, int]:
    """Returns the amounts of resources with which a container makes *request*; 0: it does not name the resource."""
    names = vendor.resources
    devices = request.count if names.amounts_are_totals else 1
    amounts = {
        names.count: request.count,
        names.memory: request.memory_mib // max(names.memory_factor, 1) * devices,
        names.memory_percent: request.memory_percent or 0,
        names.cores: request.cores * devices,
    }
    return {name: amount for name, amount in amounts.items() if name}
