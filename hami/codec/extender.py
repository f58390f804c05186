"""Requests and responses of the scheduler extender. Responses use PascalCase keys, the fields of requests any case."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from hami.codec.documents import decode
from hami.codec.objects import parse_node
from hami.codec.pods import parse_pod
from hami.errors import MalformedInput
from hami.model import Node, Pod, PodRef

T = TypeVar("T")


class Victim(msgspec.Struct, frozen=True, gc=False):
    """MetaPod: a pod that kube-scheduler would evict."""

    uid: str = msgspec.field(name="UID")


class Victims(msgspec.Struct, frozen=True, gc=False):
    """MetaVictims: the pods that kube-scheduler would evict from one node; none from Kubernetes 1.38 on, where it has
    found none itself. *violations*: how many evictions would violate a PodDisruptionBudget."""

    pods: tuple[Victim, ...] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)

    def with_uids(self, uids: Collection[str]) -> Victims:
        """Returns the victims *uids*, of which these may be a part."""
        return self if set(uids) == set(self.uids) else Victims(tuple(map(Victim, uids)), self.violations)

    @property
    def uids(self) -> tuple[str, ...]:
        """The uids of the pods."""
        return tuple(victim.uid for victim in self.pods or ())


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NAMES = msgspec.json.Decoder(list[str] | None)
_LIST = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_RAWS = msgspec.json.Decoder(list[msgspec.Raw] | None)
_TEXT = msgspec.json.Decoder(str | None)
_VICTIMS = msgspec.json.Decoder(dict[str, Victims] | None)
_TRAILING = "trailing characters"


@dataclass(frozen=True, slots=True)
class FilterArgs:
    """Arguments of /filter. *names*: node names, ``None`` if not given. *nodes*: whole nodes with their JSON."""

    pod: Pod
    names: list[str] | None
    nodes: tuple[tuple[Node, bytes], ...] | None


@dataclass(frozen=True, slots=True)
class BindArgs:
    """Arguments of /bind: the pod and its node."""

    ref: PodRef
    node: str


@dataclass(frozen=True, slots=True)
class PreemptionArgs:
    """Arguments of /preempt. *victims*: by node."""

    pod: Pod
    victims: Mapping[str, Victims]


def parse_filter(body: bytes) -> FilterArgs:
    """ExtenderArgs. Only the first JSON value of *body* is read. Raises: MalformedInput."""
    fields = _fields(body)
    return FilterArgs(_pod(fields), _decoded("NodeNames", _NAMES, fields.get("nodenames")),
                      _nodes(fields.get("nodes")))


def render_filter(names: Sequence[str] | None, failed: Mapping[str, str] | None = None, error: str = "",
                  nodes: Mapping[str, object] | None = None, *, unresolvable: Mapping[str, str] | None = None) -> bytes:
    """ExtenderFilterResult with all its fields. *unresolvable*: of *failed*, the nodes where preemption cannot help."""
    return msgspec.json.encode({"Nodes": nodes, "NodeNames": names, "FailedNodes": failed or None,
                                "FailedAndUnresolvableNodes": unresolvable or None, "Error": error})


def render_simulation(nodes: Sequence[bytes], failed: Mapping[str, str]) -> bytes:
    """ExtenderFilterResult with the whole objects of the *nodes* that remain, as received."""
    items = {"metadata": {}, "items": [msgspec.Raw(node) for node in nodes]}
    return render_filter(None, failed, nodes=items if nodes else None)


def render_priorities(scores: Mapping[str, int]) -> bytes:
    """HostPriorityList. It has no place for an error."""
    return msgspec.json.encode([{"Host": name, "Score": score} for name, score in scores.items()])


def parse_preemption(body: bytes) -> PreemptionArgs:
    """ExtenderPreemptionArgs in the form of ``nodeCacheCapable: true``. Raises: MalformedInput."""
    fields = _fields(body)
    pod, victims = _pod(fields), _decoded("NodeNameToMetaVictims", _VICTIMS, fields.get("nodenametometavictims"))
    if victims is None:
        raise MalformedInput("NodeNameToMetaVictims", "", "missing: the extender needs nodeCacheCapable: true")
    return PreemptionArgs(pod, victims)


def render_preemption(victims: Mapping[str, Victims]) -> bytes:
    """ExtenderPreemptionResult: the nodes that remain. It has no field for an error."""
    return msgspec.json.encode({"NodeNameToMetaVictims": victims})


def parse_bind(body: bytes) -> BindArgs:
    """ExtenderBindingArgs. Raises: MalformedInput."""
    fields = _fields(body)
    texts = {key: _decoded(name, _TEXT, fields.get(key)) or ""
             for key, name in (("podname", "PodName"), ("podnamespace", "PodNamespace"), ("poduid", "PodUID"),
                               ("node", "Node"))}
    return BindArgs(PodRef(texts["podnamespace"], texts["podname"], texts["poduid"]), texts["node"])


def render_bind(error: str = "") -> bytes:
    """ExtenderBindingResult."""
    return msgspec.json.encode({"Error": error})


def _fields(body: bytes) -> dict[str, msgspec.Raw]:
    if not body.strip():
        raise MalformedInput("body", "", "empty body", message="EOF")
    try:
        fields = _first_object(body)
    except (ValueError, RecursionError) as error:
        raise MalformedInput("body", body[:200].decode(errors="replace"), str(error)) from error
    return {key.lower(): value for key, value in fields.items()}


def _pod(fields: Mapping[str, msgspec.Raw]) -> Pod:
    pod = fields.get("pod")
    if pod is None or bytes(pod) == b"null":
        raise MalformedInput("Pod", "", "extender args missing pod", message="extender args missing pod")
    return parse_pod(pod)


def _first_object(body: bytes) -> dict[str, msgspec.Raw]:
    """The fields of the first JSON value in *body*. Raises: ValueError, RecursionError."""
    try:
        return _FIELDS.decode(body)
    except msgspec.DecodeError as error:
        if _TRAILING not in str(error):
            raise
    text = body.decode(errors="surrogateescape").lstrip()
    _, end = json.JSONDecoder().raw_decode(text)
    return _FIELDS.decode(text[:end].encode(errors="surrogateescape"))


def _nodes(raw: msgspec.Raw | None) -> tuple[tuple[Node, bytes], ...] | None:
    nodes = _decoded("Nodes", _LIST, raw)
    if nodes is None:
        return None
    items = next((value for key, value in nodes.items() if key.lower() == "items"), None)
    return tuple((parse_node(item), _echoed(item)) for item in _decoded("Nodes.items", _RAWS, items) or ())


def _echoed(item: msgspec.Raw) -> bytes:
    """*item* as it is returned to the caller. Only parts of it are decoded, so the encoding is checked here."""
    data = bytes(item)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise MalformedInput("Nodes.items", data[:200].decode(errors="replace"), str(error)) from error
    return data


def _decoded(field: str, decoder: msgspec.json.Decoder[T], raw: msgspec.Raw | None) -> T | None:
    return None if raw is None else decode(field, decoder, raw)
