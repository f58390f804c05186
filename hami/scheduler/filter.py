"""The extender verb *filter*: names the one node that should run a pod, and reserves its devices there."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hami.errors import MalformedInput
from hami.kube.events import EventRecorder
from hami.model import Device, Node, Pod, PodRef
from hami.scheduler.leadership import Leadership
from hami.scheduler.metrics import Metrics
from hami.scheduling.node_order import TO_CHOOSE_FROM, has_no_policy, kube_chooses
from hami.scheduling.refusal import Choice, Refusal
from hami.scheduling.refusal_text import refusal_sentence
from hami.state import dry_run
from hami.state.inventories import devices_of
from hami.state.store import Store
from hami.vendors.inventory import with_template

log = logging.getLogger(__name__)

UNREGISTERED = "node unregistered"
NAMED_NODES = 3  # that an event names
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
MAX_PRIORITY = 10  # MaxExtenderPriority of kube-scheduler
MAX_SIMULATED_DEVICES = 100_000  # of nodes that are not known: some seconds of processor time


@dataclass(frozen=True, slots=True)
class Filtered:
    """The nodes that remain (``None``: none), why the others do not, and the node that was chosen.

    *unresolvable*: why those nodes do not remain where the end of no pod of lower priority could help. kube-scheduler
    looks for victims on the others.
    """

    names: list[str] | None
    failed: Mapping[str, str]
    chosen: str | None = None
    unresolvable: Mapping[str, str] = field(default_factory=dict)


class NodeFilter:
    """Chooses nodes for pods. It makes no calls to the API server; events are written in the background."""

    def __init__(
        self,
        store: Store,
        events: EventRecorder,
        leadership: Leadership,
        metrics: Metrics,
        *,
        is_selected: Callable[[Mapping[str, str]], bool] = lambda labels: True,
        on_preemptor: Callable[[], None] = lambda: None,
    ) -> None:
        """*is_selected*: reports whether the node watch shows nodes with these labels. *on_preemptor*: called when a
        pod fits no node and pods of lower priority hold devices."""
        self._store = store
        self._is_selected = is_selected
        self._on_preemptor = on_preemptor
        self._events = events
        self._leadership = leadership
        self._metrics = metrics
        # one at a time: more would only take the interpreter from filters
        self._simulation = threading.Lock()

    def filter(self, pod: Pod, names: Sequence[str] | None) -> Filtered:
        """Chooses one of the nodes *names* and reserves devices there; all nodes remain if *pod* requests none.

        If kube-scheduler chooses, others that fit remain too: the bind reserves devices on another one of them.

        Raises: HamiError; kube-scheduler retries the pod then.
        """
        _check_ref(pod.ref)
        self._leadership.require()
        try:
            answer = self._store.filtering.assume(pod, names or ())
        except MalformedInput as error:
            text = f"calcScore failed {error} for pod {pod.ref.name}"
            self._record_failure(pod.ref, text)
            raise MalformedInput(error.field, error.text, error.problem, message=text) from error
        if answer is None:
            return Filtered(list(names) if names is not None else None, {})
        if isinstance(answer, Refusal):
            return self._refused(pod, answer)
        self._events.record(pod.ref, "Normal", "FilteringSucceed", _success(answer), replaces=True)
        log.info(
            "pod filtered",
            extra={"pod": pod.ref, "node": answer.node, "candidates": answer.candidates},
        )
        if not kube_chooses(pod) or not answer.fitting:
            return Filtered([answer.node], {}, answer.node)
        names = [name for name, _ in reversed(answer.fitting)]
        return Filtered(names[:TO_CHOOSE_FROM], {}, answer.node)

    def prioritize(self, pod: Pod, names: Sequence[str]) -> dict[str, int]:
        """Returns the scores of the nodes *names* for *pod*, from 0 to MAX_PRIORITY: by the node policy, unless only
        kube-scheduler's own scores count."""
        if not names or has_no_policy(pod):
            return dict.fromkeys(names, 0)
        scores = self._store.filtering.node_scores(pod, names)
        low, high = min(scores), max(scores)
        if low == high:
            return dict.fromkeys(names, 0)
        return {
            name: round(MAX_PRIORITY * (score - low) / (high - low))
            for name, score in zip(names, scores)
        }

    def simulate(self, pod: Pod, nodes: Iterable[Node]) -> Filtered:
        """Returns all of the *nodes* that *pod* fits now. Nothing is reserved or written.

        Nodes that are known are as they are; others are idle, with the devices that they register or that the label of
        their group tells, unless the node watch does not show such nodes: no pod is ever placed on these. What is
        reserved for *pod* counts as free. *nodes* are taken one by one, and only their devices are kept.
        Raises: HamiError; MalformedInput for more than MAX_SIMULATED_DEVICES.
        """
        names: list[str] = []
        devices: dict[str, Mapping[str, Sequence[Device]]] = {}
        count = 0
        with self._simulation:
            known_names, view = set(self._store.nodes.names()), self._store.view()
            for node in nodes:
                names.append(node.name)
                if view.usages(node.name) or not self._is_selected(node.labels):
                    continue
                made = with_template(view.vendors, node)
                if made is node and node.name in known_names:
                    continue  # it has not registered its devices yet
                devices[node.name] = devices_of(view.vendors, made)
                count += sum(map(len, devices[node.name].values()))
                if count > MAX_SIMULATED_DEVICES:
                    raise MalformedInput(
                        "Nodes", count, f"expected at most {MAX_SIMULATED_DEVICES} devices"
                    )
            view = view.what_if(without=[pod.ref.uid], devices=devices)
            refusal = dry_run.refuse(view, pod, names)
        failed = self._failed(refusal) if refusal is not None else {}
        return Filtered([name for name in names if name not in failed], failed)

    def _record_failure(self, ref: PodRef, message: str) -> None:
        self._events.record(ref, "Warning", "FilteringFailed", message, replaces=True)

    def _failed(self, refusal: Refusal) -> dict[str, str]:
        return refusal.texts | dict.fromkeys(refusal.unknown, UNREGISTERED)

    def _refused(self, pod: Pod, refusal: Refusal) -> Filtered:
        reasons: set[str] = set()
        for unfit, _ in refusal.groups:
            reasons.update(dict(unfit.reasons))
        for reason in reasons:
            self._metrics.refused(reason)
        closest = self._store.filtering.closest(refusal, 1)
        self._record_failure(pod.ref, refusal_sentence(refusal, closest))
        nodes = refusal.nodes + len(refusal.unknown)
        log.info("no node fits", extra={"pod": pod.ref, "nodes": nodes})
        failed = self._failed(refusal)
        if refusal.resolvable and pod.preempts:
            self._on_preemptor()
        return Filtered(
            None, {name: failed.pop(name) for name in refusal.resolvable}, unresolvable=failed
        )


def _check_ref(ref: PodRef) -> None:
    """Raises: MalformedInput if *ref* cannot be that of a pod: the API server is asked for it by that name."""
    if not ref.uid:
        raise MalformedInput("Pod.metadata.uid", "", "a pod without uid cannot be scheduled")
    for field_name, text in (
        ("Pod.metadata.namespace", ref.namespace),
        ("Pod.metadata.name", ref.name),
    ):
        if _NAME.fullmatch(text) is None:
            raise MalformedInput(
                field_name, text, "expected a name, of small letters, digits, - and ."
            )


def _success(choice: Choice) -> str:
    """Returns upstream's message. It counts only the nodes that were judged, which are not all when there are many, and
    names the best of those that fit, with their scores."""
    best = choice.fitting[-NAMED_NODES:]
    scores = ",".join(f"{name}:{score:.2f}" for name, score in best)
    if len(best) < len(choice.fitting):
        scores = f"…,{scores}"
    return f"find fit node({choice.node}), {choice.unfit} nodes not fit, {len(choice.fitting)} nodes fit({scores})"
