"""The cards that pods of the node hold although they are gone, also since before this process."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection

from hami.devices.inventory import DeviceInventory
from hami.plugin.holders import CardHolders

_MAX_REFUSED = 256


class GoneCards:
    """Learns of such cards from pods that are refused. Threads may call `note_refused`; the rest is for one thread."""

    def __init__(self, inventory: DeviceInventory, holders: CardHolders) -> None:
        self._inventory = inventory
        self._holders = holders
        self._refused: deque[tuple[str, str]] = deque(maxlen=_MAX_REFUSED)
        self._cards: set[str] = set()
        self._claiming: defaultdict[str, set[str]] = defaultdict(set)  # pods, by card

    def restore(self, cards: Collection[str]) -> None:
        """Takes the cards that were gone when an earlier process looked."""
        self._cards.update(cards)

    def note_refused(self, uid: str, card: str) -> None:
        """Takes note of a pod that is refused its devices again and again. *card*: one that its claim has and the node
        has not; after a restart of the node, nobody else knows that the pod holds it."""
        self._refused.append((uid, card))

    def has_news(self) -> bool:
        """Reports whether pods have been refused since the last look."""
        return bool(self._refused)

    def find(self) -> Collection[str]:
        """Returns the cards. Those that are listed again, or that no pod holds any more, are forgotten.

        Raises: HamiError.
        """
        while self._refused:
            uid, card = self._refused[0]
            cards = self._holders.cards_of(uid)
            if cards is None:
                break
            self._cards |= cards
            if card:
                self._cards.add(card)
                self._claiming[card].add(uid)
            self._refused.popleft()
        for card in tuple(self._cards):
            if self._inventory.has_seen(card) or not self._is_held(card):
                self._cards.discard(card)
                self._claiming.pop(card, None)
        return sorted(self._cards)

    def _is_held(self, card: str) -> bool:
        """Reports whether a pod may hold the card. Raises: HamiError."""
        if self._holders.find(card) != []:
            return True
        return self._holders.are_here(self._claiming.get(card, ()))
