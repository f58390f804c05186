"""Reads the record of a cluster with the user's own configuration and rights. Nothing is written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from hami.codec.documents import decode
from hami.codec.objects import parse_node, parse_quota
from hami.codec.pods import parse_pod
from hami.errors import ClusterError, HamiError, MalformedInput, NotFound
from hami.inspect.cluster import catalog_of
from hami.inspect.record import ClusterRecord, RecordFilter, SchedulingEvent, UnreadableObject
from hami.kube.pages import Requester, parse_meta, read_list
from hami.model import Node, Pod, PodRef, QuotaLimits
from hami.runtime.clock import utc_now
from hami.state.view import Policies

T = TypeVar("T")

Progress = Callable[[str, int, int], None]
"""Called with a resource, the number of objects read, and the expected total."""

CONFIG_KEY = "device-config.yaml"
MAX_EVENTS = 3  # that are shown of a pod
MAX_OBJECTS = 500_000  # of one resource; a list that does not end must not fill the memory
_LIVE_PODS = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None


class _EventSource(msgspec.Struct, frozen=True):
    component: str | None = ""


class _EventSeries(msgspec.Struct, rename="camel", frozen=True):
    count: int = 1
    last_observed_time: str | None = ""


class _EventObject(msgspec.Struct, frozen=True):
    uid: str | None = ""


class _PodEvent(msgspec.Struct, rename="camel"):
    """An event; older clients fill *source* and *lastTimestamp*, newer ones the other fields."""

    reason: str | None = ""
    message: str | None = ""
    count: int | None = 1
    involved_object: _EventObject | None = None
    source: _EventSource | None = None
    series: _EventSeries | None = None
    reporting_component: str | None = ""
    last_timestamp: str | None = ""
    event_time: str | None = ""

    @property
    def component(self) -> str:
        return self.reporting_component or (self.source and self.source.component) or "?"

    @property
    def times(self) -> int:
        return self.series.count if self.series is not None else self.count or 1

    @property
    def time(self) -> str:
        return (self.series and self.series.last_observed_time) or self.last_timestamp or self.event_time or ""


_EVENT = msgspec.json.Decoder(_PodEvent)
_CONFIG_MAP = msgspec.json.Decoder(_ConfigMap)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSource:
    """Where the record comes from.

    *config_map*: namespace and name of the ConfigMap with the device configuration. *device_config*: the text of the
    configuration instead; ``None`` to read the ConfigMap. *policies*: those of the scheduler's flags.
    """

    config_map: tuple[str, str] = ("kube-system", "hami-scheduler-device")
    device_config: str | None = None
    policies: Policies = Policies()


@dataclass(slots=True)
class Reader:
    """Reads from one API server. *note* is called with each text about what had to be left out."""

    request: Requester
    progress: Progress = lambda resource, count, total: None
    note: Callable[[str], None] = lambda text: None
    _noted: set[str] = field(default_factory=set)

    def record(self, source: RecordSource) -> ClusterRecord:
        """Returns the record of the cluster.

        Raises: HamiError if nodes or pods cannot be listed. Without quotas or device configuration it goes on.
        """
        taken = utc_now()
        text = self._config(source)
        trim = RecordFilter(catalog_of(text))
        unreadable: list[UnreadableObject] = []
        nodes: dict[str, Node] = {}
        pods: dict[str, Pod] = {}
        quotas: dict[str, QuotaLimits] = {}

        def take_node(node: Node) -> None:
            nodes[node.name] = trim.node(node)

        def take_pod(pod: Pod) -> None:
            if (kept := trim.pod(pod)) is not None:
                pods[kept.ref.uid] = kept

        def take_quota(quota: QuotaLimits) -> None:
            quotas[quota.uid] = quota

        self._list("nodes", {}, parse_node, take_node, unreadable)
        self._list("pods", _LIVE_PODS, parse_pod, take_pod, unreadable)
        try:
            self._list("resourcequotas", {}, parse_quota, take_quota, unreadable)
        except MissingRight as error:
            self._note_once(f"{error}; quotas are left out of account")
        return ClusterRecord(taken=taken, nodes=tuple(nodes.values()), pods=tuple(pods.values()),
                             quotas=tuple(quotas.values()), device_config=text, policies=source.policies,
                             unreadable=tuple(unreadable))

    def pod(self, ref: PodRef) -> Pod | None:
        """Returns the pod of this namespace and name, whatever it requests; ``None`` if there is none."""
        path = f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}"
        try:
            return parse_pod(self._get("get", "pods", path, f"namespace {ref.namespace}"))
        except NotFound:
            return None

    def events(self, ref: PodRef) -> list[SchedulingEvent]:
        """Returns why *ref* could not be scheduled, in the words of kube-scheduler, latest last; with a note if events
        may not be listed."""
        return _latest(self._events(f"/api/v1/namespaces/{ref.namespace}/events", f"namespace {ref.namespace}",
                                    {"involvedObject.name": ref.name, "involvedObject.uid": ref.uid}))

    def all_events(self) -> dict[str, tuple[SchedulingEvent, ...]]:
        """Returns the events of all pods that could not be scheduled, by uid; with a note if they may not be listed."""
        by_uid: dict[str, list[_PodEvent]] = {}
        for event in self._events("/api/v1/events", "the whole cluster", {}):
            if event.involved_object is not None and event.involved_object.uid:
                by_uid.setdefault(event.involved_object.uid, []).append(event)
        return {uid: tuple(_latest(events)) for uid, events in by_uid.items()}

    def _events(self, path: str, scope: str, fields: dict[str, str]) -> list[_PodEvent]:
        events: list[_PodEvent] = []

        def take(raw: msgspec.Raw) -> None:
            with contextlib.suppress(MalformedInput):
                events.append(decode("event", _EVENT, raw))

        wanted = {"reason": "FailedScheduling", **fields}
        selector = ",".join(f"{key}={value}" for key, value in wanted.items() if value)
        try:
            read_list(self.request, "events", path, {"fieldSelector": selector}, take, lambda count, total: None)
        except ClusterError as error:
            self._note_once(str(explain_failure(error, "list", "events", scope)))
        return events

    def _config(self, source: RecordSource) -> str:
        """Returns the text of the device configuration, empty for the chart's."""
        if source.device_config is not None:
            return source.device_config
        namespace, name = source.config_map
        try:
            data = self._get("get", "configmaps", f"/api/v1/namespaces/{namespace}/configmaps/{name}",
                             f"namespace {namespace}")
        except NotFound:
            self._note_once(f"there is no ConfigMap {namespace}/{name}; the chart's device configuration is assumed")
            return ""
        except MissingRight as error:
            self._note_once(f"{error}; the chart's device configuration is assumed")
            return ""
        text = (decode(f"ConfigMap {namespace}/{name}", _CONFIG_MAP, data).data or {}).get(CONFIG_KEY)
        if text is None:
            raise HamiError(f"ConfigMap {namespace}/{name} has no key {CONFIG_KEY}")
        return text

    def _list(self, resource: str, query: dict[str, str], parse: Callable[[msgspec.Raw], T], take: Callable[[T], None],
              unreadable: list[UnreadableObject]) -> None:
        count = 0

        def take_raw(raw: msgspec.Raw) -> None:
            nonlocal count
            count += 1
            if count > MAX_OBJECTS:
                raise HamiError(f"the cluster has more than {MAX_OBJECTS:,} {resource}")
            try:
                take(parse(raw))
            except MalformedInput as error:
                unreadable.append(UnreadableObject(resource.removesuffix("s"), parse_meta(raw).path, str(error)))

        try:
            read_list(self.request, resource, f"/api/v1/{resource}", query, take_raw,
                      lambda done, total: self.progress(resource, done, total))
        except ClusterError as error:
            raise explain_failure(error, "list", resource, "the whole cluster") from error

    def _get(self, verb: str, resource: str, path: str, scope: str) -> bytes:
        try:
            return self.request("GET", path)
        except NotFound:
            raise
        except ClusterError as error:
            raise explain_failure(error, verb, resource, scope) from error

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self.note(text)


def _latest(events: list[_PodEvent]) -> list[SchedulingEvent]:
    """Returns the latest of *events*. kube-scheduler may write several that say the same: they count as one."""
    by_text: dict[tuple[str, str, str], SchedulingEvent] = {}
    for event in sorted(events, key=lambda event: event.time):
        text = event.component, event.reason or "", event.message or ""
        earlier = by_text.pop(text, None)
        by_text[text] = SchedulingEvent(*text, event.times + (earlier.count if earlier is not None else 0), event.time)
    return list(by_text.values())[-MAX_EVENTS:]


class MissingRight(HamiError):
    """The user may not do what the answer needs; the text names verb, resource and scope."""


def explain_failure(error: ClusterError, verb: str, resource: str, scope: str) -> HamiError:
    """Returns *error* in the words of a user: the right that is missing, or why there is no answer."""
    if error.status == 403:
        return MissingRight(f"you may not {verb} {resource} in {scope}: ask for the verb {verb} on {resource} there")
    if error.status == 401:
        return HamiError(f"the API server does not accept your credentials: log in again ({error})")
    if error.status is None:
        return HamiError(f"the API server does not answer: {error}")
    return error
