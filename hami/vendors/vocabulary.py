"""Every annotation, label, resource and entry of a quota that means something to HAMi: one table for all who read it.

Admission refuses texts that have not the form of their term, ``hami vendors`` and the documentation show the terms.
Those of a vendor follow from the vendor's record, so one that is added has its terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from hami.codec import keys
from hami.codec.forms import BOOLEAN, Form, FreeText, Mistake, NameList, Switches, Weighted, Words
from hami.codec.policies import DEVICE_POLICIES, NODE_POLICIES
from hami.vendors.resources import Resources
from hami.vendors.spec import Catalog, Vendor
from hami.vendors.terms import Author, Place, Term

__all__ = [
    "COMMON",
    "DEVICE_POLICY_WORDS",
    "NODE_POLICY_WORDS",
    "Misspelt",
    "Vocabulary",
    "word_or",
]

SHOWN = 100  # characters of a text in a message
NODE_POLICY_WORDS = Words((*NODE_POLICIES, keys.KUBE_POLICY))
DEVICE_POLICY_WORDS = Words(DEVICE_POLICIES, is_list=True)
_OF_HAMI = FreeText("what HAMi has written")

COMMON = (
    Term(keys.NODE_POLICY, NODE_POLICY_WORDS, "which of the nodes that fit is chosen"),
    Term(keys.GPU_POLICY, DEVICE_POLICY_WORDS, "which of the devices that fit are chosen"),
    Term(keys.WEIGHTS, Weighted(), "weights of slots, cores and memory in the score of a device"),
    Term(keys.NUMA_BIND, BOOLEAN, "all devices of a container on one NUMA node"),
    Term(keys.OVERWRITE_ENV, BOOLEAN, "hide devices from containers that request none"),
    Term(
        keys.OVERWRITE_ENV_CONTAINERS,
        Switches(),
        "the same for containers by name, before what the pod says",
    ),
    Term(
        keys.RESIZE,
        FreeText("an object in JSON: memory and cores by container"),
        "the sizes that containers of a running pod are to have",
    ),
    Term(
        keys.PREEMPTIBLE,
        FreeText("any text"),
        "never evict the pod for one of higher priority; needs a right",
        Place.POD_LABEL,
    ),
    Term(
        keys.MAKE_ROOM,
        FreeText("a number from 1 to 20"),
        "move so many other pods at most, so that the pod fits; needs a right",
        Place.POD_LABEL,
    ),
    Term(keys.DO_NOT_MOVE, BOOLEAN, "do not move the pod so that another one fits"),
    Term(
        keys.WEBHOOK,
        Words((keys.IGNORE,)),
        "leave the pod to Kubernetes; needs a right",
        Place.POD_LABEL,
    ),
    Term(
        keys.WEBHOOK,
        Words((keys.IGNORE,)),
        "leave all pods of the namespace to Kubernetes",
        Place.NAMESPACE_LABEL,
        Author.OPERATOR,
    ),
    Term(
        keys.ALLOCATION_MODE,
        Words(keys.CLAIM_ALLOCATION_MODES),
        "devices by claims",
        Place.POD_LABEL,
    ),
    Term(
        keys.ALLOCATION_MODE,
        Words(keys.CLAIM_ALLOCATION_MODES),
        "devices by claims for all pods of the namespace",
        Place.NAMESPACE_LABEL,
        Author.OPERATOR,
    ),
    Term(
        keys.ALLOCATION_MODE,
        Words(("device-plugin", "dra")),
        "how pods get the devices of the node",
        Place.NODE_LABEL,
        Author.OPERATOR,
    ),
    Term(
        keys.CORDON,
        NameList("UUIDs of devices"),
        "devices that get no new pods",
        Place.NODE_ANNOTATION,
        Author.OPERATOR,
    ),
)
"""The terms that no vendor's record has."""


@dataclass(frozen=True, slots=True)
class Misspelt:
    """A text in an annotation that has not the form of its term."""

    key: str
    text: str
    mistake: Mistake

    def __str__(self) -> str:
        return f"annotation {self.key}={self.text[:SHOWN]}: {self.mistake}"


class Vocabulary:
    """The terms of the vendors in *catalog*, and those of all."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        terms = list(COMMON)
        for vendor in catalog:
            terms += _terms_of(vendor)
        self.terms = tuple(terms)
        self._forms: dict[str, dict[str, Form]] = {"": {}}
        for term in terms:
            if term.place is Place.POD_ANNOTATION and term.author is Author.USER:
                self._forms.setdefault(term.vendor, {})[term.key] = term.form
        self.forms = frozenset().union(*self._forms.values())
        """The annotations that have a form, for pods of any vendor."""

    def forms_of(self, vendor: str) -> Mapping[str, Form]:
        """Returns the forms of the annotations that users write for pods with devices of *vendor*, beside those of all;
        of the latter for an empty name."""
        return self._forms.get(vendor, {})

    def read(
        self, annotations: Mapping[str, str], vendors: Iterable[str]
    ) -> Iterator[tuple[str, str | Misspelt]]:
        """Yields each of *annotations* of a pod that has a form and is not blank, with its text as programs expect it.
        *vendors*: the keys of those whose devices the pod requests."""
        if not annotations:
            return
        for vendor in ("", *vendors):
            forms = self.forms_of(vendor)
            for key in forms.keys() & annotations.keys():
                text = annotations[key]
                if not text.strip():
                    continue
                result = forms[key].read(text)
                if isinstance(result, Mistake):
                    yield key, Misspelt(key, text, result)
                else:
                    yield key, result


def word_or(form: Words, text: str, default: str) -> str:
    """Returns the words of *text* as *form* reads them; *default* if it is blank, or a mistake, which admission has not
    seen then."""
    if text in form.words:
        return text
    if not text.strip():
        return default
    words = form.read(text)
    if isinstance(words, Mistake):
        return default
    return words


def _terms_of(vendor: Vendor) -> Iterator[Term]:
    """Yields the terms of *vendor*: what containers request, what users and what programs write."""
    yield from _resource_terms(vendor)
    yield from _selector_terms(vendor)
    for term in vendor.annotations.pod_terms:
        yield replace(term, vendor=vendor.key)
    annotations = vendor.annotations
    for key, meaning in (
        (annotations.register, "the devices of the node"),
        (annotations.handshake, "whether the device plugin of the node is alive"),
        (annotations.lock, "one allocation at a time on the node"),
    ):
        if key:
            yield Term(key, _OF_HAMI, meaning, Place.NODE_ANNOTATION, Author.HAMI, vendor.key)
    for key in (annotations.to_allocate, annotations.allocated, *annotations.extra_keys):
        if key:
            meaning = "the devices of the pod"
            yield Term(key, _OF_HAMI, meaning, Place.POD_ANNOTATION, Author.HAMI, vendor.key)


def _resource_terms(vendor: Vendor) -> Iterator[Term]:
    resources = vendor.resources
    for name in resources.names:
        form = FreeText(resources.unit_of(name))
        meaning = _MEANINGS[resources.role_of(name)]
        yield Term(name, form, meaning, Place.RESOURCE, Author.USER, vendor.key)
    for name in counted_names(resources):
        form = FreeText(resources.unit_of(name))
        meaning = f"{_MEANINGS[resources.role_of(name)]}, for all pods of the namespace"
        entry = f"limits.{name}"
        yield Term(entry, form, meaning, Place.QUOTA, Author.OPERATOR, vendor.key)


def _selector_terms(vendor: Vendor) -> Iterator[Term]:
    selectors = vendor.annotations.selectors
    types, uuids = NameList("parts of names of models"), NameList("UUIDs of devices")
    if selectors.use_types:
        yield Term(selectors.use_types, types, "models of devices to use", vendor=vendor.key)
    if selectors.nouse_types:
        yield Term(selectors.nouse_types, types, "models of devices not to use", vendor=vendor.key)
    for key in selectors.use_uuids:
        yield Term(key, uuids, "devices to use", vendor=vendor.key)
    for key in selectors.nouse_uuids:
        yield Term(key, uuids, "devices not to use", vendor=vendor.key)
    if selectors.mode and selectors.modes:
        form = Words(selectors.modes, is_list=True)
        yield Term(selectors.mode, form, "modes of devices to use", vendor=vendor.key)


def counted_names(resources: Resources) -> list[str]:
    """Returns the names of resources that ResourceQuotas may limit: ``limits.<name>``."""
    names = [resources.count, resources.memory]
    if resources.core_unit.is_request_unit:
        names.append(resources.cores)
    return [name for name in names if name]


_MEANINGS = {
    "count": "number of devices",
    "memory": "memory of each device",
    "memory_percent": "memory of each device, in percent",
    "cores": "cores of each device",
    "priority": "priority on a shared device, 0 is the highest",
}
