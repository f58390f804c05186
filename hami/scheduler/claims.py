"""The part of the scheduler for pods that get their cards by claims. With ``--dra=off`` there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hami.dra.watches import watch_devices
from hami.kube.api import Api
from hami.kube.claims import ClaimWriter
from hami.runtime.clock import utc_now
from hami.runtime.parts import Part
from hami.runtime.settings import ALLOCATE
from hami.scheduler.admit import Admitter
from hami.scheduler.admit_claims import ClaimAdmitter
from hami.scheduler.claim_bind import ClaimBinder
from hami.scheduler.settings import Settings
from hami.scheduler.waiting_claims import WaitingClaims
from hami.state.claims import ClaimCache
from hami.state.store import Store
from hami.web.connections import without_turn

# of the ten that the API server waits for the webhook; a pod names four templates at most
_TEMPLATE_S = 2.0


class Claims(Part):
    """The watches of slices and claims; if this scheduler allocates all claims, their admission and binding instead:
    then pods say what they hold, and those that wait get claims."""

    def __init__(
        self,
        api: Api,
        store: Store,
        leads: Callable[[], bool],
        settings: Settings,
        *,
        clock: Callable[[], float],
    ) -> None:
        super().__init__()
        self._store = store
        self._claims = ClaimWriter(api)
        self.cache = ClaimCache()
        """What claims hold that others allocate."""
        self.binder = None
        """Writes claims of pods before they are bound; ``None`` if HAMi allocates no claims."""
        if settings.dra != ALLOCATE:
            self.tasks.extend(watch_devices(api, self.cache))
            return
        self.binder = ClaimBinder(self._claims, now=utc_now)
        policy = settings.gpu_scheduler_policy
        self.tasks.append(WaitingClaims(store, self._claims, leads, policy, clock=clock))

    def admitter(self, admitter: Admitter) -> ClaimAdmitter | None:
        """Returns the admission of pods that are to get claims; *admitter* is that of the others.
        ``None`` if none do."""
        if self.binder is None:
            return None
        store = self._store
        return ClaimAdmitter(
            admitter, store.vendors, store.admissions.claimable_sizes, self._template
        )

    def _template(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Returns a template while other requests are worked on. Raises: ClusterError; MalformedInput."""
        with without_turn():
            return self._claims.template(namespace, name, timeout=_TEMPLATE_S)
