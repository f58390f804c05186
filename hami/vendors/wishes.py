"""Warnings for the author of a pod: what looks like a wish for devices and is none, or cannot come true.

A warning never refuses a pod: what it is about may become true, such as when a group of nodes grows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from hami.codec.forms import nearest
from hami.codec.keys import is_scheduler_owned
from hami.model import Container, Pod
from hami.quantity import MIB
from hami.vendors.request import WHOLE, device_request
from hami.vendors.resources import CoreUnit, Resources
from hami.vendors.spec import Catalog, Vendor
from hami.vendors.terms import Author, Place
from hami.vendors.vocabulary import Vocabulary

__all__ = [
    "MOST",
    "OTHER_PLUGINS",
    "OWN_DOMAIN",
    "WRITE_AS_LABEL",
    "WRITE_ON_NODES",
    "Wishes",
    "foreign_scheduler",
    "pod_words",
    "vendor_domains",
]

OWN_DOMAIN = "hami.io"
WRITE_AS_LABEL, WRITE_ON_NODES = "write it as a label", "write it on nodes"
MOST = 8  # warnings for a pod
SHOWN = 100  # characters of a name
MAX_KEYS = 256  # annotations of a pod that are looked at
MAX_NAMES = 256  # resources of a pod that nobody manages and that are looked at
_ADMISSION_KEYS = ("hami.io/ascend-one-of-module", "hami.io/claim-amounts", "hami.io/claim")
OTHER_PLUGINS = ("nvidia.com/mig-", "nvidia.com/pgpu", "nvidia.com/gpu.shared")
"""Starts of names that other device plugins offer."""


class Sizes(Protocol):
    """The sizes of a vendor's devices in the cluster."""

    @property
    def most(self) -> int:
        """The memory of the largest in MiB."""


class Requesting(Protocol):
    """A container with amounts."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def limits(self) -> Mapping[str, str]:
        """Amounts by resource."""

    @property
    def requests(self) -> Mapping[str, str]:
        """Amounts by resource."""


class Wishes:
    """The warnings about pods and nodes, by the words of *vocabulary*."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vendors = vocabulary.catalog
        self._vendor_of: dict[str, Vendor] = {}
        for vendor in self._vendors:
            self._vendor_of.update(dict.fromkeys(vendor.resources.names, vendor))
        self._domains = vendor_domains(self._vendors)
        self._key_domains = self._domains | {OWN_DOMAIN}
        self._keys = sorted(pod_words(vocabulary))
        self.known = frozenset(self._keys) | _programs_words(vocabulary)
        """The annotations and labels of pods that mean something."""
        annotations = _written_on(vocabulary, Place.POD_ANNOTATION)
        labels = _written_on(vocabulary, Place.POD_LABEL)
        node_labels = _written_on(vocabulary, Place.NODE_LABEL)
        node_annotations = _written_on(vocabulary, Place.NODE_ANNOTATION)
        for vendor in self._vendors:
            node_labels.update(vendor.annotations.node_keys)
        self.annotations = annotations - labels
        """The annotations of pods that people write, and that are no labels."""
        self.of_pods = (annotations | labels) - node_labels - node_annotations
        """The annotations and labels that mean nothing on nodes."""
        self.misplaced = dict.fromkeys(labels - annotations, WRITE_AS_LABEL)
        """What to do about annotations of pods that mean something elsewhere."""
        for key in node_annotations - annotations - labels:
            self.misplaced[key] = WRITE_ON_NODES

    def warnings(
        self,
        pod: Pod,
        offers: Callable[[str], bool],
        sizes: Mapping[str, Sizes],
        containers: Iterable[Requesting] | None = None,
    ) -> list[str]:
        """Returns at most MOST warnings about *pod*.

        *offers*: reports whether a node offers a resource. *sizes*: of the devices of the cluster, by vendor.
        *containers*: those of the pod, if admission has changed them.
        """
        found = self._all(pod, offers, sizes, pod.containers if containers is None else containers)
        return list(itertools.islice(found, MOST))

    def misplaced_on_node(
        self, annotations: Mapping[str, str], labels: Mapping[str, str]
    ) -> Iterator[tuple[str, str]]:
        """Yields the keys that are written on a node and mean something on pods alone, with what they are there."""
        for kind, texts in (("annotation", annotations), ("label", labels)):
            for key in sorted(self.of_pods & texts.keys()):
                yield key, kind

    def _all(
        self,
        pod: Pod,
        offers: Callable[[str], bool],
        sizes: Mapping[str, Sizes],
        containers: Iterable[Requesting],
    ) -> Iterator[str]:
        # most keys and names are of none of these domains
        for key in itertools.islice(pod.annotations, MAX_KEYS):
            if key.partition("/")[0] in self._key_domains:
                yield from self._about_annotation(key)
        for key in itertools.islice(pod.labels, MAX_KEYS):
            if key.partition("/")[0] in self._key_domains:
                yield from self._about_label(key)
        yield from self._about_containers(containers, offers, sizes)

    def _about_containers(
        self,
        containers: Iterable[Requesting],
        offers: Callable[[str], bool],
        sizes: Mapping[str, Sizes],
    ) -> Iterator[str]:
        names_left = MAX_NAMES
        for container in containers:
            names = container.limits.keys() | container.requests.keys()
            managed = names & self._vendor_of.keys()
            unmanaged = [n for n in names - managed if n.partition("/")[0] in self._domains]
            for name in sorted(unmanaged)[:names_left]:
                names_left -= 1
                yield from self._about_name(container, name, offers)
            for vendor in dict.fromkeys(self._vendor_of[name] for name in sorted(managed)):
                yield from _about_amounts(vendor, container, sizes)

    def _about_annotation(self, key: str) -> Iterator[str]:
        """Yields the warning about an annotation that means nothing."""
        if key in self._vendor_of:
            yield f"annotation {key} {_no_request(key)}"
        elif key in self.misplaced:
            yield f"annotation {key} has no effect: {self.misplaced[key]}"
        elif key not in self.known and not is_scheduler_owned(key):
            yield from self._about_unknown_key(key)

    def _about_label(self, key: str) -> Iterator[str]:
        """Yields the warning about a label that means something in another place only."""
        if key in self._vendor_of:
            yield f"label {key} {_no_request(key)}"
        elif key in self.annotations:
            yield f"label {key} has no effect: write it as an annotation"

    def _about_unknown_key(self, key: str) -> Iterator[str]:
        domain = key.partition("/")[0]
        near = nearest(key, [known for known in self._keys if known.startswith(f"{domain}/")])
        if near and _is_near(key, near):
            yield f"annotation {key[:SHOWN]} has no effect: did you mean {near}?"
        elif domain == OWN_DOMAIN:
            yield f"annotation {key[:SHOWN]} has no effect: HAMi knows none of that name"

    def _about_name(
        self, container: Requesting, name: str, offers: Callable[[str], bool]
    ) -> Iterator[str]:
        """Yields the warning about a resource of a vendor that nobody manages."""
        if name.startswith(OTHER_PLUGINS):
            return
        domain = name.partition("/")[0]
        known = [other for other in self._vendor_of if other.startswith(f"{domain}/")]
        near = nearest(name, sorted(known))
        if near and not offers(name):
            yield (
                f"container {container.name}: nobody manages {name[:SHOWN]}, and no node offers it: "
                f"did you mean {near}?"
            )


def vendor_domains(vendors: Catalog) -> set[str]:
    """Returns the domains of the resources of *vendors*."""
    return {name.partition("/")[0] for name in vendors.resources}


def pod_words(vocabulary: Vocabulary) -> set[str]:
    """Returns the annotations and labels of pods that people write."""
    written = _written_on(vocabulary, Place.POD_ANNOTATION)
    return written | _written_on(vocabulary, Place.POD_LABEL)


def foreign_scheduler(name: str, own: str) -> str:
    """Returns the warning about a pod that requests devices from the scheduler *name*. *own*: the name of HAMi's."""
    return (
        f"schedulerName {name[:SHOWN]} is not HAMi's: the pod gets no devices from HAMi; leave it out, "
        f"or write {own}"
    )


def _written_on(vocabulary: Vocabulary, place: Place) -> set[str]:
    """Returns what people write in *place*."""
    keys = set()
    for term in vocabulary.terms:
        if term.place is place and term.author is not Author.HAMI:
            keys.add(term.key)
    return keys


def _programs_words(vocabulary: Vocabulary) -> set[str]:
    """Returns the annotations of pods that programs write."""
    words = set(_ADMISSION_KEYS)
    for term in vocabulary.terms:
        if term.place is Place.POD_ANNOTATION and term.author is Author.HAMI:
            words.add(term.key)
    return words


def _no_request(resource: str) -> str:
    return f"is no request of devices: write {resource} under resources.limits of a container"


def _is_near(key: str, near: str) -> bool:
    """Reports whether *near* is probably meant: most of the names after the domain are equal."""
    _, _, name = key.partition("/")
    _, _, other = near.partition("/")
    return nearest(name, [other]) == other


def _about_amounts(vendor: Vendor, container: Requesting, sizes: Mapping[str, Sizes]) -> list[str]:
    """Returns warnings about amounts of *container* that get it no device."""
    resources = vendor.resources
    amounts = resources.amounts(container.limits, container.requests)
    if not amounts:
        return []
    lacks_count = bool(resources.count) and resources.count not in amounts
    if lacks_count and not _gets_devices(vendor, container):
        warning = (
            f"container {container.name} requests {', '.join(amounts)} without {resources.count}, so it gets no "
            f"device: request {resources.count}: 1, too"
        )
        return [warning]
    found = []
    if resources.cores in amounts:
        found += _too_many_cores(resources, container, amounts[resources.cores])
    size = sizes.get(vendor.key)
    if size is not None and resources.memory in amounts:
        found += _too_much_memory(resources, container, amounts[resources.memory], size.most)
    # asked last, since nearly no container has such amounts: one with a count of 0 gets no device of any size
    if found and not _gets_devices(vendor, container):
        return []
    return found


def _gets_devices(vendor: Vendor, container: Requesting) -> bool:
    given = Container(name=container.name, limits=container.limits, requests=container.requests)
    return device_request(vendor, given) is not None


def _too_many_cores(resources: Resources, container: Requesting, text: str) -> list[str]:
    if resources.core_unit is not CoreUnit.PERCENT or resources.amounts_are_totals:
        return []
    cores = resources.parse_amount(resources.cores, text)
    if cores is None or cores <= WHOLE:
        return []
    warning = (
        f"container {container.name} requests {text} of {resources.cores}: no device has more than {WHOLE} "
        "percent"
    )
    return [warning]


def _too_much_memory(
    resources: Resources, container: Requesting, text: str, most_mib: int
) -> list[str]:
    """Returns the warning about *text*, an amount of memory. *most_mib*: what the largest device has."""
    memory = resources.parse_amount(resources.memory, text)
    if memory is None or memory <= most_mib:
        return []
    if resources.amounts_are_totals or resources.most_gib:  # not of one device, or in another unit
        return []
    unit = max(resources.memory_factor, 1)
    warning = (
        f"container {container.name} requests {text} of {resources.memory}, {memory:,} MiB: no device of the cluster "
        f"has more than {most_mib:,} MiB"
    )
    if text.endswith("i") and not resources.memory_units:
        mib = memory // unit // MIB
        warning += f"; it is in {resources.memory_unit}, without a unit: {max(mib // unit, 1)}"
    return [warning]
