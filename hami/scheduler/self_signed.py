"""The scheduler's self-signed certificate, of a Secret that its replicas share."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from hami.certificates.manager import CertificateManager, CertificateSettings
from hami.certificates.revision import Lifetimes
from hami.kube.cluster import Cluster
from hami.runtime.parts import Part
from hami.scheduler.settings import Settings


class SelfSigned(Part):
    """Keeps the certificate. *leads*: whether this replica may renew it."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        leads: Callable[[], bool],
        *,
        now: Callable[[], datetime],
    ) -> None:
        manager = CertificateManager(
            cluster,
            leads,
            CertificateSettings(
                namespace=settings.pod_namespace,
                secret=settings.self_signed_cert_secret,
                webhook=settings.self_signed_webhook,
                file=Path(settings.cert_file),
                default_names=frozenset({f"hami-scheduler.{settings.pod_namespace}.svc"}),
                previous_secret=settings.self_signed_previous_secret,
                lifetimes=Lifetimes(
                    serving=timedelta(seconds=settings.self_signed_cert_lifetime),
                    authority=timedelta(seconds=settings.self_signed_ca_lifetime),
                ),
            ),
            now=now,
        )
        super().__init__(manager)
        self._manager = manager
        self._webhook = settings.self_signed_webhook
        self.expiry = manager.expiry

    def prepare(self) -> None:
        """Returns once there is a certificate. Raises: HamiError."""
        self._manager.prepare(time.sleep)

    def unready_reason(self) -> str:
        """Returns why the API server cannot call the webhook; empty if it can."""
        if self._manager.is_trusted:
            return ""
        return f"the API server does not trust the certificate of {self._webhook} yet"
