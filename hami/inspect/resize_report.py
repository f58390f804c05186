"""The words for what the annotations of a pod say of its resize."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hami.codec.allocation import container_positions
from hami.codec.keys import RESIZE, RESIZE_APPLIED, RESIZE_STATUS
from hami.codec.resize import MAX_TEXT, ResizeState, excess, parse_applied, parse_status, shares_in
from hami.inspect.cluster import catalog_of
from hami.inspect.tables import OutputRecord
from hami.model import Pod, Share
from hami.plurals import counted
from hami.vendors.request import requesting

UNKNOWN = "?"
"""The name of all containers, if it cannot be told which of them have GPUs."""
REQUESTED = "Requested"
"""The state of a resize that the scheduler has not answered yet; the others are those of ResizeState."""


class ResizeReport(OutputRecord, frozen=True, omit_defaults=True):
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
        parts = ["pending" if self.is_pending else _WORDS[self.state]]
        if self.message:
            parts.append(self.message)
        if self.excess_mib or self.excess_cores:
            parts.append(
                f"{self.excess_mib:,} MiB and {self.excess_cores} cores more than it is to have stay booked until it "
                "uses no more"
            )
        if self.problem:
            parts.append(f"its node says: {self.problem}")
        return "; ".join(parts)


_WORDS = {
    REQUESTED: "requested, the scheduler has not answered yet",
    ResizeState.BOOKED: "booked, its node has not confirmed it yet",
    ResizeState.APPLIED: "applied",
    ResizeState.DEFERRED: "deferred, it is tried again when something changes",
    ResizeState.INFEASIBLE: "infeasible",
}


def resize_report(annotations: Mapping[str, str]) -> ResizeReport | None:
    """Returns the state of the resize that the annotations of a pod tell of; ``None`` if there is none."""
    request = annotations.get(RESIZE, "")[:MAX_TEXT]
    memory, cores = excess(annotations)
    state, message = ResizeState.BOOKED.value, ""
    status = parse_status(annotations.get(RESIZE_STATUS))
    if status is not None and status.request == request:
        state, message = status.state, status.message
    elif request:
        state = REQUESTED
    elif not memory and not cores:
        return None
    applied = parse_applied(annotations.get(RESIZE_APPLIED))
    return ResizeReport(
        state=state,
        request=request,
        message=message,
        problem="" if applied is None else applied.problem,
        excess_mib=memory,
        excess_cores=cores,
    )


def shares_by_container(pod: Pod, text: str | None) -> Mapping[str, Sequence[Share]]:
    """Returns the shares of each container with GPUs by *text*, an allocation. If it cannot be told which are whose,
    all are those of UNKNOWN."""
    allocation = shares_in(text)
    names = requesting(catalog_of("")["NVIDIA"], pod.containers)
    positions = container_positions(pod.containers, allocation, names)
    if not positions and any(allocation):
        return {UNKNOWN: sum(allocation, ())}
    return {name: allocation[position] for name, position in positions.items()}


def size_lines(pod: Pod, text: str | None) -> Iterator[str]:
    """Yields what each container with GPUs has by *text*, an allocation."""
    for name, shares in shares_by_container(pod, text).items():
        sizes = Counter((share.memory_mib, share.cores) for share in shares)
        for (memory_mib, cores), count in sizes.items():
            of = f" of each of {counted(count, 'GPU')}" if count > 1 else ""
            yield f"{name} {memory_mib:,} MiB and {cores} cores{of}"
