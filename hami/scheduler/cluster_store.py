"""The store that the settings of the scheduler describe, which the dashboard also fills."""

from __future__ import annotations

import time

from hami.runtime.clock import utc_now
from hami.runtime.settings import ClusterSettings
from hami.state.store import Store
from hami.state.view import Policies
from hami.vendors.entry_points import catalog


def cluster_store(settings: ClusterSettings) -> Store:
    """Returns the store that *settings* describe, still empty. Raises: HamiError for a faulty vendor."""
    return Store(
        catalog(settings.devices, ascend=settings.enable_ascend, iluvatar=settings.enable_iluvatar),
        Policies(settings.node_scheduler_policy, settings.gpu_scheduler_policy),
        clock=time.monotonic,
        now=utc_now,
        foreign_reservations=settings.foreign_reservations,
    )
