"""The watches for pods that get their cards by claims: templates and the sizes of cards, beside pods, which the
scheduler watches anyway."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import msgspec

from hami.codec.claim_templates import API, ClaimTemplate, parse_template
from hami.codec.keys import CLAIM_TEMPLATE
from hami.codec.slices import DRIVER, parse_card_sizes
from hami.dra.templates import ClaimTemplates
from hami.kube.api import Api
from hami.kube.pages import parse_meta
from hami.kube.reflector import Reflector, Sink, WatchedResource
from hami.model import Pod


@dataclass(frozen=True, slots=True)
class SliceSizes:
    """The different amounts of memory (MiB) of the cards in the ResourceSlice *name*."""

    name: str
    sizes: frozenset[int]


class CardSizes:
    """The sink of the watch of slices: which amounts of memory cards have that claims can get."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the slices; not held across I/O
        self._slices: dict[str, frozenset[int]] = {}

    def all(self) -> frozenset[int]:
        """Returns the sizes of all cards."""
        with self._lock:
            return frozenset().union(*self._slices.values())

    def upsert(self, slice: SliceSizes, as_of: float = -math.inf) -> None:
        """Takes *slice*, which exists."""
        with self._lock:
            self._slices[slice.name] = slice.sizes

    def remove(self, slice: SliceSizes) -> None:
        """Takes that *slice* was deleted."""
        with self._lock:
            self._slices.pop(slice.name, None)

    def prune(self, seen: set[str], started: float) -> None:
        """Takes that only the slices *seen* exist."""
        with self._lock:
            self._slices = {name: sizes for name, sizes in self._slices.items() if name in seen}


class PodsWithClaims:
    """A sink of pods that passes them on to another one, and to the templates of their claims."""

    def __init__(self, pods: Sink[Pod], templates: ClaimTemplates) -> None:
        self._pods = pods
        self._templates = templates

    def upsert(self, pod: Pod, as_of: float = -math.inf) -> None:
        """Takes *pod*, which exists."""
        self._pods.upsert(pod, as_of)
        self._templates.pod_seen(pod)

    def remove(self, pod: Pod) -> None:
        """Takes that *pod* was deleted."""
        self._pods.remove(pod)
        self._templates.pod_gone(pod.ref.uid)

    def prune(self, seen: set[str], started: float) -> None:
        """Takes that only the pods *seen* exist."""
        self._pods.prune(seen, started)
        self._templates.keep_only_pods(seen)


def watch_templates(api: Api, templates: ClaimTemplates) -> Reflector[ClaimTemplate]:
    """Returns the watch of our templates."""
    return Reflector(api, WatchedResource(
        name="resourceclaimtemplates", path=f"{API}/resourceclaimtemplates", parse=parse_template,
        key=lambda template: template.uid, query={"labelSelector": CLAIM_TEMPLATE}), templates)


def watch_slices(api: Api, sizes: CardSizes) -> Reflector[SliceSizes]:
    """Returns the watch of our driver's slices."""
    return Reflector(api, WatchedResource(
        name="resourceslices", path=f"{API}/resourceslices", parse=_parse_sizes, key=lambda slice: slice.name,
        query={"fieldSelector": f"spec.driver={DRIVER}"}), sizes)


def _parse_sizes(data: bytes) -> SliceSizes:
    return SliceSizes(parse_meta(msgspec.Raw(data)).name, parse_card_sizes(data))
