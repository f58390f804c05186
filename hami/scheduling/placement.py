"""The placement of a pod's containers on one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami.model import Allocation, ContainerKind, DeviceUsage, Share
from hami.scheduling.fit import Unfit, fit
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.usage import charge_partitions, charge_shares

NodeUsage = Mapping[str, Sequence[DeviceUsage]]
"""The devices of one node by vendor, in the order of registration."""

Placement = Allocation


def place_pod(usages: NodeUsage, pod_request: PodRequest) -> Placement | Unfit:
    """Returns the shares of each container of *pod_request* on the devices of one node, or why one does not fit.

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
                shares = fit(request, pod_request.fit_context(request.vendor, devices, kind, so_far))
                if isinstance(shares, Unfit):
                    return shares
                taken.extend(shares)
                usages = {**usages, request.vendor: charge(devices, shares)}
            placed[position] = tuple(taken)
    return tuple(placed[position] for position in range(len(pod_request.containers)))
