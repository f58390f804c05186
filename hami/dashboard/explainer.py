"""Explains why pods wait: one pod at a time, on a view of the store, with a pause after each.

Many viewers cost as much as one, and pods with the same requests share an answer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from hami.dashboard.access import Scope
from hami.dashboard.caches import Poller, PollLimits
from hami.dashboard.live import LiveCluster
from hami.errors import HamiError
from hami.inspect.explain import Suggestion, WaitingReport, explain_pod
from hami.inspect.gangs import GangReport
from hami.inspect.preemption import PreemptionReport
from hami.inspect.refusals import NodeShortage
from hami.inspect.tables import OutputRecord
from hami.model import Pod

log = logging.getLogger(__name__)

LIMITS = PollLimits(interval=5.0, shown=math.inf, viewed=15.0, values=256, at_once=1, pause=1.0)
SHOWN_NODES = 20  # nearest nodes of an answer
SHOWN_DEVICES = 8  # of each of them


class Explanation(OutputRecord, frozen=True):
    """Why a pod waits. *fits*: the node that it would get now. *message*: why it fits none.

    *reasons*: each with the number of nodes.
    *unfit*: the number of nodes that it does not fit; the nearest of them are *nodes*. *suggestions*: what would help.
    *gang*: the group with which the pod is placed. *preemption*: who is evicted for it, or would be. *problem*: why
    there is no answer.
    """

    fits: str = ""
    message: str = ""
    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    unfit: int = 0
    nodes: tuple[NodeShortage, ...] = ()
    cordoned: int = 0
    without_devices: int = 0
    suggestions: tuple[Suggestion, ...] = ()
    gang: GangReport | None = None
    preemption: PreemptionReport | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """Why *pod* waits, for a viewer with *scope*. Equal are those about pods with the same *requests*."""

    requests: bytes
    scope: Scope
    pod: Pod = field(compare=False)

    @classmethod
    def of(cls, pod: Pod, scope: Scope) -> Question:
        """Returns the question about *pod*."""
        requests = (
            pod.ref.namespace,
            pod.scheduler_name,
            pod.group,
            dict(pod.annotations),
            pod.containers,
            pod.priority,
            pod.preempts,
            pod.controller,
            pod.nominated_node,
        )
        return cls(msgspec.msgpack.encode(requests), scope, pod)


def explainer(live: LiveCluster, *, clock: Callable[[], float]) -> Poller[Question, Explanation]:
    """Returns the answers to the questions that are viewed; they are computed again when the cluster has changed."""
    return Poller(
        "explainer", partial(_answer, live), LIMITS, clock=clock, version=live.store.version
    )


def _answer(live: LiveCluster, question: Question) -> Explanation:
    pod = question.pod
    pods = [pod]
    if pod.group:
        for other in live.store.pods.waiting():
            if (other.ref.namespace, other.group) == (pod.ref.namespace, pod.group):
                pods.append(other)
    try:
        cluster = live.cluster(live.store.nodes.names(), question.scope, pods)
        report = explain_pod(cluster, pod, ())
    except HamiError as error:
        return Explanation(problem=str(error))
    except Exception:
        log.exception("a pod cannot be explained", extra={"pod": str(pod.ref)})
        return Explanation(problem="internal error, see the dashboard's log")
    if not isinstance(report, WaitingReport):
        return Explanation(problem="the pod is bound by now")
    return _bounded(report)


def nearest_nodes(report: WaitingReport) -> tuple[NodeShortage, ...]:
    """Returns the nearest nodes of *report*, with some of their devices."""
    nodes: list[NodeShortage] = []
    for node in report.nodes[:SHOWN_NODES]:
        nodes.append(msgspec.structs.replace(node, cards=node.cards[:SHOWN_DEVICES]))
    return tuple(nodes)


def _bounded(report: WaitingReport) -> Explanation:
    return Explanation(
        fits=report.fits,
        message=report.message,
        reasons={reason: len(names) for reason, names in report.reasons.items()},
        unfit=len(report.nodes),
        nodes=nearest_nodes(report),
        cordoned=len(report.cordoned),
        without_devices=report.without_devices,
        suggestions=report.suggestions,
        gang=report.gang,
        preemption=report.preemption,
    )
