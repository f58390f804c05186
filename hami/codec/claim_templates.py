"""The ResourceClaimTemplate of a pod that keeps its text, and the annotation from which it follows.

The webhook writes nothing. It leaves on the pod, in an annotation, what the containers ask for, and lets the pod name a
template; the leader makes that template. Anybody may write such an annotation, so it is no template: it can only say
what the webhook could have said, and the name of its template is a hash of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hami.codec.claim_amounts import MAX_EXPRESSION, MAX_RESULTS, VENDOR
from hami.codec.claims import MAX_SIZES, WHOLE, Inexpressible, render_claim_spec
from hami.codec.documents import convert, decode, places_in
from hami.codec.keys import CLAIM_REQUEST, CLAIM_TEMPLATE
from hami.codec.objects import Metadata
from hami.errors import MalformedInput
from hami.model import DevicePolicy, Request, Selector
from hami.quantity import INT32_MAX

MAX_TEXT = 24_576
"""Characters of the annotation: four lists of 64 types or UUIDs, each as long as it may be."""
MAX_SPEC = 1_000_000
"""Bytes of a claim as JSON: etcd takes objects of 1.5 MiB, and what is allocated is added."""
_PREFIX, _HASHED = "hami-", 20  # hexadecimal digits

_Names = tuple[Annotated[str, Meta(max_length=64)], ...] | None
_Positive = Annotated[int, Meta(ge=1, le=INT32_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """A pod's request for a claim. *requests*: by the name that the request in the claim gets. *numa_bind*: all
    cards of a request on one NUMA node. *card_sizes*: MiB, for requests in percent; empty if there are none."""

    requests: Mapping[str, Request]
    selector: Selector = Selector()
    numa_bind: bool = False
    card_sizes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ClaimTemplate:
    """A ResourceClaimTemplate of ours on the API server."""

    namespace: str
    name: str
    uid: str


class _Request(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    name: Annotated[
        str,
        Meta(
            pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z", description="the name of a container"
        ),
    ]
    count: Annotated[int, Meta(ge=1, le=MAX_RESULTS)]
    memory: _Positive | None = None
    percent: Annotated[int, Meta(ge=1, le=WHOLE)] | None = None
    cores: Annotated[int, Meta(ge=0, le=WHOLE)] = 0


class _Text(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    requests: Annotated[list[_Request], Meta(min_length=1, max_length=MAX_RESULTS)]
    use_types: _Names = None
    nouse_types: _Names = None
    use_uuids: _Names = None
    nouse_uuids: _Names = None
    mode: Annotated[str, Meta(max_length=64)] | None = None
    numa_bind: bool = False
    card_sizes: Annotated[list[_Positive], Meta(max_length=MAX_SIZES)] = []


class _Template(msgspec.Struct):
    metadata: Metadata


_TEXT = msgspec.json.Decoder(dict[str, Any])
_TEMPLATE = msgspec.json.Decoder(_Template)


def render_claim_request(claim: ClaimRequest) -> str:
    """The text of *claim*, always the same for the same one."""
    selector = claim.selector
    return msgspec.json.encode(
        _Text(
            requests=[
                _Request(
                    name,
                    request.count,
                    request.memory_mib or None,
                    request.memory_percent if request.memory_mib == 0 else None,
                    request.device_cores,
                )
                for name, request in claim.requests.items()
            ],
            use_types=selector.use_types,
            nouse_types=selector.nouse_types,
            use_uuids=selector.use_uuids,
            nouse_uuids=selector.nouse_uuids,
            mode=selector.mode,
            numa_bind=claim.numa_bind,
            card_sizes=sorted(claim.card_sizes),
        )
    ).decode()


def parse_claim_request(text: str) -> ClaimRequest:
    """The claim in the annotation *text*, which anybody may have written. Raises: MalformedInput."""
    if len(text) > MAX_TEXT:
        raise MalformedInput(CLAIM_REQUEST, text, f"expected at most {MAX_TEXT} characters")
    wire = convert(
        decode(CLAIM_REQUEST, _TEXT, text.encode(errors="surrogatepass")),
        _Text,
        places_in(CLAIM_REQUEST),
    )
    requests = {
        request.name: Request(
            vendor=VENDOR,
            count=request.count,
            memory_mib=request.memory or 0,
            memory_percent=request.percent,
            cores=request.cores,
        )
        for request in wire.requests
    }
    if len(requests) < len(wire.requests):
        raise MalformedInput(CLAIM_REQUEST, text, "expected a different name for each request")
    selector = Selector(
        use_types=wire.use_types,
        nouse_types=wire.nouse_types,
        use_uuids=wire.use_uuids,
        nouse_uuids=wire.nouse_uuids,
        mode=wire.mode,
    )
    return ClaimRequest(
        requests=requests,
        selector=selector,
        numa_bind=wire.numa_bind,
        card_sizes=frozenset(wire.card_sizes),
    )


def template_name(text: str) -> str:
    """The name of the template for the annotation *text*."""
    return _PREFIX + hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_HASHED]


def is_template_name(name: str) -> bool:
    """Reports whether *name* has the form of a name of ours."""
    return name.startswith(_PREFIX) and len(name) == len(_PREFIX) + _HASHED


def render_template(text: str) -> dict[str, Any]:
    """The template for the annotation *text*. Raises: MalformedInput."""
    spec = claim_spec(parse_claim_request(text))
    if isinstance(spec, Inexpressible):
        raise MalformedInput(CLAIM_REQUEST, text, spec.reason)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": template_name(text), "labels": {CLAIM_TEMPLATE: "true"}},
        "spec": {"spec": spec},
    }


def claim_spec(
    claim: ClaimRequest, policy: DevicePolicy | None = None
) -> dict[str, Any] | Inexpressible:
    """Returns the ``spec`` of *claim*, or why the API server would not accept it.

    *policy*: of its pod, if the claim has to say all of it.
    """
    policy = policy or DevicePolicy((), numa_bind=claim.numa_bind)
    spec = render_claim_spec(claim.requests, claim.selector, policy, claim.card_sizes)
    if isinstance(spec, Inexpressible):
        return spec
    parts = [
        part
        for request in spec["devices"]["requests"]
        for part in request.get("firstAvailable") or (request["exactly"],)
    ]
    longest = max(
        (
            len(selector["cel"]["expression"].encode())
            for part in parts
            for selector in part.get("selectors", ())
        ),
        default=0,
    )
    if longest > MAX_EXPRESSION:
        return Inexpressible(
            f"the types or UUIDs need an expression of {longest} bytes, and a claim has at most "
            f"{MAX_EXPRESSION}"
        )
    if (size := len(msgspec.json.encode(spec))) > MAX_SPEC:
        return Inexpressible(
            f"the lists of types and UUIDs, which each of {len(parts)} alternatives of requests repeats, make a claim "
            f"of {size} bytes, and one has at most {MAX_SPEC}"
        )
    return spec


def parse_template(data: bytes | msgspec.Raw) -> ClaimTemplate:
    """The template in *data* (JSON). Raises: MalformedInput."""
    meta = decode("resourceclaimtemplate", _TEMPLATE, data).metadata
    return ClaimTemplate(meta.namespace or "", meta.name or "", meta.uid or "")
