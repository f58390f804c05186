"""The parts of the scheduler for pods that get their cards by claims. With ``--dra=off`` there are none of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hami.dra.templates import ClaimTemplates
from hami.dra.watches import PodsWithClaims, watch_devices, watch_templates
from hami.kube.api import Api
from hami.kube.cluster import Cluster
from hami.kube.dynamic_resources import ClaimWriter
from hami.kube.events import EventRecorder
from hami.kube.reflector import Sink
from hami.model import Pod
from hami.runtime.clock import utc_now
from hami.runtime.settings import ALLOCATE, OPTIONAL
from hami.runtime.tasks import Task
from hami.scheduler.admit import Admitter
from hami.scheduler.admit_claims import ClaimAdmitter, ClaimsOfTemplates, OwnClaims
from hami.scheduler.claim_bind import ClaimBinder
from hami.scheduler.settings import Settings
from hami.scheduler.waiting_claims import WaitingClaims
from hami.state.claims import ClaimCache
from hami.state.store import Store
from hami.web.connections import without_turn

_TEMPLATE_S = (
    2.0  # of the ten that the API server waits for the webhook; a pod names four templates at most
)


class ClaimParts:
    """The watches of slices and claims, unless this scheduler allocates all claims: then pods say what they hold, and
    those that wait get claims.

    If pods are given claims, their admission; if these are made of templates, the templates and the watch of these.
    """

    def __init__(
        self,
        api: Api,
        cluster: Cluster,
        store: Store,
        events: EventRecorder,
        leads: Callable[[], bool],
        settings: Settings,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._settings = settings
        self._claims = ClaimWriter(api)
        self.cache = ClaimCache()
        """What claims hold that others allocate."""
        self.tasks: tuple[Task, ...]
        self.binder = None
        """Writes claims of pods before they are bound; ``None`` if HAMi allocates no claims."""
        if settings.dra == ALLOCATE:
            self.binder = ClaimBinder(self._claims, now=utc_now)
            self.tasks = (
                WaitingClaims(
                    store, self._claims, leads, settings.gpu_scheduler_policy, clock=clock
                ),
            )
        else:
            self.tasks = watch_devices(api, self.cache)
        self._templates = None
        if settings.dra == OPTIONAL:
            self._templates = ClaimTemplates(
                cluster, events, leads, unused_s=settings.dra_template_ttl, clock=clock
            )
            self.tasks = (self._templates, watch_templates(api, self._templates), *self.tasks)

    def pods(self, sink: Sink[Pod]) -> Sink[Pod]:
        """Returns a sink for the watch of pods that passes them on to *sink*."""
        return PodsWithClaims(sink, self._templates) if self._templates is not None else sink

    def admitter(self, admitter: Admitter) -> ClaimAdmitter | None:
        """Returns the admission of pods that are to get claims; *admitter* is that of the others.
        ``None`` if none do."""
        if self._settings.dra == ALLOCATE:
            return ClaimAdmitter(admitter, OwnClaims(admitter, self._store, self._template))
        if self._templates is None:
            return None
        return ClaimAdmitter(
            admitter, ClaimsOfTemplates(self._store, self._settings, self.cache.card_sizes)
        )

    def _template(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Returns a template while other requests are worked on. Raises: ClusterError; MalformedInput."""
        with without_turn():
            return self._claims.template(namespace, name, timeout=_TEMPLATE_S)
