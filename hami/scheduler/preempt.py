"""The extender verb *preempt*: vetoes evictions in vain, and adds victims that the devices of a pod need.

kube-scheduler looks for victims with its own filters, so it knows CPU and memory, but no devices. Without a veto it
evicts pods from nodes whose devices are full, is refused by the verb *filter*, and starts over. Nobody is evicted here.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from hami.model import Pod
from hami.runtime.token_bucket import TokenBucket
from hami.scheduler.leadership import Leadership
from hami.scheduler.planner import PreemptionPlanner
from hami.state import dry_run
from hami.state.plans import planned_uid
from hami.state.promises import Promise
from hami.state.store import Store
from hami.state.victims import plan_further
from hami.state.view import View
from hami.vendors.request import requests_devices

log = logging.getLogger(__name__)

# nodes that are judged; kube-scheduler stops looking at 100 or a tenth of the cluster
MAX_NODES = 1000
MAX_PLANNED = 50  # nodes on which further victims are looked for
CATCH_UP_S = 0.1  # kube-scheduler may see the end of a pod this long before our watch does
CATCH_UP_PERIOD_S = 1.0  # for one wait, since kube-scheduler places no pods meanwhile
CATCH_UPS_AT_ONCE = 10  # after a pause: several pods may end within a second
RARE_S = 10.0  # a namespace that has not waited for so long does not depend on the waits of others


class PreemptionFilter:
    """Judges victims. It makes no calls to the API server and changes nothing. *clock* is monotonic."""

    def __init__(
        self,
        store: Store,
        leadership: Leadership,
        planner: PreemptionPlanner,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._planner = planner
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()  # guards the rest; not held while a veto waits
        now = clock()
        self._waits = TokenBucket(1 / CATCH_UP_PERIOD_S, CATCH_UPS_AT_ONCE, now)
        self._rare_waits = TokenBucket(1 / CATCH_UP_PERIOD_S, CATCH_UPS_AT_ONCE, now)
        self._waited_at: dict[str, float] = {}  # by namespace, in the last RARE_S

    def filter(
        self, pod: Pod, victims: Mapping[str, Collection[str]]
    ) -> Mapping[str, Collection[str]]:
        """Returns the nodes on which the devices of *pod* fit once the *victims* (uids, by node) have ended, each with
        its victims. Where preemption is on, the fewest pods with devices are added without which they would not fit.

        All nodes remain if *pod* requests no device. Nodes that are not known, those after the first MAX_NODES, and
        those with victims on other nodes do not remain. While others are evicted for it already, only their node does,
        with the victims that were asked for; none does where these have ended for kube-scheduler, and our watch is
        late, nor while others are moved for it.
        Raises: HamiError; then nobody may be evicted.
        """
        self._leadership.require()  # there may have been no filter before
        if not requests_devices(self._store.vendors, pod.containers):
            return victims
        judged = dict(itertools.islice(self._there(victims), MAX_NODES))
        kept = self._fitting(pod, judged)
        if not kept and self._may_wait(pod.ref.namespace):
            self._sleep(CATCH_UP_S)
            kept = self._fitting(pod, judged)
        if kept:
            self._planner.leave_to_kube_scheduler(pod.ref, self._known(kept))
        log.info(
            "preemption judged", extra={"pod": pod.ref, "nodes": len(victims), "kept": len(kept)}
        )
        return kept

    def _there(
        self, victims: Mapping[str, Collection[str]]
    ) -> Iterator[tuple[str, Collection[str]]]:
        """Yields the nodes on which all victims are that hold devices, as far as that is known.

        For a PodGroup that is disrupted as a whole, kube-scheduler 1.37 names pods on other nodes, too. It does not
        find these when it reads them in an answer, and then it gives up all nodes.
        """
        for node, uids in victims.items():
            records = (self._store.pods.get(uid) for uid in uids)
            if all(record is None or record.node in ("", node) for record in records):
                yield node, uids

    def _fitting(
        self, pod: Pod, victims: Mapping[str, Collection[str]]
    ) -> dict[str, Collection[str]]:
        """Returns the nodes that *pod* fits without their victims."""
        view = self._store.view()
        promise = self._store.preemptions.promise_for(pod.ref.uid)
        if promise is not None:
            return _fitting_as_promised(promise, victims, view)
        if self._is_freed(pod, victims, view):
            return {}
        kept: dict[str, Collection[str]] = {}
        for node, uids in victims.items():
            if _fits_without(uids, view, pod, node):
                kept[node] = uids
        if self._planner.is_enabled:
            kept |= self._with_further(pod, victims, kept, view)
        return {node: kept[node] for node in victims if node in kept}

    def _with_further(
        self,
        pod: Pod,
        victims: Mapping[str, Collection[str]],
        kept: Collection[str],
        view: View,
    ) -> dict[str, Collection[str]]:
        """Returns nodes beside those *kept* that *pod* fits without further victims."""
        others = [node for node in victims if node not in kept]
        nodes = dry_run.may_preempt_on(view, pod, others)[:MAX_PLANNED]
        further: dict[str, Collection[str]] = {}
        if not nodes:
            return further
        rules = self._planner.rules()
        planned = self._store.preemptions.planned_victims(pod.priority)
        for node in nodes:
            plan = plan_further(view, pod, node, victims[node], rules, planned=planned)
            if plan is not None and plan.victims:
                further[node] = tuple(dict.fromkeys((*victims[node], *plan.uids)))
        return further

    def _known(self, victims: Mapping[str, Collection[str]]) -> Mapping[str, Collection[str]]:
        """Returns those of *victims* that hold or request devices: no others play a part here, or stay in memory."""
        known: dict[str, list[str]] = {}
        for node, uids in victims.items():
            known[node] = []
            for uid in uids:
                if (record := self._store.pods.get(uid)) is not None:
                    known[node].append(record.ref.uid)
        return known

    def _is_freed(self, pod: Pod, victims: Mapping[str, Collection[str]], view: View) -> bool:
        """Reports whether *pod* fits its nominated node once those have ended that kube-scheduler was offered there.

        It asks again only when it does not see them any more, which may be before our watch does: then the filter has
        just refused the node, and the *victims* on others would be evicted in vain. The pod is reminded of the node
        when the watch has caught up.
        """
        node, offers = pod.nominated_node, self._planner.offers(pod.ref) or {}
        if node not in offers or node in victims:
            return False
        return _fits_without(offers[node], view, pod, node)

    def _may_wait(self, namespace: str) -> bool:
        """Reports whether a veto for a pod of *namespace* may wait until the watch has caught up.

        kube-scheduler tries the pod again when another one ends, at once, and after a veto not for minutes: the pod
        would wait beside a free device, and no reminder reaches it, since no filter has refused it.
        """
        now = self._clock()
        with self._lock:
            self._waited_at = {
                name: at for name, at in self._waited_at.items() if now - at < RARE_S
            }
            is_rare = namespace not in self._waited_at
            if self._waits.delay(now) == 0:
                self._waits.take()
            elif is_rare and self._rare_waits.delay(now) == 0:
                self._rare_waits.take()
            else:
                return False
            self._waited_at[namespace] = now
            return True


def _fitting_as_promised(
    promise: Promise, victims: Mapping[str, Collection[str]], view: View
) -> dict[str, Collection[str]]:
    """Returns the node of *promise* if its pod fits there without its victims and those that are asked for; none while
    others are moved for it, since these have places of their own."""
    if promise.one_by_one or promise.node not in victims:
        return {}
    uids = victims[promise.node]
    ended = {planned_uid(promise.ref.uid), *promise.victims, *uids}
    if _fits_without(ended, view, promise.pod, promise.node):
        return {promise.node: uids}
    return {}


def _fits_without(uids: Iterable[str], view: View, pod: Pod, node: str) -> bool:
    """Reports whether *pod* fits *node* once these pods have ended. What is reserved for it counts as free."""
    view = view.what_if(without={pod.ref.uid, *uids})
    return dry_run.choose(view, pod, [node]) is not None
