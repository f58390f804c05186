"""The smallest changes with which a waiting pod would fit, each found by asking the decision itself.

What a pod can ask for is loosened until it fits, with as few kinds of changes as possible; then each loosened amount is
tightened again as far as the decision allows. Beside that, nodes and cards are uncordoned, quotas lifted and other pods
ended, one at a time. Only where neither is enough they are combined.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hami.codec.keys import CORDON, GPU_POLICY, NUMA_BIND
from hami.codec.policies import parse_list
from hami.codec.register import parse_bool
from hami.inspect.record import ClusterRecord
from hami.inspect.world import World
from hami.model import Container, Device, Node, Pod, PodRef, QuotaLimits, Request
from hami.scheduling.decide import Choice
from hami.scheduling.index import Booking
from hami.scheduling.usage import total_charge
from hami.vendors.request import WHOLE, device_request
from hami.vendors.spec import Vendor

MAX_KINDS = 3  # kinds of changes to a pod that are combined
MAX_NODES = 50  # nodes, nearest first, on which pods are ended and cards uncordoned
MAX_ENDED = 1000  # pods of the namespace of a quota that are ended, one at a time
MAX_OF_A_KIND = 3  # changes of the cluster that are reported of each kind
KINDS = ("less memory, fewer cores, fewer devices, another type, other UUIDs, another mode, no NUMA binding, shared "
         "devices, a node or card uncordoned, a higher quota, another pod ended")
"""The kinds that are tried, for an answer without a change."""

Fits = Callable[[Pod], "Choice | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Changes after which a pod fits *node*. *texts*: in words. *pod*: as it would be.

    *nodes*, *quotas*: objects as they would be. *ended*: the pods that would have ended.
    """

    texts: tuple[str, ...]
    pod: Pod
    node: str
    nodes: tuple[Node, ...] = ()
    quotas: tuple[QuotaLimits, ...] = ()
    ended: tuple[PodRef, ...] = ()

    def applied(self, record: ClusterRecord) -> ClusterRecord:
        """Returns *record* with the changes; the pod itself still waits."""
        nodes = {node.name: node for node in (*record.nodes, *self.nodes)}
        quotas = {quota.uid: quota for quota in (*record.quotas, *self.quotas)}
        uids = {ref.uid for ref in self.ended}
        pods = (self.pod if pod.ref.uid == self.pod.ref.uid else pod for pod in record.pods if pod.ref.uid not in uids)
        return replace(record, nodes=tuple(nodes.values()), quotas=tuple(quotas.values()), pods=tuple(pods))


def find_changes(world: World, pod: Pod, nearest: Sequence[str]) -> list[Change]:
    """Returns the smallest changes with which *pod* fits, those of the pod first; none if none that is known is enough.

    *nearest*: the nodes that do not fit, in the order in which changes of the cluster are tried.
    """
    search = _Search(world, pod, nearest[:MAX_NODES])
    if found := search.changes():
        return found
    quotas = world.cache.quotas.of(pod.ref.namespace)
    if not quotas:
        return []
    with search.lifted(quotas.values()) as lifted:
        text = f"the namespace has no quota of devices (now {', '.join(quota.name for quota in quotas.values())})"
        found = search.alone() if search.fits(pod) is None else []
        return [replace(change, texts=(*change.texts, text), quotas=lifted) for change in found or search.changes()]


@dataclass(frozen=True, slots=True)
class _Remedy:
    """A change of the cluster. *fits*: the decision about a pod after it. The others are as in :class:`Change`."""

    text: str
    fits: Fits
    nodes: tuple[Node, ...] = ()
    quotas: tuple[QuotaLimits, ...] = ()
    ended: tuple[PodRef, ...] = ()

    def added_to(self, change: Change) -> Change:
        """Returns *change* and this one."""
        return replace(change, texts=(*change.texts, self.text), nodes=self.nodes, quotas=self.quotas,
                       ended=self.ended)


_Groups = Iterable[Iterable[_Remedy]]
"""Changes of one kind. One that suffices is enough of each group."""


class _Search:
    """The search for one pod. It leaves the cache as it was."""

    def __init__(self, world: World, pod: Pod, nearest: Sequence[str]) -> None:
        self._world = world
        self._cache = world.cache
        self._pod = pod
        self._nearest = nearest
        self._offered = world.offered()
        self._loosenings = _loosenings(world, pod)
        self._bookings = sorted((booking for booking in world.snapshot.bookings
                                 if booking.uid != pod.ref.uid and booking.uid in world.pods), key=_size)

    def fits(self, pod: Pod) -> Choice | None:
        """Returns the decision about *pod* with the cluster as it is."""
        return self._cache.choose(pod, self._offered)

    def changes(self) -> list[Change]:
        """Returns the changes of the pod alone and those of the cluster alone; else of both."""
        return [*self._loosened(self.fits), *self.alone()] or list(self._together())

    def alone(self) -> list[Change]:
        """Returns the changes of the cluster alone."""
        found = []
        for groups in self._kinds():
            remedies = (answer for group in groups if (answer := _first(group, self._pod)) is not None)
            found += [remedy.added_to(Change(texts=(), pod=self._pod, node=choice.node))
                      for remedy, choice in itertools.islice(remedies, MAX_OF_A_KIND)]
        return found

    def _together(self) -> Iterator[Change]:
        """Yields changes of the pod together with one of the cluster, the first of each kind, and pods that end on
        nodes that are uncordoned."""
        loosest = _applied([one.loosest for one in self._loosenings], self._pod)
        for groups in (*self._kinds(), self._uncordoned_and_ended()):
            answer = next(filter(None, (_first(group, loosest) for group in groups)), None)
            if answer is not None:
                remedy, _ = answer
                unchanged = remedy.fits(self._pod)
                found = ([Change(texts=(), pod=self._pod, node=unchanged.node)] if unchanged is not None
                         else self._loosened(remedy.fits)[:1])
                yield from map(remedy.added_to, found)

    def _loosened(self, fits: Fits) -> list[Change]:
        """Returns changes of the pod: all that need the smallest number of kinds."""
        most = len(self._loosenings)
        for size in (*range(1, min(MAX_KINDS, most) + 1), *([most] if most > MAX_KINDS else [])):
            found = [change for chosen in itertools.combinations(self._loosenings, size)
                     if (change := self._tightened(chosen, fits)) is not None]
            if found:
                return found
        return []

    def _tightened(self, chosen: Sequence[_Loosening], fits: Fits) -> Change | None:
        """Returns the change by *chosen*, each as little as possible; ``None`` if not even the most is enough."""
        steps = [one.loosest for one in chosen]
        if fits(_applied(steps, self._pod)) is None:
            return None
        for place, loosening in enumerate(chosen):
            others = _applied([*steps[:place], *steps[place + 1:]], self._pod)
            steps[place] = loosening.tighten(partial(_is_enough, others, fits))
        changed = _applied(steps, self._pod)
        choice = fits(changed)
        return Change(texts=tuple(step.text for step in steps), pod=changed, node=choice.node) if choice else None

    # Changes of the cluster

    def _kinds(self) -> Iterator[_Groups]:
        yield ([remedy] for remedy in self._uncordoned_nodes())
        yield ([remedy] for remedy in self._uncordoned_cards())
        yield ([remedy] for remedy in self._raised_quotas())
        yield self._ended()

    def _uncordoned_and_ended(self) -> _Groups:
        """Yields the pods of cordoned nodes that end where the node is uncordoned, too."""
        for uncordoned in self._uncordoned_nodes():
            (node,) = uncordoned.nodes
            yield [replace(ended, text=f"{uncordoned.text}, and {ended.text}", nodes=uncordoned.nodes)
                   for booking in self._bookings if booking.node == node.name
                   for ended in [self._end(booking, [node.name])]]

    def _uncordoned_nodes(self) -> Iterator[_Remedy]:
        for name in sorted(name for name, node in self._world.nodes.items() if node.unschedulable):
            yield _Remedy(f"node {name} is uncordoned (kubectl uncordon {name})", partial(self._choose, [name]),
                          nodes=(replace(self._world.nodes[name], unschedulable=False),))

    def _uncordoned_cards(self) -> Iterator[_Remedy]:
        for name in self._nearest:
            node = self._world.nodes[name]
            uuids = parse_list(node.annotations.get(CORDON)) or ()
            for uuid in uuids:
                rest = ",".join(other for other in uuids if other != uuid)
                changed = replace(node, annotations={**node.annotations, CORDON: rest})
                yield _Remedy(f"card {uuid} of node {name} is uncordoned (annotation {CORDON})",
                              partial(self._fits_node, changed), nodes=(changed,))

    def _raised_quotas(self) -> Iterator[_Remedy]:
        for quota in tuple(self._cache.quotas.of(self._pod.ref.namespace).values()):
            for resource in sorted(quota.limits):
                changed = _without(quota, [resource])
                yield _Remedy(f"the quota {quota.name} allows more of limits.{resource} than {quota.limits[resource]}",
                              partial(self._fits_quota, changed), quotas=(changed,))

    def _ended(self) -> _Groups:
        """Yields the pods that end, smallest first: those of the quota, then those of each of the nearest nodes."""
        if self._cache.quotas.of(self._pod.ref.namespace):
            own = [booking for booking in self._bookings if booking.namespace == self._pod.ref.namespace]
            yield [self._end(booking, self._offered) for booking in own[:MAX_ENDED]]
        by_node: dict[str, list[Booking]] = {}
        for booking in self._bookings:
            by_node.setdefault(booking.node, []).append(booking)
        for name in self._nearest:
            yield [self._end(booking, [name]) for booking in by_node.get(name, ())]

    def _end(self, booking: Booking, names: Sequence[str]) -> _Remedy:
        ref = self._world.pods[booking.uid].ref
        return _Remedy(f"pod {ref} ends", partial(self._choose, names, ended=(booking.uid,)), ended=(ref,))

    def _choose(self, names: Sequence[str], pod: Pod, ended: Collection[str] = ()) -> Choice | None:
        return self._cache.choose(pod, names, ended)

    def _fits_node(self, changed: Node, pod: Pod) -> Choice | None:
        """Returns the decision about *pod* on the node *changed*."""
        self._cache.nodes.upsert(changed)
        try:
            return self._cache.choose(pod, [changed.name])
        finally:
            self._cache.nodes.upsert(self._world.nodes[changed.name])

    def _fits_quota(self, changed: QuotaLimits, pod: Pod) -> Choice | None:
        """Returns the decision about *pod* under the quota *changed*."""
        before = self._cache.quotas.of(changed.namespace)[changed.uid]
        self._cache.quotas.upsert(changed)
        try:
            return self.fits(pod)
        finally:
            self._cache.quotas.upsert(before)

    @contextlib.contextmanager
    def lifted(self, quotas: Iterable[QuotaLimits]) -> Iterator[tuple[QuotaLimits, ...]]:
        """Lifts *quotas* for a while. Yields them as they are meanwhile."""
        before = tuple(quotas)
        changed = tuple(_without(quota, quota.limits) for quota in before)
        for quota in changed:
            self._cache.quotas.upsert(quota)
        try:
            yield changed
        finally:
            for quota in before:
                self._cache.quotas.upsert(quota)


def _first(group: Iterable[_Remedy], pod: Pod) -> tuple[_Remedy, Choice] | None:
    """Returns the first of *group* after which *pod* fits, and where; ``None`` if there is none."""
    return next(((remedy, choice) for remedy in group if (choice := remedy.fits(pod)) is not None), None)


def _without(quota: QuotaLimits, resources: Collection[str]) -> QuotaLimits:
    return replace(quota, limits={name: limit for name, limit in quota.limits.items() if name not in resources})


def _size(booking: Booking) -> tuple[int, int, str]:
    memory, cores = total_charge(charge for _, charges in booking.charges for charge in charges)
    return memory, cores, booking.uid


def _is_enough(pod: Pod, fits: Fits, step: _Step) -> bool:
    return fits(step.apply(pod)) is not None


def _applied(steps: Iterable[_Step], pod: Pod) -> Pod:
    for step in steps:
        pod = step.apply(pod)
    return pod


@dataclass(frozen=True, slots=True)
class _Step:
    """One change of a pod, in words and as a function."""

    text: str
    apply: Callable[[Pod], Pod]


@dataclass(frozen=True, slots=True)
class _Loosening:
    """A kind of change. *loosest*: the most that it can do. *tighten*: returns the smallest change that is enough by a
    function that says so; *loosest* must be enough."""

    loosest: _Step
    tighten: Callable[[Callable[[_Step], bool]], _Step]


# Kinds of changes of a pod


def _loosenings(world: World, pod: Pod) -> list[_Loosening]:
    """Returns what can be loosened of *pod*."""
    found = []
    for vendor in world.vendors:
        requests = [request for container in pod.containers
                    if (request := device_request(vendor, container)) is not None]
        if requests:
            devices = [usage.device for usages in world.snapshot.nodes.values() for usage in usages.get(vendor.key, ())]
            found += [*_amounts(vendor, requests, devices), *_selections(vendor, pod, devices)]
    if "mutex" in pod.annotations.get(GPU_POLICY, world.record.policies.device):
        found.append(_annotated("its devices may be shared with other pods", {GPU_POLICY: "spread"}))
    if parse_bool(pod.annotations.get(NUMA_BIND, "")) is True:
        found.append(_annotated("its devices may be on several NUMA nodes", {NUMA_BIND: None}))
    return found


def _amounts(vendor: Vendor, requests: Sequence[Request], devices: Sequence[Device]) -> Iterator[_Loosening]:
    """Yields the amounts of *requests* that can be lower."""
    factor = max(vendor.resources.memory_factor, 1)
    largest = max((device.memory_mib for device in devices), default=0)
    memory = max(request.memory_mib or largest * (request.memory_percent or 0) // WHOLE for request in requests)
    cores, count = (max(getattr(request, name) for request in requests) for name in ("cores", "count"))
    if vendor.resources.memory and memory > factor:
        yield _lowered(vendor, memory // factor - 1, _with_memory, lambda value: (
            f"it asks for at most {value * factor:,} MiB of each {vendor.key} device"))
    if vendor.resources.cores and cores > 1:
        yield _lowered(vendor, cores - 1, _with_cores, lambda value: (
            f"it asks for at most {value} cores of each {vendor.key} device"))
    if count > 1:
        yield _lowered(vendor, count - 1, _with_count, lambda value: (
            f"each container asks for at most {value} {vendor.key} {'device' if value == 1 else 'devices'}"))


def _selections(vendor: Vendor, pod: Pod, devices: Sequence[Device]) -> Iterator[_Loosening]:
    """Yields the selections of devices that can be left out."""
    keys = vendor.annotations.selectors
    for name, chosen in (("type", (keys.use_types, keys.nouse_types)),
                         ("UUID", (*keys.use_uuids, *keys.nouse_uuids)), ("mode", (keys.mode,))):
        if given := [key for key in chosen if key and key in pod.annotations]:
            loosest = _annotate(f"its devices may be of any {name} (annotation {', '.join(given)})",
                                dict.fromkeys(given))
            models = sorted({device.model for device in devices}) if name == "type" and keys.use_types else []
            steps = [_annotate(f"it asks for the type {model} (annotation {keys.use_types})",
                               dict.fromkeys(given) | {keys.use_types: model}) for model in models]
            yield _Loosening(loosest, partial(_first_enough, [*steps, loosest]))


def _annotated(text: str, annotations: Mapping[str, str | None]) -> _Loosening:
    """Returns a kind of change without degrees."""
    step = _annotate(text, annotations)
    return _Loosening(step, lambda is_enough: step)


def _annotate(text: str, annotations: Mapping[str, str | None]) -> _Step:
    """Returns the change to these annotations; ``None`` removes one."""
    def apply(pod: Pod) -> Pod:
        changed = {key: value for key, value in {**pod.annotations, **annotations}.items() if value is not None}
        return replace(pod, annotations=changed)
    return _Step(text, apply)


def _first_enough(steps: Sequence[_Step], is_enough: Callable[[_Step], bool]) -> _Step:
    """Returns the first of *steps* that is enough, or the last."""
    return next((step for step in steps[:-1] if is_enough(step)), steps[-1])


_Setter = Callable[[Vendor, Request, int], Mapping[str, int | None]]
"""Returns the resources of a container with this request that lower an amount to a value; ``None`` removes one."""


def _lowered(vendor: Vendor, most: int, setter: _Setter, text: Callable[[int], str]) -> _Loosening:
    """Returns the kind of change that lowers an amount of each device to *most* at most, and not below 1."""
    def step(value: int) -> _Step:
        return _Step(text(value), lambda pod: replace(pod, containers=tuple(
            _limited(vendor, container, setter, value) for container in pod.containers)))

    def tighten(is_enough: Callable[[_Step], bool]) -> _Step:
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            if is_enough(step(middle)):
                low = middle
            else:
                high = middle - 1
        return step(low)
    return _Loosening(step(1), tighten)


def _limited(vendor: Vendor, container: Container, setter: _Setter, value: int) -> Container:
    request = device_request(vendor, container)
    changes = setter(vendor, request, value) if request is not None else {}
    limits = {name: text for name, text in container.limits.items() if name not in changes}
    requests = {name: text for name, text in container.requests.items() if name not in changes}
    limits |= {name: str(amount) for name, amount in changes.items() if amount is not None}
    return replace(container, limits=limits, requests=requests)


def _with_memory(vendor: Vendor, request: Request, value: int) -> Mapping[str, int | None]:
    factor = max(vendor.resources.memory_factor, 1)
    if request.memory_percent is None and request.memory_mib <= value * factor:
        return {}
    removed = {vendor.resources.memory_percent: None} if vendor.resources.memory_percent else {}
    return {**removed, vendor.resources.memory: value * _devices(vendor, request)}


def _with_cores(vendor: Vendor, request: Request, value: int) -> Mapping[str, int | None]:
    return {vendor.resources.cores: value * _devices(vendor, request)} if request.cores > value else {}


def _with_count(vendor: Vendor, request: Request, value: int) -> Mapping[str, int | None]:
    if request.count <= value:
        return {}
    names = vendor.resources
    totals = {names.memory: request.memory_mib // max(names.memory_factor, 1), names.cores: request.cores}
    kept = {name: amount * value for name, amount in totals.items() if name and amount and names.amounts_are_totals}
    return {**kept, names.count: value}


def _devices(vendor: Vendor, request: Request) -> int:
    """Returns for how many devices an amount counts."""
    return request.count if vendor.resources.amounts_are_totals else 1
