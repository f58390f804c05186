"""Enforces the sizes of pods that were resized, and tells the scheduler.

Each look compares what the pods are to have with the files of their containers, so it does not matter what an earlier
process has done. Memory that shrinks is confirmed once all processes follow the new limit and the monitor says that
they use no more.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

from hami.codec.allocation import parse_shares, render_shares
from hami.codec.core_limits import pod_cores_limit
from hami.codec.keys import RESIZE_APPLIED, RESIZED
from hami.codec.resize import AppliedSizes, held_text, parse_applied, render_applied, wanted_text
from hami.devices.config import PluginConfig
from hami.devices.inventory import DeviceInventory
from hami.devices.registration import VENDOR, devices
from hami.errors import ClusterError, Conflict, HostError, MalformedInput, NotFound
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.model import Device, Pod, Share
from hami.node.limits import DeviceLimit, share_limit
from hami.plugin.container_match import ContainerShares, container_shares, waits_on
from hami.quantity import MIB
from hami.runtime.once import OncePerKey
from hami.runtime.tasks import RETRY_S, Task
from hami.scheduling.usage import Charge, peak_charges
from hami.vendors.request import most_shares
from hami.vendors.shares import read_allocation
from hami.vendors.spec import Catalog

log = logging.getLogger(__name__)

RESIZE_PENDING = "ResizePending"
CHECK_S = 30.0
"""Seconds between two comparisons of all resized pods with their files."""
PENDING_S = 1.0
"""The same while one of them waits for something that is not on the pod."""
OVERBOOKED_S = 5.0
"""Seconds for which the watch may still show a pod that has ended, so that a card looks overbooked."""
SILENT_S = 15.0
"""Seconds for which a monitor may say nothing about a container before an event says so."""


class ContainerFiles(Protocol):
    """The files of containers on the node, as `Host` has them."""

    def limits(self, uid: str, container: str) -> tuple[DeviceLimit, ...] | None:
        """Returns the limits that a container has."""

    def resize_limits(
        self, uid: str, container: str, sizes: Sequence[DeviceLimit]
    ) -> tuple[DeviceLimit, ...] | None:
        """Gives a container new limits; returns those that it has then."""

    def use(self, uid: str, container: str) -> Mapping[str, int] | None:
        """Returns what the monitor says that a container uses."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The state of a pod or container. *sizes*: the shares of its containers, by position. *problem*: why they are not
    those that it is to have. *waits_for*: why there is no answer yet; *is_news*: users should know that at once."""

    sizes: Mapping[int, tuple[Share, ...]]
    problem: str = ""
    waits_for: str = ""
    is_news: bool = False


class SizeEnforcer(Task):
    """Looks at the resized pods of one node when it is woken, each second while one is pending, and now and then."""

    def __init__(
        self,
        config: PluginConfig,
        cluster: Cluster,
        vendors: Catalog,
        host: ContainerFiles,
        inventory: DeviceInventory,
        events: EventRecorder,
        pods: Callable[[], Sequence[Pod] | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*pods*: returns those of the node as a watch reports them; ``None`` before all are known."""
        super().__init__("resizes")
        self._config = config
        self._cluster = cluster
        self._vendors = vendors
        self._vendor = vendors[VENDOR]
        self._host = host
        self._inventory = inventory
        self._events = events
        self._pods = pods
        self._clock = clock
        self._waiting: dict[str, tuple[str, float]] = {}
        """By uid: what a pod is to have, and since when it waits."""
        self._answers: dict[str, tuple[str, str]] = {}
        """By uid: version of the pod that was answered, and the answer."""
        self._reported = OncePerKey()

    def step(self) -> float:
        """Writes the files of all resized pods, then answers; returns the seconds until the next look."""
        pods = self._pods()
        if pods is None:
            return PENDING_S
        present = [pod for pod in pods if waits_on(pod, self._config.node)]
        resized = [pod for pod in present if pod.annotations.get(RESIZED) and not pod.claim]
        self._keep_only(resized)
        if not resized:
            return CHECK_S
        registered = devices(self._inventory.snapshot(), self._config)
        booked = _Booked(registered, chain.from_iterable(map(self._held, present)))
        outcomes = [(pod, self._enforce(pod, booked)) for pod in self.each(resized)]
        return min(self._conclude(pod, outcome) for pod, outcome in self.each(outcomes))

    def _keep_only(self, pods: Iterable[Pod]) -> None:
        uids = {pod.ref.uid for pod in pods}
        self._waiting = {uid: waiting for uid, waiting in self._waiting.items() if uid in uids}
        self._answers = {uid: answer for uid, answer in self._answers.items() if uid in uids}
        self._reported.keep_only(uids)

    def _held(self, pod: Pod) -> tuple[Charge, ...]:
        """Returns what *pod* holds of the cards, as the scheduler counts it."""
        limit = most_shares(self._vendors, pod.containers).get(self._vendor.key, 0)
        if not limit or self._vendor.annotations.allocated not in pod.annotations:
            return ()
        try:
            return peak_charges(
                [container.kind for container in pod.containers],
                read_allocation(pod, self._vendor, limit),
                init_done=pod.init_done,
            )
        except MalformedInput:
            return ()

    def _enforce(self, pod: Pod, booked: _Booked) -> _Outcome:
        """Writes what *pod* is to have. Never raises a HamiError."""
        try:
            held = parse_shares(RESIZED, held_text(pod.annotations) or "")
            containers = container_shares(pod, self._config.resource, self._vendor)
        except MalformedInput as error:
            return _Outcome({}, waits_for=str(error), is_news=True)
        sizes: dict[int, tuple[Share, ...]] = {}
        problems, waits = [], []
        for container in containers:
            before = held[container.position] if container.position < len(held) else ()
            try:
                outcome = self._enforce_container(pod, container, before, booked)
            except HostError as error:
                outcome = _Outcome(
                    {}, waits_for=f"container {container.name}: {error}", is_news=True
                )
            sizes |= outcome.sizes
            if outcome.problem:
                problems.append(outcome.problem)
            if outcome.waits_for:
                waits.append(outcome)
        if waits:
            return max(waits, key=lambda outcome: outcome.is_news)
        return _Outcome(sizes, problem="; ".join(problems))

    def _enforce_container(
        self, pod: Pod, container: ContainerShares, held: Iterable[Share], booked: _Booked
    ) -> _Outcome:
        """Writes what a container is to have. *held*: its shares as they are booked. Raises: HostError."""
        uid, name, shares = pod.ref.uid, container.name, container.shares
        present = self._host.limits(uid, name)
        if present is None:  # it gets its sizes when it starts
            return _Outcome({container.position: shares})
        most = pod_cores_limit(pod.annotations)
        limits = tuple(share_limit(share, most) for share in shares)
        over = booked.problem(_grown(present, limits))
        if over:
            if self._waited_s(pod) < OVERBOOKED_S:
                return _Outcome({}, waits_for=over)
            return _Outcome({container.position: _with_limits(shares, present, most)}, problem=over)
        enforced = _with_limits(shares, self._host.resize_limits(uid, name, limits) or limits, most)
        memory = {share.uuid: share.memory_mib for share in held}
        shrunk = [share for share in enforced if share.memory_mib < memory.get(share.uuid, 0)]
        waits = self._wait_for_use(pod, name, shrunk)
        if waits is not None:
            return waits
        return _Outcome({container.position: enforced}, problem=_problem(name, shares, enforced))

    def _wait_for_use(self, pod: Pod, container: str, shrunk: Sequence[Share]) -> _Outcome | None:
        """Returns why *shrunk* cannot be confirmed; ``None`` if the container uses no more. Raises: HostError."""
        if not shrunk:
            return None
        use = self._host.use(pod.ref.uid, container) or {}
        for share in shrunk:
            used = use.get(share.uuid)
            if used is None:
                text = f"the monitor of the node has not said how much memory container {container} uses"
                is_news = self._waited_s(pod) >= SILENT_S
                return _Outcome({}, waits_for=text, is_news=is_news)
            if used > share.memory_mib * MIB:
                text = (
                    f"container {container} uses more of {share.uuid} than the {share.memory_mib} MiB that it is to "
                    "have: it gets no more, and the rest stays booked until it uses less"
                )
                return _Outcome({}, waits_for=text, is_news=True)
        return None

    def _waited_s(self, pod: Pod) -> float:
        """Returns for how many seconds *pod* has been waiting to have what it is to have now."""
        wanted, now = wanted_text(pod.annotations) or "", self._clock()
        waiting = self._waiting.get(pod.ref.uid)
        if waiting is None or waiting[0] != wanted:
            waiting = self._waiting[pod.ref.uid] = wanted, now
        return now - waiting[1]

    def _conclude(self, pod: Pod, outcome: _Outcome) -> float:
        """Answers for *pod*, or reports why it waits; returns the seconds until it must be looked at again."""
        if outcome.waits_for:
            key = f"{wanted_text(pod.annotations)} {outcome.waits_for}"
            if outcome.is_news and self._reported.is_new(pod.ref.uid, key):
                self._events.record(pod.ref, "Warning", RESIZE_PENDING, outcome.waits_for)
            return PENDING_S
        if not outcome.problem:
            self._waiting.pop(pod.ref.uid, None)
        applied = AppliedSizes(_text(pod, outcome.sizes), outcome.problem)
        answer = pod.resource_version, render_applied(applied)
        is_known = parse_applied(pod.annotations.get(RESIZE_APPLIED)) == applied
        if is_known or self._answers.get(pod.ref.uid) == answer:
            return CHECK_S
        return self._answer(pod, applied, answer)

    def _answer(self, pod: Pod, applied: AppliedSizes, answer: tuple[str, str]) -> float:
        """Writes *applied*, about the pod as it was looked at: it may be to have something else by now, and the same
        again later. Returns the seconds until it must be looked at again."""
        try:
            self._cluster.annotate_pod(
                pod.ref, {RESIZE_APPLIED: answer[1]}, resource_version=pod.resource_version
            )
        except NotFound:
            return CHECK_S
        except Conflict:
            return PENDING_S
        except ClusterError as error:
            if self._reported.is_new(pod.ref.uid, f"answer: {error}"):
                log.warning(
                    "sizes of a pod cannot be confirmed", extra={"pod": pod.ref, "error": error}
                )
            return RETRY_S
        self._answers[pod.ref.uid] = answer
        log.info(
            "pod resized",
            extra={
                "pod": pod.ref,
                "node": self._config.node,
                "sizes": applied.sizes,
                "problem": applied.problem,
            },
        )
        return CHECK_S


class _Booked:
    """The sums that all pods of the node hold of its cards, and what these register."""

    def __init__(self, registered: Iterable[Device], charges: Iterable[Charge]) -> None:
        self._devices = {device.uuid: device for device in registered}
        self._memory: Counter[str] = Counter()
        self._cores: Counter[str] = Counter()
        for charge in charges:
            self._memory[charge.uuid] += charge.memory_mib
            self._cores[charge.uuid] += charge.cores

    def problem(self, uuids: Iterable[str]) -> str:
        """Returns which of these cards is not there for all that is booked on it; empty if there is none."""
        for uuid in uuids:
            device = self._devices.get(uuid)
            if device is None:
                return f"{uuid} is not offered by the node any more, so nothing can grow on it"
            if self._memory[uuid] > device.memory_mib or self._cores[uuid] > device.cores:
                return (
                    f"{uuid} has {device.memory_mib} MiB and {device.cores} percent, but {self._memory[uuid]} MiB "
                    f"and {self._cores[uuid]} percent of it are booked, so nothing can grow on it"
                )
        return ""


def _grown(present: Iterable[DeviceLimit], limits: Iterable[DeviceLimit]) -> list[str]:
    """Returns the devices on which a container is to have more than *present*."""
    earlier = {limit.uuid: limit for limit in present}
    grown = []
    for limit in limits:
        old = earlier.get(limit.uuid, limit)
        if limit.memory > old.memory or limit.cores > old.cores:
            grown.append(limit.uuid)
    return grown


def _with_limits(
    shares: Iterable[Share], limits: Iterable[DeviceLimit], most: int | None
) -> tuple[Share, ...]:
    """Returns *shares* as the *limits* allow them. A limit of 100 percent is none, as of a share of no cores. *most*:
    the limit of the pod, which a share of no cores has."""
    by_uuid = {limit.uuid: limit for limit in limits}
    sized = []
    for share in shares:
        own = share_limit(share, most)
        limit = by_uuid.get(share.uuid, own)
        cores = limit.cores if limit.cores < 100 else 0
        if limit.cores == own.cores:
            cores = share.cores
        sized.append(replace(share, memory_mib=limit.memory // MIB, cores=cores))
    return tuple(sized)


def _problem(container: str, wanted: Sequence[Share], enforced: Sequence[Share]) -> str:
    """Returns why a container does not get what it is to have; empty if it does."""
    if enforced == wanted:
        return ""
    if [share.memory_mib for share in enforced] != [share.memory_mib for share in wanted]:
        return f"HAMi's device plugin has started container {container}, whose memory can only grow while it runs"
    return (
        f"container {container} has HAMi's library, with which only memory can change while it runs"
    )


def _text(pod: Pod, sizes: Mapping[int, tuple[Share, ...]]) -> str:
    """Returns the text of what is enforced: that of what *pod* is to have, if it is the same."""
    wanted = wanted_text(pod.annotations) or ""
    shares = parse_shares(RESIZED, wanted)
    enforced = tuple(
        sizes.get(position, of_container) for position, of_container in enumerate(shares)
    )
    return wanted if enforced == shares else render_shares(enforced)
