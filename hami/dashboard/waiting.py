"""The pods that wait, and why: for their page, and for that of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from hami.dashboard.access import Scope
from hami.dashboard.explainer import Explanation, Question
from hami.dashboard.live import LiveCluster
from hami.dashboard.paging import paged
from hami.dashboard.viewed_pods import SchedulingCondition
from hami.inspect.cluster import InspectedCluster
from hami.inspect.refusals import RequestedDevices, requested_devices
from hami.inspect.tables import OutputRecord
from hami.inspect.top import age_of
from hami.model import Pod, PodRef

PENDING_A_PAGE = 25


class Waiting(OutputRecord, frozen=True):
    """A pod that waits. *explanation*: ``None`` while it is being computed.

    *condition*: why kube-scheduler does not place it; ``None`` where that is not known, and in
    lists.
    """

    namespace: str
    name: str
    created: str
    age_s: int | None
    scheduler: str
    requests: tuple[RequestedDevices, ...]
    explanation: Explanation | None
    condition: SchedulingCondition | None = None


class WaitingList(OutputRecord, frozen=True):
    """A page of pods that wait, oldest first."""

    items: tuple[Waiting, ...]
    total: int
    page: int
    pages: int


class WaitingPods:
    """The pods of *live* that wait.

    *explain*: returns the answer to a question, *condition* why kube-scheduler does not place a pod; ``None`` if it is
    not known. *expect*: is called with questions before their page is rendered, and may wait a moment for the answers.
    """

    def __init__(
        self,
        live: LiveCluster,
        *,
        explain: Callable[[Question], Explanation | None],
        condition: Callable[[PodRef], SchedulingCondition | None],
        expect: Callable[[Sequence[Question]], None],
    ) -> None:
        self._live = live
        self._explain = explain
        self._condition = condition
        self._expect = expect

    def expect_page(self, scope: Scope, page: int) -> None:
        """Waits a moment for the answers that a page shows, in the thread of one viewer."""
        shown, _, _ = paged(self._oldest_first(scope), page, PENDING_A_PAGE)
        self._expect([Question.of(pod, scope) for pod in shown])

    def expect_pod(self, scope: Scope, namespace: str, name: str) -> None:
        """Waits a moment for the answer that the page of a pod shows, if it waits."""
        store = self._live.store
        record = store.pods.named(namespace, name)
        if record is None or store.booking(record.ref.uid) is not None:
            return
        pod = store.pods.waiting_pod(record.ref.uid)
        if pod is not None:
            self._expect([Question.of(pod, scope)])

    def page(self, scope: Scope, page: int) -> WaitingList:
        """Returns a page of them, oldest first."""
        pods = self._oldest_first(scope)
        shown, page, pages = paged(pods, page, PENDING_A_PAGE)
        cluster = self._live.cluster([], scope)
        items: list[Waiting] = []
        for pod in shown:
            items.append(self._item(cluster, pod, scope))
        return WaitingList(tuple(items), len(pods), page, pages)

    def one(self, cluster: InspectedCluster, pod: Pod, scope: Scope) -> Waiting:
        """Returns one of them, with why kube-scheduler does not place it."""
        item = self._item(cluster, pod, scope)
        return msgspec.structs.replace(item, condition=self._condition(pod.ref))

    def _oldest_first(self, scope: Scope) -> list[Pod]:
        store = self._live.store
        pods: list[Pod] = []
        for pod in store.pods.waiting():
            if pod.ref.namespace not in scope:
                continue
            if store.booking(pod.ref.uid) is None:
                pods.append(pod)
        pods.sort(key=lambda pod: (pod.created, pod.ref.namespace, pod.ref.name))
        return pods

    def _item(self, cluster: InspectedCluster, pod: Pod, scope: Scope) -> Waiting:
        return Waiting(
            namespace=pod.ref.namespace,
            name=pod.ref.name,
            created=pod.created,
            age_s=age_of(pod.created, self._live.now()),
            scheduler=pod.scheduler_name,
            requests=requested_devices(cluster, pod),
            explanation=self._explain(Question.of(pod, scope)),
        )
