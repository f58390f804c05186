"""Events on pods and nodes about wishes that nobody fulfils: most authors of pods see no warning of admission, since a
controller creates their pods, and a policy of the API server knows neither the cluster nor the nearest word."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterator

from hami.codec.keys import DEFAULT_SCHEDULER
from hami.kube.events import EventRecorder
from hami.model import Pod
from hami.runtime.once import OncePerKey
from hami.scheduler.leadership import Leadership
from hami.scheduler.settings import Settings
from hami.state.store import Store
from hami.vendors.request import requested_keys
from hami.vendors.vocabulary import Misspelt, Vocabulary
from hami.vendors.wishes import MOST, Wishes, foreign_scheduler

log = logging.getLogger(__name__)

REASON = "WishIgnored"
# pods that are looked at, so that a controller that creates many delays no other duty
PER_ROUND = 500
ARRIVED = 10_000  # pods that no round has looked at yet; of more, the latest
LIMIT = 10_000  # pods, and nodes, of which is remembered what was reported
NODES_EVERY = 15  # rounds between looks at the nodes


class WishReports:
    """The reports on the pods that come to *store*, whether they are placed or wait, and on its nodes."""

    def __init__(
        self, store: Store, events: EventRecorder, leadership: Leadership, settings: Settings
    ) -> None:
        self._store = store
        self._events = events
        self._leadership = leadership
        self._settings = settings
        self._vocabulary = Vocabulary(store.vendors)
        self._wishes = Wishes(self._vocabulary)
        self._reported = OncePerKey(LIMIT)
        self._on_nodes = OncePerKey(LIMIT)
        # shared with the watch: each call of a deque is atomic
        self._arrived = deque[Pod](maxlen=ARRIVED)
        store.pods.arrivals.append(self._arrived)
        self._term = -1.0  # when the latest term of this replica began
        self._round = 0

    def report_pods(self) -> None:
        """Records the ignored wishes of pods that have come, each pod once. A new leader also looks at all that wait,
        since they may have come while nobody led. Other replicas only forget them."""
        arrived = self._arrived
        if not self._leadership.leads():
            arrived.clear()
            self._term = -1.0  # those of a pause within a term are also looked at then
            return
        if self._leadership.since() != self._term:
            self._term = self._leadership.since()
            arrived.extend(self._store.pods.waiting())
        for _ in range(min(PER_ROUND, len(arrived))):
            self._report_pod(arrived.popleft())

    def report_nodes(self) -> None:
        """Records the words for pods that are written on nodes, those of a node once."""
        self._round += 1
        if self._round % NODES_EVERY != 1:
            return
        for node, *texts in self._store.nodes.texts():
            words = tuple(self._wishes.misplaced_on_node(*texts))
            if not words or not self._on_nodes.is_new(node, words):
                continue
            for key, kind in words:
                text = f"{kind} {key} of a node has no effect: write it on pods"
                log.warning("wish ignored", extra={"node": node, "detail": text})
                self._events.record(node, "Warning", REASON, text)

    def _report_pod(self, pod: Pod) -> None:
        if not self._reported.is_new(pod.ref.uid):
            return
        texts = list(itertools.islice(self._ignored(pod), MOST))
        for text in texts:
            log.info("wish ignored", extra={"pod": pod.ref, "detail": text})
        if texts:
            self._events.record(pod.ref, "Warning", REASON, "; ".join(texts))

    def _ignored(self, pod: Pod) -> Iterator[str]:
        """Yields the ignored wishes of *pod*. As in admission, a pod of another scheduler gets that warning alone: it
        may be meant for other nodes, and admission has not bounded it."""
        if self._is_foreign(pod.scheduler_name):
            yield foreign_scheduler(pod.scheduler_name, self._settings.scheduler_name)
            return
        vendors = requested_keys(self._vocabulary.catalog, pod.containers)
        for _, word in self._vocabulary.read(pod.annotations, vendors):
            if isinstance(word, Misspelt):
                yield str(word)
        admissions = self._store.admissions
        yield from self._wishes.warnings(pod, admissions.offers, admissions.device_sizes())

    def _is_foreign(self, scheduler: str) -> bool:
        """Reports whether *scheduler* is the name of another scheduler that is not Kubernetes' default."""
        settings = self._settings
        if not settings.force_overwrite_default_scheduler or not settings.scheduler_name:
            return False
        return scheduler not in ("", DEFAULT_SCHEDULER) and not settings.is_own_scheduler(scheduler)
