"""Taints of nodes, and what pods tolerate of them."""

from __future__ import annotations

import functools

import msgspec

from hami.errors import MalformedInput
from hami.model import Taint, Toleration

KEEPS_AWAY = ("NoSchedule", "NoExecute")
"""Effects because of which kube-scheduler does not offer a node."""

MAX_BYTES = 16 << 10
"""Of the tolerations of a pod that are kept. Those of others, some hundred, would only matter for a replay."""


class _Toleration(msgspec.Struct, gc=False, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


_TOLERATIONS = msgspec.json.Decoder(tuple[_Toleration, ...] | None)


def parse_tolerations(text: bytes) -> tuple[Toleration, ...]:
    """Returns the tolerations in *text*, JSON; none if it is empty or larger than MAX_BYTES. Raises: MalformedInput."""
    if not 0 < len(text) <= MAX_BYTES:
        return ()
    return _parsed(text)


@functools.lru_cache(maxsize=256)  # most pods have those that the API server adds
def _parsed(text: bytes) -> tuple[Toleration, ...]:
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
