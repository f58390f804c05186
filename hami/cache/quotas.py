"""The ResourceQuotas as last seen. Fed by their watch."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from hami.codec.objects import parse_resource_version
from hami.model import QuotaLimits

__all__ = ["QuotaCache"]


class QuotaCache:
    """Quotas by namespace; *guard* is the lock under which decisions read them."""

    def __init__(self, guard: threading.RLock) -> None:
        self._guard = guard
        self._quotas: dict[str, dict[str, QuotaLimits]] = {}
        self.changes = 0  # how often a limit has changed

    def upsert(self, quota: QuotaLimits) -> None:
        """Take over what the API server says of *quota*, unless something newer is known; several in one namespace
        all hold."""
        with self._guard:
            known = self._quotas.get(quota.namespace, {}).get(quota.uid)
            if known is None or parse_resource_version(quota.resource_version) >= parse_resource_version(known.resource_version):
                self._quotas.setdefault(quota.namespace, {})[quota.uid] = quota
                self.changes += known is None or (known.limits, known.binary) != (quota.limits, quota.binary)

    def remove(self, quota: QuotaLimits) -> None:
        """*quota* is gone; its limits hold no more, those of others do."""
        with self._guard:
            self._drop(quota.namespace, quota.uid)

    def prune(self, seen: set[str], started: float) -> None:
        """Only the quotas *seen* (uids) exist."""
        with self._guard:
            for namespace, quotas in list(self._quotas.items()):
                for uid in [uid for uid in quotas if uid not in seen]:
                    self._drop(namespace, uid)

    def of(self, namespace: str) -> Mapping[str, QuotaLimits]:
        """The quotas of *namespace* by uid."""
        return self._quotas.get(namespace, {})

    def all(self) -> list[QuotaLimits]:
        """Every quota."""
        with self._guard:
            return [quota for quotas in self._quotas.values() for quota in quotas.values()]

    def _drop(self, namespace: str, uid: str) -> None:
        quotas = self._quotas.get(namespace, {})
        self.changes += quotas.pop(uid, None) is not None
        if not quotas:
            self._quotas.pop(namespace, None)
