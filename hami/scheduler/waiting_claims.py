"""Makes the claims of pods that wait, before they have a node: so that autoscalers can tell what these pods need.

A pod that is placed soon gets its claim when it is bound. The claim of one that waits longer exists, and is not
allocated, as that of a pod whose claim kube-controller-manager makes from a template. An autoscaler that simulates the
allocation of claims finds in it what the pod asks for, and the binding of the pod then allocates it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from hami.codec.claim_spec import Inexpressible
from hami.dra.hami_claims import waiting_claim
from hami.errors import ClusterError, Conflict, MalformedInput
from hami.kube.claims import ClaimWriter
from hami.model import Pod
from hami.runtime.tasks import Task
from hami.scheduling.turns import in_turn
from hami.state.store import Store

log = logging.getLogger(__name__)

WAIT_S = 10.0
"""For how long a pod waits after a refusal before its claim is made. The Cluster Autoscaler looks every ten seconds."""
PERIOD_S = 1.0
BATCH = 20  # claims in a period
_TIMEOUT_S = 5.0


class WaitingClaims(Task):
    """The claims of pods that the scheduler has refused for long."""

    def __init__(
        self,
        store: Store,
        claims: ClaimWriter,
        leads: Callable[[], bool],
        device_policy: str,
        *,
        clock: Callable[[], float],
    ) -> None:
        """*leads*: this replica leads. *device_policy*: the default if the pod's annotation does not set one."""
        super().__init__("waiting-claims")
        self._store = store
        self._claims = claims
        self._leads = leads
        self._device_policy = device_policy
        self._clock = clock
        self._refused: dict[
            str, float
        ] = {}  # by uid, when a pod that waits was first seen among those refused
        # the uids of those of them that have their claim, or never get it
        self._made: set[str] = set()

    def step(self) -> float:
        """Makes the claims that are missing. Returns the seconds until the next look."""
        if not self._leads():
            return PERIOD_S
        for pod in self.each(self._lacking()[:BATCH]):
            try:
                self._make(pod)
            except ClusterError as error:
                log.warning(
                    "claims of waiting pods not written yet, will retry", extra={"error": error}
                )
                # after the others, if only this one fails
                self._refused[pod.ref.uid] = self._clock()
                break
            self._made.add(pod.ref.uid)
        return PERIOD_S

    def _lacking(self) -> list[Pod]:
        """Returns the pods that have waited for long enough without a claim, of all namespaces in turn, of each in the
        order in which they came."""
        now = self._clock()
        waiting = {pod.ref.uid: pod for pod in self._store.pods.waiting() if pod.claim}
        since = dict.fromkeys(self._store.filtering.refused(), now) | self._refused
        self._refused = {uid: since[uid] for uid in waiting if uid in since}
        self._made &= waiting.keys()
        lacking: list[Pod] = []
        for uid, at in self._refused.items():
            if at + WAIT_S <= now and uid not in self._made:
                lacking.append(waiting[uid])
        return list(in_turn(lacking, lambda pod: pod.ref.namespace))

    def _make(self, pod: Pod) -> None:
        """Creates the claim of *pod*, unless there is one. Raises: ClusterError that may have a temporary cause."""
        try:
            claim = waiting_claim(
                pod,
                self._store.vendors,
                self._device_policy,
                self._store.admissions.claimable_sizes,
            )
            self._claims.create_claim(claim, timeout=_TIMEOUT_S)
            log.info("claim of a waiting pod made", extra={"pod": pod.ref, "claim": pod.claim})
        except Conflict:
            pass  # made before, by this replica or another one
        except Inexpressible as error:
            log.info("pod waits without a claim", extra={"pod": pod.ref, "reason": error})
        except MalformedInput as error:
            log.warning("pod waits without a claim", extra={"pod": pod.ref, "reason": error})
        except ClusterError as error:
            if error.is_temporary:
                raise
            log.warning("pod waits without a claim", extra={"pod": pod.ref, "reason": error})
