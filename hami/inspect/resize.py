"""``hami resize``: asks for another size of a running pod, and says what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from hami.codec.keys import RESIZE
from hami.codec.resize import (
    ResizeState,
    Size,
    excess,
    held_text,
    parse_resize,
    render_resize,
    wanted_text,
)
from hami.errors import Conflict, HamiError, MalformedInput
from hami.inspect.cluster import InspectedCluster, SchedulingEvent, unknown_name
from hami.inspect.resize_report import (
    REQUESTED,
    UNKNOWN,
    ResizeReport,
    resize_report,
    shares_by_container,
    size_lines,
)
from hami.kube.api import MERGE_PATCH
from hami.kube.pages import Writer
from hami.model import ContainerKind, Pod, PodRef
from hami.scheduling.resize import ResizeRefusal
from hami.state.resize_facts import as_resized, plan_resize_in, resized_annotations

INTERVAL_S, PENDING_S = 0.5, 2.0
"""Seconds between two looks at a pod; the latter while it uses more than it is to have."""
ATTEMPTS = 5
"""How often a request is written while others change the pod at the same time."""


# The request


def resizable(pod: Pod, container: str) -> str:
    """Returns the container whose size changes: *container*, or, if that is empty, the only one with GPUs.

    Raises: HamiError if there is no such container, or several.
    """
    if not pod.node_name:
        raise HamiError(
            f"pod {pod.ref} is not bound yet: change what its containers request instead"
        )
    if pod.is_terminated:
        raise HamiError(f"pod {pod.ref} has finished ({pod.phase}) and holds no devices")
    names = _resizable_names(pod)
    if not names:
        raise HamiError(f"pod {pod.ref} holds no GPUs that HAMi has allocated")
    if container in names:
        return container
    if container:
        raise unknown_name(f"container with GPUs in pod {pod.ref}:", container, names)
    if len(names) > 1:
        raise HamiError(
            f"pod {pod.ref} has several containers with GPUs: name one of {', '.join(names)}"
        )
    return names[0]


def _resizable_names(pod: Pod) -> list[str]:
    shares = shares_by_container(pod, held_text(pod.annotations))
    names = [item.name for item in pod.containers if item.kind is not ContainerKind.INIT]
    if UNKNOWN in shares:
        return names
    return [name for name in names if name in shares]


def requested_sizes(pod: Pod, container: str, size: Size) -> dict[str, Size]:
    """Returns what the pod is to ask for: *size* for *container* beside what it asks for already. What is refused as
    infeasible, or cannot be read, is asked for no more."""
    report = resize_report(pod.annotations)
    earlier: Mapping[str, Size] = {}
    if report is not None and report.request and report.state != ResizeState.INFEASIBLE:
        try:
            earlier = parse_resize(report.request)
        except MalformedInput:
            earlier = {}
    return {**earlier, container: _over(size, earlier.get(container, Size()))}


def _over(size: Size, earlier: Size) -> Size:
    """Returns *size*, and what *earlier* says of the rest."""
    if size.memory_mib is None and size.memory_percent is None:
        size = replace(size, memory_mib=earlier.memory_mib, memory_percent=earlier.memory_percent)
    return replace(size, cores=earlier.cores) if size.cores is None else size


def ask(request: Writer, read: Callable[[], Pod], container: str, size: Size) -> Pod:
    """Writes the request for *size* to the pod that *read* returns, and returns the pod as it was asked then.

    Raises: HamiError.
    """
    for _ in range(ATTEMPTS):
        pod = read()
        text = render_resize(requested_sizes(pod, container, size))
        parse_resize(text)
        body = msgspec.json.encode(
            {
                "metadata": {
                    "uid": pod.ref.uid,
                    "resourceVersion": pod.resource_version,
                    "annotations": {RESIZE: text},
                }
            }
        )
        try:
            request(
                "PATCH",
                f"/api/v1/namespaces/{pod.ref.namespace}/pods/{pod.ref.name}",
                body=body,
                content_type=MERGE_PATCH,
            )
        except Conflict:
            continue
        return replace(pod, annotations={**pod.annotations, RESIZE: text})
    raise HamiError("others change the pod all the time: try again")


# The progress


def follow(
    asked: Pod,
    read: Callable[[], Pod | None],
    say: Callable[[str], None],
    *,
    timeout_s: float,
    why: Callable[[PodRef], Sequence[SchedulingEvent]] = lambda ref: (),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Says what becomes of the request of *asked*, each change once. Returns why it does not hold; empty if it does.

    *read*: returns the pod as it is now. *why*: the events that say why its node has not confirmed a smaller size.
    Returns as well when the request is refused for good, after *timeout_s*, or when it is no longer this one.
    Raises: HamiError if the pod is gone.
    """
    until, last = clock() + timeout_s, ""
    while True:
        pod = _running(asked, read())
        if pod.annotations.get(RESIZE) != asked.annotations[RESIZE]:
            return "replaced: somebody asks for something else now"
        report = resize_report(pod.annotations)
        text = _progress(pod, report, why)
        state = None if report is None else report.state
        if state == ResizeState.INFEASIBLE:
            return text
        if text not in ("", last):
            say(text)
            last = text
        if state == ResizeState.APPLIED:
            return ""
        if clock() >= until:
            return (
                f"it does not hold after {timeout_s:g} s. The request stands: see hami explain pod {pod.ref.name} "
                f"-n {pod.ref.namespace}"
            )
        sleep(min(_interval_s(report), max(0.0, until - clock())))


def _running(asked: Pod, pod: Pod | None) -> Pod:
    """Returns *pod*, which is *asked* as it is now. Raises: HamiError if it is gone."""
    if pod is None or pod.ref.uid != asked.ref.uid or pod.is_terminated:
        raise HamiError(f"pod {asked.ref} has ended")
    return pod


def _interval_s(report: ResizeReport | None) -> float:
    if report is None or not report.is_pending:
        return INTERVAL_S
    return PENDING_S


def _progress(
    pod: Pod, report: ResizeReport | None, why: Callable[[PodRef], Sequence[SchedulingEvent]]
) -> str:
    """Returns the state in words; empty before the scheduler has answered."""
    if report is None or report.state == REQUESTED:
        return ""
    if report.state not in (ResizeState.BOOKED, ResizeState.APPLIED):
        return report.sentence
    reasons = [event.message for event in why(pod.ref)][-1:] if report.is_pending else []
    sizes = "; ".join(size_lines(pod, wanted_text(pod.annotations)))
    return ": ".join(filter(None, (report.sentence, *reasons, sizes)))


# What would be decided


def try_resize(
    cluster: InspectedCluster, pod: Pod, sizes: Mapping[str, Size]
) -> tuple[ResizeState, str]:
    """Returns the answer that the *sizes* for *pod* would get, and the same in words."""
    try:
        plan = plan_resize_in(cluster.view, pod, sizes, cluster.nodes.get(pod.node_name))
    except MalformedInput as error:
        plan = ResizeRefusal(ResizeState.INFEASIBLE, str(error))
    if isinstance(plan, ResizeRefusal):
        return plan.state, ResizeReport(plan.state, message=plan.message).sentence
    after = as_resized(pod, resized_annotations(plan))
    memory, cores = excess(after.annotations)
    report = ResizeReport(ResizeState.BOOKED, excess_mib=memory, excess_cores=cores)
    words = report.sentence if report.is_pending else "it fits"
    return (
        ResizeState.BOOKED,
        f"{words}: {'; '.join(size_lines(after, wanted_text(after.annotations)))}",
    )
