"""The health of the kubelet's device ids: that of the cards which their containers really use.

The kubelet chooses ids, and HAMi's scheduler cards. An id may have the name of another card than its container uses:
GetPreferredAllocation cannot know for which of the pods that start together the kubelet asks. The kubelet puts the
health of an id into the status of its pod (KEP-4680).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from hami.errors import MalformedInput
from hami.model import Pod
from hami.node.checkpoint import CheckpointEntry
from hami.plugin.container_match import card_uuid, container_shares
from hami.vendors.spec import Vendor


def cards_in_use(
    entries: Iterable[CheckpointEntry],
    pods: Iterable[Pod],
    cards: Collection[str],
    resource: str,
    vendor: Vendor,
) -> dict[str, str]:
    """Returns the UUID of the card that the container of each id uses, for the ids that the kubelet has allocated.

    *entries*: the kubelet's checkpoint. *pods*: those of the node. *cards*: UUIDs. An id whose container is not known
    uses the card of its name. Ids of pods that have ended are not in use: the kubelet gives them out again.
    """
    ids: dict[tuple[str, str], frozenset[str]] = {}
    used: dict[str, str] = {}
    for entry in entries:
        if entry.resource == resource:
            ids[entry.pod_uid, entry.container] = entry.ids
            used.update((device_id, card_uuid(device_id, cards)) for device_id in entry.ids)
    for pod in pods:
        for (
            container
        ) in pod.containers:  # the kubelet hands ids of init containers on to later ones
            given = ids.get((pod.ref.uid, container.name), frozenset())
            if pod.is_terminated:
                for device_id in given:
                    used.pop(device_id, None)
            elif given:
                shares = _cards_of(pod, container.name, resource, vendor)
                used |= _matched(given, shares, cards)
    return used


def unhealthy_ids(
    ids: Mapping[str, Sequence[str]], unhealthy: Collection[str], used: Mapping[str, str]
) -> frozenset[str]:
    """Returns the ids that are unhealthy.

    *ids*: all ids, by card. *unhealthy*: UUIDs of cards. *used*: as `cards_in_use`. Of the ids that nobody uses, as
    many are healthy as healthy cards have free slots, those with their names first: with fewer, the kubelet would fail
    pods that the scheduler has placed rightly.
    """
    found = {device_id for device_id, card in used.items() if card in unhealthy}
    free = 0
    own: list[str] = []
    others: list[str] = []
    for card, of_card in ids.items():
        unused = [device_id for device_id in of_card if device_id not in used]
        if card in unhealthy:
            others += unused
        else:
            own += unused
            free += len(of_card)
    free -= sum(card in ids and card not in unhealthy for card in used.values())
    found.update((own + others)[max(0, free) :])
    return frozenset(found)


def _cards_of(pod: Pod, container: str, resource: str, vendor: Vendor) -> list[str]:
    """Returns the UUIDs of the cards that the scheduler gave to a container; none if that cannot be read."""
    try:
        shares = container_shares(pod, resource, vendor)
    except MalformedInput:
        return []
    for given in shares:
        if given.name == container:
            return [share.uuid for share in given.shares]
    return []


def _matched(ids: Iterable[str], shares: Sequence[str], cards: Collection[str]) -> dict[str, str]:
    """Returns the card of each id of a container: its own if the container uses that, else one of the others."""
    remaining = list(shares)
    matched: dict[str, str] = {}
    others = []
    for device_id in sorted(ids):
        own = card_uuid(device_id, cards)
        if own in remaining:
            remaining.remove(own)
            matched[device_id] = own
        else:
            others.append(device_id)
    matched.update(zip(others, remaining))
    return matched
