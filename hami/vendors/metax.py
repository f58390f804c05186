"""MetaX cards: whole cards selected by their links, and sGPUs shared by application class.

A pod may have the application class *online* or *offline*. Cards with such pods run no others; online pods take no
cores, and offline pods are suspended beside them. All other pods on a card have the same quality of service; the card
is switched to it while unused. The co-tenant attribute of a pod is a list of words: its class, its quality of service,
and whether it requests linked cards.
Source: HAMi v2.10, pkg/device/metax.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

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

LOSSES, SCORES = "metax-tech.com/gpu.topology.losses", "metax-tech.com/gpu.topology.scores"
CARDS = "metax-tech.com/node-gpu-devices"
ALLOCATED, PREDICATE_TIME = "metax-tech.com/gpu-devices-allocated", "metax-tech.com/predicate-time"
APP_CLASS, QOS = "metax-tech.com/sgpu-app-class", "metax-tech.com/sgpu-qos-policy"
TOPOLOGY_AWARE = "metax-tech.com/sgpu-topology-aware"

ONLINE, OFFLINE = CLASSES = ("online", "offline")
BEST_EFFORT, *_ = QUALITIES = ("best-effort", "fixed-share", "burst-share")
LINKED = "linked"  # co-tenant word of a pod that requests linked cards

HIGHEST = 2000  # score of whole cards before the losses are subtracted
LINK = 10  # score of two linked cards
WEIGHT = 10_000.0  # an sGPU's score takes precedence over the score of the node's usage

_counted = counted("metax", slots=1, memory_mib=65536, cores=WHOLE)

# Whole cards


def cards(vendor: Vendor, node: Node) -> tuple[Device, ...] | None:
    """Returns as many cards as the node's capacity, each with the node's link scores. Raises: MalformedInput."""
    links = {
        key: table
        for key in (LOSSES, SCORES)
        if (table := parse_topology(node.annotations.get(key)))
    }
    devices = _counted(vendor, node)
    return tuple(replace(device, info=links) for device in devices) if devices is not None else None


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
    """Rejects unknown classes and qualities, and several cards for a pod with a class. The default is best effort.

    Raises: PodRefused.
    """
    app_class, quality = draft.pod.annotation(APP_CLASS), draft.pod.annotation(QOS)
    if app_class is not None:
        _check_word(APP_CLASS, app_class, CLASSES)
        if draft.rounded(draft.resources.count) != 1:
            raise PodRefused("app-class pod must request single device")
    if app_class != ONLINE and quality is None:
        draft.pod.set_annotation(QOS, BEST_EFFORT)
    elif app_class != ONLINE and quality is not None:
        _check_word(QOS, quality, QUALITIES)


def unhealthy(candidate: Candidate) -> Reason | None:
    """The common rule with MetaX's own reason."""
    return None if candidate.device.healthy else Reason.SGPU_UNHEALTHY


def other_class(candidate: Candidate) -> Reason | None:
    """Pods with and without a class do not share a card, and an offline pod does not join online pods."""
    online, offline = _classes(candidate.usage)
    own = candidate.context.annotation(APP_CLASS)
    is_same = (own in CLASSES) == (online + offline > 0) and not (online and own == OFFLINE)
    fits = candidate.usage.slots_used == 0 or is_same
    return None if fits else Reason.APP_CLASS


def other_quality(candidate: Candidate) -> Reason | None:
    """A card has one quality of service: that of its pods, or else the one that the node agent reports.

    It may change while the card is unused, and does not matter for a pod that takes the whole card.
    """
    is_online = candidate.context.annotation(APP_CLASS) == ONLINE
    if candidate.usage.slots_used == 0 or candidate.request.cores == WHOLE or is_online:
        return None
    card = {word for word in _words(candidate.usage) if word in QUALITIES} or {
        candidate.device.info.get("qos", "")
    }
    return None if card <= {"", candidate.context.annotation(QOS) or BEST_EFFORT} else Reason.QOS


def too_few_cores(candidate: Candidate) -> Reason | None:
    """The common rules for cores, except for online pods. Requests above one card are not reduced to it."""
    device, free = candidate.device, candidate.device.cores - candidate.usage.cores_used
    if not candidate.context.vendor.resources.takes_cores(candidate.context.annotation):
        return None
    if free < candidate.request.cores:
        return Reason.NO_CORES
    if device.cores == candidate.request.cores == WHOLE and candidate.usage.slots_used > 0:
        return Reason.NOT_ALONE
    return (
        Reason.NO_CORES_LEFT
        if device.cores and free == 0 and candidate.request.cores == 0
        else None
    )


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
    context = candidate.context
    cores = (
        candidate.request.cores if context.vendor.resources.takes_cores(context.annotation) else 0
    )
    return Share(
        candidate.device.uuid,
        candidate.request.vendor,
        candidate.memory_mib,
        cores,
        co_tenants=(_co_tenant(candidate.context.annotation, topology_aware),),
    )


def annotate(vendor: Vendor, context: AnnotationContext) -> Mapping[str, str]:
    """Returns the allocation in the format of MetaX's node agent."""
    return {ALLOCATED: render_allocated(context.shares), PREDICATE_TIME: context.nanoseconds}


def read_shares(
    vendor: Vendor, pod: Pod, containers: Allocation, *, topology_aware: bool
) -> Allocation:
    """Adds the co-tenant attribute to the shares. *topology_aware*: as for `make_share`."""
    co_tenants = (_co_tenant(pod.annotations.get, topology_aware),)
    return tuple(
        tuple(replace(share, co_tenants=co_tenants) for share in shares) for shares in containers
    )


def score(usages: Sequence[DeviceUsage], placement: Allocation, policy: NodePolicy) -> float:
    """Returns how little an online pod disturbs others, or how well whole cards and the remaining ones are linked."""
    shares = [share for shares in placement for share in shares]
    whole = {share.uuid for share in shares if share.cores == WHOLE}
    words = {
        word for share in shares for co_tenant in share.co_tenants for word in co_tenant.split()
    }
    if ONLINE in words:
        return WEIGHT * _online_score(usages, {share.uuid for share in shares})
    return WEIGHT * _link_score(usages, whole) if whole and LINKED in words else 0.0


def _check_word(key: str, word: str, words: Sequence[str]) -> None:
    if word not in words:
        raise PodRefused(f"{key} must be set one of [{', '.join(words)}]")


def _co_tenant(annotation: Callable[[str], str | None], topology_aware: bool) -> str:
    """Returns the co-tenant attribute of a pod, for other pods and for the node's score."""
    app_class, quality = annotation(APP_CLASS), annotation(QOS) or BEST_EFFORT
    wanted = parse_bool(annotation(TOPOLOGY_AWARE) or "")
    words = (
        app_class if app_class in CLASSES else "",
        quality if quality in QUALITIES and app_class != ONLINE else "",
        LINKED if (topology_aware if wanted is None else wanted) else "",
    )
    return " ".join(filter(None, words))


def _words(usage: DeviceUsage) -> list[str]:
    return [word for co_tenant in usage.co_tenants for word in co_tenant.split()]


def _classes(usage: DeviceUsage) -> tuple[int, int]:
    """Returns the number of online and offline pods on the card."""
    words = _words(usage)
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
    ordered = [zones[zone] for zone in sorted(zones, key=lambda zone: (len(zones[zone]), zone))]
    enough = next((zone for zone in ordered if len(zone) >= count), None)
    return (
        enough if enough is not None else [*(usage for zone in ordered for usage in zone), *alone]
    )


def _online_score(usages: Sequence[DeviceUsage], chosen: set[str]) -> int:
    counts = [_classes(usage) for usage in usages if usage.device.uuid in chosen]
    return -sum(
        20 * online + 2 * offline if online else 100 * offline for online, offline in counts
    )


def _link_score(usages: Sequence[DeviceUsage], chosen: set[str]) -> int:
    """Returns ten times the links that the pod gets, minus those that become unusable."""
    free = [usage for usage in usages if usage.slots_used == 0]
    got = _links([usage for usage in usages if usage.device.uuid in chosen])
    left = _links([usage for usage in free if usage.device.uuid not in chosen])
    return 10 * got - (_links(free) - got - left)


def _links(usages: Sequence[DeviceUsage]) -> int:
    """Returns the score of all links between *usages*."""
    sizes = Counter(zone for usage in usages if (zone := _zone(usage)) > 0)
    return sum(LINK * size * (size - 1) // 2 for size in sizes.values())
