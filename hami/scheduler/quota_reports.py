"""Events on ResourceQuotas whose entries nobody counts."""

from __future__ import annotations

import logging

from hami.kube.events import EventRecorder
from hami.model import QuotaRef
from hami.runtime.once import OncePerKey
from hami.state.quotas import QuotaCache
from hami.vendors.quota_entries import QuotaEntries
from hami.vendors.spec import Catalog

log = logging.getLogger(__name__)

REPORTED_LIMIT = 10_000  # entries that are remembered as reported


class QuotaReports:
    """The reports on *quotas*."""

    def __init__(self, quotas: QuotaCache, vendors: Catalog, events: EventRecorder) -> None:
        self._quotas = quotas
        self._events = events
        self._entries = QuotaEntries(vendors)
        self._reported = OncePerKey(REPORTED_LIMIT)
        self._changes = 0  # of the quotas, up to which entries were reported

    def report(self) -> None:
        """Records an event for each entry that nobody counts, once, if quotas have changed."""
        changes = self._quotas.changes
        if changes == self._changes:
            return
        for quota in self._quotas.all():
            for entry in self._entries.uncounted(quota):
                if not self._reported.is_new((quota.uid, str(entry))):
                    continue
                about = QuotaRef(quota.namespace, quota.name, quota.uid)
                log.warning("quota not counted", extra={"quota": about, "entry": entry.entry})
                self._events.record(about, "Warning", "QuotaEntryNotCounted", str(entry))
        self._changes = changes
