"""The rows of the table that all vendors share; ``rows_<vendor>.py`` have them, ``test_vendors.py`` runs them.

The numbers are typed in from the reference, whose row the id of a row names.
"""

import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from pytest import param

from hami.codec.allocation import render_shares
from hami.codec.pods import convert_pod
from hami.model import Container, ContainerKind, Pod, PodRef, Request, Unfit
from hami.scheduling.placement import place_pod
from hami.scheduling.pod_request import ContainerRequest, PodRequest, make_pod_request
from hami.state.binding_annotations import render_vendor_annotations
from hami.vendors.admission import admit_pod
from hami.vendors.draft import PodDraft
from hami.vendors.request import device_request, most_shares
from hami.vendors.spec import AnnotationContext, Catalog, Vendor
from hami.vendors.vocabulary import Vocabulary
from testing.builders import APP, container

INT32 = "must be an integer between 0 and 2147483647"
MUTEX = {"hami.io/gpu-scheduler-policy": "mutex"}
NOW = datetime(2026, 8, 21, 12, 0, 0, tzinfo=UTC)  # Unix time 1787313600


@dataclass(kw_only=True)
class Asked:
    """A container with these *limits* (and *requests*) after admission, and the resulting request.

    *added*: limits that are new or changed, beside those that were requests only;
    *requested*: the same for requests; *env*: variables that it has
    afterwards; *annotations*: the pod's, before; *annotated*: what is new or changed of them; *pod_spec*: fields set in
    the spec.
    """

    vendor: Vendor
    limits: dict
    request: Request | None
    requests: dict = field(default_factory=dict)
    added: dict = field(default_factory=dict)
    requested: dict = field(default_factory=dict)
    env: dict = field(default_factory=dict)
    annotations: dict = field(default_factory=dict)
    annotated: dict = field(default_factory=dict)
    pod_spec: dict = field(default_factory=dict)

    def check(self):
        """The row holds, and admitting a second time changes nothing more."""
        limits, requests, admission = admitted(
            self.vendor, self.limits, self.requests, self.annotations
        )
        resources = self.vendor.resources
        given = resources.amounts(self.limits, self.requests)  # a request becomes the limit
        assert limits == given | self.limits | self.added
        assert requests == self.requests | self.requested
        assert {
            entry["name"]: entry["value"] for entry in admission.container.get("env", [])
        } == self.env
        assert (admission.annotations, admission.pod_spec) == (self.annotated, self.pod_spec)
        again = admitted(self.vendor, limits, requests, self.annotations | self.annotated)
        assert again[:2] == (limits, requests), "admission is not at rest"
        assert device_request(self.vendor, container(limits, requests=requests)) == self.request


@dataclass(kw_only=True)
class Denied:
    """The reason to reject a pod with such a container. *void*: it requests nothing if it exists nevertheless."""

    vendor: Vendor
    limits: dict
    why: str
    requests: dict = field(default_factory=dict)
    annotations: dict = field(default_factory=dict)
    void: bool = True


@dataclass(kw_only=True)
class Fits:
    """The shares of the containers on *usages*, which are given in sorted order (the last is tried
    first), or why they get none.

    *limits*: of one container, or a list of them, one a container; they pass admission first. *request*: that, in
    place of limits. *annotations*: the pod's. *written*: further annotations that the Binding carries.
    """

    vendor: Vendor
    usages: list
    outcome: str
    limits: dict | list = field(default_factory=dict)
    request: Request | None = None
    annotations: dict = field(default_factory=dict)
    written: dict = field(default_factory=dict)
    kinds: tuple[ContainerKind, ...] = ()
    budgets: dict = field(default_factory=dict)
    node: str = "n"

    def check(self):
        """The row holds."""
        pod = self.pod()
        found = place_pod({self.vendor.key: self.usages}, self.pod_request(pod), self.budgets)
        assert (
            str(found) if isinstance(found, Unfit) else render_shares(found)
        ) == self.outcome or (not isinstance(found, Unfit) and self.vendor.annotations.writes_model)
        if not isinstance(found, Unfit):
            devices = {usage.device.uuid: usage.device for usage in self.usages}
            texts = render_vendor_annotations(
                self.vendor,
                AnnotationContext(pod=pod, node=self.node, shares=found, devices=devices, now=NOW),
            )
            assert texts.pop(self.vendor.annotations.allocated) == self.outcome
            if self.request is None:
                most = most_shares(Catalog([self.vendor]), pod.containers)
                assert sum(map(len, found)) <= most[self.vendor.key], "more would not be read back"
            if self.vendor.annotations.to_allocate:
                assert texts.pop(self.vendor.annotations.to_allocate) == self.outcome
            assert texts == self.written
            assert texts.keys() <= set(self.vendor.annotations.extra_keys), "not in the record"

    def pod(self):
        """The pod after admission."""
        given = self.limits if isinstance(self.limits, list) else [self.limits]
        kinds = self.kinds or (APP,) * len(given)
        containers, annotations = [], dict(self.annotations)
        for position, (limits, kind) in enumerate(zip(given, kinds)):
            after, requests, admission = admitted(self.vendor, limits, {}, annotations)
            annotations |= admission.annotations
            containers.append(
                Container(name=f"c{position}", kind=kind, limits=after, requests=requests)
            )
        return Pod(
            ref=PodRef("default", "pod1", "uid-1"),
            annotations=annotations,
            containers=tuple(containers),
        )

    def pod_request(self, pod) -> PodRequest:
        """The pod's request, with devices in the given order."""
        catalog = Catalog([self.vendor])
        if self.request is not None:
            stand_in = container({self.vendor.resources.count: "1"})
            found = make_pod_request(replace(pod, containers=(stand_in,)), catalog, "spread")
            assert found is not None, "the stand-in for the request has no request"
            found = replace(found, containers=(ContainerRequest(APP, (self.request,)),))
        else:
            found = make_pod_request(pod, catalog, "spread")
            assert found is not None, "no container requests a device"
        return replace(found, policy=replace(found.policy, order=()))


@dataclass(frozen=True)
class Rows:
    """Makes rows about one vendor, with names that begin with *title*; *fields* are those of the row."""

    title: str
    vendor: Vendor

    def asks(self, name, limits, request, **fields):
        return self._row(Asked, name, limits=limits, request=request, **fields)

    def denied(self, name, limits, why, **fields):
        return self._row(Denied, name, limits=limits, why=why, **fields)

    def fits(self, name, usages, limits, outcome, written=None, **fields):
        given = {"usages": usages, "limits": limits, "outcome": outcome, "written": written or {}}
        return self._row(Fits, name, **given, **fields)

    def _row(self, kind, name, **fields):
        return param(kind(**{"vendor": self.vendor} | fields), id=f"{self.title} {name}")

    def limits(self, count=None, memory=None, cores=None):
        """Limits in the vendor's resources."""
        return given(self.vendor, count, memory, cores)

    def request(self, count=1, memory_mib=0, memory_percent=None, cores=0):
        """The resulting request."""
        return asked(self.vendor, count, memory_mib, memory_percent, cores)


def given(vendor, count=None, memory=None, cores=None):
    """Limits in the vendor's resources."""
    resources = vendor.resources
    amounts = {resources.count: count, resources.memory: memory, resources.cores: cores}
    return {name: str(amount) for name, amount in amounts.items() if amount is not None}


def asked(vendor, count=1, memory_mib=0, memory_percent=None, cores=0):
    """The resulting request."""
    return Request(
        vendor=vendor.key,
        count=count,
        memory_mib=memory_mib,
        memory_percent=memory_percent,
        cores=cores,
    )


class Outcome(NamedTuple):
    """The container after admission, and the fields of the pod's spec and annotations that are new or changed."""

    container: dict
    requests_devices: bool
    pod_spec: dict
    annotations: dict


def admit(vendor, wire, annotations=(), **pod_spec):
    """The outcome of admission by *vendor* for a pod with the one container *wire*."""
    spec = {**pod_spec, "containers": [wire]}
    thing = {"metadata": {"annotations": dict(annotations)}, "spec": spec}
    before, draft = copy.deepcopy(thing), PodDraft(thing)
    admit_pod(Vocabulary(Catalog([vendor])), draft)
    after = draft.render()
    assert thing == before, "the pod that came in was changed"
    assert (after is thing) == (after == thing)
    assert draft.changed() == convert_pod(after)
    (container,) = after["spec"]["containers"]
    return Outcome(
        container,
        draft.requests_devices,
        {
            name: value
            for name, value in after["spec"].items()
            if name != "containers" and spec.get(name) != value
        },
        {
            key: text
            for key, text in after["metadata"]["annotations"].items()
            if dict(annotations).get(key) != text
        },
    )


def admitted(vendor, limits, requests=(), annotations=()):
    """Limits and requests after admission, and its whole result."""
    resources = {"limits": {name: str(value) for name, value in dict(limits).items()}}
    if requests:
        resources["requests"] = {name: str(value) for name, value in dict(requests).items()}
    outcome = admit(vendor, {"name": "c", "resources": resources}, annotations)
    after = outcome.container["resources"]
    return after.get("limits", {}), after.get("requests", {}), outcome
