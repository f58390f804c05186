"""Refused pods that may fit by now, for which kube-scheduler may need a reminder."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hami.model import Pod
from hami.scheduling.turns import in_turn

LIMIT = 1000  # pods that are remembered
NAMESPACE_LIMIT = 500  # pods of one namespace among them
GRACE_S = 0.2  # kube-scheduler retries a pod by itself within this time of a change that it sees
REMINDER_LIMIT_S = 60.0  # at most this long between two reminders of one pod


@dataclass(slots=True)
class PendingPod:
    """A refused pod.

    *nodes*: the nodes that kube-scheduler offered, ``None`` for all. *state*: the state of the store in which the pod
    last did not fit. *since*: when it was first refused. *due*: when it may be looked at again. *wait_s*: the seconds
    between its last two reminders.
    """

    pod: Pod
    nodes: tuple[str, ...] | None
    state: tuple[int, ...]
    since: float
    due: float
    wait_s: float = 1.0


class PendingPods:
    """The pods that were refused last. The lock of the store guards them; callers hold that lock.

    Namespaces have shares of the limit, and a pod never takes the place of one of higher priority: whoever creates very
    many pods that fit nowhere keeps nobody else from reminders and preemption.
    """

    def __init__(self) -> None:
        self._namespaces: OrderedDict[str, OrderedDict[str, PendingPod]] = OrderedDict()
        self._count = 0

    def add(
        self, pod: Pod, nodes: Sequence[str] | None, state: tuple[int, ...], clock: float
    ) -> None:
        """Remembers that *pod* fits none of *nodes* in *state*. Another pod, or this one, may be forgotten for that."""
        pods = self._namespaces.setdefault(pod.ref.namespace, OrderedDict())
        earlier = pods.get(pod.ref.uid)
        since = clock if earlier is None else earlier.since
        offered = None if nodes is None else tuple(nodes)
        pods[pod.ref.uid] = PendingPod(pod, offered, state, since, clock + GRACE_S)
        if earlier is not None:
            return
        self._count += 1
        if len(pods) > NAMESPACE_LIMIT:
            self._forget_one(pods.values())
        elif self._count > LIMIT:
            self._forget_one(self.all())

    def remove(self, pod: Pod) -> None:
        """Forgets *pod*, which waits no longer."""
        namespace = pod.ref.namespace
        pods = self._namespaces.get(namespace)
        if pods is None:
            return
        if pods.pop(pod.ref.uid, None) is None:
            return
        self._count -= 1
        if not pods:
            del self._namespaces[namespace]

    def due(self, state: tuple[int, ...], clock: float) -> list[PendingPod]:
        """Returns the pods that have not been looked at in *state* and may be looked at now, of all
        namespaces in turn."""
        due: list[PendingPod] = []
        for pending in self.all():
            if pending.state != state and clock >= pending.due:
                due.append(pending)
        return list(in_turn(due, _namespace))

    def all(self) -> list[PendingPod]:
        """Returns all pods."""
        pending: list[PendingPod] = []
        for pods in self._namespaces.values():
            pending += pods.values()
        return pending

    def mark_tried(self, pending: PendingPod, state: tuple[int, ...]) -> None:
        """Records that the pod does not fit in *state*. The others of its namespace are tried before it from now on,
        and so are other namespaces."""
        pending.state = state
        namespace = pending.pod.ref.namespace
        self._namespaces[namespace].move_to_end(pending.pod.ref.uid)
        self._namespaces.move_to_end(namespace)

    def remind(self, pending: PendingPod, clock: float) -> None:
        """Records a reminder. The next one waits longer: something else may keep the pod from being scheduled."""
        pending.wait_s = min(2 * pending.wait_s, REMINDER_LIMIT_S)
        pending.due = clock + pending.wait_s

    def _forget_one(self, pods: Collection[PendingPod]) -> None:
        """Forgets one of *pods*: of those of the lowest priority, the one that was tried longest ago of the namespace
        that has most of them."""
        lowest = min(pending.pod.priority for pending in pods)
        candidates = [pending for pending in pods if pending.pod.priority == lowest]
        ((namespace, _),) = Counter(map(_namespace, candidates)).most_common(1)
        for pending in candidates:
            if _namespace(pending) == namespace:
                self.remove(pending.pod)
                return


def _namespace(pending: PendingPod) -> str:
    return pending.pod.ref.namespace
