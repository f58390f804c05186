"""The states of devices, and what pods take of them.

Most devices of a cluster are alike: they are idle, or hold what the usual pods request. What depends on nothing but the
facts of a device is computed once for all devices in one state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy
from numpy.typing import NDArray

from hami.model import Request
from hami.scheduling.columns import FIELDS, DeviceColumns, grown
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.room import UsualPods, device_room, f32, sums_by_node
from hami.scheduling.taking import charged, device_values, highest
from hami.scheduling.usual_pods import running_requests

Array = NDArray[Any]

_STATE = f"V{8 * len(FIELDS)}"  # the facts of one device, as bytes
_UNKNOWN = -1


class DeviceStates:
    """Gives a number to each state of devices. *like*: columns with the numbers of vendors, models and modes, which
    must stay. *pods*: the usual pods."""

    def __init__(self, like: DeviceColumns, pods: UsualPods) -> None:
        self._like = like
        self._pods = pods
        self._numbers: dict[bytes, int] = {}
        self._facts = numpy.zeros((0, len(FIELDS)), dtype=numpy.int64)
        self.room = numpy.zeros((0, len(pods)), dtype=f32)
        """The `device_room` of a device in each state, for each of the usual pods."""

    def __len__(self) -> int:
        return len(self._numbers)

    def of(self, facts: Array) -> Array:
        """Returns the number of the state of each device with these *facts*."""
        numbers, known = self._numbers, len(self._numbers)
        keys = numpy.ascontiguousarray(facts.T).view(_STATE)[:, 0].tolist()
        states = numpy.array([numbers.setdefault(key, len(numbers)) for key in keys], numpy.intp)
        if len(numbers) > known:
            new, places = numpy.unique(states, return_index=True)
            self._add(facts[:, places[new >= known]], known)
        return states

    def columns(self, states: Array | slice) -> DeviceColumns:
        """Returns the columns of one device in each of *states*."""
        facts = self._facts[states].T
        count = facts.shape[1]
        return replace(self._like, facts=facts, owner=numpy.arange(count), nodes=count)

    def _add(self, facts: Array, first: int) -> None:
        """Sets the *facts* of the states from *first* on."""
        after = first + facts.shape[1]
        if after > len(self._facts):
            self._facts = grown(self._facts, 2 * after)
            self.room = grown(self.room, 2 * after)
        self._facts[first:after] = facts.T
        self.room[first:after] = device_room(facts, self._pods)


class DevicesTaken:
    """The devices that pods which make *request* take, by their *states*. Init containers are no part of it."""

    def __init__(self, states: DeviceStates, request: PodRequest) -> None:
        self._states = states
        self._steps = [_Step(states, step, request) for step in running_requests(request)]

    def room(self, devices: Array, owner: Array) -> tuple[Array, Array]:
        """Returns the nodes of which the pod takes devices, and how much less room for each of the usual pods these
        have then. *devices*: their states, side by side for each *owner*."""
        after = devices.copy()
        for step in self._steps:
            step.take(after, owner)
        taken = numpy.flatnonzero(after != devices)
        room = self._states.room
        return sums_by_node(room[devices[taken]] - room[after[taken]], owner[taken])


class _Step:
    """The devices that one of the requests of a pod takes: their value by the policy, and their state after that."""

    def __init__(self, states: DeviceStates, step: Request, request: PodRequest) -> None:
        self._states = states
        self._step = step
        self._request = request
        self._known = 0
        self._values = numpy.zeros(0, dtype=f32)
        self._after = numpy.zeros(0, dtype=numpy.intp)

    def take(self, devices: Array, owner: Array) -> None:
        """Changes the states of those *devices* that a pod gets on each node."""
        self._learn()
        taken = highest(self._values[devices], owner, self._step.count)
        before = devices[taken]
        after = self._after[before]
        unknown = before[after == _UNKNOWN]
        if len(unknown):
            unknown = numpy.unique(unknown)
            facts = self._states.columns(unknown).facts
            self._after[unknown] = self._states.of(charged(facts, self._step))
            after = self._after[before]
        devices[taken] = after

    def _learn(self) -> None:
        """Judges the states that are new."""
        first, after = self._known, len(self._states)
        if first == after:
            return
        if after > len(self._values):
            self._values = grown(self._values, 2 * after)
            self._after = grown(self._after, 2 * after, fill=_UNKNOWN)
        new = self._states.columns(slice(first, after))
        self._values[first:after] = device_values(new, self._step, self._request)
        self._known = after
