"""MetaX cards: whole cards selected by their links, and sGPUs shared by application class.

A pod may have the application class *online* or *offline*. Cards with such pods run no others; online pods take no
cores, and offline pods are suspended beside them. All other pods on a card have the same quality of service; the card
is switched to it while unused. The co-tenant attribute of a pod is a list of words: its class, its quality of service,
and whether it requests linked cards.
Source: HAMi v2.10, pkg/device/metax.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from hami.codec.forms import BOOLEAN, Words, written
from hami.codec.metax import parse_topology, render_allocated
from hami.codec.register import parse_bool
from hami.errors import PodRefused
from hami.model import (
    Allocation,
    Device,
    DeviceUsage,
    Node,
    NodePolicy,
    Pod,
    Reason,
    Request,
    Share,
)
from hami.vendors.draft import ContainerDraft
from hami.vendors.inventory import counted
from hami.vendors.request import WHOLE
from hami.vendors.spec import AnnotationContext, Candidate, FitContext, Vendor
from hami.vendors.terms import Term

LOSSES, SCORES = "metax-tech.com/gpu.topology.losses", "metax-tech.com/gpu.topology.scores"
CARDS = "metax-tech.com/node-gpu-devices"
ALLOCATED, PREDICATE_TIME = "metax-tech.com/gpu-devices-allocated", "metax-tech.com/predicate-time"
APP_CLASS, QOS = "metax-tech.com/sgpu-app-class", "metax-tech.com/sgpu-qos-policy"
TOPOLOGY_AWARE = "metax-tech.com/sgpu-topology-aware"

ONLINE, OFFLINE = CLASSES = ("online", "offline")
BEST_EFFORT, *_ = QUALITIES = ("best-effort", "fixed-share", "burst-share")
TERMS = (
    Term(APP_CLASS, Words(CLASSES), "whether offline pods of the card pause while the pod works"),
    Term(QOS, Words(QUALITIES), "how the cores of the card are shared"),
    Term(TOPOLOGY_AWARE, BOOLEAN, "linked cards"),
)
LINKED = "linked"  # co-tenant word of a pod that requests linked cards

HIGHEST = 2000  # score of whole cards before the losses are subtracted
LINK = 10  # score of two linked cards
WEIGHT = 10_000.0  # an sGPU's score takes precedence over the score of the node's usage

_counted = counted("metax", slots=1, memory_mib=65536, cores=WHOLE)

# Whole cards


def cards(vendor: Vendor, node: Node) -> tuple[Device, ...] | None:
    """Returns as many cards as the node's capacity, each with the node's link scores. Raises: MalformedInput."""
    links = {}
    for key in (LOSSES, SCORES):
        table = parse_topology(node.annotations.get(key))
        if table:
            links[key] = table
    devices = _counted(vendor, node)
    if devices is None:
        return None
    return tuple(replace(device, info=links) for device in devices)


def card_score(usages: Sequence[DeviceUsage], placement: Allocation, policy: NodePolicy) -> float:
    """Returns the score of this number of cards on the node: the least loss of links (binpack), or the best links.

    A node without scores counts as 0. (Upstream uses 2000 minus the score for the latter, since under spread its lowest
    node wins; a node without scores then wins over all others.)
    """
    count = sum(len(shares) for shares in placement)
    info: Mapping[str, Mapping[int, int]] = usages[0].device.info if usages else {}
    if policy is NodePolicy.SPREAD:
        return float(info.get(SCORES, {}).get(count, 0))
    losses = info.get(LOSSES, {})
    return float(HIGHEST - losses[count]) if count in losses else 0.0


# sGPUs


def class_and_quality(draft: ContainerDraft) -> None:
    """Rejects several cards for a pod with a class. The default quality of service is best effort.

    Raises: PodRefused.
    """
    app_class = written(draft.pod.annotation(APP_CLASS))
    if app_class is not None and draft.rounded(draft.resources.count) != 1:
        raise PodRefused("app-class pod must request single device")
    if app_class != ONLINE and written(draft.pod.annotation(QOS)) is None:
        draft.pod.set_annotation(QOS, BEST_EFFORT)


def unhealthy(candidate: Candidate) -> Reason | None:
    """The common rule with MetaX's own reason."""
    return None if candidate.device.healthy else Reason.SGPU_UNHEALTHY


def other_class(candidate: Candidate) -> Reason | None:
    """Pods with and without a class do not share a card, and an offline pod does not join online pods."""
    if candidate.usage.slots_used == 0:
        return None
    online, offline = _classes(candidate.usage)
    app_class = candidate.context.annotation(APP_CLASS)
    if (app_class in CLASSES) != (online + offline > 0):
        return Reason.APP_CLASS
    if online and app_class == OFFLINE:
        return Reason.APP_CLASS
    return None


def other_quality(candidate: Candidate) -> Reason | None:
    """A card has one quality of service: that of its pods, or else the one that the node agent reports.

    It may change while the card is unused, and does not matter for a pod that takes the whole card.
    """
    usage, context = candidate.usage, candidate.context
    if usage.slots_used == 0 or candidate.request.cores == WHOLE:
        return None
    if context.annotation(APP_CLASS) == ONLINE:
        return None
    qualities = set(QUALITIES).intersection(_words(usage.co_tenants))
    if not qualities:
        qualities.add(candidate.device.info.get("qos", ""))
    if qualities <= {"", context.annotation(QOS) or BEST_EFFORT}:
        return None
    return Reason.QOS


def too_few_cores(candidate: Candidate) -> Reason | None:
    """The common rules for cores, except for online pods. Requests above one card are not reduced to it."""
    total, requested = candidate.device.cores, candidate.request.cores
    free = total - candidate.usage.cores_used
    if not candidate.context.vendor.resources.takes_cores(candidate.context.annotation):
        return None
    if free < requested:
        return Reason.NO_CORES
    if total == requested == WHOLE and candidate.usage.slots_used > 0:
        return Reason.NOT_ALONE
    if total and free == 0 and requested == 0:
        return Reason.NO_CORES_LEFT
    return None


def select_devices(
    eligible: Sequence[DeviceUsage], request: Request, context: FitContext
) -> Sequence[DeviceUsage]:
    """Selects the card with the fewest other pods for an online pod, linked cards for whole cards, else the first."""
    app_class = context.annotation(APP_CLASS)
    if app_class == ONLINE:
        eligible = sorted(eligible, key=_disturbance)
    elif len(eligible) > request.count and app_class is None and request.cores == WHOLE:
        eligible = _by_link_zones(eligible, request.count)
    return eligible[: request.count]


def make_share(candidate: Candidate, *, topology_aware: bool) -> Share:
    """Returns a share, without cores for online pods.

    *topology_aware*: pods request linked cards unless their annotation says otherwise.
    """
    context, request = candidate.context, candidate.request
    takes_cores = context.vendor.resources.takes_cores(context.annotation)
    return Share(
        candidate.device.uuid,
        request.vendor,
        candidate.memory_mib,
        request.cores if takes_cores else 0,
        co_tenants=(_co_tenant(context.annotation, topology_aware),),
    )


def annotate(vendor: Vendor, context: AnnotationContext) -> Mapping[str, str]:
    """Returns the allocation in the format of MetaX's node agent."""
    return {ALLOCATED: render_allocated(context.shares), PREDICATE_TIME: context.nanoseconds}


def read_shares(
    vendor: Vendor, pod: Pod, containers: Allocation, *, topology_aware: bool
) -> Allocation:
    """Adds the co-tenant attribute to the shares. *topology_aware*: as for `make_share`."""
    co_tenants = (_co_tenant(pod.annotations.get, topology_aware),)
    completed = []
    for shares in containers:
        completed.append(tuple([replace(share, co_tenants=co_tenants) for share in shares]))
    return tuple(completed)


def score(usages: Sequence[DeviceUsage], placement: Allocation, policy: NodePolicy) -> float:
    """Returns how little an online pod disturbs others, or how well whole cards and the remaining ones are linked."""
    cards, whole, words = set(), set(), set[str]()
    for share in itertools.chain.from_iterable(placement):
        cards.add(share.uuid)
        words.update(_words(share.co_tenants))
        if share.cores == WHOLE:
            whole.add(share.uuid)
    if ONLINE in words:
        return WEIGHT * _online_score(usages, cards)
    if whole and LINKED in words:
        return WEIGHT * _link_score(usages, whole)
    return 0.0


def _co_tenant(annotation: Callable[[str], str | None], topology_aware: bool) -> str:
    """Returns the co-tenant attribute of a pod, for other pods and for the node's score."""
    app_class, quality = annotation(APP_CLASS), written(annotation(QOS)) or BEST_EFFORT
    is_linked = parse_bool(annotation(TOPOLOGY_AWARE) or "")
    words = []
    if app_class in CLASSES:
        words.append(app_class)
    if quality in QUALITIES and app_class != ONLINE:
        words.append(quality)
    if topology_aware if is_linked is None else is_linked:
        words.append(LINKED)
    return " ".join(words)


def _words(co_tenants: Iterable[str]) -> list[str]:
    return " ".join(co_tenants).split()


def _classes(usage: DeviceUsage) -> tuple[int, int]:
    """Returns the number of online and offline pods on the card."""
    words = _words(usage.co_tenants)
    return words.count(ONLINE), words.count(OFFLINE)


def _disturbance(usage: DeviceUsage) -> tuple[bool, int, int]:
    """Returns a sort key: cards on which an online pod would suspend others for the first time come last."""
    online, offline = _classes(usage)
    return online == 0 and offline > 0, online, offline


def _zone(usage: DeviceUsage) -> int:
    """Returns the number of the card's link zone, whose cards are linked; 0 or less for none."""
    zone: int = usage.device.info.get("link_zone", 0)
    return zone


def _by_link_zones(eligible: Sequence[DeviceUsage], count: int) -> Sequence[DeviceUsage]:
    """Returns the smallest zone with enough cards, else all cards, smaller zones first, without a zone last."""
    zones: dict[int, list[DeviceUsage]] = {}
    for usage in eligible:
        zones.setdefault(max(_zone(usage), 0), []).append(usage)
    alone = zones.pop(0, [])
    ordered: list[DeviceUsage] = []
    for _, usages in sorted(zones.items(), key=lambda item: (len(item[1]), item[0])):
        if len(usages) >= count:
            return usages
        ordered += usages
    return [*ordered, *alone]


def _online_score(usages: Sequence[DeviceUsage], cards: set[str]) -> int:
    total = 0
    for usage in usages:
        if usage.device.uuid not in cards:
            continue
        online, offline = _classes(usage)
        total -= 20 * online + 2 * offline if online else 100 * offline
    return total


def _link_score(usages: Sequence[DeviceUsage], cards: set[str]) -> int:
    """Returns ten times the links that the pod gets, minus those that become unusable."""
    pods, free, left = [], [], []
    for usage in usages:
        is_taken = usage.device.uuid in cards
        if is_taken:
            pods.append(usage)
        if usage.slots_used == 0:
            free.append(usage)
            if not is_taken:
                left.append(usage)
    links, remaining = _links(pods), _links(left)
    return 10 * links - (_links(free) - links - remaining)


def _links(usages: Sequence[DeviceUsage]) -> int:
    """Returns the score of all links between *usages*."""
    sizes = Counter(filter(lambda zone: zone > 0, map(_zone, usages)))
    return sum(LINK * size * (size - 1) // 2 for size in sizes.values())
