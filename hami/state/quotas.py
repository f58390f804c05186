"""The ResourceQuotas as last seen. Fed by their watch; makes no calls."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from hami.codec.objects import parse_resource_version
from hami.model import QuotaLimits


class QuotaCache:
    """Quotas by namespace; all quotas of a namespace apply. *lock* is the store's and guards them."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._quotas: dict[str, dict[str, QuotaLimits]] = {}
        self.changes = 0  # how often a limit has changed

    def upsert(self, quota: QuotaLimits, as_of: float = -math.inf) -> None:
        """Stores *quota* unless a watch shows an earlier version than is known. A list (*as_of*) is always right."""
        version = parse_resource_version(quota.resource_version)
        with self._lock:
            earlier = self._quotas.get(quota.namespace, {}).get(quota.uid)
            if earlier is None:
                self.changes += 1
            elif as_of == -math.inf and version < parse_resource_version(earlier.resource_version):
                return
            elif replace(earlier, resource_version=quota.resource_version) != quota:
                self.changes += 1
            self._quotas.setdefault(quota.namespace, {})[quota.uid] = quota

    def remove(self, quota: QuotaLimits) -> None:
        """Removes *quota*, which has been deleted."""
        with self._lock:
            quotas = self._quotas.get(quota.namespace, {})
            if quotas.pop(quota.uid, None) is not None:
                self.changes += 1
            if not quotas:
                self._quotas.pop(quota.namespace, None)

    def prune(self, seen: set[str], started: float) -> None:
        """Removes the quotas that are not in a complete list (*seen*: uids)."""
        with self._lock:
            for quota in self.all():
                if quota.uid not in seen:
                    self.remove(quota)

    def of(self, namespace: str) -> Mapping[str, QuotaLimits]:
        """Returns the quotas of *namespace* by uid."""
        return self._quotas.get(namespace, {})

    def __contains__(self, namespace: str) -> bool:
        return namespace in self._quotas

    def by_namespace(self) -> dict[str, Mapping[str, QuotaLimits]]:
        """Returns the quotas of every namespace, by uid."""
        with self._lock:
            return {namespace: dict(quotas) for namespace, quotas in self._quotas.items()}

    def all(self) -> list[QuotaLimits]:
        """Returns every quota."""
        with self._lock:
            return list(chain.from_iterable(map(dict.values, self._quotas.values())))
