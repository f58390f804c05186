"""The current cards of the node and their health, shared by the threads of the device plugin.

One thread stores the cards it reads, another reports health, and those that serve the kubelet and the API server wait
for changes. This module does no I/O.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hami.devices.cards import Card

GONE = "no longer listed by the driver"


@dataclass(frozen=True, slots=True)
class InventorySnapshot:
    """The cards sorted by index, and the reason for each *unhealthy* one by UUID. *version* grows with each change.

    *unknown*: why the state of all cards is unknown, so that all are unhealthy; empty if it is known.
    """

    version: int = 0
    cards: tuple[Card, ...] = ()
    unhealthy: Mapping[str, str] = field(default_factory=dict, hash=False)
    unknown: str = ""


class DeviceInventory:
    """The cards that *select* returns, perhaps with a problem; it returns None for cards that the node does not offer.
    Threads may share it.

    A card is kept once it was seen. It becomes unhealthy when it is no longer listed or cannot be read, because
    containers may still use it. A card that was not offered before it became unreadable is still not offered.
    While the state of the cards is unknown, whatever the cause, all of them are unhealthy: nobody must rely on what was
    known before.
    """

    def __init__(self, select: Callable[[Card], Card | None] = lambda card: card) -> None:
        self._select = select
        self._changed = threading.Condition()  # guards all attributes below; never held across I/O
        self._cards: dict[str, Card] = {}
        self._listed: frozenset[str] = frozenset()
        self._not_offered: frozenset[str] = frozenset()
        self._reported: dict[str, str] = {}
        self._unknown: dict[str, str] = {}  # reasons, by cause
        self._snapshot = InventorySnapshot()
        self._closed = False

    def update(self, cards: Sequence[Card]) -> None:
        """Stores the cards that a source lists now. Of two cards with one UUID, the first counts."""
        with self._changed:
            offered: dict[str, Card] = {}
            for listed in reversed(cards):
                if listed.problem and listed.uuid in self._not_offered:
                    continue
                card = self._select(listed)
                if card is not None:
                    offered[card.uuid] = card
            self._listed = frozenset(offered)
            self._not_offered = (self._not_offered | {card.uuid for card in cards}) - self._listed
            self._cards |= {uuid: self._keep_known(card) for uuid, card in offered.items()}
            self._publish()

    def report(self, uuid: str, reason: str) -> None:
        """Marks a card (all cards if *uuid* is empty) as unhealthy, or as healthy if *reason* is empty."""
        with self._changed:
            self.report_all(dict.fromkeys([uuid] if uuid else self._cards, reason))

    def report_all(self, reasons: Mapping[str, str]) -> None:
        """Marks several cards as unhealthy or healthy, as one change. *reasons*: by UUID; empty for a healthy card."""
        with self._changed:
            self._reported |= reasons
            self._publish()

    def report_unknown(self, cause: str, reason: str) -> None:
        """Marks the state of all cards as unknown, or as known if *reason* is empty, as far as *cause* is
        concerned."""
        with self._changed:
            if reason:
                self._unknown[cause] = reason
            else:
                self._unknown.pop(cause, None)
            self._publish()

    def snapshot(self) -> InventorySnapshot:
        """Returns the current state."""
        with self._changed:
            return self._snapshot

    def cards(self) -> tuple[Card, ...]:
        """Returns the current cards, healthy or not."""
        return self.snapshot().cards

    def has_seen(self, uuid: str) -> bool:
        """Reports whether a source has ever listed the card, offered or not."""
        with self._changed:
            return uuid in {*self._cards, *self._not_offered}

    def wait_until(
        self, ready: Callable[[InventorySnapshot], bool], timeout: float | None = None
    ) -> InventorySnapshot | None:
        """Returns the state once *ready* accepts it, or after *timeout* seconds; None when closed. Checks after each
        change and each `notify`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or ready(self._snapshot), timeout)
            return None if self._closed else self._snapshot

    def notify(self) -> None:
        """Makes all waiting threads check again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _keep_known(self, card: Card) -> Card:
        """Returns *card*; if it could not be read, its last known state with the problem."""
        if card.problem and card.uuid in self._cards:
            return replace(self._cards[card.uuid], problem=card.problem)
        return card

    def _publish(self) -> None:
        cards = tuple(sorted(self._cards.values(), key=lambda card: (card.index, card.uuid)))
        unknown = next(iter(self._unknown.values()), "")
        unhealthy: dict[str, str] = {}
        for card in cards:
            reason = unknown or self._unhealthy_reason(card)
            if reason:
                unhealthy[card.uuid] = reason
        last = self._snapshot
        if (cards, unhealthy, unknown) != (last.cards, last.unhealthy, last.unknown):
            self._snapshot = InventorySnapshot(last.version + 1, cards, unhealthy, unknown)
            self._changed.notify_all()

    def _unhealthy_reason(self, card: Card) -> str:
        reason = self._reported.get(card.uuid) or card.problem
        if not reason and card.uuid not in self._listed:
            return GONE
        return reason
