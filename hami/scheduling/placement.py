"""The placement of a pod's containers on one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hami.model import Allocation, ContainerKind, DeviceUsage, Request, Share
from hami.scheduling.fit import Unfit, fit
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.usage import charge_partitions, charge_shares
from hami.vendors.spec import FitContext

NodeUsage = Mapping[str, Sequence[DeviceUsage]]
"""The devices of one node by vendor, in the order of registration."""

Placement = Allocation

OnRefusal = Callable[[int, Request, FitContext], None]


def _ignore(position: int, request: Request, context: FitContext) -> None:
    """Takes note of nothing: `place_pod` returns the reasons, which is enough for a decision."""


def place_pod(usages: NodeUsage, pod_request: PodRequest, on_refusal: OnRefusal = _ignore) -> Placement | Unfit:
    """Returns the shares of each container of *pod_request* on the devices of one node, or why one does not fit.

    *on_refusal* is called with what does not fit: the position of the container, its request, and the devices as
    they are beside the containers that were placed before.

    Sidecars and app containers run together, so each is placed beside the ones before it. Each init container runs
    alone with the sidecars, so it is placed as if there were no app containers; only partitions
    (``Share.partitions``) are not given to a second container.
    """
    placed: dict[int, tuple[Share, ...]] = {}
    for kind in (ContainerKind.SIDECAR, ContainerKind.INIT, ContainerKind.APP):
        charge = charge_partitions if kind is ContainerKind.INIT else charge_shares
        for position, container in enumerate(pod_request.containers):
            if container.kind is not kind:
                continue
            so_far = tuple((pod_request.containers[earlier].kind, shares) for earlier, shares in placed.items())
            taken: list[Share] = []
            for request in container.requests:
                devices = usages.get(request.vendor, ())
                context = pod_request.fit_context(request.vendor, devices, kind, so_far)
                shares = fit(request, context)
                if isinstance(shares, Unfit):
                    on_refusal(position, request, context)
                    return shares
                taken.extend(shares)
                usages = {**usages, request.vendor: charge(devices, shares)}
            placed[position] = tuple(taken)
    return tuple(placed[position] for position in range(len(pod_request.containers)))
