"""CPU and memory of nodes, and what pods request of them, as kube-scheduler counts it.

kube-scheduler decides whether they suffice. Here they only say how useful the devices that are left on a node are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from hami.errors import MalformedInput
from hami.model import Container, ContainerKind, Pod
from hami.quantity import INT32_MAX, rounded_up

CPU, MEMORY = "cpu", "memory"


class NodeResources(msgspec.Struct, frozen=True, gc=False):
    """*milli_cpu*: thousandths of a core. *memory_mib*: MiB. Both are rounded up, and bounded."""

    milli_cpu: int = 0
    memory_mib: int = 0

    def __add__(self, other: NodeResources) -> NodeResources:
        return NodeResources(self.milli_cpu + other.milli_cpu, self.memory_mib + other.memory_mib)

    def __sub__(self, other: NodeResources) -> NodeResources:
        return NodeResources(self.milli_cpu - other.milli_cpu, self.memory_mib - other.memory_mib)

    def covers(self, needed: NodeResources) -> bool:
        """Reports whether these suffice for *needed*. What is not requested may be overcommitted."""
        for has, needs in (
            (self.milli_cpu, needed.milli_cpu),
            (self.memory_mib, needed.memory_mib),
        ):
            if needs and has < needs:
                return False
        return True

    def larger(self, other: NodeResources) -> NodeResources:
        """Returns the larger amount of each."""
        return NodeResources(
            max(self.milli_cpu, other.milli_cpu), max(self.memory_mib, other.memory_mib)
        )


NOTHING = NodeResources()


def requested(pod: Pod) -> NodeResources:
    """Returns what *pod* requests of its node.

    Sidecars run beside all containers that start after them, and init containers one after the other. Requests of the
    pod as a whole go first, and the overhead of its runtime class is added.
    Source: k8s.io/component-helpers, resource/helpers.go, PodRequests.
    """
    if len(pod.containers) == 1:  # as most pods
        total = amounts(pod.containers[0].requests)
    else:
        total = _of_containers(pod.containers)
    of_pod = pod.requests
    if of_pod:
        of_all = amounts(of_pod)
        total = NodeResources(
            of_all.milli_cpu if CPU in of_pod else total.milli_cpu,
            of_all.memory_mib if MEMORY in of_pod else total.memory_mib,
        )
    return total + amounts(pod.overhead) if pod.overhead else total


def amounts(quantities: Mapping[str, str]) -> NodeResources:
    """Returns CPU and memory of *quantities*, 0 for what they lack."""
    return NodeResources(_amount(quantities.get(CPU), "m"), _amount(quantities.get(MEMORY), "Mi"))


def _of_containers(containers: Iterable[Container]) -> NodeResources:
    running = sidecars = largest_init = NOTHING
    for container in containers:
        own = amounts(container.requests)
        if container.kind is ContainerKind.INIT:
            largest_init = largest_init.larger(own + sidecars)
            continue
        running += own
        if container.kind is ContainerKind.SIDECAR:
            sidecars += own
            largest_init = largest_init.larger(sidecars)
    return running.larger(largest_init)


def _amount(text: str | None, unit: str) -> int:
    """Returns *text* in *unit*; 0 for one that is no quantity: the API server accepts none."""
    if text is None:
        return 0
    try:
        return max(0, min(rounded_up(text, unit), INT32_MAX))
    except MalformedInput:
        return 0
