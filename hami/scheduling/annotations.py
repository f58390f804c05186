"""The annotations that tell a node's agent, and every later reader, what a pod was given."""

from __future__ import annotations

from dataclasses import replace

from hami.codec.allocation import render_shares
from hami.vendors.spec import AnnotationContext, Vendor

__all__ = ["written"]


def written(vendor: Vendor, emission: AnnotationContext) -> dict[str, str]:
    """What is written on the pod for *vendor*: the allocation under its keys, and what else its agent reads."""
    shares = emission.shares
    if vendor.writes_model:
        shares = tuple(tuple(replace(share, type=emission.devices[share.uuid].model) for share in mine)
                       for mine in shares)
    text = render_shares(shares)
    keys = {key: text for key in (vendor.to_allocate, vendor.allocated) if key}
    return keys | dict(vendor.annotate(vendor, emission) if vendor.annotate is not None else {})
