"""The cards that pods of the node hold although they are gone, also since before this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from hami.devices.inventory import DeviceInventory
from hami.plugin.holders import CardHolders

_MAX_REFUSED = 256


class GoneCards:
    """Learns of such cards from pods that are refused. Threads may call `note_refused`; the rest is for one thread."""

    def __init__(self, inventory: DeviceInventory, holders: CardHolders) -> None:
        self._inventory = inventory
        self._holders = holders
        self._refused: deque[str] = deque(maxlen=_MAX_REFUSED)  # uids of pods
        self._cards: set[str] = set()

    def restore(self, cards: Collection[str]) -> None:
        """Takes the cards that were gone when an earlier process looked."""
        self._cards.update(cards)

    def note_refused(self, uid: str) -> None:
        """Takes note of a pod that is refused its devices again and again."""
        self._refused.append(uid)

    def has_news(self) -> bool:
        """Reports whether pods have been refused since the last look."""
        return bool(self._refused)

    def find(self) -> Collection[str]:
        """Returns the cards. Those that are listed again, or that no pod holds any more, are forgotten.

        Raises: HamiError.
        """
        while self._refused:
            cards = self._holders.cards_of(self._refused[0])
            if cards is None:
                break
            self._cards |= cards
            self._refused.popleft()
        for card in tuple(self._cards):
            if self._inventory.has_seen(card) or self._holders.find(card) == []:
                self._cards.discard(card)
        return sorted(self._cards)
