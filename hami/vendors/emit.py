"""Annotations that a vendor's agent reads beside the allocation: a record names them, each with what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hami.vendors.spec import Annotate, AnnotationContext, Vendor

__all__ = ["Says", "always", "first_profile", "last_indexes", "nanoseconds", "node", "texts"]

Says = Callable[[Vendor, AnnotationContext], str]


def texts(says: Mapping[str, Says]) -> Annotate:
    """Annotations with these keys."""

    def annotate(vendor: Vendor, emission: AnnotationContext) -> Mapping[str, str]:
        return {key: text(vendor, emission) for key, text in says.items()}
    return annotate


def always(text: str) -> Says:
    """The same for every pod."""
    return lambda vendor, emission: text


def node(vendor: Vendor, emission: AnnotationContext) -> str:
    """The name of the pod's node."""
    return emission.node


def nanoseconds(vendor: Vendor, emission: AnnotationContext) -> str:
    """The Unix time in nanoseconds."""
    return emission.nanoseconds


def last_indexes(vendor: Vendor, emission: AnnotationContext) -> str:
    """Where on the node the devices of the last container that has any stand: ``7,6``."""
    shares = next(shares for shares in reversed(emission.shares) if shares)
    return ",".join(str(emission.devices[share.uuid].index) for share in shares)


def first_profile(vendor: Vendor, emission: AnnotationContext) -> str:
    """The first device of the first container that has any: ``<index>_<cores>_<memory in the vendor's unit>``."""
    share = next(share for shares in emission.shares for share in shares)
    return f"{emission.devices[share.uuid].index}_{share.cores}_{share.memory_mib // vendor.memory_factor}"
