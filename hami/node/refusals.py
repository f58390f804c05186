"""Pods that are refused their devices again and again: the kubelet asks for ever."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from hami.errors import DeviceMissing, Rejected
from hami.model import PodRef

REFUSALS = 5
"""In a row, after which the pod is told: the kubelet asks again every ten to fifteen seconds at first."""
CLAIM_REFUSALS = 3
"""The same for a claim, for which it asks every minute or more."""
MOST_REFUSED = 1_000  # pods of which refusals are counted
ADVICE = "its controller makes another one, and a device that is gone does not come back by itself"

RefusalListener = Callable[[PodRef, str, str], None]


class Refusals:
    """Counts how often pods have been refused in a row. Threads may share it.

    *listeners* are called once when a pod has been refused *limit* times: the kubelet asks for ever. They are given the
    pod, the reason, and the UUID of the card that its claim has and its node has not, if it is that.
    """

    def __init__(self, limit: int = REFUSALS) -> None:
        self._limit = limit
        self.listeners: list[RefusalListener] = []
        self._lock = threading.Lock()  # guards the counts
        self._counts: OrderedDict[str, int] = OrderedDict()  # by the uid of the pod

    def count(self, ref: PodRef, error: Rejected) -> None:
        """Counts a refusal of the pod."""
        with self._lock:
            count = self._counts.pop(ref.uid, 0) + 1
            self._counts[ref.uid] = count
            if len(self._counts) > MOST_REFUSED:
                self._counts.popitem(last=False)
        if count != self._limit:
            return
        card = error.card if isinstance(error, DeviceMissing) else ""
        for listener in self.listeners:
            listener(ref, f"{error}. If that lasts, delete the pod: {ADVICE}", card)

    def clear(self, ref: PodRef) -> None:
        """Forgets the pod: a container of it has started, or a claim of it is prepared."""
        with self._lock:
            self._counts.pop(ref.uid, None)
