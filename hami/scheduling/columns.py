"""Rules over flat columns of devices: what each of thousands of devices lacks for a request, in a few array operations.

The rules are those of :mod:`hami.scheduling.fit`, for the devices as they are before the pod's first container. A rule
that needs more than columns (a list of UUIDs, a function of a vendor) is *open*: the columns say nothing about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy
from numpy.typing import NDArray

from hami.model import Reason, Request, Unfit
from hami.scheduling.fit import accepts_mode, accepts_model
from hami.scheduling.refusal import AMOUNTS, UNTOLD
from hami.vendors.request import WHOLE
from hami.vendors.spec import CoreUnit, FitContext, PartitionRule, Rule

Array = NDArray[Any]

FIELDS = (
    "vendor",
    "model",
    "mode",
    "by_claims",
    "healthy",
    "cordoned",
    "in_parts",
    "slots",
    "slots_used",
    "memory_mib",
    "memory_used_mib",
    "cores",
    "cores_used",
)
"""The columns. *vendor*, *model*, *mode* are numbers that the owner of the columns assigns; vendor 0 is no device.
*in_parts*: the device is partitioned, or pods hold partitions of it."""
(
    VENDOR,
    MODEL,
    MODE,
    BY_CLAIMS,
    HEALTHY,
    CORDONED,
    IN_PARTS,
    SLOTS,
    SLOTS_USED,
    MEMORY,
    MEMORY_USED,
    CORES,
    CORES_USED,
) = range(len(FIELDS))
_GIB = 1024  # MiB
AMOUNTS_FROM = SLOTS
"""The first of the columns with amounts: slots, memory and cores, each with its use."""

_REASONS = tuple(Reason)
_SERVES, _OTHER = (
    0,
    len(_REASONS) + 1,
)  # codes of a device that passes, and of one of another vendor
_CODE = {reason: code for code, reason in enumerate(_REASONS, 1)}
_EXCLUDED, _ABSENT = 1e300, numpy.inf
"""Distances of a device that another rule than an amount excludes, and of one that is not there."""
_OF_CODE = numpy.array([0.0, *(_EXCLUDED for _ in _REASONS), _ABSENT])
_LACKS_AMOUNTS = numpy.array([False, *(reason in AMOUNTS for reason in _REASONS), False])


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceColumns:
    """Facts of devices: *facts* has a row for each of FIELDS. *owner*: the node of each device, from 0 to *nodes* - 1.

    *vendors*, *models*, *modes*: the numbers in the columns.
    """

    facts: Array
    owner: Array
    nodes: int
    vendors: Mapping[str, int]
    models: Mapping[str, int]
    modes: Mapping[str, int]

    def of(self, context: FitContext) -> Array:
        """Returns a mask of the devices of the context's vendor."""
        return numpy.asarray(self.facts[VENDOR] == self.vendors.get(context.vendor.key, -1))


def may_serve(columns: DeviceColumns, request: Request, context: FitContext) -> Array:
    """Returns, for each node, whether it may have enough devices for *request*. False is certain."""
    passes = columns.of(context)
    for _, fails in failing(columns, request, context):
        passes &= ~fails
    enough = numpy.bincount(columns.owner[passes], minlength=columns.nodes) >= request.count
    if context.vendor.decision.allows_repeats is not None:
        repeating = passes & (columns.facts[IN_PARTS] != 0)
        enough[columns.owner[repeating]] = True
    return numpy.asarray(enough)


def firsts(owner: Array) -> Array:
    """Returns the first position of each run of equal owners."""
    begins = numpy.ones(len(owner), dtype=bool)
    numpy.not_equal(owner[1:], owner[:-1], out=begins[1:])
    return numpy.flatnonzero(begins)


def places_of(starts: Array, lengths: Array) -> tuple[Array, Array]:
    """Returns the places of runs that have these *starts* and *lengths*, and for each place the position of its run."""
    owner = numpy.repeat(numpy.arange(len(lengths)), lengths)
    before = numpy.cumsum(lengths) - lengths
    return numpy.arange(len(owner)) + (starts - before)[owner], owner


def grown(array: Array, length: int, fill: int = 0) -> Array:
    """Returns *array* with *length* rows, the new ones full of *fill*."""
    made = numpy.full((length, *array.shape[1:]), fill, dtype=array.dtype)
    made[: len(array)] = array
    return made


def idle(columns: DeviceColumns) -> DeviceColumns:
    """Returns the columns of the same devices without pods."""
    facts = columns.facts.copy()
    facts[[SLOTS_USED, MEMORY_USED, CORES_USED]] = 0
    return replace(columns, facts=facts)


def explain_nodes(
    columns: DeviceColumns, request: Request, context: FitContext
) -> tuple[list[Unfit], Array]:
    """Returns the distinct results for nodes that do not have enough devices for *request*, and which a node has.

    The second value has, for each node, the position in the list; it means nothing for nodes that may fit.
    """
    codes = _first_reasons(columns, request, context)
    width = _OTHER + 1
    counts = numpy.bincount(columns.owner * width + codes, minlength=columns.nodes * width)
    counts = counts.reshape(columns.nodes, width)[:, :_OTHER]
    which = numpy.zeros(columns.nodes, dtype=numpy.intp)
    for column in counts.T[counts.any(axis=0)]:
        which = numpy.unique(which * (int(column.max()) + 1) + column, return_inverse=True)[1]
    first = numpy.unique(which, return_index=True)[1]
    return [_unfit(row, request, context) for row in counts[first]], which


def is_open(columns: DeviceColumns, request: Request, context: FitContext) -> Array:
    """Returns, for each node, whether its reasons may differ from those that an exact evaluation gives."""
    decision = context.vendor.decision
    all_open = numpy.ones(columns.nodes, dtype=bool)
    if context.policy.numa_bind or decision.check_node is not None:
        return all_open
    by_parts = decision.allows_repeats is not None
    for rule in decision.rules:
        if isinstance(rule, PartitionRule):
            by_parts = True
        elif _fails(columns, rule, request, context) is None:
            return all_open
    partitioned = numpy.zeros(columns.nodes, dtype=bool)
    if by_parts:
        partitioned[columns.owner[columns.of(context) & (columns.facts[IN_PARTS] != 0)]] = True
    return partitioned


def distances(
    columns: DeviceColumns, request: Request, context: FitContext
) -> tuple[Array, Array, Array]:
    """Returns how far each node is from serving *request*, each field of Distance: the sum over its nearest devices, as
    many as are requested."""
    device, owner, nodes = (
        _device_distances(columns, request, context),
        columns.owner,
        columns.nodes,
    )
    if request.count == 1:
        nearest = numpy.full(nodes, _ABSENT)
        numpy.minimum.at(nearest, owner, device)
        return (
            nearest == _ABSENT,
            nearest == _EXCLUDED,
            numpy.where(nearest < _EXCLUDED, nearest, 0.0),
        )
    order = numpy.lexsort((device, owner))
    counts = numpy.bincount(owner, minlength=nodes)
    place = numpy.arange(len(order)) - numpy.repeat(numpy.cumsum(counts) - counts, counts)
    order = order[place < request.count]
    nearest, of = device[order], owner[order]
    is_amount = nearest < _EXCLUDED
    present = numpy.bincount(of[nearest != _ABSENT], minlength=nodes)
    excluded = numpy.bincount(of[nearest == _EXCLUDED], minlength=nodes)
    missing = numpy.bincount(of[is_amount], weights=nearest[is_amount], minlength=nodes)
    return request.count - present, excluded, missing


def _device_distances(columns: DeviceColumns, request: Request, context: FitContext) -> Array:
    """Returns what each device lacks: parts of the requested amounts, _EXCLUDED, or _ABSENT for another vendor's."""
    codes = _first_reasons(columns, request, context)
    device = numpy.where(
        _LACKS_AMOUNTS[codes], _missing(columns.facts, request, context), _OF_CODE[codes]
    )
    for rule in context.vendor.decision.rules:
        if isinstance(rule, PartitionRule):  # what it says is open
            device[(codes == _SERVES) & (columns.facts[IN_PARTS] != 0)] = _EXCLUDED
            break
    return device


def _missing(facts: Array, request: Request, context: FitContext) -> Array:
    """Returns the parts of the requested amounts that each device lacks, added up; UNTOLD if that is nothing."""
    memory = memory_on(facts, request)
    missing = _part(memory - facts[MEMORY] + facts[MEMORY_USED], memory)
    if (
        context.vendor.resources.core_unit is not CoreUnit.MASK
    ):  # what is free is no difference of masks
        missing += _part(
            request.device_cores - facts[CORES] + facts[CORES_USED], request.device_cores
        )
    missing += numpy.maximum(1 - facts[SLOTS] + facts[SLOTS_USED], 0)
    missing[missing == 0] = UNTOLD
    return missing


def _first_reasons(columns: DeviceColumns, request: Request, context: FitContext) -> Array:
    """Returns the code of the first rule that each device fails."""
    codes = numpy.where(columns.of(context), _SERVES, _OTHER)
    for reason, fails in failing(columns, request, context):
        codes[(codes == _SERVES) & fails] = _CODE[reason]
    return codes


def _unfit(counts: Array, request: Request, context: FitContext) -> Unfit:
    devices, serving = int(counts.sum()), int(counts[_SERVES])
    if request.count > devices:
        return Unfit.too_few_devices(devices)
    reasons = {reason: int(counts[code]) for reason, code in _CODE.items() if counts[code]}
    return Unfit.of(reasons, serving, devices)


def failing(
    columns: DeviceColumns, request: Request, context: FitContext
) -> Iterator[tuple[Reason, Array]]:
    """Yields the vendor's rules that columns tell, in their order, and which devices fail each."""
    for rule in context.vendor.decision.rules:
        if not isinstance(rule, Rule):
            continue
        fails = _fails(columns, rule, request, context)
        if fails is None or fails is False:
            continue
        yield _COLUMN_RULES[rule][0], numpy.asarray(fails)


def _fails(
    columns: DeviceColumns, rule: object, request: Request, context: FitContext
) -> Array | bool | None:
    """Returns which devices fail *rule*; False for none, ``None`` if columns do not tell."""
    if not isinstance(rule, Rule):
        return None
    return _COLUMN_RULES[rule][1](columns, request, context)


def memory_on(facts: Array, request: Request) -> Array | int:
    """Returns what `Request.memory_on` returns for each device that has no MIG profiles."""
    if request.memory_mib > 0:
        return request.memory_mib
    return numpy.asarray(facts[MEMORY] * (request.memory_percent or 0) // 100)


def _part(short: Array, requested: Array | int) -> Array:
    """Returns the missing part of what is requested; 0 if nothing is."""
    return numpy.asarray(numpy.maximum(short, 0) / numpy.maximum(requested, 1), dtype=float)


def _numbers_accepted(numbers: Mapping[str, int], accepts: Callable[[str], bool]) -> list[int]:
    return [number for text, number in numbers.items() if accepts(text)]


def _other_type(columns: DeviceColumns, request: Request, context: FitContext) -> Array | bool:
    selector = context.selector
    fails: Array | bool = False
    if (selector.use_types, selector.nouse_types) != (None, None):
        accepted = _numbers_accepted(columns.models, lambda model: accepts_model(selector, model))
        fails = numpy.isin(columns.facts[MODEL], accepted, invert=True)
    if selector.mode is not None:
        accepted = _numbers_accepted(columns.modes, lambda mode: accepts_mode(selector, mode))
        fails = numpy.asarray(fails | numpy.isin(columns.facts[MODE], accepted, invert=True))
    return fails


def _other_uuid(columns: DeviceColumns, request: Request, context: FitContext) -> bool | None:
    selector = context.selector
    if selector.use_uuids is None and selector.nouse_uuids is None:
        return False
    return None


def _over_quota(
    columns: DeviceColumns, request: Request, context: FitContext
) -> Array | bool | None:
    if context.budget.is_unlimited:
        return False
    if context.budget.covers(0, 0):
        return None
    return numpy.ones(len(columns.owner), dtype=bool)


def _lacks_memory(columns: DeviceColumns, request: Request, context: FitContext) -> Array:
    """Returns which devices have too little memory. Of a partitioned one, a whole number of GiB may be the nominal size
    of a profile whose instances have less."""
    facts = columns.facts
    short = facts[MEMORY] - facts[MEMORY_USED] < memory_on(facts, request)
    if request.memory_mib > 0 and request.memory_mib % _GIB == 0:
        short = short & (facts[IN_PARTS] == 0)
    return numpy.asarray(short)


def _lacks_cores(columns: DeviceColumns, request: Request, context: FitContext) -> Array:
    facts = columns.facts
    short = facts[CORES] - facts[CORES_USED] < request.device_cores
    return numpy.asarray(short & (facts[IN_PARTS] == 0))


def _is_full(columns: DeviceColumns, request: Request, context: FitContext) -> Array | bool:
    if request.cores:
        return False
    cores = columns.facts[CORES]
    is_full = (cores != 0) & (columns.facts[CORES_USED] == cores)
    return numpy.asarray(is_full & (columns.facts[IN_PARTS] == 0))


_ColumnRule = Callable[[DeviceColumns, Request, FitContext], "Array | bool | None"]

_COLUMN_RULES: dict[Rule, tuple[Reason, _ColumnRule]] = {
    Rule.ALLOCATION_MODE: (
        Reason.ALLOCATION_MODE,
        lambda columns, request, context: columns.facts[BY_CLAIMS] != context.by_claims,
    ),
    Rule.HEALTH: (Reason.UNHEALTHY, lambda columns, request, context: columns.facts[HEALTHY] == 0),
    Rule.CORDON: (Reason.CORDONED, lambda columns, request, context: columns.facts[CORDONED] != 0),
    Rule.TYPE: (Reason.TYPE_MISMATCH, _other_type),
    Rule.UUID: (Reason.UUID_MISMATCH, _other_uuid),
    Rule.SLOTS: (
        Reason.NO_SLOT,
        lambda columns, request, context: columns.facts[SLOTS_USED] >= columns.facts[SLOTS],
    ),
    Rule.MUTEX: (
        Reason.NOT_ALONE,
        lambda columns, request, context: context.policy.mutex and columns.facts[SLOTS_USED] > 0,
    ),
    Rule.QUOTA: (Reason.QUOTA, _over_quota),
    Rule.MEMORY: (Reason.NO_MEMORY, _lacks_memory),
    Rule.CORES: (Reason.NO_CORES, _lacks_cores),
    Rule.EXCLUSIVE: (
        Reason.NOT_ALONE,
        lambda columns, request, context: (
            request.cores >= WHOLE
            and ((columns.facts[CORES] == WHOLE) & (columns.facts[SLOTS_USED] > 0))
        ),
    ),
    Rule.FULL: (Reason.NO_CORES_LEFT, _is_full),
    Rule.UNUSED: (
        Reason.NOT_ALONE,
        lambda columns, request, context: columns.facts[SLOTS_USED] > 0,
    ),
    Rule.SAME_DEVICE: (Reason.CUSTOM_RULE, lambda columns, request, context: False),
}
