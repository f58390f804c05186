"""The words for what the annotations of a pod say of its resize."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec

from hami.codec.allocation import container_positions
from hami.codec.keys import RESIZE, RESIZE_APPLIED, RESIZE_STATUS
from hami.codec.resize import MAX_TEXT, ResizeState, excess, parse_applied, parse_status, shares_in
from hami.inspect.cluster import catalog_of
from hami.inspect.tables import counted
from hami.model import Pod, Share
from hami.vendors.request import device_request

UNKNOWN = "?"
"""The name of all containers, if it cannot be told which of them have GPUs."""
REQUESTED = "Requested"
"""The state of a resize that the scheduler has not answered yet; the others are those of ResizeState."""


class ResizeReport(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """The state of the resize of a pod. *request*: its text. *state*: ``Requested`` or one of ResizeState. *message*:
    of the scheduler. *problem*: of the device plugin. *excess_mib*, *excess_cores*: what is still booked beyond what
    the pod is to have, of all its devices."""

    state: str
    request: str = ""
    message: str = ""
    problem: str = ""
    excess_mib: int = 0
    excess_cores: int = 0

    @property
    def is_pending(self) -> bool:
        """Reports whether more is booked than the pod is to have."""
        return self.state == ResizeState.BOOKED and bool(self.excess_mib or self.excess_cores)

    @property
    def sentence(self) -> str:
        """The state in words."""
        excess = (
            f"{self.excess_mib:,} MiB and {self.excess_cores} cores more than it is to have stay booked until it "
            "uses no more"
            if self.excess_mib or self.excess_cores
            else ""
        )
        words = "pending" if self.is_pending else _WORDS[self.state]
        return "; ".join(
            filter(
                None,
                (words, self.message, excess, self.problem and f"its node says: {self.problem}"),
            )
        )


_WORDS = {
    REQUESTED: "requested, the scheduler has not answered yet",
    ResizeState.BOOKED: "booked, its node has not confirmed it yet",
    ResizeState.APPLIED: "applied",
    ResizeState.DEFERRED: "deferred, it is tried again when something changes",
    ResizeState.INFEASIBLE: "infeasible",
}


def resize_report(annotations: Mapping[str, str]) -> ResizeReport | None:
    """Returns the state of the resize that the annotations of a pod tell of; ``None`` if there is none."""
    request, status = (
        annotations.get(RESIZE, "")[:MAX_TEXT],
        parse_status(annotations.get(RESIZE_STATUS)),
    )
    memory, cores = excess(annotations)
    is_answered = status is not None and status.request == request
    if not request and not is_answered and not memory and not cores:
        return None
    applied = parse_applied(annotations.get(RESIZE_APPLIED))
    state = REQUESTED if request else ResizeState.BOOKED  # without an answer
    return ResizeReport(
        state=status.state if status is not None and is_answered else state,
        request=request,
        message=status.message if status is not None and is_answered else "",
        problem=applied.problem if applied is not None else "",
        excess_mib=memory,
        excess_cores=cores,
    )


def shares_by_container(pod: Pod, text: str | None) -> Mapping[str, Sequence[Share]]:
    """Returns the shares of each container with GPUs by *text*, an allocation. If it cannot be told which are whose,
    all are those of UNKNOWN."""
    allocation = shares_in(text)
    positions = container_positions(
        pod.containers, allocation, partial(device_request, catalog_of("")["NVIDIA"])
    )
    found = {name: allocation[position] for name, position in positions.items()}
    return found if found or not any(allocation) else {UNKNOWN: sum(allocation, ())}


def size_lines(pod: Pod, text: str | None) -> Iterator[str]:
    """Yields what each container with GPUs has by *text*, an allocation."""
    for name, shares in shares_by_container(pod, text).items():
        for share in dict.fromkeys((share.memory_mib, share.cores) for share in shares):
            count = sum((other.memory_mib, other.cores) == share for other in shares)
            of = f" of each of {counted(count, 'GPU')}" if count > 1 else ""
            yield f"{name} {share[0]:,} MiB and {share[1]} cores{of}"
