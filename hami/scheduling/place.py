"""Where on one node the containers of a pod go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami.model import ContainerKind, Share, DeviceUsage
from hami.scheduling.pod_request import PodRequest, ContainerRequest
from hami.scheduling.fit import Unfit, fit
from hami.scheduling.usage import charge_views, hold_partitions

__all__ = ["Placement", "Views", "place"]

Views = Mapping[str, Sequence[DeviceUsage]]
Placement = tuple[tuple[Share, ...], ...]

_Placed = dict[int, tuple[Share, ...]]


def place(views: Views, ask: PodRequest) -> Placement | Unfit:
    """Shares for each container of *ask* on the devices of one node (*views*, by vendor), init containers first.

    Sidecars and app containers run together and are placed one after the other. Each init container runs alone
    with the sidecars, so it is placed as if no app container were there; only parts of devices that it holds alone
    (``Share.partitions``) are not given to a second container.
    """
    order = [ContainerKind.SIDECAR, ContainerKind.INIT, ContainerKind.APP]
    placed: _Placed = {}
    for kind in order:
        for position, container in enumerate(ask.containers):
            if container.kind is kind:
                shares, after = _serve(views, container, ask, placed)
                if isinstance(shares, Unfit):
                    return shares
                placed[position] = shares
                views = after
    return tuple(placed[position] for position in range(len(ask.containers)))


def _serve(views: Views, container: ContainerRequest, ask: PodRequest, placed: _Placed) -> tuple[tuple[Share, ...] | Unfit, Views]:
    """The container's shares, and the node's devices with them taken."""
    so_far = tuple((ask.containers[position].kind, shares) for position, shares in placed.items())
    taken: list[Share] = []
    for request in container.requests:
        mine = views.get(request.vendor, ())
        shares = fit(request, ask.case(request.vendor, mine, container.kind, so_far))
        if isinstance(shares, Unfit):
            return shares, views
        taken.extend(shares)
        charged = hold_partitions if container.kind is ContainerKind.INIT else charge_views
        views = {**views, request.vendor: charged(mine, shares)}
    return tuple(taken), views
