"""The condition PodScheduled of a waiting pod, by which kube-scheduler says why it does not place the pod.

Its message is that of the event FailedScheduling, which the scheduler's account may not read.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hami.codec.pods import parse_observed_pod
from hami.dashboard.caches import Poller, PollLimits
from hami.inspect.tables import printable
from hami.kube.api import Api
from hami.model import PodRef

MESSAGE_LIMIT = 1024  # characters, as in an event
CONDITION_LIMITS = PollLimits(interval=10.0, shown=60.0, viewed=90.0, values=256)


class SchedulingCondition(msgspec.Struct, rename="camel", frozen=True):
    """Why kube-scheduler does not place a pod. *since*: in the API server's format. All are empty without a reason."""

    reason: str = ""
    message: str = ""
    since: str = ""


def read_condition(api: Api, ref: PodRef) -> SchedulingCondition:
    """Returns the condition of the pod *ref*. Raises: ClusterError, MalformedInput."""
    pod = parse_observed_pod(
        api.request("GET", f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}")
    )
    condition = pod.condition("PodScheduled")
    if condition is None or condition.status != "False":
        return SchedulingCondition()
    message = printable(condition.message or "")[:MESSAGE_LIMIT]
    return SchedulingCondition(
        condition.reason or "", message, condition.last_transition_time or ""
    )


def condition_poller(
    read: Callable[[PodRef], SchedulingCondition], *, clock: Callable[[], float]
) -> Poller[PodRef, SchedulingCondition]:
    """Returns the condition of each waiting pod that is viewed, as *read* returns it."""
    return Poller("scheduling conditions", read, CONDITION_LIMITS, clock=clock)
