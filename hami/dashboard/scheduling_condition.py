"""The condition PodScheduled of a waiting pod, by which kube-scheduler says why it does not place the pod.

Its message is that of the event FailedScheduling, which the scheduler's account may not read.
"""

from __future__ import annotations

import msgspec

from hami.codec.documents import decode
from hami.inspect.tables import printable
from hami.kube.api import Api
from hami.model import PodRef

MESSAGE_LIMIT = 1024  # characters, as in an event


class SchedulingCondition(msgspec.Struct, rename="camel", frozen=True):
    """Why kube-scheduler does not place a pod. *since*: in the API server's format. All are empty without a reason."""

    reason: str = ""
    message: str = ""
    since: str = ""


class _WaitingCondition(msgspec.Struct, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class _WaitingStatus(msgspec.Struct):
    conditions: list[_WaitingCondition] | None = None


class _WaitingPod(msgspec.Struct):
    status: _WaitingStatus = msgspec.field(default_factory=_WaitingStatus)


_POD = msgspec.json.Decoder(_WaitingPod)


def read_condition(api: Api, ref: PodRef) -> SchedulingCondition:
    """Returns the condition of the pod *ref*. Raises: ClusterError, MalformedInput."""
    pod = decode("pod", _POD, api.request("GET", f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}"))
    for one in pod.status.conditions or ():
        if (one.type, one.status) == ("PodScheduled", "False"):
            message = printable(one.message or "")[:MESSAGE_LIMIT]
            return SchedulingCondition(one.reason or "", message, one.last_transition_time or "")
    return SchedulingCondition()
