"""Facts about a pod that is viewed, for which it is read: the store keeps neither annotations of bound pods, which are
too many, nor the conditions of those that wait.

The message of the condition PodScheduled is that of the event FailedScheduling, which the account may not read.
"""

from __future__ import annotations

import msgspec

from hami.codec.pods import parse_observed_pod, parse_pod
from hami.dashboard.caches import PollLimits
from hami.inspect.resize_report import ResizeReport, resize_report
from hami.inspect.tables import OutputRecord, printable
from hami.kube.api import Api
from hami.model import PodRef

MESSAGE_LIMIT = 1024  # characters, as in an event
CONDITION_LIMITS = PollLimits(interval=10.0, shown=60.0, viewed=90.0, values=256)
SIZE_LIMITS = PollLimits(interval=5.0, shown=60.0, viewed=90.0, values=256)


class SchedulingCondition(OutputRecord, frozen=True):
    """Why kube-scheduler does not place a pod. *since*: in the API server's format. All are empty without a reason."""

    reason: str = ""
    message: str = ""
    since: str = ""


class PodSize(OutputRecord, frozen=True):
    """The last resize of a bound pod, beside the sizes that it holds and is to have."""

    resize: ResizeReport | None = None


def read_condition(api: Api, ref: PodRef) -> SchedulingCondition:
    """Returns the condition of the pod *ref*. Raises: ClusterError, MalformedInput."""
    condition = parse_observed_pod(_read(api, ref)).condition("PodScheduled")
    if condition is None:
        return SchedulingCondition()
    if condition.status != "False":
        return SchedulingCondition()
    message = printable(condition.message or "")[:MESSAGE_LIMIT]
    return SchedulingCondition(
        condition.reason or "", message, condition.last_transition_time or ""
    )


def read_size(api: Api, ref: PodRef) -> PodSize:
    """Returns the last resize of the pod *ref*. Raises: ClusterError, MalformedInput."""
    pod = parse_pod(_read(api, ref))
    if pod.ref.uid != ref.uid:
        return PodSize()
    report = resize_report(pod.annotations)
    if report is None:
        return PodSize()
    return PodSize(
        msgspec.structs.replace(
            report,
            request=printable(report.request),
            message=printable(report.message),
            problem=printable(report.problem),
        )
    )


def _read(api: Api, ref: PodRef) -> bytes:
    return api.request("GET", f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}")
