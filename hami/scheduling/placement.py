"""The placement of a pod's containers on one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami.model import Allocation, ContainerKind, DeviceUsage, Share
from hami.scheduling.fit import Unfit, fit
from hami.scheduling.pod_request import ContainerRequest, PodRequest
from hami.scheduling.usage import charge_partitions, charge_shares

__all__ = ["NodeUsage", "Placement", "place_pod"]

NodeUsage = Mapping[str, Sequence[DeviceUsage]]
"""The devices of one node by vendor, in the order of registration."""

Placement = Allocation

_Placed = dict[int, tuple[Share, ...]]


def place_pod(usages: NodeUsage, pod_request: PodRequest) -> Placement | Unfit:
    """Returns the shares of each container of *pod_request* on the devices of one node, or why one does not fit.

    Sidecars and app containers run together, so each is placed beside the ones before it. Each init container runs
    alone with the sidecars, so it is placed as if there were no app containers; only partitions
    (``Share.partitions``) are not given to a second container.
    """
    placed: _Placed = {}
    for kind in (ContainerKind.SIDECAR, ContainerKind.INIT, ContainerKind.APP):
        for position, container in enumerate(pod_request.containers):
            if container.kind is kind:
                shares, usages = _place_container(usages, container, pod_request, placed)
                if isinstance(shares, Unfit):
                    return shares
                placed[position] = shares
    return tuple(placed[position] for position in range(len(pod_request.containers)))


def _place_container(usages: NodeUsage, container: ContainerRequest, pod_request: PodRequest,
                     placed: _Placed) -> tuple[tuple[Share, ...] | Unfit, NodeUsage]:
    """Returns the container's shares, and the node's devices with these shares taken."""
    so_far = tuple((pod_request.containers[position].kind, shares) for position, shares in placed.items())
    charge = charge_partitions if container.kind is ContainerKind.INIT else charge_shares
    taken: list[Share] = []
    for request in container.requests:
        devices = usages.get(request.vendor, ())
        shares = fit(request, pod_request.fit_context(request.vendor, devices, container.kind, so_far))
        if isinstance(shares, Unfit):
            return shares, usages
        taken.extend(shares)
        usages = {**usages, request.vendor: charge(devices, shares)}
    return tuple(taken), usages
