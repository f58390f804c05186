"""The devices that a pod takes of nodes: the highest values of each node."""

import numpy
from hypothesis import given
from hypothesis.strategies import integers, lists, sampled_from, tuples

from hami.scheduling.taking import FEW, UNFIT, highest

VALUES = sampled_from([UNFIT, 0.0, 0.5, 1.0])


@given(devices=lists(tuples(integers(0, 3), VALUES), max_size=FEW), count=integers(1, 3))
def test_of_few_devices_the_same_are_highest_as_among_many(devices, count):
    devices.sort(key=lambda device: device[0])
    owner = numpy.array([device[0] for device in devices], dtype=numpy.intp)
    values = numpy.array([device[1] for device in devices], dtype=numpy.float32)
    more = numpy.full(FEW, 9)
    many = highest(
        numpy.append(values, numpy.full(FEW, UNFIT)).astype(numpy.float32),
        numpy.append(owner, more),
        count,
    )
    assert highest(values, owner, count).tolist() == many.tolist()
