"""Records of what is prepared on a node, and the check whether more fits. Pure.

kube-scheduler allocates, and the API server does not check it: after a forced deletion, devices are allocated again
while containers still use them, and whoever may write the status of a claim can overbook a card. So the node counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hami.codec.slices import SHARE
from hami.model import Device
from hami.node.cdi import Document

VARIABLE = "HAMI_CLAIM"
"""The variable in a specification that says what it was made for. Containers see it."""


class PreparedShare(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a card that a request got. *share_milli*: of the card's 100, in thousandths."""

    uuid: str
    memory_mib: int
    cores: int
    share_milli: int


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


_REQUEST = msgspec.json.Decoder(PreparedRequest)


def render_prepared(request: PreparedRequest) -> dict[str, str]:
    """Returns the variable of the specification for *request*."""
    return {VARIABLE: msgspec.json.encode(request).decode()}


def parse_prepared(document: Document | None) -> PreparedRequest | None:
    """Returns what a specification was made for; ``None`` if it does not say so."""
    try:
        (device,) = (document or {})["devices"]
        texts = [text.partition("=")[2] for text in device["containerEdits"]["env"] if text.startswith(f"{VARIABLE}=")]
        return _REQUEST.decode(texts[0])
    except (KeyError, ValueError, TypeError, IndexError, AttributeError):  # msgspec's errors are ValueErrors
        return None


def excess(wanted: Sequence[PreparedRequest], prepared: Iterable[PreparedRequest],
           devices: Mapping[str, Device]) -> str:
    """Returns why *wanted*, all requests of one claim, do not fit beside what is *prepared*; empty if they do.

    *devices*: by UUID; those of *wanted* are among them.
    """
    others = [request for request in prepared if request.uid not in {one.uid for one in wanted}]
    for uuid in dict.fromkeys(share.uuid for request in wanted for share in request.shares):
        device = devices[uuid]
        for unit, field, limit in (("MiB of memory", "memory_mib", device.memory_mib),
                                   ("% of the cores", "cores", device.cores),
                                   ("thousandths of its share", "share_milli", 1000 * SHARE)):
            mine, taken = _sum(wanted, uuid, field), _sum(others, uuid, field)
            if mine and mine + taken > limit:
                holders = sorted({f"claim {other.namespace}/{other.claim}" for other in others
                                  if _sum([other], uuid, field)})
                return (f"claim {wanted[0].namespace}/{wanted[0].claim} needs {mine} {unit} of {uuid}, which has "
                        f"{limit}, of which {', '.join(holders) or 'no other claim'} has {taken}")
    return ""


def _sum(requests: Iterable[PreparedRequest], uuid: str, field: str) -> int:
    return sum(getattr(share, field) for request in requests for share in request.shares if share.uuid == uuid)
