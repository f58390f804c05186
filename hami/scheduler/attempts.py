"""The attempts to plan for pods that were refused: in which order, and how soon again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hami.model import PodRef
from hami.state.pending import LIMIT, PendingPod

WAIT_S = 0.1  # after a pod was refused: kube-scheduler may have candidates of its own
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 10.0  # until a pod without a plan is planned for again
MAX_ATTEMPTS = 2 * LIMIT  # pods whose attempts are remembered


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The last attempt to plan for a pod. *due*: when the next may be. *wait_s*: how long the pod waits if that fails,
    too."""

    due: float
    wait_s: float


class Attempts:
    """The attempts for pods, by their uids. Times are by the clock of the caller."""

    def __init__(self) -> None:
        self._attempts: dict[str, _Attempt] = {}
        self._failed_at: dict[
            str, float
        ] = {}  # when there was last no plan for a pod of a namespace

    def in_order(self, pods: Sequence[PendingPod]) -> list[PendingPod]:
        """Returns *pods*, which are sorted by priority, in the order in which they are planned for.

        Plans take time, and those without a result are made again and again. So a namespace goes behind the others with
        each of them: it cannot keep them from their plans by pods for which there is none, whatever their priority.
        """
        namespaces = {pending.pod.ref.namespace for pending in pods}
        self._failed_at = {
            namespace: at for namespace, at in self._failed_at.items() if namespace in namespaces
        }

        def rank(pending: PendingPod) -> tuple[float, int, float]:
            failed_at = self._failed_at.get(pending.pod.ref.namespace, -math.inf)
            return failed_at, -pending.pod.priority, self.due(pending)

        return sorted(pods, key=rank)

    def due(self, pending: PendingPod) -> float:
        """Returns when the pod may be planned for."""
        attempt = self._attempts.get(pending.pod.ref.uid)
        return pending.since + WAIT_S if attempt is None else attempt.due

    def is_due(self, ref: PodRef, now: float) -> bool:
        """Reports whether the pod is not to wait after a failure."""
        attempt = self._attempts.get(ref.uid)
        return attempt is None or now >= attempt.due

    def succeed(self, ref: PodRef) -> None:
        """Records that there is a plan for the pod."""
        self._attempts.pop(ref.uid, None)

    def fail(self, ref: PodRef, now: float) -> None:
        """Records that there is no plan for the pod: it waits, the longer the more often that happens."""
        attempt = self._attempts.get(ref.uid)
        wait_s = FIRST_RETRY_S if attempt is None else attempt.wait_s
        self._failed_at[ref.namespace] = now
        self._remember(ref, _Attempt(now + wait_s, min(2 * wait_s, MAX_RETRY_S)))

    def put_off(self, ref: PodRef, until: float) -> None:
        """Records that nobody is evicted for the pod before *until*, since that has failed."""
        self._remember(ref, _Attempt(until, 2 * FIRST_RETRY_S))

    def _remember(self, ref: PodRef, attempt: _Attempt) -> None:
        self._attempts.pop(ref.uid, None)
        self._attempts[ref.uid] = attempt
        if len(self._attempts) > MAX_ATTEMPTS:
            del self._attempts[next(iter(self._attempts))]
