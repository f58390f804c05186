"""The annotation of a pod with what its containers request by a claim that the scheduler makes.

Admission moves these amounts here from the containers, since kubelets would look for them among the resources of device
plugins. The claim is made when the pod gets its node, so nothing else says what it will be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta

from hami.codec.documents import decode
from hami.codec.keys import CLAIM_AMOUNTS
from hami.errors import MalformedInput
from hami.model import Container

CLAIM = "hami"
"""The name of a pod's claim among its claims."""
MAX_TEXT = 16_384
"""Characters of the annotation."""
VENDOR = "NVIDIA"
"""The vendor whose devices claims give."""
MAX_RESULTS = 32
"""Requests of a claim, devices of an allocation, and containers with amounts."""
WHOLE = 100
"""Percent: all memory or cores of a card."""
MAX_EXPRESSION = 10_240
"""Bytes of a selector that the API server accepts."""
TOO_MANY = f"a claim has at most {MAX_RESULTS} GPUs"

Amounts = Mapping[str, Mapping[str, str]]
"""Amounts by container and resource, in the API server's notation."""

_Container = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")]
_Resource = Annotated[str, Meta(pattern=r"^[a-z0-9.-]{1,253}/[A-Za-z0-9._-]{1,63}\Z")]
_Quantity = Annotated[str, Meta(pattern=r"^[0-9A-Za-z.+-]{1,64}\Z")]
_OfContainer = Annotated[dict[_Resource, _Quantity], Meta(min_length=1, max_length=8)]
_AMOUNTS = msgspec.json.Decoder(
    Annotated[dict[_Container, _OfContainer], Meta(min_length=1, max_length=MAX_RESULTS)]
)
_NAME = re.compile(r"hami-[0-9a-f]{32}")


def is_claim_name(name: str) -> bool:
    """Reports whether *name* has the form of the name of a claim that the scheduler makes for one pod."""
    return _NAME.fullmatch(name) is not None


def render_claim_amounts(amounts: Amounts) -> str:
    """The annotation for *amounts*. Raises: MalformedInput if :func:`parse_claim_amounts` would not read it."""
    text = msgspec.json.encode(amounts).decode()
    parse_claim_amounts(text)
    return text


def parse_claim_amounts(text: str) -> Amounts:
    """The amounts in the annotation *text*, which anybody may have written. Raises: MalformedInput."""
    if len(text) > MAX_TEXT:
        raise MalformedInput(
            CLAIM_AMOUNTS, text, f"{len(text)} characters, expected at most {MAX_TEXT}"
        )
    return decode(
        CLAIM_AMOUNTS,
        _AMOUNTS,
        text.encode(errors="surrogatepass"),
        "amounts of resources by container",
    )


def with_amounts(containers: Sequence[Container], text: str | None) -> tuple[Container, ...]:
    """Returns *containers* with the amounts in the annotation *text* among their limits; ``None``: there is none.

    Raises: MalformedInput if it cannot be read, or names another container.
    """
    if text is None:
        raise MalformedInput(
            CLAIM_AMOUNTS, "", "missing, although the pod names a claim of the scheduler"
        )
    amounts = parse_claim_amounts(text)
    if unknown := amounts.keys() - {container.name for container in containers}:
        raise MalformedInput(
            CLAIM_AMOUNTS, min(unknown), "expected the name of a container of the pod"
        )
    result = []
    for container in containers:
        if container.name in amounts:
            limits = {**container.limits, **amounts[container.name]}
            container = replace(container, limits=limits)
        result.append(container)
    return tuple(result)
