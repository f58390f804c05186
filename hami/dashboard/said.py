"""Why a pod waits, in the words of its scheduler: the condition that kube-scheduler writes into the pod's status.

Its message is that of the event FailedScheduling, which the scheduler's account may not read.
"""

from __future__ import annotations

import msgspec

from hami.codec.documents import decode
from hami.inspect.tables import printable
from hami.kube.api import Api
from hami.model import PodRef

MESSAGE_LIMIT = 1024  # characters, as in an event


class Said(msgspec.Struct, rename="camel", frozen=True):
    """The words of kube-scheduler. *since*: in the API server's format. All are empty if it has said nothing."""

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


def read_said(api: Api, ref: PodRef) -> Said:
    """Returns what kube-scheduler said about *ref* last. Raises: ClusterError, MalformedInput."""
    pod = decode("pod", _POD, api.request("GET", f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}"))
    for one in pod.status.conditions or ():
        if (one.type, one.status) == ("PodScheduled", "False"):
            return Said(one.reason or "", printable(one.message or "")[:MESSAGE_LIMIT], one.last_transition_time or "")
    return Said()
