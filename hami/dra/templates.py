"""The ResourceClaimTemplates of pods that admission has given a claim: made when a pod waits for one, removed when no
pod has used it for some time.

kube-controller-manager makes the claim of a pod from the template that the pod names, and waits for it. All replicas
follow pods and templates; the leader writes. What a template says follows from an annotation of the pod alone, so that
who may create pods gets no more than the webhook gives.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hami.codec.claim_templates import (
    MAX_TEXT,
    ClaimTemplate,
    is_template_name,
    render_template,
    template_name,
)
from hami.codec.keys import CLAIM_REQUEST
from hami.errors import ClusterError, Conflict, MalformedInput, NotFound
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.model import Pod, PodRef
from hami.runtime.tasks import Task
from hami.runtime.token_bucket import TokenBucket

log = logging.getLogger(__name__)

PERIOD_S = 1.0  # between looks, if nothing happens
UNUSED_S = 3600.0
MAX_TEMPLATES = 256  # of a namespace
RATE, BURST = 1.0, 32  # templates a second for each namespace, and at once
SEEN_S = 10.0  # within which the watch shows a template that was made
RETRY_S = 60.0  # after a refusal
BUSY_S = 1.0  # after no answer

Key = tuple[str, str]
"""Namespace and name of a template."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A template on the API server. *unused_since*: by the clock, infinite while a pod uses it."""

    template: ClaimTemplate
    unused_since: float = math.inf


class ClaimTemplates(Task):
    """The templates of a cluster; also the sink of the watch of templates."""

    def __init__(
        self,
        cluster: Cluster,
        events: EventRecorder,
        leads: Callable[[], bool],
        *,
        unused_s: float,
        clock: Callable[[], float],
    ) -> None:
        """*leads*: this replica leads, and so knows all pods. *unused_s*: until one that no pod uses is removed."""
        super().__init__("claim-templates")
        self._cluster = cluster
        self._events = events
        self._leads = leads
        self._unused_s = unused_s
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}  # by namespace; this task's
        self._has_listed = False  # all templates
        self._lock = threading.Lock()  # guards the five below; not held across I/O
        self._keys: dict[str, Key] = {}  # of pods that have not ended, by uid
        self._users: Counter[Key] = Counter()  # the number of these pods
        self._waiting: dict[Key, dict[str, PodRef]] = {}  # those of them that are not bound, by uid
        self._known: dict[Key, _Known] = {}
        self._not_before: dict[Key, float] = {}  # by the clock: when a template may be made again

    def step(self) -> float:
        """Makes the templates that are missing, and removes unused ones. Returns the seconds until the next look."""
        if not self._has_listed or not self._leads():
            return PERIOD_S
        try:
            delay = min(self.each(map(self._make, self._missing())), default=PERIOD_S)
            for known in self.each(self._unused()):
                self._remove(known.template)
        except ClusterError as error:  # the others would fail in the same way
            log.warning("claim templates not written yet, will retry", extra={"error": error})
            return BUSY_S
        now = self._clock()
        self._buckets = {
            namespace: bucket
            for namespace, bucket in self._buckets.items()
            if not bucket.is_full(now)
        }
        return min(delay, PERIOD_S)

    # Pods

    def pod_seen(self, pod: Pod) -> None:
        """Takes *pod* as it is now."""
        text = pod.annotations.get(CLAIM_REQUEST)
        if text is None and pod.ref.uid not in self._keys:  # as nearly always
            return
        if text is None or len(text) > MAX_TEXT or pod.is_terminated:
            self.pod_gone(pod.ref.uid)
            return
        key = (pod.ref.namespace, template_name(text))
        with self._lock:
            if self._keys.get(pod.ref.uid) != key:
                self._forget(pod.ref.uid)
                self._keys[pod.ref.uid] = key
                self._users[key] += 1
                if (known := self._known.get(key)) is not None:
                    self._known[key] = _Known(known.template)
            if pod.node_name or pod.deleting:
                self._stops_waiting(pod.ref.uid, key)
                return
            self._waiting.setdefault(key, {})[pod.ref.uid] = pod.ref
            is_missing = key not in self._known
        if is_missing:
            self.wake()

    def pod_gone(self, uid: str) -> None:
        """Takes that the pod *uid* has ended or was deleted."""
        with self._lock:
            self._forget(uid)

    def keep_only_pods(self, uids: set[str]) -> None:
        """Takes that only pods of *uids* exist."""
        with self._lock:
            for uid in self._keys.keys() - uids:
                self._forget(uid)

    # Templates: the methods of a sink

    def upsert(self, template: ClaimTemplate, as_of: float = -math.inf) -> None:
        """Takes *template*, which exists. One that somebody has labelled like ours is left alone."""
        if not is_template_name(template.name):
            return
        key = (template.namespace, template.name)
        with self._lock:
            self._not_before.pop(key, None)
            known = self._known.get(key)
            if known is None or known.template != template:
                self._known[key] = _Known(template, math.inf if self._users[key] else self._clock())

    def remove(self, template: ClaimTemplate) -> None:
        """Takes that *template* was deleted. A pod that waits for it gets another one."""
        key = (template.namespace, template.name)
        with self._lock:
            self._not_before.pop(key, None)
            self._known.pop(key, None)
            is_missing = key in self._waiting
        if is_missing:
            self.wake()

    def prune(self, seen: set[str], started: float) -> None:
        """Takes that only templates with these uids exist."""
        with self._lock:
            gone = [
                known.template for known in self._known.values() if known.template.uid not in seen
            ]
        for template in gone:
            self.remove(template)
        self._has_listed = True

    # The task

    def _missing(self) -> list[tuple[Key, PodRef]]:
        """Returns the templates to make, each with a pod that waits for it; those that failed last."""
        now = self._clock()
        with self._lock:
            self._not_before = {
                key: time for key, time in self._not_before.items() if key in self._waiting
            }
            due = [
                (key, next(iter(pods.values())))
                for key, pods in self._waiting.items()
                if key not in self._known and self._not_before.get(key, now) <= now
            ]
            return sorted(due, key=lambda missing: self._not_before.get(missing[0], -math.inf))

    def _make(self, missing: tuple[Key, PodRef]) -> float:
        """Makes a template for a pod. Returns the seconds until it may be tried again."""
        (namespace, name), ref = missing
        bucket = self._buckets.setdefault(namespace, TokenBucket(RATE, BURST, self._clock()))
        if (delay := bucket.delay(self._clock())) > 0:
            return delay
        bucket.take()
        try:
            if not self._create(namespace, name, ref):
                return self._later(missing, BUSY_S)  # others may wait for it
        except (
            NotFound,
            Conflict,
        ):  # the namespace is gone; or the watch shows it soon, unless it is not ours
            return self._later(missing, RETRY_S)
        except MalformedInput as error:
            self._refuse(ref, str(error))
            return self._later(missing, RETRY_S)
        except ClusterError as error:
            if error.status in (None, 429) or error.status >= 500:
                self._later(
                    missing, BUSY_S
                )  # the others are tried first: it may be about this one alone
                raise
            self._refuse(ref, str(error))
            return self._later(missing, RETRY_S)
        return self._later(missing, SEEN_S)

    def _create(self, namespace: str, name: str, ref: PodRef) -> bool:
        """Makes a template as the pod *ref* says; False if that is gone. Raises: MalformedInput, ClusterError."""
        pod = self._cluster.pod(ref.namespace, ref.name)
        text = (
            pod.annotations.get(CLAIM_REQUEST, "")
            if pod is not None and pod.ref.uid == ref.uid
            else ""
        )
        if not text or template_name(text) != name:
            return False
        template = render_template(text)
        self._make_room(namespace)
        self._cluster.create_claim_template(namespace, template)
        log.info(
            "claim template made", extra={"namespace": namespace, "template": name, "pod": ref}
        )
        return True

    def _make_room(self, namespace: str) -> None:
        """Removes the template that has been unused longest if there are too many. Raises: MalformedInput if all are
        used."""
        with self._lock:
            of_namespace = [known for key, known in self._known.items() if key[0] == namespace]
        if len(of_namespace) < MAX_TEMPLATES:
            return
        oldest = min(of_namespace, key=lambda known: known.unused_since)
        if oldest.unused_since == math.inf:
            raise MalformedInput(
                CLAIM_REQUEST,
                "",
                "",
                message=(
                    f"the pods of the namespace ask for more than {MAX_TEMPLATES} different claims"
                ),
            )
        self._remove(oldest.template)

    def _unused(self) -> Iterator[_Known]:
        until = self._clock() - self._unused_s
        with self._lock:
            return iter([known for known in self._known.values() if known.unused_since <= until])

    def _remove(self, template: ClaimTemplate) -> None:
        try:
            self._cluster.delete_claim_template(template)
        except (NotFound, Conflict):
            pass  # deleted, or made anew: the watch shows it
        log.info(
            "unused claim template removed",
            extra={"namespace": template.namespace, "template": template.name},
        )
        self.remove(template)  # if the watch shows it once more, it is late: its end follows

    def _refuse(self, ref: PodRef, message: str) -> None:
        log.warning("claim template not made", extra={"pod": ref, "reason": message})
        self._events.record(ref, "Warning", "ClaimTemplateRefused", message)

    def _later(self, missing: tuple[Key, PodRef], delay: float) -> float:
        with self._lock:
            if missing[0] not in self._known:
                self._not_before[missing[0]] = self._clock() + delay
        return delay

    def _forget(self, uid: str) -> None:
        """Forgets a pod. The lock is held."""
        if (key := self._keys.pop(uid, None)) is None:
            return
        self._stops_waiting(uid, key)
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]
            if (known := self._known.get(key)) is not None:
                self._known[key] = _Known(known.template, self._clock())

    def _stops_waiting(self, uid: str, key: Key) -> None:
        """Takes that a pod waits for no template. The lock is held."""
        pods = self._waiting.get(key, {})
        pods.pop(uid, None)
        if not pods:
            self._waiting.pop(key, None)
