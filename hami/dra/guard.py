"""Records of what is prepared on a node, and the check whether more fits. Pure.

kube-scheduler allocates, and the API server does not check it: after a forced deletion, devices are allocated again
while containers still use them, and whoever may write the status of a claim can overbook a card. So the node counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from hami.codec.mig import MigAllocation
from hami.codec.slices import SHARE
from hami.model import Device, Partition
from hami.node.cdi import Document

VARIABLE = "HAMI_CLAIM"
"""The variable in a specification that says what it was made for. Containers see it."""


class PreparedPlacement(msgspec.Struct, frozen=True):
    """The place of a MIG instance on its card, in memory slices. *instance*: its UUID, empty before it is made."""

    profile: str
    start: int
    size: int
    instance: str = ""

    @property
    def partition(self) -> Partition:
        """The place as the node agent knows it."""
        uuids = (self.instance,) if self.instance else ()
        return Partition(self.start, self.size, self.profile, uuids)


class PreparedShare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Part of a card that a request got. *share_milli*: of the card's 100, in thousandths. *placement*: of a MIG
    instance, which has no amounts."""

    uuid: str
    memory_mib: int
    cores: int
    share_milli: int
    placement: PreparedPlacement | None = None


class PreparedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a claim for which a specification was written. *pod*: the uid of the pod that has *container*."""

    namespace: str
    claim: str
    uid: str
    request: str
    pod: str
    container: str
    shares: tuple[PreparedShare, ...]

    @property
    def name(self) -> str:
        """The name of the specification."""
        return f"{self.uid}_{self.request}"

    @property
    def instances(self) -> tuple[MigAllocation, ...]:
        """The MIG instances among the shares."""
        return tuple(
            MigAllocation(
                container=0, device=device, gpu=share.uuid, partition=share.placement.partition
            )
            for device, share in enumerate(self.shares)
            if share.placement is not None
        )

    def with_instances(self, uuids: Iterable[str] = itertools.repeat("")) -> PreparedRequest:
        """Returns the request with these UUIDs of its shares, all of which are MIG instances; by default as it is
        before they are made."""
        shares: list[PreparedShare] = []
        for share, uuid in zip(self.shares, uuids):
            if share.placement is not None:
                share = replace(share, placement=replace(share.placement, instance=uuid))
            shares.append(share)
        return replace(self, shares=tuple(shares))


_REQUEST = msgspec.json.Decoder(PreparedRequest)


def render_prepared(request: PreparedRequest) -> dict[str, str]:
    """Returns the variable of the specification for *request*."""
    return {VARIABLE: msgspec.json.encode(request).decode()}


def parse_prepared(document: Document | None) -> PreparedRequest | None:
    """Returns what a specification was made for; ``None`` if it does not say so."""
    try:
        (device,) = (document or {})["devices"]
        texts = [
            text.partition("=")[2]
            for text in device["containerEdits"]["env"]
            if text.startswith(f"{VARIABLE}=")
        ]
        return _REQUEST.decode(texts[0])
    except (
        KeyError,
        ValueError,
        TypeError,
        IndexError,
        AttributeError,
    ):  # msgspec's errors are ValueErrors
        return None


def excess(
    requests: Sequence[PreparedRequest],
    prepared: Iterable[PreparedRequest],
    devices: Mapping[str, Device],
) -> str:
    """Returns why *requests*, all of one claim, do not fit beside what is *prepared*; empty if they do. MIG instances
    do not fit if they overlap.

    *devices*: by UUID; those of *requests* are among them.
    """
    uids = {request.uid for request in requests}
    others = [request for request in prepared if request.uid not in uids]
    uuids: dict[str, None] = {}
    for request in requests:
        uuids |= dict.fromkeys(share.uuid for share in request.shares)
    for uuid in uuids:
        device = devices[uuid]
        for unit, field, limit in (
            ("MiB of memory", "memory_mib", device.memory_mib),
            ("% of the cores", "cores", device.cores),
            ("thousandths of its share", "share_milli", 1000 * SHARE),
        ):
            amount, taken = _sum(requests, uuid, field), _sum(others, uuid, field)
            if amount and amount + taken > limit:
                holders = ", ".join(_holders(others, uuid, field)) or "no other claim"
                return (
                    f"{_title(requests[0])} needs {amount} {unit} of {uuid}, which has {limit}, "
                    f"of which {holders} has {taken}"
                )
    return next(_overlaps(requests, others), "")


def _overlaps(
    requests: Sequence[PreparedRequest], others: Sequence[PreparedRequest]
) -> Iterator[str]:
    """Yields why MIG instances among *requests* cannot be made: of each other, and of *others*."""
    placed = [*_shares(requests), *_shares(others)]
    for index, (request, share) in enumerate(_shares(requests)):
        for other, taken in placed[index + 1 :]:
            if taken.uuid != share.uuid:
                continue
            if share.placement is None and taken.placement is None:
                continue
            if share.placement is None or taken.placement is None:
                yield (
                    f"claims {request.namespace}/{request.claim} and {other.namespace}/{other.claim} need "
                    f"{share.uuid}, one of them a MIG instance of it, the other a share"
                )
            elif share.placement.partition.overlaps(taken.placement.partition):
                yield (
                    f"{_title(request)} needs {_place(share.placement)} of {share.uuid}, "
                    f"which overlaps {_place(taken.placement)} of {_title(other)}"
                )


def _shares(
    requests: Iterable[PreparedRequest],
) -> Iterator[tuple[PreparedRequest, PreparedShare]]:
    for request in requests:
        for share in request.shares:
            yield request, share


def _title(request: PreparedRequest) -> str:
    return f"claim {request.namespace}/{request.claim}"


def _place(placement: PreparedPlacement) -> str:
    return f"{placement.profile} at memory slice {placement.start}"


def _holders(requests: Iterable[PreparedRequest], uuid: str, field: str) -> list[str]:
    """Returns the claims that have some of an amount of the card *uuid*, sorted."""
    return sorted({_title(request) for request in requests if _sum([request], uuid, field)})


def _sum(requests: Iterable[PreparedRequest], uuid: str, field: str) -> int:
    total = 0
    for _, share in _shares(requests):
        if share.uuid == uuid:
            total += getattr(share, field)
    return total
