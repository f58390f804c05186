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
FEW = 32  # devices of which the states after a pod has got them are kept


class DeviceStates:
    """Gives a number to each state of devices. *like*: columns with the numbers of vendors, models and modes, which
    must stay. *pods*: the usual pods."""

    def __init__(self, like: DeviceColumns, pods: UsualPods) -> None:
        self._like = like
        self._pods = pods
        self._numbers: dict[bytes, int] = {}
        self._facts = numpy.zeros((len(FIELDS), 0), dtype=numpy.int64)
        self.room = numpy.zeros((0, len(pods.needs)), dtype=f32)
        """The `device_room` of a device in each state, for each need of the usual pods."""

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
        facts = self._facts[:, states]
        count = facts.shape[1]
        return replace(self._like, facts=facts, owner=numpy.arange(count), nodes=count)

    def room_of(self, facts: Array) -> Array:
        """Returns the `device_room` of devices with these *facts*, for each need of the usual pods."""
        return device_room(facts, self._pods)

    def _add(self, facts: Array, first: int) -> None:
        """Sets the *facts* of the states from *first* on."""
        after = first + facts.shape[1]
        if after > len(self.room):
            self._facts = numpy.ascontiguousarray(grown(self._facts.T, 2 * after).T)
            self.room = grown(self.room, 2 * after)
        self._facts[:, first:after] = facts
        self.room[first:after] = self.room_of(facts)


class DevicesTaken:
    """The devices that pods which make *request* take, by their *states*. Init containers are no part of it."""

    def __init__(self, states: DeviceStates, request: PodRequest) -> None:
        self._states = states
        self._steps = [_Step(states, step, request) for step in running_requests(request)]

    @property
    def nbytes(self) -> int:
        """The bytes of memory that this takes."""
        return sum([step.nbytes for step in self._steps])

    def room(self, devices: Array, owner: Array) -> tuple[Array, Array]:
        """Returns the nodes of which the pod takes devices, and how much less room for each need of the usual pods
        these have then. *devices*: their states, side by side for each *owner*."""
        if len(self._steps) == 1:
            taken = self._steps[0].taken(devices, owner)
            return sums_by_node(self._steps[0].less(devices[taken]), owner[taken])
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

    @property
    def nbytes(self) -> int:
        """The bytes of memory that this takes."""
        return self._values.nbytes + self._after.nbytes

    def taken(self, devices: Array, owner: Array) -> Array:
        """Returns the positions of those *devices* that a pod gets on each node."""
        self._learn()
        return highest(self._values[devices], owner, self._step.count)

    def take(self, devices: Array, owner: Array) -> None:
        """Changes the states of those *devices* that a pod gets on each node."""
        taken = self.taken(devices, owner)
        before = devices[taken]
        self._charge(self._unknown(before))
        devices[taken] = self._after[before]

    def less(self, devices: Array) -> Array:
        """Returns how much less room for each need of the usual pods each of *devices* has after a pod has got it. Of
        many that are unlike, the states after that are not kept: few of them ever come."""
        states = self._states
        unknown = self._unknown(devices)
        if len(unknown) > FEW:
            facts = charged(states.columns(devices).facts, self._step)
            return numpy.asarray(states.room[devices] - states.room_of(facts))
        self._charge(unknown)
        return numpy.asarray(states.room[devices] - states.room[self._after[devices]])

    def _unknown(self, devices: Array) -> Array:
        """Returns those of *devices* of which the state is not known after a pod has got them."""
        unknown = devices[self._after[devices] == _UNKNOWN]
        return numpy.unique(unknown) if len(unknown) > 1 else unknown

    def _charge(self, devices: Array) -> None:
        """Finds the states of *devices* after a pod has got them."""
        if len(devices):
            facts = self._states.columns(devices).facts
            self._after[devices] = self._states.of(charged(facts, self._step))

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
