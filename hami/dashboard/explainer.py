"""Explains why pods wait, in a thread of its own: one pod at a time, on a view of the store, with a pause after each.

Answers are cached, so that many viewers cost as much as one. Pods with the same requests share an answer.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from hami.dashboard.access import Scope
from hami.dashboard.live import LiveCluster
from hami.errors import HamiError
from hami.inspect.explain import NodeShortage, Suggestion, WaitingReport, explain_pod
from hami.model import Pod
from hami.runtime.tasks import Task

log = logging.getLogger(__name__)

MAX_ANSWERS = 256
MAX_QUESTIONS = 64  # questions that wait; the oldest is dropped first
MIN_AGE_S = 5.0  # of an answer that is replaced because the cluster has changed
PAUSE = 1.0  # after an answer, as a multiple of the time for which it was computed
SHOWN_NODES = 20  # nearest nodes of an answer
SHOWN_DEVICES = 8  # of each of them

_Key = tuple[bytes, Scope]


class Explanation(msgspec.Struct, rename="camel", frozen=True):
    """Why a pod waits. *fits*: the node that it would get now. *reasons*: each with the number of nodes.

    *unfit*: the number of nodes that it does not fit; the nearest of them are *nodes*. *suggestions*: what would help.
    *problem*: why there is no answer.
    """

    fits: str = ""
    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    unfit: int = 0
    nodes: tuple[NodeShortage, ...] = ()
    cordoned: int = 0
    without_devices: int = 0
    suggestions: tuple[Suggestion, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    explanation: Explanation
    version: tuple[int, ...]
    made: float


class Explainer(Task):
    """Explains pods of *live* in its thread; `explain` never waits."""

    def __init__(self, live: LiveCluster, *, clock: Callable[[], float]) -> None:
        super().__init__("explainer")
        self._live = live
        self._clock = clock
        self._lock = threading.Lock()  # guards all that follows, but not while an answer is computed
        self._questions: OrderedDict[_Key, Pod] = OrderedDict()
        self._answers: OrderedDict[_Key, _Answer] = OrderedDict()
        self.answered = 0
        """The number of answers so far."""

    def explain(self, pod: Pod, scope: Scope) -> Explanation | None:
        """Returns the latest answer; ``None`` if there is none yet. Requests a new one if the cluster has changed."""
        key, version, now = (_question(pod), scope), self._live.store.version(), self._clock()
        with self._lock:
            answer = self._answers.get(key)
            if answer is None or (answer.version != version and now - answer.made >= MIN_AGE_S):
                self._questions[key] = pod
                if len(self._questions) > MAX_QUESTIONS:
                    self._questions.popitem(last=False)
                self.wake()
            return answer.explanation if answer is not None else None

    def step(self) -> float:
        """Answers the oldest question. Returns how long to pause after it."""
        with self._lock:
            if not self._questions:
                return math.inf
            key, pod = self._questions.popitem(last=False)
        version, begun = self._live.store.version(), self._clock()
        answer = _Answer(self._answer(pod, key[1]), version, self._clock())
        with self._lock:
            self._answers[key] = answer
            self._answers.move_to_end(key)
            if len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
            self.answered += 1
        self.pause(PAUSE * (answer.made - begun))
        return 0.0

    def _answer(self, pod: Pod, scope: Scope) -> Explanation:
        try:
            report = explain_pod(self._live.cluster(self._live.store.nodes.names(), scope, [pod]), pod, ())
        except HamiError as error:
            return Explanation(problem=str(error))
        except Exception:
            log.exception("a pod cannot be explained", extra={"pod": str(pod.ref)})
            return Explanation(problem="internal error, see the dashboard's log")
        return _bounded(report) if isinstance(report, WaitingReport) else Explanation(problem="the pod is bound by now")


def _question(pod: Pod) -> bytes:
    """Returns what the answer about *pod* depends on, beside the cluster."""
    return msgspec.msgpack.encode((pod.ref.namespace, pod.scheduler_name, dict(pod.annotations), pod.containers))


def _bounded(report: WaitingReport) -> Explanation:
    nodes = tuple(msgspec.structs.replace(node, cards=node.cards[:SHOWN_DEVICES])
                  for node in report.nodes[:SHOWN_NODES])
    return Explanation(
        fits=report.fits, reasons={reason: len(names) for reason, names in report.reasons.items()},
        unfit=len(report.nodes), nodes=nodes, cordoned=len(report.cordoned),
        without_devices=report.without_devices, suggestions=report.suggestions)
