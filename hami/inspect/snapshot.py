"""Snapshots: the record of a cluster as a file, for a bug report that can be asked and replayed anywhere.

A file is JSON, compressed with gzip. It holds what a record keeps, so no environment variables and no secrets.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from functools import partial
from gzip import BadGzipFile, GzipFile
from typing import Any, NamedTuple

import msgspec
import yaml

from hami.codec.device_config import known_sections
from hami.codec.keys import (
    ALLOCATION_MODE,
    ASSIGNED_NODE,
    ASSIGNED_TIME,
    BIND_PHASE,
    BIND_TIME,
    CORDON,
    CORES_LIMIT,
    DEFAULT_SCHEDULER,
    DEVICE_HEALTH,
    HAMI_SCHEDULERS,
    LOCK_FREE,
    MEMORY_WALL,
    MIG_ALLOCATIONS,
    MOVE_KEYS,
    NODE_LOCK,
    NODE_RESIZES,
    PREEMPTIBLE,
    PREEMPTING,
    RESIZE,
    RESIZE_APPLIED,
    RESIZE_STATUS,
    RESIZE_TARGET,
    RESIZED,
)
from hami.codec.resize import (
    AppliedSizes,
    ResizeStatus,
    parse_applied,
    parse_resize,
    parse_status,
    render_applied,
    render_resize,
    render_status,
    shares_in,
)
from hami.errors import HamiError, MalformedInput
from hami.inspect.cluster import ClusterRecord, InspectedCluster, UnreadableObject, selection_keys
from hami.model import Node, Pod, Share
from hami.quantity import INT32_MAX
from hami.scheduling.node_resources import NodeResources
from hami.vendors.entry_points import sections
from hami.vendors.inventory import PAIR_SCORES
from hami.vendors.shares import held_shares
from hami.vendors.spec import Catalog

KIND = "HamiSnapshot"
VERSION = 1
MAX_BYTES = 256 << 20  # of a file when it is unpacked
SCHEDULERS = (*HAMI_SCHEDULERS, DEFAULT_SCHEDULER)  # names that an anonymous snapshot keeps
COUNTED = ("GCU", "cambricon-mlu", "kunlun", "mthreads")
"""Words in the names of devices that are only counted, beside the keys of vendors."""
_WORDS = frozenset(
    """
    id index count devmem devcore type numa mode migprofiles name memorymb core slicecount placements start size health
    custominfo hami-core mig mps uuid score containerindex deviceindex gpuuuid profile placement miguuid gpuinstanceid
    computeinstanceid devicestrategy die card aic qos best-effort fixed-share burst-share link zone minor
    replicaset statefulset replicationcontroller job
    hami-vnpu-core requesting reported deleted allocating success failed true false null binpack spread mutex
    topology-aware numa-first memory cores slots dra
""".split()
)
"""Words of annotations that name nothing: keys and fixed values of what device plugins, HAMi and pods write."""
REDACTED = "redacted"
_WORD = re.compile(r'[^\s,:;{}\[\]"_]+')
_NUMBER = re.compile(r"[-+\d.TZ%]+")
_INSTANCE_TYPE = re.compile(r"[a-z]{1,5}\d[a-z]{0,3}\.(\d*x?large|metal)")
_RUNTIME = re.compile(r"(containerd|cri-o|docker)://\d+(\.\d+)*")
_VERSION = re.compile(r"v\d+(\.\d+)*")


class _Head(msgspec.Struct):
    kind: str = ""
    version: int = 0


class _SnapshotFile(msgspec.Struct):
    kind: str
    version: int
    record: ClusterRecord


_HEAD = msgspec.json.Decoder(_Head)
_FILE = msgspec.json.Decoder(_SnapshotFile)


def render_snapshot(record: ClusterRecord) -> bytes:
    """Returns the file of *record*. Equal records have equal files."""
    buffer = io.BytesIO()
    with GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        file.write(msgspec.json.encode(_SnapshotFile(KIND, VERSION, record)))
    return buffer.getvalue()


def parse_snapshot(data: bytes, source: str) -> ClusterRecord:
    """Returns the record in the file *data*; *source* is its name, for errors.

    Raises: HamiError if it is no snapshot, a damaged one, or one of a later version.
    """
    text = _unpacked(data, source)
    try:
        head = _HEAD.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HamiError(f"{source}: not a snapshot of hami: {error}") from error
    if head.kind != KIND:
        raise HamiError(
            f"{source}: not a snapshot of hami: its kind is {head.kind[:50]!r}, expected {KIND}"
        )
    if head.version > VERSION:
        raise HamiError(
            f"{source}: a snapshot of a later version (format {head.version}, this hami reads up to "
            f"{VERSION}): use a newer hami"
        )
    try:
        record = _FILE.decode(text).record
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HamiError(f"{source}: a damaged snapshot: {error}") from error
    # the API server bounds it, and the columns of devices hold no larger one
    for pod in record.pods:
        if abs(pod.priority) > INT32_MAX:
            raise HamiError(
                f"{source}: a damaged snapshot: the priority of pod {pod.ref.namespace}/{pod.ref.name} is "
                f"{pod.priority}"
            )
    return record


def _unpacked(data: bytes, source: str) -> bytes:
    try:
        with GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(MAX_BYTES + 1)
    except BadGzipFile as error:
        raise HamiError(f"{source}: not a snapshot of hami: not compressed by gzip") from error
    except (OSError, EOFError, zlib.error) as error:
        raise HamiError(f"{source}: not a snapshot of hami: {error}") from error
    if len(text) > MAX_BYTES:
        raise HamiError(f"{source}: larger than {MAX_BYTES >> 20:,} MiB when it is unpacked")
    return text


# Anonymous snapshots


class Kind(Enum):
    """The meaning of a value that is no name. What has no kind is left out of an anonymous snapshot."""

    KEPT = "kept"  # numbers, times, words of Kubernetes, and names of resources
    TEXT = "text"  # only known words, numbers and names of devices stay
    WORDS = "words"  # values of annotations: each is such a text
    PROBLEM = "problem"  # whether there is one
    LOCK = "lock"
    INSTANCE_TYPE = "instance type"
    RUNTIME_VERSION = "runtime version"
    KUBELET_VERSION = "kubelet version"


class Name(NamedTuple):
    """The name of an object of the record; *word* begins its other name."""

    word: str


class Reference(NamedTuple):
    """The name of an object that may have gone."""

    word: str


Fields = Mapping[str, "Kind | Name | Reference | Fields"]
"""The fields of a record that are in an anonymous snapshot. Those of a tuple are the fields of each of its records."""

_REF: Fields = {"namespace": Name("namespace"), "name": Name("pod"), "uid": Name("uid")}
POD_FIELDS: Fields = {
    "ref": _REF,
    "node_name": Reference("node"),
    "scheduler_name": Name("scheduler"),
    "nominated_node": Reference("node"),
    "group": Name("group"),
    "scope": {
        "priority_class": Name("priority-class"),
        "has_deadline": Kind.KEPT,
        "is_best_effort": Kind.KEPT,
        "crosses_namespaces": Kind.KEPT,
    },
    "preemptor": Reference("uid"),
    "evicted_with": {"count": Kind.KEPT, "last": Reference("uid")},
    "claim": Name("claim"),
    "claim_problem": Kind.PROBLEM,
    "controller": Name("controller"),
    "controller_kind": Kind.TEXT,
    "local_volumes": Name("volume"),
    **dict.fromkeys(
        "resource_version phase init_done admitted devices_forgotten deleting created priority soft_constraints "
        "preempts preempted other_claims is_node_agent grace_s started deletion deletion_grace_s requests overhead "
        "size".split(),
        Kind.KEPT,
    ),
}
_CONTAINER: Fields = {
    "name": Kind.KEPT,  # it has its other name already
    "kind": Kind.KEPT,
    "limits": Kind.KEPT,
    "requests": Kind.KEPT,
}
NODE_FIELDS: Fields = {
    "name": Name("node"),
    "resource_version": Kind.KEPT,
    "capacity": Kind.KEPT,
    "allocatable": Kind.KEPT,
    "runtime_version": Kind.RUNTIME_VERSION,
    "kubelet_version": Kind.KUBELET_VERSION,
    "unschedulable": Kind.KEPT,
}
QUOTA_FIELDS: Fields = {
    "namespace": Name("namespace"),
    "name": Name("quota"),
    "uid": Name("uid"),
    "resource_version": Kind.KEPT,
    "limits": Kind.KEPT,
    "binary": Kind.KEPT,
    "requests": Kind.KEPT,
    "entries": Kind.KEPT,
    "scopes": {"scope": Kind.KEPT, "operator": Kind.KEPT, "values": Name("priority-class")},
}
_POLICIES: Fields = {"node": Kind.TEXT, "device": Kind.TEXT}
RESIZE_KEYS = (RESIZE, RESIZE_STATUS, RESIZE_APPLIED)
_POD_LABELS: Fields = {ASSIGNED_NODE: Reference("node"), PREEMPTIBLE: Kind.TEXT}


def node_annotations(vendors: Catalog) -> Fields:
    """Returns the annotations of nodes that a record has."""
    keys = {LOCK_FREE, CORDON, PAIR_SCORES, ALLOCATION_MODE, NODE_RESIZES, DEVICE_HEALTH}
    keys.add(MEMORY_WALL)
    locks = {NODE_LOCK}
    for vendor in vendors:
        annotations = vendor.annotations
        keys |= {annotations.register, annotations.handshake, *annotations.node_keys}
        locks.add(annotations.lock)
    return dict.fromkeys(keys, Kind.TEXT) | dict.fromkeys(locks, Kind.LOCK)


def pod_annotations(vendors: Catalog) -> Fields:
    """Returns the annotations of pods that a record has, but those of a resize, which name containers."""
    keys = {ASSIGNED_TIME, BIND_PHASE, BIND_TIME, MIG_ALLOCATIONS, RESIZED, RESIZE_TARGET}
    keys |= {CORES_LIMIT, *MOVE_KEYS, *selection_keys(vendors)}
    for vendor in vendors:
        annotations = vendor.annotations
        keys |= {annotations.to_allocate, annotations.allocated, *annotations.extra_keys}
    places = (ASSIGNED_NODE, PREEMPTING)
    return dict.fromkeys(keys, Kind.TEXT) | dict.fromkeys(places, Reference("node"))


def anonymize(record: ClusterRecord) -> ClusterRecord:
    """Returns *record* with other names: of nodes, pods, namespaces, containers, quotas, priority classes and
    devices.

    The order of names stays, so decisions stay the same, but for preferred nodes. Fields, annotations and labels
    without a declared kind are left out: so are labels that no vendor reads on nodes, preferences and selectors of
    these, the words of kube-scheduler, the installation, and what is allocated by claims. In annotations only numbers,
    known words and parts of device models stay: any other word may be a name. Comments and unknown keys of the device
    configuration are left out.
    """
    return _Anonymizer(record).record()


class _Anonymizer:
    """The other names of one record."""

    def __init__(self, record: ClusterRecord) -> None:
        self._record = record
        cluster = InspectedCluster(record)
        self._names = _other_names(record)
        self._text = texts_of(cluster, self._names["node"]).anonymous
        self._node_annotations = node_annotations(cluster.vendors)
        self._pod_annotations = pod_annotations(cluster.vendors)
        self._node_labels: dict[str, Kind] = {}
        for vendor in cluster.vendors:
            self._node_labels |= dict.fromkeys(vendor.annotations.node_keys, Kind.INSTANCE_TYPE)
        values: dict[Kind, Callable[[Any], object]] = {
            Kind.KEPT: lambda value: value,
            Kind.TEXT: self._text,
            Kind.PROBLEM: lambda problem: REDACTED,
            Kind.LOCK: self._lock,
            Kind.INSTANCE_TYPE: self._instance_type,
            Kind.RUNTIME_VERSION: partial(_start, _RUNTIME),
            Kind.KUBELET_VERSION: partial(_start, _VERSION),
        }
        self._value = Replacer(values, self._names).value

    def record(self) -> ClusterRecord:
        """Returns the record with other names."""
        record = self._record
        return ClusterRecord(
            taken=record.taken,
            nodes=tuple(map(self._node, record.nodes)),
            pods=tuple(map(self._pod, record.pods)),
            quotas=self._value(record.quotas, QUOTA_FIELDS),
            device_config=known_config(record.device_config, self._names["namespace"]),
            policies=self._value(record.policies, _POLICIES),
            others=self._others(),
            unreadable=tuple(
                UnreadableObject(problem.kind, "?", "left out") for problem in record.unreadable
            ),
        )

    def _others(self) -> dict[str, NodeResources]:
        """Returns what pods without devices request of the nodes of the record."""
        others: dict[str, NodeResources] = {}
        for node, resources in self._record.others.items():
            name = self._names["node"].get(node)
            if name is not None:
                others[name] = resources
        return others

    def _entries(self, entries: Mapping[str, str], kinds: Fields) -> dict[str, str]:
        """Returns the annotations or labels that have a kind."""
        return {key: self._value(text, kinds[key]) for key, text in entries.items() if key in kinds}

    def _node(self, node: Node) -> Node:
        other: Node = self._value(node, NODE_FIELDS)
        return replace(
            other,
            annotations=self._entries(node.annotations, self._node_annotations),
            labels=self._entries(node.labels, self._node_labels),
        )

    def _pod(self, pod: Pod) -> Pod:
        containers = [
            replace(container, name=f"container-{number}")
            for number, container in enumerate(pod.containers, start=1)
        ]
        annotations = self._entries(pod.annotations, self._pod_annotations)
        other: Pod = self._value(pod, POD_FIELDS)
        return replace(
            other,
            containers=self._value(tuple(containers), _CONTAINER),
            annotations=annotations | self._resize_annotations(pod),
            labels=self._entries(pod.labels, _POD_LABELS),
        )

    def _resize_annotations(self, pod: Pod) -> dict[str, str]:
        annotations: dict[str, str] = {}
        for key in RESIZE_KEYS:
            text = pod.annotations.get(key)
            if text is None:
                continue
            annotations[key] = self._text(text)
            if key == RESIZE:
                annotations[key] = self._resize(pod, text)
            elif key == RESIZE_STATUS and (status := parse_status(text)) is not None:
                request = self._resize(pod, status.request)
                message = self._text(status.message)
                annotations[key] = render_status(ResizeStatus(status.state, request, message))
            elif key == RESIZE_APPLIED and (applied := parse_applied(text)) is not None:
                sizes = AppliedSizes(self._text(applied.sizes), self._text(applied.problem))
                annotations[key] = render_applied(sizes)
        return annotations

    def _resize(self, pod: Pod, text: str) -> str:
        """Returns a request to resize *pod* with the other names of its containers."""
        try:
            sizes = parse_resize(text)
        except MalformedInput:
            return self._text(text)
        names = [container.name for container in pod.containers]
        names += sorted(sizes.keys() - set(names))
        return render_resize(
            {f"container-{names.index(name) + 1}": size for name, size in sizes.items()}
        )

    def _lock(self, text: str) -> str:
        """Returns the text of a node lock: the time, then namespace and name of the pod that holds it."""
        time, *holder = text.split(",")
        words = [self._text(time)]
        if len(holder) == 2:
            words.append(self._value(holder[0], Reference("namespace")))
            words.append(self._value(holder[1], Reference("pod")))
        return ",".join(words)

    def _instance_type(self, text: str) -> str:
        return text if _INSTANCE_TYPE.fullmatch(text) else self._text(text)


def known_config(text: str, namespaces: Mapping[str, str]) -> str:
    """Returns the keys of a device configuration that HAMi and installed vendors read. *namespaces*: the other names of
    those that stay."""
    document = yaml.safe_load(text) if text else None
    if not isinstance(document, dict):
        return ""
    document = known_sections(document, sections())
    nvidia = document.get("nvidia")
    if isinstance(nvidia, dict) and isinstance(nvidia.get("gpucoresLimits"), dict):
        limits = nvidia["gpucoresLimits"].items()
        nvidia["gpucoresLimits"] = {
            namespaces[name]: limit for name, limit in limits if name in namespaces
        }
    return yaml.safe_dump(document)


class Replacer:
    """Replaces the fields of records by their kinds. *values*: what becomes of values. *names*: the other names, by the
    words with which they begin."""

    def __init__(
        self,
        values: Mapping[Kind, Callable[[Any], object]],
        names: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._values = values
        self._names = names

    def value(self, value: Any, kind: Kind | Name | Reference | Fields) -> Any:
        """Returns the anonymous form of *value*. Empty values stay."""
        if not value:
            return value
        if isinstance(value, tuple):
            return tuple(self.value(item, kind) for item in value)
        if isinstance(kind, Kind):
            return self._values[kind](value)
        if isinstance(kind, Name):
            return self._names[kind.word][value]
        if isinstance(kind, Reference):
            return self._names[kind.word].get(value, f"{kind.word}-gone")
        fields = {field: self.value(getattr(value, field), kind[field]) for field in kind}
        return type(value)(**fields)


def texts_of(cluster: InspectedCluster, nodes: Mapping[str, str]) -> Texts:
    """Returns what reduces the texts of *cluster*, whose nodes have the other names *nodes*."""
    models: set[str] = set()
    for _, usage in cluster.usages():
        models.add(usage.device.model)
        models.update(profile.name for profile in usage.device.mig_profiles)
    return Texts(_device_names(cluster, nodes), models, cluster.vendors)


class Texts:
    """Reduces texts. *uuids*: the other names of devices. *models*: those of devices, and names of their profiles."""

    def __init__(self, uuids: Mapping[str, str], models: Iterable[str], vendors: Catalog) -> None:
        self._uuids = uuids
        longest_first = sorted(self._uuids, key=len, reverse=True)
        patterns = [rf"(?<![\w-]){re.escape(uuid)}(?![\w-])" for uuid in longest_first]
        self._pattern = re.compile("|".join(patterns) or "(?!)")
        self._models = " ".join(sorted({model.lower() for model in models}))
        self._words = _WORDS | {vendor.key.lower() for vendor in vendors}

    def anonymous(self, text: str) -> str:
        """Returns *text* with the other names of devices; of the rest, the words that name nothing."""
        parts, end = [], 0
        for match in self._pattern.finditer(text):
            parts.append(_WORD.sub(self._word, text[end : match.start()]))
            parts.append(self._uuids[match[0]])
            end = match.end()
        parts.append(_WORD.sub(self._word, text[end:]))
        return "".join(parts)

    def _word(self, match: re.Match[str]) -> str:
        word = match[0].lower()
        names_nothing = _NUMBER.fullmatch(match[0]) or word in self._words or word in self._models
        return match[0] if names_nothing else REDACTED


def _other_names(record: ClusterRecord) -> dict[str, dict[str, str]]:
    """Returns the other names of objects by the words with which these begin."""
    names = defaultdict[str, set[str]](set)
    for value, fields in (
        (record.nodes, NODE_FIELDS),
        (record.pods, POD_FIELDS),
        (record.quotas, QUOTA_FIELDS),
    ):
        for word, name in _names_in(value, fields):
            names[word].add(name)
    names["scheduler"] -= set(SCHEDULERS)
    referenced = ("node", "pod", "namespace", "uid")
    other = {word: _numbered(word, names[word]) for word in (*referenced, *names)}
    other["scheduler"] |= {name: name for name in SCHEDULERS}
    return other


def _names_in(value: Any, kind: Kind | Name | Reference | Fields) -> Iterator[tuple[str, str]]:
    """The names in *value*, each with the word of its kind."""
    if not value:
        return
    if isinstance(value, tuple) and not isinstance(kind, Kind):
        for item in value:
            yield from _names_in(item, kind)
    elif isinstance(kind, Name):
        yield kind.word, value
    elif isinstance(kind, Mapping):
        for field, inner in kind.items():
            yield from _names_in(getattr(value, field), inner)


def _device_names(cluster: InspectedCluster, nodes: Mapping[str, str]) -> dict[str, str]:
    """Returns the other name of each device. One that contains its node's name contains the node's other name."""
    homes = {usage.device.uuid: name for name, usage in cluster.usages()}
    for pod in cluster.record.pods:
        for share in _shares(pod, cluster.vendors):
            homes.setdefault(share.uuid, pod.node_name)
    other = _numbered("device", homes)
    words = "|".join((*COUNTED, *(re.escape(vendor.key) for vendor in cluster.vendors)))
    endings = re.compile(rf"-({words})-\d+")
    for uuid, home in homes.items():
        if home in nodes and uuid.startswith(home) and endings.fullmatch(uuid, len(home)):
            other[uuid] = nodes[home] + uuid.removeprefix(home)
    return other


def _shares(pod: Pod, vendors: Catalog) -> Iterator[Share]:
    for vendor in vendors.allocated_in(pod.annotations):
        with contextlib.suppress(MalformedInput):
            yield from itertools.chain.from_iterable(held_shares(pod.annotations, vendor))
    for key in (RESIZED, RESIZE_TARGET):
        yield from itertools.chain.from_iterable(shares_in(pod.annotations.get(key)))


def _start(pattern: re.Pattern[str], text: str) -> str:
    """Returns the part of *text* that *pattern* matches at its start."""
    match = pattern.match(text)
    return match[0] if match is not None else ""


def _numbered(word: str, names: Iterable[str]) -> dict[str, str]:
    """Returns other names, in the same order."""
    distinct = sorted(set(names))
    width = len(str(len(distinct)))
    return {name: f"{word}-{number:0{width}}" for number, name in enumerate(distinct, start=1)}
