"""Taints of nodes, and what pods tolerate of them."""

from __future__ import annotations

import functools

import msgspec

from hami.errors import MalformedInput
from hami.model import Taint, Toleration

KEEPS_AWAY = ("NoSchedule", "NoExecute")
"""Effects because of which kube-scheduler does not offer a node."""


class _Toleration(msgspec.Struct, gc=False, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


_TOLERATIONS = msgspec.json.Decoder(tuple[_Toleration, ...] | None)


@functools.lru_cache(maxsize=256)  # most pods have those that the API server adds
def parse_tolerations(text: bytes) -> tuple[Toleration, ...]:
    """Returns the tolerations in *text*, JSON; none if it is empty. Raises: MalformedInput."""
    if not text:
        return ()
    try:
        wire = _TOLERATIONS.decode(text) or ()
    except (msgspec.MsgspecError, RecursionError) as error:
        raise MalformedInput(
            "tolerations", "", str(error), message=f"tolerations of a pod: {error}"
        ) from error
    tolerations: list[Toleration] = []
    for item in wire:
        if item.effect in ("", *KEEPS_AWAY):
            tolerations.append(Toleration(item.key, item.operator, item.value, item.effect))
    return tuple(tolerations)


def keeping_away(taints: tuple[Taint, ...]) -> tuple[Taint, ...]:
    """Returns those of *taints* that keep pods away from their node."""
    return tuple([taint for taint in taints if taint.effect in KEEPS_AWAY])
