"""Requests and responses of the scheduler extender. Responses use PascalCase keys, the fields of requests any case."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from hami.codec.documents import decode
from hami.codec.objects import parse_node
from hami.codec.pods import parse_pod
from hami.errors import MalformedInput
from hami.model import Node, Pod, PodRef
from hami.quantity import MIB

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
        if set(uids) == set(self.uids):
            return self
        return Victims(tuple(map(Victim, uids)), self.violations)

    @property
    def uids(self) -> tuple[str, ...]:
        """The uids of the pods."""
        return tuple(victim.uid for victim in self.pods or ())


# Decoded, a text may take forty times as much memory: these bounds hold before that.
MAX_OBJECT = 4 * MIB  # bytes of a pod or node; the API server takes 3 MiB, and adds defaults
# of such an object, and node names, and victims; shorter texts have fewer anyway
MAX_VALUES = 500_000
MAX_NODES = 5000  # whole nodes
MAX_MEMBERS = 100  # of the arguments, and of a list of nodes
MAX_ANNOTATIONS = 256 * 1024  # characters of a pod's annotations together, as in the API server
LONGEST_NAME, LONGEST_NAMESPACE, LONGEST_UID = 253, 63, 128

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NAMES = msgspec.json.Decoder(list[str] | None)
_LIST = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_RAWS = msgspec.json.Decoder(list[msgspec.Raw] | None)
_TEXT = msgspec.json.Decoder(str | None)
_VICTIMS = msgspec.json.Decoder(dict[str, Victims] | None)
_ANY = msgspec.json.Decoder(msgspec.Raw)
_KEY = msgspec.json.Decoder(str)
_TRAILING = re.compile(
    r"trailing characters \(byte (\d+)\)"
)  # how msgspec counts to what follows the first value
_BLANKS = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class FilterArgs:
    """Arguments of /filter. *names*: node names, ``None`` if not given. *nodes*: whole nodes, for `parse_nodes`."""

    pod: Pod
    names: list[str] | None
    nodes: tuple[msgspec.Raw, ...] | None


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
    names = _bounded("NodeNames", fields.get("nodenames"))
    return FilterArgs(
        _pod(fields), _decoded("NodeNames", _NAMES, names), _nodes(fields.get("nodes"))
    )


def parse_nodes(nodes: Sequence[msgspec.Raw]) -> Iterator[Node]:
    """Yields the whole *nodes* of FilterArgs one by one, so that not all of them are in memory.

    Raises: MalformedInput, also for one that cannot be sent back, since only parts of it are decoded.
    """
    for raw in nodes:
        try:
            str(memoryview(raw), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedInput("Nodes.items", _beginning(raw), str(error)) from error
        yield parse_node(raw)


def render_filter(
    names: Sequence[str] | None,
    failed: Mapping[str, str] | None = None,
    error: str = "",
    nodes: Mapping[str, object] | None = None,
    *,
    unresolvable: Mapping[str, str] | None = None,
) -> bytes:
    """ExtenderFilterResult with all its fields. *unresolvable*: of *failed*, the nodes where preemption cannot help."""
    return msgspec.json.encode(
        {
            "Nodes": nodes,
            "NodeNames": names,
            "FailedNodes": failed or None,
            "FailedAndUnresolvableNodes": unresolvable or None,
            "Error": error,
        }
    )


def render_simulation(nodes: Sequence[msgspec.Raw], failed: Mapping[str, str]) -> bytes:
    """ExtenderFilterResult with the whole objects of the *nodes* that remain, as received."""
    items = {"metadata": {}, "items": nodes}
    return render_filter(None, failed, nodes=items if nodes else None)


def render_priorities(scores: Mapping[str, int]) -> bytes:
    """HostPriorityList. It has no place for an error."""
    return msgspec.json.encode([{"Host": name, "Score": score} for name, score in scores.items()])


def parse_preemption(body: bytes) -> PreemptionArgs:
    """ExtenderPreemptionArgs in the form of ``nodeCacheCapable: true``. Raises: MalformedInput."""
    fields = _fields(body)
    raw = _bounded("NodeNameToMetaVictims", fields.get("nodenametometavictims"))
    pod, victims = _pod(fields), _decoded("NodeNameToMetaVictims", _VICTIMS, raw)
    if victims is None:
        raise MalformedInput(
            "NodeNameToMetaVictims", "", "missing: the extender needs nodeCacheCapable: true"
        )
    return PreemptionArgs(pod, victims)


def render_preemption(victims: Mapping[str, Victims]) -> bytes:
    """ExtenderPreemptionResult: the nodes that remain. It has no field for an error."""
    return msgspec.json.encode({"NodeNameToMetaVictims": victims})


def parse_bind(body: bytes) -> BindArgs:
    """ExtenderBindingArgs. Raises: MalformedInput."""
    fields = _fields(body)
    texts = {
        key: _decoded(name, _TEXT, fields.get(key)) or ""
        for key, name in (
            ("podname", "PodName"),
            ("podnamespace", "PodNamespace"),
            ("poduid", "PodUID"),
            ("node", "Node"),
        )
    }
    ref = PodRef(texts["podnamespace"], texts["podname"], texts["poduid"])
    _check_length("PodName", ref.name, LONGEST_NAME)
    _check_length("PodNamespace", ref.namespace, LONGEST_NAMESPACE)
    _check_length("PodUID", ref.uid, LONGEST_UID)
    _check_length("Node", texts["node"], LONGEST_NAME)
    return BindArgs(ref, texts["node"])


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
    raw = fields.get("pod")
    if raw is None or bytes(raw) == b"null":
        raise MalformedInput(
            "Pod", "", "extender args missing pod", message="extender args missing pod"
        )
    pod = parse_pod(_object("Pod", raw))
    _check_length("Pod.metadata.name", pod.ref.name, LONGEST_NAME)
    _check_length("Pod.metadata.namespace", pod.ref.namespace, LONGEST_NAMESPACE)
    _check_length("Pod.metadata.uid", pod.ref.uid, LONGEST_UID)
    _check_length("the group of the pod", pod.group, LONGEST_NAME)
    size = sum([len(key) + len(text) for key, text in pod.annotations.items()])
    if size > MAX_ANNOTATIONS:
        raise MalformedInput(
            "Pod.metadata.annotations",
            next(iter(pod.annotations)),
            f"{size} characters, expected at most {MAX_ANNOTATIONS}",
        )
    return pod


def _first_object(body: bytes) -> dict[str, msgspec.Raw]:
    """The fields of the first JSON value in *body*. Raises: ValueError, RecursionError; MalformedInput for too many."""
    text = memoryview(body)
    try:
        if len(body) <= MAX_VALUES:
            return _FIELDS.decode(body)
        _ANY.decode(body)
    except msgspec.DecodeError as error:
        text = text[: _following(error)]
    return _members("body", text, _FIELDS)


def _following(error: msgspec.DecodeError) -> int:
    """Returns where what follows the first value begins, of which *error* complains. Raises: *error* if it does not."""
    trailing = _TRAILING.search(str(error))
    if trailing is None:
        raise error
    return int(trailing[1]) - 1


def _nodes(raw: msgspec.Raw | None) -> tuple[msgspec.Raw, ...] | None:
    nodes = _members("Nodes", memoryview(raw), _LIST) if raw is not None else None
    if nodes is None:
        return None
    items = next((value for key, value in nodes.items() if key.lower() == "items"), None)
    if items is None or bytes(memoryview(items)[:1]) != b"[":  # null, or an error
        raws = _decoded("Nodes.items", _RAWS, items)
        return () if raws is None else tuple(raws)
    return tuple(_object("Nodes.items", item) for item in _elements(memoryview(items)))


def _members(
    field: str, text: memoryview, decoder: msgspec.json.Decoder[T]
) -> T | dict[str, msgspec.Raw]:
    """Returns the members of a JSON object, which is well-formed; what *decoder* makes of *text* if that is short.

    Raises: MalformedInput for too many members.
    """
    position = _skip_blanks(text, 0)
    if len(text) <= MAX_VALUES or text[position] != ord("{"):
        return decode(field, decoder, msgspec.Raw(text))
    members: dict[str, msgspec.Raw] = {}
    count, position = 0, _skip_blanks(text, position + 1)
    while text[position] != ord("}"):
        count += 1
        if count > MAX_MEMBERS:
            raise MalformedInput(field, _beginning(text), f"expected at most {MAX_MEMBERS} fields")
        colon = position + _end_of_value(text[position:])
        key = _KEY.decode(text[position:colon])
        position = _skip_blanks(text, colon + 1)
        following = position + _end_of_value(text[position:])
        members[key] = msgspec.Raw(text[position:following])
        position = following
        if text[position] == ord(","):
            position = _skip_blanks(text, position + 1)
    return members


def _elements(array: memoryview) -> Iterator[msgspec.Raw]:
    """Yields the elements of a JSON array, which is well-formed, without an object for each of those that are too many.

    Raises: MalformedInput.
    """
    position = _skip_blanks(array, 1)
    count = 0
    while array[position] != ord("]"):
        count += 1
        if count > MAX_NODES:
            raise MalformedInput("Nodes", _beginning(array), f"expected at most {MAX_NODES} nodes")
        following = position + _end_of_value(array[position:])
        end = following
        while array[end - 1] in _BLANKS:
            end -= 1
        yield msgspec.Raw(array[position:end])
        position = following
        if array[position] == ord(","):
            position = _skip_blanks(array, position + 1)


def _end_of_value(text: memoryview) -> int:
    """Returns where what follows the first JSON value in *text* begins."""
    try:
        _ANY.decode(text)
    except msgspec.DecodeError as error:
        return _following(error)
    raise AssertionError("a bracket or a colon follows")


def _skip_blanks(text: memoryview, position: int) -> int:
    while text[position] in _BLANKS:
        position += 1
    return position


def _object(field: str, raw: msgspec.Raw) -> msgspec.Raw:
    """Returns *raw*, an object as the API server may have it. Raises: MalformedInput."""
    if (size := len(memoryview(raw))) > MAX_OBJECT:
        raise MalformedInput(field, _beginning(raw), f"{size} bytes, expected at most {MAX_OBJECT}")
    _bounded(field, raw)
    return raw


def _bounded(field: str, raw: msgspec.Raw | None) -> msgspec.Raw | None:
    """Returns *raw*, which has about as many values as commas. Raises: MalformedInput for more than MAX_VALUES."""
    if (
        raw is not None
        and memoryview(raw).nbytes > MAX_VALUES
        and bytes(raw).count(b",") > MAX_VALUES
    ):
        raise MalformedInput(field, _beginning(raw), f"expected at most {MAX_VALUES} values")
    return raw


def _check_length(field: str, text: str, most: int) -> None:
    if len(text) > most:
        raise MalformedInput(field, text, f"{len(text)} characters, expected at most {most}")


def _beginning(data: msgspec.Raw | memoryview) -> str:
    return bytes(memoryview(data)[:200]).decode(errors="replace")


def _decoded(
    field: str, decoder: msgspec.json.Decoder[T | None], raw: msgspec.Raw | None
) -> T | None:
    return None if raw is None else decode(field, decoder, raw)
