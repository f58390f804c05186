"""The placement of a pod's containers on one node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from hami.model import Allocation, Budget, ContainerKind, DeviceUsage, Request, Share, Unfit
from hami.scheduling.fit import fit, may_fit
from hami.scheduling.pod_request import ORDER_OF_PLACING, PodRequest
from hami.scheduling.usage import charge_partitions, charge_shares
from hami.vendors.spec import FitContext

NodeUsage = Mapping[str, Sequence[DeviceUsage]]
"""The devices of one node by vendor, in the order of registration."""

Budgets = Mapping[str, Budget]
"""What quotas leave for the pod's namespace, by vendor; a vendor without an entry has no limit."""

NO_BUDGETS: Budgets = MappingProxyType({})


class PlacingStep(NamedTuple):
    """One container's request for the devices of one vendor, and its result.

    *position*: of the container. *context*: with the devices as they are beside the containers placed before.
    """

    position: int
    request: Request
    context: FitContext
    result: tuple[Share, ...] | Unfit


def place_pod(
    usages: NodeUsage, pod_request: PodRequest, budgets: Budgets = NO_BUDGETS
) -> Allocation | Unfit:
    """Returns the shares of each container of *pod_request* on the devices of one node, or why one does not fit."""
    placed: list[list[Share]] = [[] for _ in pod_request.containers]
    for position, _, _, result in placing_steps(usages, pod_request, budgets):
        if isinstance(result, Unfit):
            return result
        placed[position].extend(result)
    return tuple(map(tuple, placed))


def may_place(usages: NodeUsage, pod_request: PodRequest) -> bool:
    """Reports whether `place_pod` may find shares. False is certain, and costs a part of that."""
    for request in pod_request.distinct_requests:
        context = pod_request.fit_context(request.vendor, usages.get(request.vendor, ()))
        if not may_fit(request, context):
            return False
    return True


def placing_steps(
    usages: NodeUsage, pod_request: PodRequest, budgets: Budgets = NO_BUDGETS
) -> Iterator[PlacingStep]:
    """Yields the steps in which the containers are placed. The first that does not fit is the last.

    Sidecars and app containers run together, so each is placed beside the ones before it. Each init container runs
    alone with the sidecars, so it is placed as if there were no app containers; only partitions
    (``Share.partitions``) are not given to a second container.
    """
    placed: tuple[tuple[ContainerKind, tuple[Share, ...]], ...] = ()
    for kind in ORDER_OF_PLACING:
        charge = charge_partitions if kind is ContainerKind.INIT else charge_shares
        for position, container in enumerate(pod_request.containers):
            if container.kind is not kind:
                continue
            taken: tuple[Share, ...] = ()
            for request in container.requests:
                devices = usages.get(request.vendor, ())
                context = pod_request.fit_context(
                    request.vendor, devices, kind, placed, budgets.get(request.vendor, Budget())
                )
                result = fit(request, context)
                yield PlacingStep(position, request, context, result)
                if isinstance(result, Unfit):
                    return
                taken += result
                usages = {**usages, request.vendor: charge(devices, result)}
            placed += ((kind, taken),)
