"""The calls to the API server about Dynamic Resource Allocation (resource.k8s.io/v1). Tests replace it with a fake."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from hami.codec.claims import AllocatedClaim, parse_claim
from hami.codec.documents import decode
from hami.codec.hami_claims import StoredClaim, parse_stored_claim
from hami.codec.slices import API, DRIVER
from hami.errors import NotFound
from hami.kube.api import Api, is_unsent
from hami.kube.calls import is_read_retriable
from hami.kube.pages import ObjectMeta, parse_meta, read_pages
from hami.kube.reflector import Reflector, Sink, WatchedResource
from hami.kube.retry import brief_retry

_SLICES = f"{API}/resourceslices"
_DOCUMENT = msgspec.json.Decoder(dict[str, Any])


class DynamicResources:
    """Claims of all namespaces, and our driver's slices of one node; threads may share it. Every call raises a
    ClusterError if the server refuses."""

    def __init__(self, api: Api, node: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """*sleep* waits between attempts."""
        self._api = api
        self._query = {"fieldSelector": f"spec.nodeName={node},spec.driver={DRIVER}"}
        self._read = brief_retry(is_read_retriable, sleep).wraps(api.request)
        self._write = brief_retry(is_unsent, sleep).wraps(api.request)

    def claim(self, namespace: str, name: str) -> AllocatedClaim | None:
        """Returns the current claim; ``None`` if there is none. Raises also: MalformedInput."""
        try:
            return parse_claim(self._read("GET", _claim_path(namespace, name)))
        except NotFound:
            return None

    def slices(self) -> list[dict[str, Any]]:
        """Returns the slices (JSON). Raises also: MalformedInput."""
        documents = []
        for page in read_pages(self._read, "resourceslices", _SLICES, self._query):
            for raw in page.items:
                documents.append(decode("resourceslice", _DOCUMENT, raw))
        return documents

    def write_slice(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Replaces the slice if its version is still that of *document*, or creates it if *document* has none. Returns
        it as stored.

        Raises: Conflict if it has changed or been created since, NotFound if it is gone; MalformedInput.
        """
        meta, body = document["metadata"], msgspec.json.encode(document)
        if "resourceVersion" in meta:
            stored = self._write("PUT", f"{_SLICES}/{meta['name']}", body=body)
        else:
            stored = self._write("POST", _SLICES, body=body)
        return decode("resourceslice", _DOCUMENT, stored)

    def delete_slice(self, name: str) -> None:
        """Deletes a slice. Raises: NotFound."""
        self._write("DELETE", f"{_SLICES}/{name}")

    def watch(self, sink: Sink[ObjectMeta]) -> Reflector[ObjectMeta]:
        """Returns the watch of the slices, which passes on their metadata."""
        return Reflector(
            self._api,
            WatchedResource(
                name="resourceslices",
                path=_SLICES,
                parse=lambda data: parse_meta(msgspec.Raw(data)),
                key=lambda meta: meta.key,
                query=self._query,
            ),
            sink,
            resumes=True,
        )


class ClaimWriter:
    """Claims that the scheduler makes, and templates in place of which it makes them; threads may share it.

    Every call is one attempt, which waits for the server for *timeout* seconds at most. It raises a ClusterError if the
    server refuses. An error without a status means that a write may have taken effect.
    """

    def __init__(self, api: Api) -> None:
        self._api = api

    def create_claim(self, claim: Mapping[str, Any], *, timeout: float) -> StoredClaim:
        """Creates a claim and returns it as stored. Raises: Conflict if its name exists, NotFound if the namespace does
        not; MalformedInput."""
        return parse_stored_claim(
            self._api.request(
                "POST",
                _claim_path(claim["metadata"]["namespace"]),
                body=msgspec.json.encode(claim),
                timeout=timeout,
            )
        )

    def stored_claim(self, namespace: str, name: str, *, timeout: float) -> StoredClaim | None:
        """Returns the current claim; ``None`` if there is none. Raises also: MalformedInput."""
        try:
            return parse_stored_claim(
                self._api.request("GET", _claim_path(namespace, name), timeout=timeout)
            )
        except NotFound:
            return None

    def template(self, namespace: str, name: str, *, timeout: float) -> dict[str, Any] | None:
        """Returns a ResourceClaimTemplate as JSON; ``None`` if there is none. Raises also: MalformedInput."""
        path = f"{API}/namespaces/{quote(namespace, safe='')}/resourceclaimtemplates/{quote(name, safe='')}"
        try:
            return decode(
                "resourceclaimtemplate", _DOCUMENT, self._api.request("GET", path, timeout=timeout)
            )
        except NotFound:
            return None

    def write_claim_status(self, claim: Mapping[str, Any], *, timeout: float) -> StoredClaim:
        """Replaces the status of a claim if its version is still that of *claim*. Returns it as stored.

        Raises: Conflict if it has changed or is another one now, NotFound if it is gone; MalformedInput.
        """
        meta = claim["metadata"]
        return parse_stored_claim(
            self._api.request(
                "PUT",
                f"{_claim_path(meta['namespace'], meta['name'])}/status",
                body=msgspec.json.encode(claim),
                timeout=timeout,
            )
        )


def _claim_path(namespace: str, name: str | None = None) -> str:
    claims = f"{API}/namespaces/{quote(namespace, safe='')}/resourceclaims"
    if name is None:
        return claims
    return f"{claims}/{quote(name, safe='')}"
