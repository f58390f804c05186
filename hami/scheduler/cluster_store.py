"""The store that the settings of the scheduler describe, which the dashboard also fills."""

from __future__ import annotations

import time

from hami.runtime.clock import utc_now
from hami.runtime.settings import ClusterSettings
from hami.scheduler.usual_pods import fixed_usual_pods
from hami.state.rooms import Usual
from hami.state.store import Store
from hami.state.view import Policies
from hami.vendors.entry_points import catalog


def cluster_store(settings: ClusterSettings) -> Store:
    """Returns the store that *settings* describe, still empty.

    Raises: HamiError for a faulty vendor, or for a file of usual pods that cannot be read.
    """
    vendors = catalog(
        settings.devices, ascend=settings.enable_ascend, iluvatar=settings.enable_iluvatar
    )
    kinds = fixed_usual_pods(settings, vendors)
    return Store(
        vendors,
        Policies(settings.node_scheduler_policy, settings.gpu_scheduler_policy),
        clock=time.monotonic,
        now=utc_now,
        foreign_reservations=settings.foreign_reservations,
        usual=Usual(kinds, is_fixed=bool(kinds)),
    )
