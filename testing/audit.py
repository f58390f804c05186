"""Audits a cluster: compares the allocations in the API server with the devices of the nodes.

The auditor shares no code with ``hami/``; it parses and adds up annotations on its own. It checks bound pods that have
not terminated, the devices of all vendors on existing nodes, and locks.

A pod holds on each device the sum of its sidecars, plus the larger of the peak of its init containers and the sum of
its app containers. After the init containers have succeeded, only sidecars and app containers count. Exclusive parts
(MIG placements, cores of a Neuron device) are held by all containers at the same time. A pod that was resized holds
what its annotation of that says, on the devices that it has requested.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from testing.eventually import PATIENCE_S, WaitTimeout, eventually
from testing.kube import Kube
from testing.vendors import (
    APP_CLASS,
    MLU_ASSIGNED,
    MLU_LOCK,
    MUTEX,
    PHASE,
    VENDORS,
    Card,
    DeviceRequest,
    Entry,
    Profile,
    Vendor,
    device_request,
)

__all__ = ["Card", "Hold", "Inventory", "audit", "inventory", "parse", "violations"]

Object = dict[str, Any]
ASSIGNED = "hami.io/vgpu-node"
AMOUNTS = "hami.io/claim-amounts"
PLACES = "hami.io/vgpu-mig-allocations"
RESIZED = "hami.io/vgpu-devices-resized"
QUALITY = "metax-tech.com/sgpu-qos-policy"


class Hold(NamedTuple):
    """What a pod holds of a device now.

    *parts*: memory slices of its MIG instances, or its Neuron cores. *app_class*, *quality*: for pods on a MetaX sGPU.
    """

    memory: int = 0
    cores: int = 0
    slots: int = 0
    exclusive: bool = False
    parts: tuple[int, ...] = ()
    app_class: str = ""
    quality: str = ""


@dataclass
class Inventory:
    """Devices by node and UUID, the pods that hold them, and inconsistencies (*wrong*)."""

    cards: dict[tuple[str, str], Card] = field(default_factory=dict)
    holds: dict[tuple[str, str], dict[str, Hold]] = field(default_factory=lambda: defaultdict(dict))
    wrong: list[str] = field(default_factory=list)

    def used(self, key: tuple[str, str]) -> Hold:
        """Returns the sum of all pods."""
        holds = self.holds.get(key, {}).values()
        return Hold(
            sum(h.memory for h in holds), sum(h.cores for h in holds), sum(h.slots for h in holds)
        )


def audit(kube: Kube, *, wait: float = PATIENCE_S) -> list[str]:
    """Returns the violations, as sentences.

    An overcommitted device is reported at once. Locks and unfinished pods are reported if they last *wait* seconds:
    the scheduler keeps the lock of a pod that was deleted between its Binding and Allocate for ten seconds, since the
    kubelet may still call (DELETED_S in hami/scheduler/locks.py), and then until the node's lease shows that it lives.
    """
    found: tuple[list[str], list[str]] = [], []

    def decided() -> bool:
        nonlocal found
        found = violations(kube.list("Node"), kube.list("Pod"))
        return bool(found[0]) or not found[1]

    with contextlib.suppress(WaitTimeout):
        eventually(decided, "no lock is left and no pod is unfinished", timeout=wait, interval=0.1)
    return found[0] + found[1]


def violations(nodes: Iterable[Object], pods: Iterable[Object]) -> tuple[list[str], list[str]]:
    """Returns what must never happen, and what must not last."""
    nodes, pods = list(nodes), list(pods)
    found = inventory(nodes, pods)
    return found.wrong + overbooked(found) + phantoms(pods), dead_locks(nodes, pods)


def inventory(nodes: Iterable[Object], pods: Iterable[Object]) -> Inventory:
    """Returns the devices of all nodes and the holds of all bound pods that have not terminated."""
    found = Inventory()
    names = set()
    for node in nodes:
        names.add(node["metadata"]["name"])
        for card in itertools.chain.from_iterable(vendor.cards(vendor, node) for vendor in VENDORS):
            if (card.node, card.uuid) in found.cards:
                found.wrong.append(f"node {card.node} registers {card.uuid} twice")
            found.cards[card.node, card.uuid] = card
    for pod in pods:
        if lives(pod) and pod["spec"].get("nodeName") in names:
            book(found, pod)
    return found


def book(found: Inventory, pod: Object) -> None:
    """Adds the holds of *pod*, and inconsistencies of its allocations."""
    who, node, notes = name_of(pod), pod["spec"]["nodeName"], annotations(pod)
    containers = with_amounts([*inits(pod), *apps(pod)], notes)
    if (
        any(vendor.allocated in notes for vendor in VENDORS)
        and (assigned := notes.get(ASSIGNED)) != node
    ):
        found.wrong.append(f"pod {who} is bound to {node}, its allocation names {assigned}")
    for vendor in VENDORS:
        requests = [device_request(vendor, container) for container in containers]
        text = notes.get(vendor.allocated)
        if vendor.key == "NVIDIA" and RESIZED in notes:
            if notes[RESIZED] != text:
                found.wrong.append(
                    f"pod {who} holds {notes[RESIZED]!r}, its allocation says {text!r}"
                )
            text = notes[RESIZED]
        if text is not None:
            book_vendor(found, pod, vendor, requests, text)
        elif any(requests):
            found.wrong.append(
                f"pod {who} requests {vendor.count} and is bound to {node} without an allocation"
            )


def with_amounts(containers: list[Object], notes: Mapping[str, str]) -> list[Object]:
    """Returns *containers* with what those of a pod with a claim of its own request: admission has moved it to an
    annotation."""
    amounts: dict[str, Object] = json.loads(notes.get(AMOUNTS, "{}"))
    return [
        {**one, "resources": {"limits": amounts[one["name"]]}} if one["name"] in amounts else one
        for one in containers
    ]


def book_vendor(
    found: Inventory, pod: Object, vendor: Vendor, requests: list[DeviceRequest | None], text: str
) -> None:
    """Adds the holds of *pod* on devices of one vendor, from its annotation *text*."""
    who, node = name_of(pod), pod["spec"]["nodeName"]
    try:
        entries = parse(text)
        places = mig_places(pod) if vendor.key == "NVIDIA" else {}
    except (ValueError, KeyError) as error:
        found.wrong.append(f"pod {who}: {vendor.allocated} {text!r}: {error!r}")
        return
    entries += [[] for _ in range(len(requests) - len(entries))]
    if any(entries[len(requests) :]):
        found.wrong.append(
            f"pod {who} has {len(requests)} containers and devices for more: {text!r}"
        )
    cards = {
        uuid: card
        for (on, uuid), card in found.cards.items()
        if on == node and card.vendor == vendor.key
    }
    problems = [
        f", container {position}: {problem}"
        for position, (request, entry) in enumerate(zip(requests, entries))
        for problem in mismatch(vendor, request, entry, cards, annotations(pod))
    ]
    problems += [f": {problem}" for problem in misplaced(entries, places, cards)]
    found.wrong += [f"pod {who}{problem}" for problem in problems]
    for uuid, hold in held(pod, entries, cards, places).items():
        found.holds[node, uuid][who] = hold


def mismatch(
    vendor: Vendor,
    request: DeviceRequest | None,
    entry: list[Entry],
    cards: Mapping[str, Card],
    notes: Mapping[str, str],
) -> list[str]:
    """Returns differences between *entry* and the request. *cards*: of the node and vendor; *notes*: of the pod."""
    if request is None:
        return [f"requests no {vendor.count}, holds {entry}"] if entry else []
    if missing := [share.uuid for share in entry if share.uuid not in cards]:
        return [f"holds {missing}, which the node does not have"]
    problems = []
    wanted = vendor.wants(request, cards[entry[0].uuid]) if entry else max(request.count, 1)
    if len(entry) != wanted:
        problems.append(f"requests {wanted} devices of {vendor.count}, holds {len(entry)}")
    uncut = [share.uuid for share in entry if vendor.key != "NVIDIA" or not cards[share.uuid].cut]
    if len(set(uncut)) != len(uncut):
        problems.append(f"holds one device twice: {entry}")
    for share in entry:
        card = cards[share.uuid]
        right = vendor.gets(vendor, request, card, notes)
        if (share.memory, share.cores) not in right and RESIZED not in notes:
            problems.append(
                f"requests {request}, holds {share.memory} MiB and {share.cores} cores of {share.uuid} "
                f"instead of one of {right[:9]}"
            )
        if share.type != (card.model if vendor.key == "AMD" else vendor.key):
            problems.append(f"holds {share.uuid} as {share.type!r}")
    if (unrelated := GROUP_RULES.get(vendor.key)) is not None:
        problems += unrelated(request, [(share, cards[share.uuid]) for share in entry])
    return problems


Shares = list[tuple[Entry, Card]]


def whole_modules(request: DeviceRequest, shares: Shares) -> list[str]:
    """Ascend910C: NPUs 0 and 1, 2 and 3, and so on belong together."""
    modules = Counter(card.index // 2 for _, card in shares)
    return (
        [f"holds half of modules: {[share.uuid for share, _ in shares]}"]
        if set(modules.values()) - {2}
        else []
    )


def all_cores(request: DeviceRequest, shares: Shares) -> list[str]:
    """AWS: the requested number of cores, and adjacent devices."""
    problems = []
    if (
        not request.count
        and (cores := sum(share.cores.bit_count() for share, _ in shares)) != request.cores
    ):
        problems.append(f"requests {request.cores} cores, holds {cores}")
    indexes = sorted(card.index for _, card in shares)
    if indexes and indexes != list(range(indexes[0], indexes[0] + len(indexes))):
        problems.append(f"holds devices that are not neighbors: {indexes}")
    return problems


LINKED = {2: ("04", "15", "26", "37"), 4: ("0145", "2367", "0246", "1357", "0347", "1256")}


def one_wing(request: DeviceRequest, shares: Shares) -> list[str]:
    """Kunlun: devices of one wing (0 to 3, 4 to 7), or pairs that are linked across the wings."""
    indexes = sorted(card.index for _, card in shares)
    text = "".join(map(str, indexes))
    linked = (
        len({index // 4 for index in indexes}) < 2
        or len(indexes) == 8
        or text in LINKED.get(len(indexes), ())
    )
    return [] if linked else [f"holds cards that are not linked: {indexes}"]


GROUP_RULES: dict[str, Callable[[DeviceRequest, Shares], list[str]]] = {
    "Ascend910C": whole_modules,
    "AWSNeuron": all_cores,
    "kunlun": one_wing,
    "XPU": one_wing,
}

Places = Mapping[tuple[int, int], tuple[str, str, int, int]]


def mig_places(pod: Object) -> Places:
    """Returns GPU, profile, start and size of each MIG instance, by container and share.
    Raises: ValueError, KeyError."""
    places = [
        (
            (one["containerIndex"], one["deviceIndex"]),
            (one["gpuUUID"], one["profile"], one["placement"]["start"], one["placement"]["size"]),
        )
        for one in json.loads(annotations(pod).get(PLACES, "[]"))
    ]
    if len(dict(places)) < len(places):
        raise ValueError(f"two places for one share: {places}")
    return dict(places)


def misplaced(entries: list[list[Entry]], places: Places, cards: Mapping[str, Card]) -> list[str]:
    """Returns shares of MIG GPUs without a placement, placements without a share, and invalid placements."""
    problems = []
    shares = {
        (container, position): share
        for container, entry in enumerate(entries)
        for position, share in enumerate(entry)
    }
    for key in sorted(shares.keys() | places.keys()):
        share, place = shares.get(key), places.get(key)
        card = cards.get(share.uuid) if share is not None else None
        if share is None:
            problems.append(f"the place {place} of container {key[0]} has no share")
        elif card is not None and card.cut and card.vendor == "NVIDIA" and place is None:
            problems.append(f"container {key[0]} has no place on the MIG card {share.uuid}")
        elif (
            card is not None
            and place is not None
            and place
            not in [
                (card.uuid, one.name, *partition)
                for one in card.profiles
                for partition in one.places
                if (one.memory, one.cores) == (share.memory, share.cores)
            ]
        ):
            problems.append(
                f"container {key[0]} holds {share} at {place}, which is none of its places"
            )
    return problems


def held(
    pod: Object, entries: list[list[Entry]], cards: Mapping[str, Card], places: Places
) -> dict[str, Hold]:
    """Returns the holds of the pod on each device."""
    kinds = [
        "sidecar" if container.get("restartPolicy") == "Always" else "init"
        for container in inits(pod)
    ]
    kinds += ["app"] * len(apps(pod))
    total: dict[str, dict[str, list[Entry]]] = defaultdict(
        lambda: {"sidecar": [], "init": [], "app": []}
    )
    parts: dict[str, list[int]] = defaultdict(list)
    past_init = inits_ended(pod)
    for position, (kind, entry) in enumerate(zip(kinds, entries)):
        for number, share in enumerate(entry):
            total[share.uuid][kind].append(share)
            if kind != "init" or not past_init:
                parts[share.uuid] += parts_of(
                    share, cards.get(share.uuid), places.get((position, number))
                )
    holds = {}
    for uuid, by_kind in total.items():
        peak = [] if past_init else by_kind["init"]
        lasting = by_kind["sidecar"] + by_kind["app"]
        card = cards.get(uuid)
        hold = Hold(
            sum(e.memory for e in by_kind["sidecar"])
            + max(max((e.memory for e in peak), default=0), sum(e.memory for e in by_kind["app"])),
            sum(e.cores for e in by_kind["sidecar"])
            + max(max((e.cores for e in peak), default=0), sum(e.cores for e in by_kind["app"])),
            slots_of(by_kind["sidecar"], card)
            + max(
                max((slots_of([e], card) for e in peak), default=0), slots_of(by_kind["app"], card)
            ),
            any(e.cores >= 100 for e in lasting),
            tuple(parts[uuid]),
        )
        if card is not None and card.vendor == "Metax-SGPU":
            hold = hold._replace(
                app_class=annotations(pod).get(APP_CLASS, ""),
                quality=annotations(pod).get(QUALITY, "best-effort"),
            )
        if hold.slots:
            holds[uuid] = hold
    return holds


def parts_of(
    share: Entry, card: Card | None, place: tuple[str, str, int, int] | None
) -> Iterable[int]:
    """Returns the parts of a device that only this share may hold."""
    if place is not None:
        return range(place[2], place[2] + place[3])
    if card is not None and card.vendor == "AWSNeuron":
        return [core for core in range(card.cores) if share.cores >> core & 1]
    return ()


def slots_of(entries: list[Entry], card: Card | None) -> int:
    """Returns the number of slots: one for each share; for DRS, the slices of its profile."""
    if card is None or card.vendor != "Enflame":
        return len(entries)
    sizes: dict[tuple[int, int], Profile] = {(one.memory, one.cores): one for one in card.profiles}
    return sum(
        sizes[e.memory, e.cores].slices if (e.memory, e.cores) in sizes else 1 for e in entries
    )


def overbooked(found: Inventory) -> list[str]:
    """Returns overcommitted devices, parts that are held twice, and violations of exclusive use."""
    problems = []
    for key, holds in found.holds.items():
        card, used = found.cards.get(key), found.used(key)
        if card is None:
            continue  # already reported for the pod
        where = f"{card.uuid} on {card.node}"
        for what, taken, there in (
            ("MiB", used.memory, card.memory),
            ("slots", used.slots, card.slots),
            ("cores", 0 if card.cut else used.cores, card.cores),
        ):
            if taken > there:
                problems.append(
                    f"{where} has {there} {what}, {taken} are given out: {describe(holds)}"
                )
        parts = Counter(part for hold in holds.values() for part in hold.parts)
        if twice := sorted(part for part, number in parts.items() if number > 1):
            problems.append(
                f"the parts {twice} of {where} are given out more than once: {describe(holds)}"
            )
        alone = any(hold.exclusive and not hold.app_class for hold in holds.values())
        if card.cores == 100 and not card.cut and len(holds) > 1 and alone:
            problems.append(f"{where} is shared although someone has it whole: {describe(holds)}")
        problems += [
            f"{where} {problem}: {describe(holds)}"
            for problem in at_odds(card, list(holds.values()))
        ]
    return problems


def at_odds(card: Card, holds: list[Hold]) -> list[str]:
    """Returns pods that must not share a device: different sGPU qualities or classes, slices of different sizes."""
    problems = []
    if card.vendor == "Metax-SGPU":
        if len({hold.quality for hold in holds if hold.app_class != "online"}) > 1:
            problems.append("has several qualities of service")
        if len({bool(hold.app_class) for hold in holds}) > 1:
            problems.append("has pods of an app class and others")
    if card.vendor == "XPU" and len({hold.memory // hold.slots for hold in holds}) > 1:
        problems.append("is cut in slices of several sizes")
    return problems


def phantoms(pods: Iterable[Object]) -> list[str]:
    """Returns unbound pods with an allocation."""
    return [
        f"pod {name_of(pod)} carries an allocation and is not bound"
        for pod in pods
        if lives(pod)
        and not pod["spec"].get("nodeName")
        and any(vendor.allocated in annotations(pod) for vendor in VENDORS)
    ]


def dead_locks(nodes: Iterable[Object], pods: Iterable[Object]) -> list[str]:
    """Returns locks without a live holder, and pods whose allocation does not complete."""
    by_name = {(pod["metadata"]["namespace"], pod["metadata"]["name"]): pod for pod in pods}
    problems = []
    for node in nodes:
        name = node["metadata"]["name"]
        if MLU_LOCK in annotations(node) and not any(
            pod["spec"].get("nodeName") == name and annotations(pod).get(MLU_ASSIGNED) == "false"
            for pod in by_name.values()
        ):
            problems.append(f"the MLU lock of {name} is held, but no pod waits for MLUs")
        lock = annotations(node).get(MUTEX)
        if lock is None:
            continue
        parts = lock.split(",")
        pod = by_name.get((parts[1], parts[2])) if len(parts) == 3 else None
        if pod is None:
            problems.append(f"the lock of {name} names a pod that does not exist: {lock!r}")
        elif pod["spec"].get("nodeName") not in (None, "", name) or not lives(pod):
            problems.append(f"the lock of {name} names a pod that has no use for it: {lock!r}")
        elif annotations(pod).get(PHASE) in ("success", "failed"):
            problems.append(
                f"the lock of {name} is held after the end ({annotations(pod)[PHASE]}): {lock!r}"
            )
    return problems


def parse(text: str) -> list[list[Entry]]:
    """Returns the entries of an allocation, one list for each container. Raises: ValueError."""
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
                entry.append(Entry(fields[0], fields[1], int(fields[2]), int(fields[3])))
        parsed.append(entry)
    return parsed


def inits(pod: Object) -> list[Object]:
    return pod["spec"].get("initContainers") or []


def apps(pod: Object) -> list[Object]:
    return pod["spec"].get("containers") or []


def inits_ended(pod: Object) -> bool:
    """Reports whether all init containers except sidecars have ended with code 0."""
    waited_for = {
        container["name"] for container in inits(pod) if container.get("restartPolicy") != "Always"
    }
    codes = Counter(
        status["name"]
        for status in pod.get("status", {}).get("initContainerStatuses") or []
        if status.get("state", {}).get("terminated", {}).get("exitCode") == 0
    )
    return bool(waited_for) and waited_for <= set(codes)


def lives(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def annotations(item: Object) -> dict[str, str]:
    return item["metadata"].get("annotations") or {}


def name_of(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def describe(holds: Mapping[str, Hold]) -> str:
    return ", ".join(
        f"{who} {hold.memory} MiB {hold.cores} cores {hold.slots} slots"
        for who, hold in sorted(holds.items())
    )
