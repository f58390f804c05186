"""The watches of what pods get by claims that others allocate: slices and claims."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import msgspec

from hami.codec.claims import AllocatedClaim, parse_claim
from hami.codec.slices import API, DRIVER, PublishedSlice, parse_slice
from hami.kube.api import Api
from hami.kube.pages import parse_meta
from hami.kube.reflector import Reflector, WatchedResource
from hami.state.claims import ClaimCache

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Seen(Generic[T]):
    """An object and its key in a list."""

    key: str
    value: T


class _Sink(Generic[T]):
    """A sink that passes objects on by their keys: ``None`` for one that is gone, and the keys of all at the end of a
    list."""

    def __init__(
        self, put: Callable[[str, T | None], None], keep_only: Callable[[set[str]], None]
    ) -> None:
        self._put = put
        self._keep_only = keep_only

    def upsert(self, seen: _Seen[T], as_of: float = -math.inf) -> None:
        """Takes an object that exists."""
        self._put(seen.key, seen.value)

    def remove(self, seen: _Seen[T]) -> None:
        """Takes that an object was deleted."""
        self._put(seen.key, None)

    def prune(self, seen: set[str], started: float) -> None:
        """Takes that only the objects *seen* exist."""
        self._keep_only(seen)


def watch_devices(
    api: Api, cache: ClaimCache
) -> tuple[Reflector[_Seen[PublishedSlice | None]], Reflector[_Seen[AllocatedClaim]]]:
    """Returns the watches of our driver's slices, and of claims, which fill *cache*."""
    return (
        Reflector(
            api,
            WatchedResource(
                name="resourceslices",
                path=f"{API}/resourceslices",
                parse=partial(_seen, parse_slice),
                key=lambda seen: seen.key,
                query={"fieldSelector": f"spec.driver={DRIVER}"},
            ),
            _Sink(cache.set_slice, cache.keep_slices),
        ),
        Reflector(
            api,
            WatchedResource(
                name="resourceclaims",
                path=f"{API}/resourceclaims",
                parse=partial(_seen, parse_claim),
                key=lambda seen: seen.key,
            ),
            _Sink(cache.set_claim, cache.keep_claims),
        ),
    )


def _seen(parse: Callable[[bytes], T], data: bytes) -> _Seen[T]:
    return _Seen(parse_meta(msgspec.Raw(data)).key, parse(data))
