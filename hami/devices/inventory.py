"""The cards of the node as they are known now, and what is wrong with which: one list that several threads share.

Who reads cards puts them in, who listens for trouble reports it, and who tells the kubelet and the API server waits
for the next change. It does no input or output.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hami.devices.cards import Card

__all__ = ["InventorySnapshot", "DeviceInventory"]

GONE = "the driver does not list it any more"


@dataclass(frozen=True, slots=True)
class InventorySnapshot:
    """The cards at one moment, by index; *unwell*: the reason by uuid. *version* grows with each change."""

    version: int = 0
    cards: tuple[Card, ...] = ()
    unwell: Mapping[str, str] = field(default_factory=dict, hash=False)


class DeviceInventory:
    """The cards as *judge* sees them, who leaves out what it has no card for; threads may share it.

    A card that was seen once stays, as an unwell one when it is not listed any more or cannot be read: containers may
    still hold parts of it. One that was left out before it could not be read is left out still.
    """

    def __init__(self, judge: Callable[[Card], Card | None] = lambda card: card) -> None:
        self._judge = judge
        self._changed = threading.Condition()
        self._cards: dict[str, Card] = {}
        self._listed: frozenset[str] = frozenset()
        self._left_out: frozenset[str] = frozenset()
        self._reported: dict[str, str] = {}
        self._roll = InventorySnapshot()
        self._closed = False

    def read(self, cards: Sequence[Card]) -> None:
        """Take what a source lists now; of two cards with one uuid the first counts."""
        with self._changed:
            accepted = {card.uuid: card for one in reversed(cards) if not (one.problem and one.uuid in self._left_out)
                        and (card := self._judge(one)) is not None}
            self._listed = frozenset(accepted)
            self._left_out = (self._left_out | {one.uuid for one in cards}) - self._listed
            self._cards |= {uuid: self._kept(card) for uuid, card in accepted.items()}
            self._settle()

    def report(self, uuid: str, reason: str) -> None:
        """A card (all of them if *uuid* is empty) has turned bad, or is well again if *reason* is empty."""
        with self._changed:
            for found in [uuid] if uuid else list(self._cards):
                self._reported[found] = reason
            self._settle()

    def roll(self) -> InventorySnapshot:
        """The cards now."""
        with self._changed:
            return self._roll

    def cards(self) -> tuple[Card, ...]:
        """The cards now, whatever is wrong with them."""
        return self.roll().cards

    def wait(self, version: int, timeout: float | None = None) -> InventorySnapshot:
        """The cards as soon as they are not those of *version*, or after *timeout* seconds, or at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._roll.version != version, timeout)
            return self._roll

    def wait_until(self, ready: Callable[[InventorySnapshot], bool]) -> InventorySnapshot | None:
        """The cards as soon as *ready* says so; asked after each change and each `nudge`. ``None`` at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or ready(self._roll))
            return None if self._closed else self._roll

    def nudge(self) -> None:
        """Let all who wait look again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """No more changes: whoever waits goes on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _kept(self, card: Card) -> Card:
        """*card*, or what was known of it before if it could not be read this time."""
        known = self._cards.get(card.uuid)
        return replace(known, problem=card.problem) if card.problem and known is not None else card

    def _settle(self) -> None:
        cards = tuple(sorted(self._cards.values(), key=lambda card: (card.index, card.uuid)))
        unwell = {card.uuid: reason for card in cards if (reason := self._reason(card))}
        if (cards, unwell) != (self._roll.cards, self._roll.unwell):
            self._roll = InventorySnapshot(self._roll.version + 1, cards, unwell)
            self._changed.notify_all()

    def _reason(self, card: Card) -> str:
        return self._reported.get(card.uuid) or card.problem or ("" if card.uuid in self._listed else GONE)
