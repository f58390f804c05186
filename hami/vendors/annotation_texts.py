"""Texts of the annotations that a vendor's node agent reads beside the allocation. Vendor records map keys to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hami.vendors.spec import AnnotationContext, Vendor

Texts = Mapping[str, Callable[[Vendor, AnnotationContext], str]]


def annotate(vendor: Vendor, context: AnnotationContext, *, texts: Texts) -> Mapping[str, str]:
    """Renders the annotations *texts*."""
    return {key: text(vendor, context) for key, text in texts.items()}


def last_indexes(vendor: Vendor, context: AnnotationContext) -> str:
    """The indexes of the devices of the last container that has any: ``7,6``."""
    shares = next(shares for shares in reversed(context.shares) if shares)
    return ",".join(str(context.devices[share.uuid].index) for share in shares)


def first_profile(vendor: Vendor, context: AnnotationContext) -> str:
    """The first device of the first container that has any: ``<index>_<cores>_<memory in the vendor's unit>``."""
    share = next(share for shares in context.shares for share in shares)
    return f"{context.devices[share.uuid].index}_{share.cores}_{share.memory_mib // vendor.resources.memory_factor}"
