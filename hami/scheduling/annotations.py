"""The pod annotations that carry an allocation to the node agent and to later readers."""

from __future__ import annotations

from dataclasses import replace

from hami.codec.allocation import render_shares
from hami.vendors.spec import AnnotationContext, Vendor


def render_vendor_annotations(vendor: Vendor, context: AnnotationContext) -> dict[str, str]:
    """Returns the pod annotations for *vendor*: the allocation, and whatever else its node agent reads."""
    shares, keys = context.shares, vendor.annotations
    if keys.writes_model:
        shares = tuple(tuple(replace(share, type=context.devices[share.uuid].model) for share in container)
                       for container in shares)
    text = render_shares(shares)
    annotations = {key: text for key in (keys.to_allocate, keys.allocated) if key}
    return annotations | dict(keys.annotate(vendor, context) if keys.annotate is not None else {})
