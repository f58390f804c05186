"""The part of the store for resizes of bound pods."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec

from hami.codec.resize import ResizeState, Size, held_text, shares_in
from hami.errors import MalformedInput
from hami.model import Pod
from hami.scheduling.resize import ResizePlan, ResizeRefusal
from hami.state import dry_run
from hami.state.counting import complete
from hami.state.decisions import Decisions, State
from hami.state.evictions import plans_under_way
from hami.state.read_pod import read_bookings
from hami.state.resize_facts import as_resized, is_current, plan_resize_in, resized_annotations


class Resizes:
    """Resizes of bound pods. *decisions*: as of the store."""

    def __init__(self, state: State, decisions: Decisions) -> None:
        self._state = state
        self._decisions = decisions
        self._growing: set[str] = set()  # those that may be growing still

    def begin(self, pod: Pod, sizes: Mapping[str, Size]) -> ResizePlan | ResizeRefusal | None:
        """Returns what follows from the *sizes* that the containers of *pod* are to have. What it grows by is booked.
        ``None`` if this is not the pod as it is known, or the outcome of an earlier resize is not.

        Raises: MalformedInput if the pod has no allocation that can be resized.
        """
        state = self._state
        with state.lock:
            self._decisions.settle()
            record = state.pods.get(pod.ref.uid)
            if record is None or not is_current(pod, record):
                return None
            if record.growth is not None:
                return None
            node = state.nodes.get(pod.node_name)
            plan = plan_resize_in(self._decisions.view_for(pod), pod, sizes, node)
            if isinstance(plan, ResizeRefusal):
                return plan
            if plan.booked == shares_in(held_text(pod.annotations)):
                return plan
            if self._is_being_freed(pod.node_name):
                return ResizeRefusal(
                    ResizeState.DEFERRED,
                    (
                        f"pods of node {pod.node_name} are evicted for one that waits, which gets its devices first"
                    ),
                )
            resized = as_resized(pod, resized_annotations(plan))
            reading = read_bookings(resized, state.vendors, record.most_shares)
            growth = complete(reading, state.table.usages)
            state.pods.put(msgspec.structs.replace(record, growth=growth))
            self._growing.add(pod.ref.uid)
            return plan

    def refuse(self, pod: Pod) -> None:
        """Records that *pod*, which was about to grow, certainly has not been changed."""
        pods = self._state.pods
        with self._state.lock:
            record = pods.get(pod.ref.uid)
            if record is not None and record.growth is not None:
                pods.put(msgspec.structs.replace(record, growth=None))

    def is_growing(self, uid: str) -> bool:
        """Reports whether more is booked for the pod than it is known to carry."""
        record = self._state.pods.get(uid)
        return record is not None and record.growth is not None

    def are_growing(self) -> bool:
        """Reports whether any pod is growing."""
        with self._state.lock:
            self._growing = set(filter(self.is_growing, self._growing))
            return bool(self._growing)

    def _is_being_freed(self, node: str) -> bool:
        """Reports whether kube-scheduler evicts pods on *node* for one that is to get what they leave, or has done so:
        the preemptor, which promises it then, may not have seen it yet."""
        for plan in plans_under_way(self._state):
            if plan.node != node:
                continue
            if plan.units:
                return True
            with contextlib.suppress(MalformedInput):  # its next filter says why
                view = self._decisions.view_for(plan.pod)
                if dry_run.choose(view, plan.pod, [node]) is not None:
                    return True
        return False
