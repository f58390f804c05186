"""Snapshots: the record of a cluster as a file, for a bug report that can be asked and replayed anywhere.

A file is JSON, compressed with gzip. It holds what a record keeps, so no environment variables and no secrets.
"""

from __future__ import annotations

import contextlib
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from gzip import GzipFile

import msgspec
import yaml

from hami.codec.keys import (
    ASSIGNED_NODE,
    NODE_LOCK,
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
from hami.inspect.cluster import ClusterRecord, InspectedCluster, UnreadableObject
from hami.inspect.installation import Installation
from hami.model import EvictedTogether, Node, Pod, PodRef, QuotaLimits, ScopeRequirement, Share
from hami.quantity import INT32_MAX
from hami.state.view import Policies
from hami.vendors.shares import held_shares

KIND = "HamiSnapshot"
VERSION = 1
MAX_BYTES = 256 << 20  # of a file when it is unpacked
SCHEDULERS = (
    "hami-scheduler",
    "hami-scheduler-claims",
    "default-scheduler",
)  # names that an anonymous snapshot keeps
COUNTED = ("GCU", "cambricon-mlu", "kunlun", "mthreads")
"""Words in the names of devices that are only counted, beside the keys of vendors."""
_WORDS = frozenset(
    """
    id index count devmem devcore type numa mode migprofiles name memorymb core slicecount placements start size health
    custominfo hami-core mig mps uuid score containerindex deviceindex gpuuuid profile placement miguuid gpuinstanceid
    computeinstanceid devicestrategy die card aic qos best-effort fixed-share burst-share link zone minor
    hami-vnpu-core requesting reported deleted allocating success failed true false null binpack spread mutex
    topology-aware numa-first memory cores slots dra
""".split()
)
"""Words of annotations that name nothing: keys and fixed values of what device plugins, HAMi and pods write."""
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
    for (
        pod
    ) in record.pods:  # the API server bounds it, and the columns of devices hold no larger one
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
    except (OSError, EOFError, zlib.error) as error:
        raise HamiError(f"{source}: not a snapshot of hami: {error}") from error
    if len(text) > MAX_BYTES:
        raise HamiError(f"{source}: larger than {MAX_BYTES >> 20:,} MiB when it is unpacked")
    return text


# Anonymous snapshots


def anonymize(record: ClusterRecord) -> ClusterRecord:
    """Returns *record* with other names: of nodes, pods, namespaces, containers, quotas, priority classes and
    devices.

    The order of names stays, so decisions stay the same, but for preferred nodes. Labels are left out unless a vendor
    reads them on nodes, and so are preferences for them, and the words of kube-scheduler. In
    annotations only numbers, known words and parts of device models stay: any other word may be a name. Comments of
    the device configuration are left out, the installation, and what is allocated by claims.
    """
    return _Anonymizer(record).record()


class _Anonymizer:
    """The other names of one record."""

    def __init__(self, record: ClusterRecord) -> None:
        self._record = record
        self._cluster = InspectedCluster(record)
        self._vendors = self._cluster.vendors
        self._nodes = _numbered("node", (node.name for node in record.nodes))
        self._namespaces = _numbered(
            "namespace",
            (
                *(pod.ref.namespace for pod in record.pods),
                *(quota.namespace for quota in record.quotas),
            ),
        )
        self._pods = _numbered("pod", (pod.ref.name for pod in record.pods))
        self._quotas = _numbered("quota", (quota.name for quota in record.quotas))
        self._uids = _numbered(
            "uid", (*(pod.ref.uid for pod in record.pods), *(quota.uid for quota in record.quotas))
        )
        self._priority_classes = {"": ""} | _numbered(
            "priority-class",
            (
                *(pod.scope.priority_class for pod in record.pods if pod.scope.priority_class),
                *(
                    name
                    for quota in record.quotas
                    for scope in quota.scopes
                    for name in scope.values
                ),
            ),
        )
        self._schedulers = _numbered(
            "scheduler",
            (
                pod.scheduler_name
                for pod in record.pods
                if pod.scheduler_name not in ("", *SCHEDULERS)
            ),
        )
        self._claims = {"": ""} | _numbered(
            "claim", (pod.claim for pod in record.pods if pod.claim)
        )
        self._groups = {"": ""} | _numbered(
            "group", (pod.group for pod in record.pods if pod.group)
        )
        self._controllers = {"": ""} | _numbered(
            "controller", (pod.controller for pod in record.pods if pod.controller)
        )
        self._uuids = self._device_names()
        self._pattern = re.compile(
            "|".join(
                rf"(?<![\w-]){re.escape(uuid)}(?![\w-])"
                for uuid in sorted(self._uuids, key=len, reverse=True)
            )
            or "(?!)"
        )
        self._models = " ".join(
            sorted(
                {
                    text.lower()
                    for _, usage in self._cluster.usages()
                    for text in (
                        usage.device.model,
                        *(kind.name for kind in usage.device.mig_profiles),
                    )
                }
            )
        )
        self._node_labels = {
            key for vendor in self._vendors for key in vendor.annotations.node_keys
        }
        self._words = _WORDS | {vendor.key.lower() for vendor in self._vendors}
        self._locks = {NODE_LOCK, *(vendor.annotations.lock for vendor in self._vendors)}

    def record(self) -> ClusterRecord:
        """Returns the record with other names."""
        record = self._record
        return replace(
            record,
            nodes=tuple(map(self._node, record.nodes)),
            pods=tuple(map(self._pod, record.pods)),
            quotas=tuple(map(self._quota, record.quotas)),
            events={},
            installation=Installation(),
            slices=(),
            claims=(),
            device_config=yaml.safe_dump(yaml.safe_load(record.device_config))
            if record.device_config
            else "",
            policies=Policies(self._text(record.policies.node), self._text(record.policies.device)),
            unreadable=tuple(
                UnreadableObject(problem.kind, "?", "left out") for problem in record.unreadable
            ),
        )

    def _device_names(self) -> dict[str, str]:
        """Returns the other name of each device. One that contains its node's name contains the node's other name."""
        homes = {usage.device.uuid: name for name, usage in self._cluster.usages()}
        homes |= {
            share.uuid: pod.node_name
            for pod in self._record.pods
            for share in self._shares(pod)
            if share.uuid not in homes
        }
        numbered = _numbered("device", homes)
        words = "|".join((*COUNTED, *(re.escape(vendor.key) for vendor in self._vendors)))
        endings = re.compile(rf"-({words})-\d+")
        return {
            uuid: f"{self._nodes[home]}{uuid.removeprefix(home)}"
            if home in self._nodes and uuid.startswith(home) and endings.fullmatch(uuid, len(home))
            else numbered[uuid]
            for uuid, home in homes.items()
        }

    def _shares(self, pod: Pod) -> Iterator[Share]:
        for vendor in self._vendors.allocated_in(pod.annotations):
            with contextlib.suppress(MalformedInput):
                for shares in held_shares(pod.annotations, vendor):
                    yield from shares
        for key in (RESIZED, RESIZE_TARGET):
            yield from (share for shares in shares_in(pod.annotations.get(key)) for share in shares)

    def _node(self, node: Node) -> Node:
        return replace(
            node,
            name=self._nodes[node.name],
            annotations={
                key: self._lock(text) if key in self._locks else self._text(text)
                for key, text in node.annotations.items()
            },
            labels={
                key: self._node_label(text)
                for key, text in node.labels.items()
                if key in self._node_labels
            },
            runtime_version=_start(_RUNTIME, node.runtime_version),
            kubelet_version=_start(_VERSION, node.kubelet_version),
        )

    def _node_label(self, text: str) -> str:
        if _INSTANCE_TYPE.fullmatch(text):
            return text
        return self._text(text)

    def _pod(self, pod: Pod) -> Pod:
        ref = PodRef(
            self._namespaces[pod.ref.namespace], self._pods[pod.ref.name], self._uids[pod.ref.uid]
        )
        containers = tuple(
            replace(container, name=f"container-{number}")
            for number, container in enumerate(pod.containers, start=1)
        )
        labels = (
            {ASSIGNED_NODE: self._place(pod.labels[ASSIGNED_NODE])}
            if ASSIGNED_NODE in pod.labels
            else {}
        )
        if pod.labels.get(PREEMPTIBLE) == "false":
            labels[PREEMPTIBLE] = "false"
        scope = replace(pod.scope, priority_class=self._priority_classes[pod.scope.priority_class])
        return replace(
            pod,
            ref=ref,
            labels=labels,
            containers=containers,
            node_name=self._place(pod.node_name),
            scope=scope,
            group=self._groups[pod.group],
            nominated_node=self._place(pod.nominated_node),
            scheduling_failure="",
            preferences=(),
            controller=self._controllers[pod.controller],
            claim=self._claims[pod.claim],
            claim_problem="redacted" if pod.claim_problem else "",
            preemptor=self._uids.get(pod.preemptor, "uid-gone") if pod.preemptor else "",
            evicted_with=self._together(pod.evicted_with),
            scheduler_name=self._schedulers.get(pod.scheduler_name, pod.scheduler_name),
            annotations={
                key: self._annotation(pod, key, text) for key, text in pod.annotations.items()
            },
        )

    def _together(self, pods: EvictedTogether | None) -> EvictedTogether | None:
        return None if pods is None else replace(pods, last=self._uids.get(pods.last, "uid-gone"))

    def _annotation(self, pod: Pod, key: str, text: str) -> str:
        if key in (ASSIGNED_NODE, PREEMPTING):
            return self._place(text)
        if key == RESIZE:
            return self._resize(pod, text)
        if key == RESIZE_STATUS and (status := parse_status(text)) is not None:
            return render_status(
                ResizeStatus(
                    status.state, self._resize(pod, status.request), self._text(status.message)
                )
            )
        if key == RESIZE_APPLIED and (applied := parse_applied(text)) is not None:
            return render_applied(
                AppliedSizes(self._text(applied.sizes), self._text(applied.problem))
            )
        return self._text(text)

    def _resize(self, pod: Pod, text: str) -> str:
        """Returns a request to resize *pod* with the other names of its containers."""
        try:
            sizes = parse_resize(text)
        except MalformedInput:
            return self._text(text)
        known = [container.name for container in pod.containers]
        names = [*known, *sorted(sizes.keys() - set(known))]
        return render_resize(
            {f"container-{names.index(name) + 1}": size for name, size in sizes.items()}
        )

    def _quota(self, quota: QuotaLimits) -> QuotaLimits:
        return replace(
            quota,
            namespace=self._namespaces[quota.namespace],
            name=self._quotas[quota.name],
            uid=self._uids[quota.uid],
            scopes=tuple(self._scope(scope) for scope in quota.scopes),
        )

    def _scope(self, scope: ScopeRequirement) -> ScopeRequirement:
        return replace(scope, values=tuple(self._priority_classes[name] for name in scope.values))

    def _place(self, node: str) -> str:
        return self._nodes.get(node, "node-gone") if node else ""

    def _text(self, text: str) -> str:
        """Returns *text* with the other names of devices; of the rest, the words that name nothing."""
        kept, end = [], 0
        for match in self._pattern.finditer(text):
            kept += [_WORD.sub(self._word, text[end : match.start()]), self._uuids[match[0]]]
            end = match.end()
        return "".join([*kept, _WORD.sub(self._word, text[end:])])

    def _word(self, match: re.Match[str]) -> str:
        word = match[0]
        is_kept = (
            _NUMBER.fullmatch(word) or word.lower() in self._words or word.lower() in self._models
        )
        return word if is_kept else "redacted"

    def _lock(self, text: str) -> str:
        """Returns the text of a node lock: the time, then namespace and name of the pod that holds it."""
        time, *holder = text.split(",")
        if len(holder) != 2:
            return self._text(time)
        return ",".join(
            (
                self._text(time),
                self._namespaces.get(holder[0], "namespace-gone"),
                self._pods.get(holder[1], "pod-gone"),
            )
        )


def _start(pattern: re.Pattern[str], text: str) -> str:
    """Returns the part of *text* that *pattern* matches at its start."""
    match = pattern.match(text)
    return match[0] if match is not None else ""


def _numbered(word: str, names: Iterable[str]) -> dict[str, str]:
    """Returns other names, in the same order."""
    distinct = sorted(set(names))
    width = len(str(len(distinct)))
    return {name: f"{word}-{number:0{width}}" for number, name in enumerate(distinct, start=1)}
