"""Writes the claim of a pod that gets its devices by one, before its Binding.

The annotations of the Binding say what the pod holds; its claim says the same to the kubelet. So a claim of a pod that
is not bound reserves nothing, and one that an attempt has left behind is written again. It goes with the pod that owns
it.

A write may be carried out long after it was sent, but never over a later one: it names the version that it replaces. As
each promise names its shares anew, a claim that says what is wanted was written for the same promise. Nothing
that was sent before can change it. MIG instances have no such names, so a claim with them is always written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from hami.codec.claims import AllocatedClaim
from hami.codec.hami_claims import (
    StoredClaim,
    booked_claim,
    render_allocation,
    render_claim,
    render_deallocation,
)
from hami.errors import Conflict
from hami.kube.claims import ClaimWriter
from hami.kube.retry import CONFLICT_S, brief_retry
from hami.model import Device
from hami.state.promises import Promise


class _Foreign(Conflict):
    """The name of the claim is taken by an object that does not belong to the pod."""


class ClaimBinder:
    """Creates and allocates claims. Threads may share it."""

    def __init__(
        self,
        claims: ClaimWriter,
        *,
        now: Callable[[], datetime],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """*sleep* waits between attempts."""
        self._claims = claims
        self._now = now
        self._retry_conflicts = brief_retry(_has_changed, sleep, first_s=CONFLICT_S)

    def write(self, promise: Promise, seconds_left: Callable[[], float]) -> None:
        """Makes the claim of the promise's pod say what is reserved.

        *seconds_left*: returns how long a call may take, or raises if there is no time left.
        Raises: ClusterError, among others if the claim of that name belongs to somebody else; MalformedInput;
        NodeLocked of *seconds_left*.
        """
        devices: dict[str, Device] = {}
        for usages in promise.filtered.usages.values():
            for usage in usages:
                devices[usage.device.uuid] = usage.device
        claim = booked_claim(
            promise.pod, promise.node, promise.choice.placement, devices, promise.token
        )
        try:
            stored = self._claims.create_claim(render_claim(claim), timeout=seconds_left())
            self._allocate(claim, stored, promise.node, seconds_left)
        except Conflict:
            self._retry_conflicts(self._write_again, claim, promise.node, seconds_left)

    def _write_again(
        self, claim: AllocatedClaim, node: str, seconds_left: Callable[[], float]
    ) -> None:
        """Writes a claim that may exist. Raises: Conflict if it changes meanwhile, or belongs to somebody else."""
        stored = self._claims.stored_claim(claim.namespace, claim.name, timeout=seconds_left())
        if stored is None:
            stored = self._claims.create_claim(render_claim(claim), timeout=seconds_left())
        (pod,) = claim.pods
        if pod.uid not in stored.owners:
            raise _Foreign(
                f"claim {claim.namespace}/{claim.name} exists and does not belong to pod {pod}: "
                "delete one of the two",
                409,
            )
        if _is_as_booked(stored, claim):
            return
        if stored.is_allocated:
            stored = self._claims.write_claim_status(
                render_deallocation(claim, stored), timeout=seconds_left()
            )
        self._allocate(claim, stored, node, seconds_left)

    def _allocate(
        self,
        claim: AllocatedClaim,
        stored: StoredClaim,
        node: str,
        seconds_left: Callable[[], float],
    ) -> None:
        self._claims.write_claim_status(
            render_allocation(claim, stored, node, self._now()), timeout=seconds_left()
        )


def _is_as_booked(stored: StoredClaim, claim: AllocatedClaim) -> bool:
    """Reports whether *stored* was written for the promise of *claim*. With MIG instances, nothing tells that."""
    current = stored.claim
    if current is None:
        return False
    if (current.requests, current.pods) != (claim.requests, claim.pods):
        return False
    for request in claim.requests:
        if not all(device.share_id for device in request.devices):
            return False
    return True


def _has_changed(error: BaseException) -> bool:
    """Reports whether the claim has changed meanwhile, so that it is to be read again."""
    return isinstance(error, Conflict) and not isinstance(error, _Foreign)
