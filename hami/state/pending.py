"""Refused pods that may fit by now, for which kube-scheduler may need a reminder."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from hami.model import Pod

LIMIT = 500  # pods that are remembered; the oldest is dropped first
GRACE_S = 0.2  # kube-scheduler retries a pod by itself within this time of a change that it sees
REMINDER_LIMIT_S = 60.0  # at most this long between two reminders of one pod


@dataclass(slots=True)
class PendingPod:
    """A refused pod.

    *nodes*: the nodes that kube-scheduler offered, ``None`` for all. *state*: the state of the cache in which the pod
    last did not fit. *since*: when it was first refused. *due*: when it may be looked at again. *reminders*: how often
    kube-scheduler was reminded of it.
    """

    pod: Pod
    nodes: tuple[str, ...] | None
    state: tuple[int, ...]
    since: float
    due: float
    reminders: int = 0


class PendingPods:
    """The pods that were refused last. The cache's lock guards them; callers hold that lock."""

    def __init__(self) -> None:
        self._pods: OrderedDict[str, PendingPod] = OrderedDict()

    def add(self, pod: Pod, nodes: Sequence[str] | None, state: tuple[int, ...], clock: float) -> None:
        """Remembers that *pod* fits none of *nodes* in *state*."""
        earlier = self._pods.get(pod.ref.uid)
        self._pods[pod.ref.uid] = PendingPod(pod, None if nodes is None else tuple(nodes), state,
                                             clock if earlier is None else earlier.since, clock + GRACE_S)
        if len(self._pods) > LIMIT:
            self._pods.popitem(last=False)

    def remove(self, uid: str) -> None:
        """Forgets the pod, which waits no longer."""
        self._pods.pop(uid, None)

    def due(self, state: tuple[int, ...], clock: float) -> list[PendingPod]:
        """Returns the pods that have not been looked at in *state* and may be looked at now."""
        return [pending for pending in self._pods.values() if pending.state != state and clock >= pending.due]

    def all(self) -> list[PendingPod]:
        """Returns all pods."""
        return list(self._pods.values())

    def mark_tried(self, pending: PendingPod, state: tuple[int, ...]) -> None:
        """Records that the pod does not fit in *state*. The others are tried before it from now on."""
        pending.state = state
        self._pods.move_to_end(pending.pod.ref.uid)

    def remind(self, pending: PendingPod, clock: float) -> None:
        """Records a reminder. The next one waits longer: something else may keep the pod from being scheduled."""
        pending.reminders += 1
        pending.due = clock + min(2.0 ** pending.reminders, REMINDER_LIMIT_S)
