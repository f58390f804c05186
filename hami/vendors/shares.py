"""What a container takes of a device that serves it: rules that vendors name in their records."""

from __future__ import annotations

from collections.abc import Sequence

from hami.model import Request, Share, View
from hami.vendors.spec import Case

__all__ = ["WHOLE", "common_share", "nothing_but_the_device"]

WHOLE = 100


def common_share(view: View, request: Request, case: Case, picks: Sequence[Share]) -> Share:
    """The memory and the cores asked for; more cores than a device has are all of them."""
    return Share(view.device.uuid, request.vendor, request.memory_on(view.device), min(request.cores, WHOLE))


def nothing_but_the_device(view: View, request: Request, case: Case, picks: Sequence[Share]) -> Share:
    """A slot, without any amounts: for vendors whose agents count devices only."""
    return Share(view.device.uuid, request.vendor, 0, 0)
