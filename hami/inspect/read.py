"""Reads the record of a cluster with the user's own configuration and rights. Nothing is written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import msgspec

from hami.codec.claims import AllocatedClaim, parse_claim
from hami.codec.config_maps import parse_config_map
from hami.codec.device_requests import claim_titles, classes_by_resource, parse_class_resource
from hami.codec.documents import decode
from hami.codec.keys import (
    ALLOCATION_MODE,
    OVER_BUDGET,
    is_scheduler_owned,
)
from hami.codec.objects import (
    PriorityClass,
    parse_disruption_budget,
    parse_node,
    parse_priority_class,
    parse_quota,
)
from hami.codec.pods import parse_pod
from hami.codec.slices import API, DRIVER, PublishedSlice, parse_slice
from hami.errors import ClusterError, HamiError, MalformedInput, NotFound
from hami.inspect.cluster import (
    ClusterRecord,
    SchedulingEvent,
    UnreadableObject,
    catalog_of,
    holders_of,
)
from hami.inspect.installation import SCHEDULERS, parse_config_map_name
from hami.inspect.snapshot import RESIZE_KEYS, node_annotations, pod_annotations
from hami.kube.gangs import read_pod_group
from hami.kube.pages import ObjectMeta, Requester, parse_meta, read_list
from hami.model import DisruptionBudget, Node, Pod, PodGroup, PodGroupRef, PodRef, QuotaLimits
from hami.runtime.clock import utc_now
from hami.scheduling.node_resources import NOTHING, NodeResources, requested
from hami.state.view import Policies
from hami.vendors.request import requests_devices
from hami.vendors.spec import Catalog
from hami.vendors.vocabulary import Vocabulary
from hami.vendors.wishes import Wishes

T = TypeVar("T")

Progress = Callable[[str, int, int], None]
"""Called with a resource, the number of objects read, and the expected total."""

CONFIG_KEY = "device-config.yaml"
FAILED = "FailedScheduling"
MAX_EVENTS = 3  # that are shown of a pod
MAXOBJECTS = 500_000  # of one resource; a list that does not end must not fill the memory
LIVE_PODS = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}


class _EventSource(msgspec.Struct, frozen=True):
    component: str = ""


class _EventSeries(msgspec.Struct, rename="camel", frozen=True):
    count: int = 1
    last_observed_time: str | None = ""


class _PodEvent(msgspec.Struct, rename="camel"):
    """An event; older clients fill *source* and *lastTimestamp*, newer ones the other fields."""

    reason: str = ""
    message: str = ""
    count: int = 1
    involved_object: ObjectMeta = ObjectMeta()
    source: _EventSource = _EventSource()
    series: _EventSeries | None = None
    reporting_component: str = ""
    last_timestamp: str | None = ""
    event_time: str | None = ""

    @property
    def order(self) -> tuple[str, ...]:
        """A key by which the oldest is first. A fraction of a second follows the seconds only where no Z does."""
        component = self.reporting_component or self.source.component
        return self.time.removesuffix("Z"), component, self.reason, self.message

    @property
    def time(self) -> str:
        return (
            (self.series and self.series.last_observed_time)
            or self.last_timestamp
            or self.event_time
            or ""
        )


_EVENT = msgspec.json.Decoder(_PodEvent)
OBJECT = msgspec.json.Decoder(dict[str, Any])


class RecordFilter:
    """Reduces nodes and pods to what *vendors* read of them."""

    def __init__(self, vendors: Catalog) -> None:
        self._vendors = vendors
        # the words that mean nothing on nodes, for the audit
        self._node_keys = node_annotations(vendors).keys() | Wishes(Vocabulary(vendors)).of_pods
        self._pod_keys = pod_annotations(vendors).keys() | {*RESIZE_KEYS, OVER_BUDGET}

    def node(self, node: Node) -> Node:
        """Returns *node* without foreign annotations."""
        keys = node.annotations.keys() & self._node_keys
        return replace(node, annotations={key: node.annotations[key] for key in sorted(keys)})

    def pod(self, pod: Pod, holders: Collection[str] = ()) -> Pod | None:
        """Returns *pod* without foreign annotations; ``None`` if it neither requests nor carries devices, nor is one of
        *holders* (uids)."""
        owned = set(filter(is_scheduler_owned, pod.annotations))
        if not owned and not pod.claim and pod.ref.uid not in holders:
            if not requests_devices(self._vendors, pod.containers):
                return None
        keys = (pod.annotations.keys() & self._pod_keys) | owned
        return replace(pod, annotations={key: pod.annotations[key] for key in sorted(keys)})


@dataclass(slots=True)
class Reader:
    """Reads from one API server. *note* is called with each text about what had to be left out."""

    request: Requester
    progress: Progress = lambda resource, count, total: None
    note: Callable[[str], None] = lambda text: None
    _classes: dict[str, str] | None = field(default=None, init=False)
    _pod_groups: dict[PodGroupRef, PodGroup | None] = field(default_factory=dict, init=False)
    _noted: set[str] = field(default_factory=set, init=False)  # texts about PodGroups

    def record(
        self,
        *,
        config_map: tuple[str, str] = ("kube-system", "hami-scheduler-device"),
        device_config: str | None = None,
        policies: Policies = Policies(),
    ) -> ClusterRecord:
        """Returns the record of the cluster.

        *config_map*: namespace and name of the ConfigMap with the device configuration. *device_config*: the text of
        the configuration instead. *policies*: those of the scheduler's flags.
        Raises: HamiError if nodes or pods cannot be listed. Without quotas or device configuration it goes on.
        """
        taken = utc_now()
        text = device_config if device_config is not None else self.device_config(*config_map)
        trim = RecordFilter(catalog_of(text))
        unreadable: list[UnreadableObject] = []
        nodes = self._list(
            "nodes", {}, lambda raw: trim.node(parse_node(raw)), lambda node: node.name, unreadable
        )
        slices, claims = self._claimed_devices(
            any(ALLOCATION_MODE in node.labels for node in nodes), unreadable
        )
        holders = holders_of(claims)
        others: dict[str, tuple[str, NodeResources]] = {}

        def take(raw: msgspec.Raw) -> Pod | None:
            pod = parse_pod(raw)
            with_devices = trim.pod(pod, holders)
            if with_devices is None and pod.node_name:
                others[pod.ref.uid] = pod.node_name, requested(pod)
            return with_devices

        pods = self._list(
            "pods",
            LIVE_PODS,
            take,
            lambda pod: pod.ref.uid,
            unreadable,
        )
        quotas: tuple[QuotaLimits, ...] = ()
        try:
            quotas = self._list(
                "resourcequotas", {}, parse_quota, lambda quota: quota.uid, unreadable
            )
        except MissingRight as error:
            self.note(f"{error}; quotas are left out of account")
        return ClusterRecord(
            taken=taken,
            nodes=nodes,
            pods=pods,
            quotas=quotas,
            device_config=text,
            policies=policies,
            slices=slices,
            claims=claims,
            others=_by_node(others.values()),
            unreadable=tuple(unreadable),
        )

    def _claimed_devices(
        self,
        is_used: bool,
        unreadable: list[UnreadableObject],
    ) -> tuple[tuple[PublishedSlice, ...], tuple[AllocatedClaim, ...]]:
        """Returns the slices of our driver and the claims that hold devices of it; none where the API server has no
        such objects. *is_used*: nodes say that they publish slices, so a missing right is worth a note."""
        try:
            slices = self._list(
                "resourceslices",
                {"fieldSelector": f"spec.driver={DRIVER}"},
                parse_slice,
                lambda part: part,
                unreadable,
                API,
            )
            claims = (
                self._list(
                    "resourceclaims", {}, parse_claim, lambda claim: claim.uid, unreadable, API
                )
                if slices
                else ()
            )
        except (NotFound, MissingRight) as error:
            if is_used and isinstance(error, MissingRight):
                self.note(f"{error}; devices that claims hold are left out of account")
            return (), ()
        return slices, tuple(claim for claim in claims if claim.requests)

    def pod(self, ref: PodRef) -> Pod | None:
        """Returns the pod of this namespace and name, whatever it requests; ``None`` if there is none."""
        path = f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}"
        try:
            return parse_pod(self._get("pods", path, ref.namespace))
        except NotFound:
            return None

    def claims_of(self, ref: PodRef) -> tuple[str, ...]:
        """Returns what a pod names that kube-scheduler allocates to claims, in words; nothing if it is gone.

        Raises: HamiError.
        """
        path = f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}"
        try:
            pod = decode("pod", OBJECT, self._get("pods", path, ref.namespace))
        except NotFound:
            return ()
        return claim_titles(pod, self.classes_by_resource)

    def classes_by_resource(self) -> dict[str, str]:
        """Returns the names of the DeviceClasses that stand for resources, by resource; none, with a note, if they may
        not be listed. They are listed once."""
        if self._classes is not None:
            return self._classes
        classes: list[tuple[str, str, str]] = []

        def take(raw: msgspec.Raw) -> None:
            with contextlib.suppress(MalformedInput):
                classes.append(parse_class_resource(raw))

        try:
            self.each("deviceclasses", f"{API}/deviceclasses", {}, take)
        except NotFound:  # an API server without this resource
            classes = []
        except MissingRight as error:
            self.note(f"{error}; resources that stand for claims are not known")
            classes = []
        self._classes = classes_by_resource(classes)
        return self._classes

    def pod_group(self, ref: PodGroupRef) -> PodGroup | None:
        """Returns what a PodGroup says of its pods; ``None`` if *ref* names none, or, with a note, if it may not be
        read. It is read once."""
        if ref not in self._pod_groups:
            try:
                self._pod_groups[ref] = read_pod_group(
                    lambda resource, path: self._get(resource, path, ref.namespace), ref
                )
            except HamiError as error:
                self._pod_groups[ref] = None
                if str(error) not in self._noted:
                    self._noted.add(str(error))
                    self.note(str(error))
        return self._pod_groups[ref]

    def budgets(self) -> tuple[DisruptionBudget, ...]:
        """Returns the PodDisruptionBudgets of the cluster; none, with a note, if they cannot be listed."""
        budgets: dict[str, DisruptionBudget] = {}

        def take(raw: msgspec.Raw) -> None:
            budget = parse_disruption_budget(raw)
            budgets[budget.key] = budget

        try:
            self.each("poddisruptionbudgets", "/apis/policy/v1/poddisruptionbudgets", {}, take)
        except HamiError as error:
            self.note(f"{error}; PodDisruptionBudgets are left out of account")
            return ()
        return tuple(budgets.values())

    def priority_classes(self) -> dict[str, PriorityClass]:
        """Returns the PriorityClasses by name; none, with a note, if they cannot be listed."""
        classes: dict[str, PriorityClass] = {}

        def take(raw: msgspec.Raw) -> None:
            classes[parse_meta(raw).name] = parse_priority_class(raw)

        try:
            self.each("priorityclasses", "/apis/scheduling.k8s.io/v1/priorityclasses", {}, take)
        except HamiError as error:
            self.note(f"{error}; pods whose manifest has no priority count with priority 0")
            return {}
        return classes

    def events(
        self, ref: PodRef, reason: str = FAILED, *, instead: SchedulingEvent | None = None
    ) -> list[SchedulingEvent]:
        """Returns the events about *ref* with this *reason*, by default why it could not be scheduled, in the words of
        kube-scheduler; latest last. If events may not be listed, returns *instead*, or nothing with a note."""
        try:
            events = self._events(
                f"/api/v1/namespaces/{ref.namespace}/events",
                f"namespace {ref.namespace}",
                {"involvedObject.name": ref.name, "involvedObject.uid": ref.uid},
                reason,
            )
        except HamiError as error:
            if instead is not None and isinstance(error, MissingRight):
                return [instead]
            self.note(str(error))
            return []
        return _latest(events)

    def all_events(self) -> dict[str, tuple[SchedulingEvent, ...]]:
        """Returns the events of all pods that could not be scheduled, by uid; with a note if they may not be listed."""
        by_uid: dict[str, list[_PodEvent]] = {}
        try:
            events = self._events("/api/v1/events", "the whole cluster", {})
        except HamiError as error:
            self.note(str(error))
            return {}
        for event in events:
            if uid := event.involved_object.uid:
                by_uid.setdefault(uid, []).append(event)
        return {uid: tuple(_latest(events)) for uid, events in by_uid.items()}

    def _events(
        self, path: str, scope: str, fields: dict[str, str], reason: str = FAILED
    ) -> list[_PodEvent]:
        events: list[_PodEvent] = []

        def take(raw: msgspec.Raw) -> None:
            with contextlib.suppress(MalformedInput):
                events.append(decode("event", _EVENT, raw))

        wanted = {"reason": reason, **fields}
        selector = ",".join(f"{key}={value}" for key, value in wanted.items() if value)
        self.each("events", path, {"fieldSelector": selector}, take, scope=scope)
        return events

    def device_config(self, namespace: str, name: str) -> str:
        """Returns the text of the device configuration in a ConfigMap, empty for the chart's, with a note.

        Raises: HamiError.
        """
        problem = f"there is no ConfigMap {namespace}/{name}"
        try:
            with contextlib.suppress(NotFound):
                return _config_text(self, namespace, name)
            for mounted in _mounted_configs(self, namespace, name):
                with contextlib.suppress(NotFound):
                    return _config_text(self, namespace, mounted)
        except MissingRight as error:
            problem = str(error)
        self.note(f"{problem}; the chart's device configuration is assumed")
        return ""

    def _list(
        self,
        resource: str,
        query: dict[str, str],
        parse: Callable[[msgspec.Raw], T | None],
        key: Callable[[T], Hashable],
        unreadable: list[UnreadableObject],
        group: str = "/api/v1",
    ) -> tuple[T, ...]:
        """Returns the objects of *resource* for which *parse* returns something. A list that starts again passes an
        object twice: *key* tells."""
        objects: dict[Hashable, T] = {}
        count = 0

        def take(raw: msgspec.Raw) -> None:
            nonlocal count
            count += 1
            if count > MAXOBJECTS:
                raise HamiError(f"the cluster has more than {MAXOBJECTS:,} {resource}")
            try:
                if (parsed := parse(raw)) is not None:
                    objects[key(parsed)] = parsed
            except MalformedInput as error:
                unreadable.append(
                    UnreadableObject(resource.removesuffix("s"), parse_meta(raw).path, str(error))
                )

        self.each(resource, f"{group}/{resource}", query, take, progress=self.progress)
        return tuple(objects.values())

    def each(
        self,
        resource: str,
        path: str,
        query: dict[str, str],
        take: Callable[[msgspec.Raw], None],
        *,
        scope: str = "the whole cluster",
        progress: Progress = lambda resource, count, total: None,
    ) -> None:
        """Passes each object of a list to *take*. Raises: HamiError in the words of a user."""
        with _in_words("list", resource, scope):
            read_list(self.request, resource, path, query, take, partial(progress, resource))

    def _get(self, resource: str, path: str, namespace: str) -> bytes:
        with _in_words(
            "get", resource, f"namespace {namespace}" if namespace else "the whole cluster"
        ):
            return self.request("GET", path)


def _mounted_configs(reader: Reader, namespace: str, name: str) -> list[str]:
    """Returns the ConfigMaps of that *name* and a hash, as kustomize makes them, that schedulers in *namespace* mount:
    in no other, where a tenant may have written the Deployment."""
    mounted: set[str] = set()

    def take(raw: msgspec.Raw) -> None:
        with contextlib.suppress(MalformedInput):
            found = parse_config_map_name(raw)
            if found.startswith(f"{name}-"):
                mounted.add(found)

    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    scope = f"namespace {namespace}"
    reader.each("deployments", path, {"labelSelector": SCHEDULERS}, take, scope=scope)
    if len(mounted) > 1:
        names = ", ".join(sorted(mounted))
        reader.note(f"schedulers have several device configurations: {names}; the first is used")
    return sorted(mounted)


def _config_text(reader: Reader, namespace: str, name: str) -> str:
    """Returns the device configuration in a ConfigMap. Raises: HamiError."""
    with _in_words("get", "configmaps", f"namespace {namespace}"):
        data = reader.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/{name}")
    text = parse_config_map(data, f"ConfigMap {namespace}/{name}").data.get(CONFIG_KEY)
    if text is None:
        raise HamiError(f"ConfigMap {namespace}/{name} has no key {CONFIG_KEY}")
    return text


def _by_node(requests: Iterable[tuple[str, NodeResources]]) -> dict[str, NodeResources]:
    """Returns the sums of what is requested of each node."""
    sums: dict[str, NodeResources] = {}
    for node, resources in requests:
        sums[node] = sums.get(node, NOTHING) + resources
    return dict(sorted(sums.items()))


def _latest(events: list[_PodEvent]) -> list[SchedulingEvent]:
    """Returns the latest of *events*. kube-scheduler may write several that say the same: they count as one."""
    by_text: dict[tuple[str, str, str], SchedulingEvent] = {}
    for event in sorted(events, key=lambda event: event.order):
        text = (
            event.reporting_component or event.source.component or "?",
            event.reason,
            event.message,
        )
        count = event.series.count if event.series is not None else event.count or 1
        earlier = by_text.pop(text, None)
        by_text[text] = SchedulingEvent(
            *text, count + (earlier.count if earlier is not None else 0), event.time
        )
    return list(by_text.values())[-MAX_EVENTS:]


class MissingRight(HamiError):
    """The user may not do what the answer needs; the text names verb, resource and scope."""


@contextlib.contextmanager
def _in_words(verb: str, resource: str, scope: str) -> Iterator[None]:
    """Raises errors of the API server in the words of a user: the right that is missing, or why there is no answer."""
    try:
        yield
    except ClusterError as error:
        if error.status == 403:
            raise MissingRight(
                f"you may not {verb} {resource} in {scope}: ask for the verb {verb} on {resource} there"
            ) from error
        if error.status == 401:
            raise HamiError(
                f"the API server does not accept your credentials: log in again ({error})"
            ) from error
        if error.status is None:
            raise HamiError(f"the API server does not answer: {error}") from error
        raise
