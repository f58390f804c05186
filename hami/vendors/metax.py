"""What only MetaX's cards need: whole ones chosen by how they are linked, and sGPUs that are shared by service class.

A pod may be of the application class *online* or *offline*. Cards that run such pods run no others; online pods take no
compute, and offline ones are suspended beside them. All other pods share a card by one quality of service, which
the card is switched to while nobody uses it. What pods need to know of each other is a tag of words: class, quality,
and whether the pod wants linked cards.
Source: HAMi v2.10, pkg/device/metax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hami.codec.metax import parse_cards, parse_topology, render_allocated
from hami.codec.register import parse_bool
from hami.errors import MalformedInput
from hami.model import Device, Node, NodePolicy, Pod, Reason, Request, Share, DeviceUsage
from hami.vendors.admission import Draft
from hami.vendors.inventory import counted, each_once
from hami.vendors.request import WHOLE
from hami.vendors.spec import FitContext, AnnotationContext, MakeShare, ReadShares, Vendor

__all__ = [
    "ALLOCATED", "APP_CLASS", "CARDS", "LOSSES", "ONLINE", "PREDICATE_TIME", "QOS", "SCORES", "TOPOLOGY_AWARE",
    "annotate", "card_score", "cards", "class_and_quality", "other_class", "other_quality", "read", "score",
    "select_devices", "share", "shared_cards", "too_few_cores", "unhealthy",
]

LOSSES, SCORES = "metax-tech.com/gpu.topology.losses", "metax-tech.com/gpu.topology.scores"
CARDS = "metax-tech.com/node-gpu-devices"
ALLOCATED, PREDICATE_TIME = "metax-tech.com/gpu-devices-allocated", "metax-tech.com/predicate-time"
APP_CLASS, QOS = "metax-tech.com/sgpu-app-class", "metax-tech.com/sgpu-qos-policy"
TOPOLOGY_AWARE = "metax-tech.com/sgpu-topology-aware"

ONLINE, OFFLINE = CLASSES = ("online", "offline")
BEST_EFFORT, *_ = QUALITIES = ("best-effort", "fixed-share", "burst-share")
LINKED = "linked"  # the word for a pod that wants its whole cards linked

HIGHEST = 2000  # of a whole card's score, which its losses lower
LINK = 10  # what two linked cards count
WEIGHT = 10_000.0  # an sGPU's score goes before that of the node's usage

_counted = counted("metax", slots=1, memory_mib=65536, cores=WHOLE)

# Whole cards


def cards(vendor: Vendor, node: Node) -> tuple[Device, ...] | None:
    """As many cards as the node's capacity says, each with what the node says of links. Raises: MalformedInput."""
    links = {key: table for key in (LOSSES, SCORES) if (table := parse_topology(node.annotations.get(key)))}
    devices = _counted(vendor, node)
    return tuple(replace(device, info=links) for device in devices) if devices is not None else None


def card_score(usages: Sequence[DeviceUsage], placement: tuple[tuple[Share, ...], ...], policy: NodePolicy) -> float:
    """How well so many cards can be had on the node: with the least damage to links (binpack), or the best linked.

    A node that does not say counts nothing. (Upstream writes the latter as 2000 less the score, since under spread its
    lowest node wins; a node that does not say then beats all others.)
    """
    count = sum(len(shares) for shares in placement)
    info: Mapping[str, Mapping[int, int]] = usages[0].device.info if usages else {}
    if policy is NodePolicy.SPREAD:
        return float(info.get(SCORES, {}).get(count, 0))
    losses = info.get(LOSSES, {})
    return float(HIGHEST - losses[count]) if count in losses else 0.0


# sGPUs


def shared_cards(vendor: Vendor, node: Node) -> tuple[Device, ...] | None:
    """The cards that the node's agent reports; one that is named twice counts once. Raises: MalformedInput."""
    if (text := node.annotations.get(vendor.register)) is None:
        return None
    devices = parse_cards(vendor.register, text, vendor.key)
    if not devices:
        raise MalformedInput(vendor.register, text, "no sdevice found on node")
    return each_once(devices)


def class_and_quality(draft: Draft) -> None:
    """Refuse classes and qualities that are none, and several cards for a pod of a class; best effort by default.

    Raises: MalformedInput.
    """
    app_class, quality = draft.annotation(APP_CLASS), draft.annotation(QOS)
    if app_class is not None:
        _check_word(APP_CLASS, app_class, CLASSES)
        if draft.rounded(draft.vendor.count) != 1:
            message = "app-class pod must request single device"
            raise MalformedInput(draft.vendor.count, draft.given[draft.vendor.count], message, message=message)
    if app_class != ONLINE and quality is None:
        draft.set_annotation(QOS, BEST_EFFORT)
    elif app_class != ONLINE and quality is not None:
        _check_word(QOS, quality, QUALITIES)


def unhealthy(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    """As for all vendors, in MetaX's own word."""
    return None if usage.device.healthy else Reason.SGPU_UNHEALTHY


def other_class(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    """Pods of a class and pods without do not share a card, nor does an offline pod join online ones."""
    online, offline = _crowd(usage)
    mine = context.annotation(APP_CLASS)
    fits = usage.slots_used == 0 or ((mine in CLASSES) == (online + offline > 0) and not (online and mine == OFFLINE))
    return None if fits else Reason.APP_CLASS


def other_quality(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    """A card has one quality of service: that of the pods on it, or what its agent reports where they say none.

    It may become any other while nobody uses it, and has none for who takes it whole.
    """
    if usage.slots_used == 0 or request.cores == WHOLE or context.annotation(APP_CLASS) == ONLINE:
        return None
    card = {word for word in _words(usage) if word in QUALITIES} or {usage.device.info.get("qos", "")}
    return None if card <= {"", context.annotation(QOS) or BEST_EFFORT} else Reason.QOS


def too_few_cores(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    """The rules on cores of all vendors, but not for online pods; and more than a card has are not cut to that."""
    device, free = usage.device, usage.device.cores - usage.cores_used
    if not context.vendor.takes_cores(context.annotation):
        return None
    if free < request.cores:
        return Reason.NO_CORES
    if device.cores == request.cores == WHOLE and usage.slots_used > 0:
        return Reason.NOT_ALONE
    return Reason.NO_CORES_LEFT if device.cores and free == 0 and request.cores == 0 else None


def select_devices(eligible: Sequence[DeviceUsage], request: Request, context: FitContext) -> Sequence[DeviceUsage]:
    """For an online pod the card with the fewest others, for whole cards those that are linked, else the first."""
    app_class = context.annotation(APP_CLASS)
    if app_class == ONLINE:
        eligible = sorted(eligible, key=_disturbance)
    elif len(eligible) > request.count and app_class is None and request.cores == WHOLE:
        eligible = _by_link_zones(eligible, request.count)
    return eligible[:request.count]


def share(topology_aware: bool) -> MakeShare:
    """What a pod takes: online ones no compute. *topology_aware*: linked cards are wanted unless the pod says
    otherwise."""

    def make(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Share:
        cores = request.cores if context.vendor.takes_cores(context.annotation) else 0
        return Share(usage.device.uuid, request.vendor, request.memory_on(usage.device), cores,
                     co_tenants=(_tag(context.annotation, topology_aware),))
    return make


def annotate(vendor: Vendor, context: AnnotationContext) -> Mapping[str, str]:
    """The allocation once more, as MetaX's agent reads it."""
    return {ALLOCATED: render_allocated(context.shares), PREDICATE_TIME: context.nanoseconds}


def read(topology_aware: bool) -> ReadShares:
    """The shares with the pod's class and quality, which only its annotations say. *topology_aware*: as for `share`."""

    def tagged(vendor: Vendor, pod: Pod, containers: tuple[tuple[Share, ...], ...]) -> tuple[tuple[Share, ...], ...]:
        co_tenants = (_tag(pod.annotations.get, topology_aware),)
        return tuple(tuple(replace(share, co_tenants=co_tenants) for share in shares) for shares in containers)
    return tagged


def score(usages: Sequence[DeviceUsage], placement: tuple[tuple[Share, ...], ...], policy: NodePolicy) -> float:
    """How little an online pod is in others' way, or how well whole cards are linked and what they leave is."""
    shares = [share for shares in placement for share in shares]
    whole = {share.uuid for share in shares if share.cores == WHOLE}
    words = {word for share in shares for tag in share.co_tenants for word in tag.split()}
    if ONLINE in words:
        return WEIGHT * _online_score(usages, {share.uuid for share in shares})
    return WEIGHT * _link_score(usages, whole) if whole and LINKED in words else 0.0


def _check_word(key: str, word: str, words: Sequence[str]) -> None:
    if word not in words:
        message = f"{key} must be set one of [{', '.join(words)}]"
        raise MalformedInput(key, word, message, message=message)


def _tag(says: Callable[[str], str | None], topology_aware: bool) -> str:
    """What other pods, and the node's score, have to know of a pod."""
    app_class, quality = says(APP_CLASS), says(QOS) or BEST_EFFORT
    wanted = parse_bool(says(TOPOLOGY_AWARE) or "")
    words = (app_class if app_class in CLASSES else "",
             quality if quality in QUALITIES and app_class != ONLINE else "",
             LINKED if (topology_aware if wanted is None else wanted) else "")
    return " ".join(filter(None, words))


def _words(usage: DeviceUsage) -> list[str]:
    return [word for tag in usage.co_tenants for word in tag.split()]


def _crowd(usage: DeviceUsage) -> tuple[int, int]:
    """How many online and offline pods the card runs."""
    words = _words(usage)
    return words.count(ONLINE), words.count(OFFLINE)


def _disturbance(usage: DeviceUsage) -> tuple[bool, int, int]:
    """Cards on which an online pod would be the first to suspend others come last."""
    online, offline = _crowd(usage)
    return online == 0 and offline > 0, online, offline


def _zone(usage: DeviceUsage) -> int:
    """The cards that are linked to each other; not above 0 for none."""
    zone: int = usage.device.info.get("link_zone", 0)
    return zone


def _by_link_zones(eligible: Sequence[DeviceUsage], count: int) -> Sequence[DeviceUsage]:
    """The smallest zone that has enough, else zone by zone, the smallest first, cards without one last."""
    zones: dict[int, list[DeviceUsage]] = {}
    for usage in eligible:
        zones.setdefault(max(_zone(usage), 0), []).append(usage)
    alone = zones.pop(0, [])
    ordered = [zones[zone] for zone in sorted(zones, key=lambda zone: (len(zones[zone]), zone))]
    enough = next((zone for zone in ordered if len(zone) >= count), None)
    return enough if enough is not None else [*(usage for zone in ordered for usage in zone), *alone]


def _online_score(usages: Sequence[DeviceUsage], chosen: set[str]) -> int:
    total = 0
    for usage in usages:
        if usage.device.uuid in chosen:
            online, offline = _crowd(usage)
            total -= 100 * offline if online == 0 else 20 * online + 2 * offline
    return total


def _link_score(usages: Sequence[DeviceUsage], chosen: set[str]) -> int:
    """Ten times the links that the pod gets, less those that nobody can have any more."""
    free = [usage for usage in usages if usage.slots_used == 0]
    got = _links([usage for usage in usages if usage.device.uuid in chosen])
    left = _links([usage for usage in free if usage.device.uuid not in chosen])
    return 10 * got - (_links(free) - got - left)


def _links(usages: Sequence[DeviceUsage]) -> int:
    """What all links between *usages* count."""
    sizes: dict[int, int] = {}
    for usage in usages:
        if (zone := _zone(usage)) > 0:
            sizes[zone] = sizes.get(zone, 0) + 1
    return sum(LINK * size * (size - 1) // 2 for size in sizes.values())
