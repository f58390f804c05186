"""The auditor: what the API server alone says about who holds which card, checked against what the cards have.

It shares no code with ``hami/``: annotations are read and summed here once more, from the specification. It looks at
bound pods that have not ended, at the registers of the nodes that exist, and at locks.

A pod holds on each card: the sum of its sidecars, plus the larger of (the peak of its init containers, the sum of its
app containers); once the init containers have ended well only sidecars and apps count.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from e2e.kube import Kube

__all__ = ["Card", "Hold", "Inventory", "audit", "inventory", "violations"]

Object = dict[str, Any]
REGISTER = "hami.io/node-nvidia-register"
ALLOCATED = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
ASSIGNED = "hami.io/vgpu-node"
PHASE = "hami.io/bind-phase"
LOCK = "hami.io/mutex.lock"
COUNT, MEMORY, PERCENT, CORES = (
    "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores")


class Card(NamedTuple):
    """What a node registered."""

    node: str
    uuid: str
    index: int
    model: str
    slots: int
    memory: int
    cores: int


class Hold(NamedTuple):
    """What a pod holds of one card now."""

    memory: int = 0
    cores: int = 0
    slots: int = 0
    exclusive: bool = False


@dataclass
class Inventory:
    """Cards by node and UUID, and for each of them who holds how much. *wrong*: what cannot be or cannot be read."""

    cards: dict[tuple[str, str], Card] = field(default_factory=dict)
    holds: dict[tuple[str, str], dict[str, Hold]] = field(default_factory=lambda: defaultdict(dict))
    wrong: list[str] = field(default_factory=list)

    def used(self, key: tuple[str, str]) -> Hold:
        """Sum over all pods."""
        holds = self.holds.get(key, {}).values()
        return Hold(sum(h.memory for h in holds), sum(h.cores for h in holds), sum(h.slots for h in holds))


class Entry(NamedTuple):
    uuid: str
    memory: int
    cores: int


def audit(kube: Kube, *, wait: float = 10) -> list[str]:
    """Violations that still stand after *wait* seconds, in words; none means all is well.

    A card over its limits is reported at once. Locks and unfinished pods are given the time to settle.
    """
    deadline = time.monotonic() + wait
    while True:
        nodes, pods = kube.list("Node"), kube.list("Pod")
        hard, soft = violations(nodes, pods)
        if hard or not soft or time.monotonic() >= deadline:
            return hard + soft
        time.sleep(0.1)


def violations(nodes: Iterable[Object], pods: Iterable[Object]) -> tuple[list[str], list[str]]:
    """What must never be, and what must not last."""
    nodes, pods = list(nodes), list(pods)
    found = inventory(nodes, pods)
    return found.wrong + overbooked(found) + phantoms(pods), dead_locks(nodes, pods)


def inventory(nodes: Iterable[Object], pods: Iterable[Object]) -> Inventory:
    """Cards of all nodes, and what all living bound pods hold of them."""
    found = Inventory()
    names = set()
    for node in nodes:
        names.add(node["metadata"]["name"])
        for card in cards(node):
            if (card.node, card.uuid) in found.cards:
                found.wrong.append(f"node {card.node} registers {card.uuid} twice")
            found.cards[card.node, card.uuid] = card
    for pod in pods:
        if lives(pod) and pod["spec"].get("nodeName") in names:
            book(found, pod)
    return found


def cards(node: Object) -> list[Card]:
    name, text = node["metadata"]["name"], annotations(node).get(REGISTER)
    if not text:
        return []
    if text.lstrip().startswith("["):
        return [Card(name, d["id"], d.get("index", 0), d.get("type", ""), d.get("count", 0), d.get("devmem", 0),
                     d.get("devcore", 0)) for d in json.loads(text)]
    fields = [part.split(",") for part in text.split(":") if part]
    return [Card(name, f[0], int(f[7]) if len(f) > 7 else 0, f[4], int(f[1]), int(f[2]), int(f[3])) for f in fields]


def book(found: Inventory, pod: Object) -> None:
    """Add what *pod* holds; say what is wrong with its allocation."""
    who, node = name_of(pod), pod["spec"]["nodeName"]
    asks = [asked(container) for container in (*inits(pod), *apps(pod))]
    text = annotations(pod).get(ALLOCATED)
    if text is None:
        if any(ask is not None for ask in asks):
            found.wrong.append(f"pod {who} asks for a GPU and is bound to {node} without an allocation")
        return
    if (assigned := annotations(pod).get(ASSIGNED)) != node:
        found.wrong.append(f"pod {who} is bound to {node}, its allocation is made out for {assigned}")
    try:
        entries = parse(text)
    except ValueError as error:
        found.wrong.append(f"pod {who}: {ALLOCATED} {text!r}: {error}")
        return
    entries += [[] for _ in range(len(asks) - len(entries))]
    if any(entries[len(asks):]):
        found.wrong.append(f"pod {who} has {len(asks)} containers and devices for more: {text!r}")
    for position, (ask, entry) in enumerate(zip(asks, entries, strict=False)):
        found.wrong += [f"pod {who}, container {position}: {problem}" for problem in mismatch(found, node, ask, entry)]
    for uuid, hold in held(pod, entries).items():
        found.holds[node, uuid][who] = hold


def mismatch(found: Inventory, node: str, ask: Mapping[str, int] | None, entry: list[Entry]) -> list[str]:
    """Where *entry* is not what the container asked for."""
    if ask is None:
        return [f"asks for nothing, holds {entry}"] if entry else []
    problems = []
    if len(entry) != ask[COUNT]:
        problems.append(f"asks for {ask[COUNT]} devices, holds {len(entry)}")
    if len({share.uuid for share in entry}) != len(entry):
        problems.append(f"holds one device twice: {entry}")
    for share in entry:
        card = found.cards.get((node, share.uuid))
        if card is None:
            problems.append(f"holds {share.uuid}, which {node} does not have")
            continue
        if MEMORY in ask and ask[MEMORY] > 0:
            memory = ask[MEMORY]
        else:
            memory = card.memory * ask.get(PERCENT, 100) // 100
        if share.memory != memory:
            problems.append(f"asks for {memory} MiB, holds {share.memory} on {share.uuid}")
        if share.cores != min(ask.get(CORES, 0), 100):
            problems.append(f"asks for {ask.get(CORES, 0)} cores, holds {share.cores} on {share.uuid}")
    return problems


def held(pod: Object, entries: list[list[Entry]]) -> dict[str, Hold]:
    """What the pod holds of each card now."""
    kinds = ["sidecar" if container.get("restartPolicy") == "Always" else "init" for container in inits(pod)]
    kinds += ["app"] * len(apps(pod))
    total: dict[str, dict[str, list[Entry]]] = defaultdict(lambda: {"sidecar": [], "init": [], "app": []})
    for kind, entry in zip(kinds, entries, strict=False):
        for share in entry:
            total[share.uuid][kind].append(share)
    past_init = inits_ended(pod)
    holds = {}
    for uuid, by_kind in total.items():
        peak = [] if past_init else by_kind["init"]
        lasting = by_kind["sidecar"] + by_kind["app"]
        hold = Hold(
            sum(e.memory for e in by_kind["sidecar"]) + max(max((e.memory for e in peak), default=0),
                                                            sum(e.memory for e in by_kind["app"])),
            sum(e.cores for e in by_kind["sidecar"]) + max(max((e.cores for e in peak), default=0),
                                                           sum(e.cores for e in by_kind["app"])),
            len(by_kind["sidecar"]) + max(1 if peak else 0, len(by_kind["app"])),
            any(e.cores >= 100 for e in lasting))
        if hold.slots:
            holds[uuid] = hold
    return holds


def overbooked(found: Inventory) -> list[str]:
    """Cards over their memory, cores or slots, and cards that someone has to himself and shares nevertheless."""
    problems = []
    for key, holds in found.holds.items():
        card, used = found.cards.get(key), found.used(key)
        if card is None:
            continue  # already said, by the pod
        for what, taken, there in (("MiB", used.memory, card.memory), ("cores", used.cores, card.cores),
                                   ("slots", used.slots, card.slots)):
            if taken > there:
                problems.append(
                    f"{card.uuid} on {card.node} has {there} {what}, {taken} are given out: {describe(holds)}")
        if card.cores == 100 and len(holds) > 1 and any(hold.exclusive for hold in holds.values()):
            problems.append(f"{card.uuid} on {card.node} is shared although someone has it whole: {describe(holds)}")
    return problems


def phantoms(pods: Iterable[Object]) -> list[str]:
    """Pods that carry an allocation and are bound nowhere: usage that nobody has."""
    return [f"pod {name_of(pod)} carries an allocation and is not bound" for pod in pods
            if lives(pod) and not pod["spec"].get("nodeName") and ALLOCATED in annotations(pod)]


def dead_locks(nodes: Iterable[Object], pods: Iterable[Object]) -> list[str]:
    """Locks that nobody living holds, and pods whose allocation nobody finishes."""
    by_name = {(pod["metadata"]["namespace"], pod["metadata"]["name"]): pod for pod in pods}
    problems = []
    for node in nodes:
        lock = annotations(node).get(LOCK)
        if lock is None:
            continue
        parts = lock.split(",")
        pod = by_name.get((parts[1], parts[2])) if len(parts) == 3 else None
        name = node["metadata"]["name"]
        if pod is None:
            problems.append(f"the lock of {name} names nobody who exists: {lock!r}")
        elif pod["spec"].get("nodeName") not in (None, "", name) or not lives(pod):
            problems.append(f"the lock of {name} names a pod that has no use for it: {lock!r}")
        elif annotations(pod).get(PHASE) in ("success", "failed"):
            problems.append(f"the lock of {name} is held after the end ({annotations(pod)[PHASE]}): {lock!r}")
    return problems


def parse(text: str) -> list[list[Entry]]:
    """Entries of a pod device value, one list a container. Raises: ValueError."""
    containers = text.split(";")
    if containers and not containers[-1]:
        containers.pop()
    parsed = []
    for container in containers:
        entry = []
        for part in filter(None, container.split(":")):
            fields = part.split(",")
            if len(fields) < 4:
                raise ValueError(f"{part!r} has {len(fields)} fields")
            if fields[0]:
                entry.append(Entry(fields[0], int(fields[2]), int(fields[3])))
        parsed.append(entry)
    return parsed


def asked(container: Object) -> dict[str, int] | None:
    """NVIDIA resources that *container* asks for, limits before requests; ``None`` when it wants no device."""
    resources = container.get("resources") or {}
    values = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    ask = {key: whole(values[key]) for key in (COUNT, MEMORY, PERCENT, CORES) if key in values}
    return ask if ask.get(COUNT) else None


def whole(quantity: str) -> int:
    """A quantity as the API server writes it back (``32000`` becomes ``32k``), rounded up."""
    digits = quantity.rstrip("KMGTPEikmu")
    scale = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    unit = quantity[len(digits):]
    return math.ceil(Decimal(digits) / 1000 if unit == "m" else Decimal(digits) * scale[unit])


def inits(pod: Object) -> list[Object]:
    return pod["spec"].get("initContainers") or []


def apps(pod: Object) -> list[Object]:
    return pod["spec"].get("containers") or []


def inits_ended(pod: Object) -> bool:
    """Every init container that is no sidecar has ended with code 0."""
    waited_for = {container["name"] for container in inits(pod) if container.get("restartPolicy") != "Always"}
    codes = Counter(
        status["name"] for status in pod.get("status", {}).get("initContainerStatuses") or []
        if status.get("state", {}).get("terminated", {}).get("exitCode") == 0)
    return bool(waited_for) and waited_for <= set(codes)


def lives(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def annotations(item: Object) -> dict[str, str]:
    return item["metadata"].get("annotations") or {}


def name_of(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def describe(holds: Mapping[str, Hold]) -> str:
    return ", ".join(
        f"{who} {hold.memory} MiB {hold.cores} cores {hold.slots} slots" for who, hold in sorted(holds.items()))
