"""When the lock of a deleted pod may be taken over: once its kubelet has certainly noticed the deletion. Pure.

A kubelet that has not noticed may still call Allocate for the pod. A device plugin that trusts the lock then gives that
call the devices of the next holder, and each later pod those of its predecessor. A kubelet notices a deletion within a
second, unless it stands still or is cut off; such a kubelet does not renew the Lease of its node, either. So the lock
is kept for some seconds, and until the Lease has been renewed after the deletion was seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

LEASES = "kube-node-lease"
"""The namespace with the Lease of each node, which has the node's name."""
DELETED_S = 10.0
"""Seconds after which a kubelet that works has noticed a deletion; a Lease is renewed every 10 s."""
RENEWED_S = 3.0
"""Seconds after the first renewal that is seen: a kubelet that goes on renews at once, and may first finish a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedHolder:
    """The deletion of a holder, as seen so far. Times are monotonic seconds.

    *seen_at*: when the deletion was first seen. *renewal*: the renew time of the node's Lease when it was first read
    afterwards, ``None`` before. *renewed_at*: when a later one was first seen, ``None`` before.
    """

    seen_at: float
    renewal: str | None = None
    renewed_at: float | None = None

    def observe(self, renewal: str | None, clock: float) -> DeletedHolder:
        """Returns the deletion after the Lease was read. *renewal*: its renew time, ``None`` if the node has no Lease
        or it may not be read: then seconds alone decide."""
        if self.renewed_at is not None:
            return self
        if renewal is None:
            return replace(self, renewed_at=self.seen_at)
        if self.renewal is None:
            return replace(self, renewal=renewal)
        return replace(self, renewed_at=clock) if renewal != self.renewal else self

    def is_over(self, clock: float) -> bool:
        """Reports whether no kubelet calls Allocate for the holder any more."""
        return (clock - self.seen_at > DELETED_S and self.renewed_at is not None
                and clock - self.renewed_at > RENEWED_S)
