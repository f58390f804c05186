"""The scheduler's self-signed certificate, of a Secret that its replicas share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from hami.certificates.manager import CertificateManager, CertificateSettings
from hami.certificates.revision import Lifetimes
from hami.kube.cluster import Cluster
from hami.scheduler.settings import Settings


def certificate_manager(
    settings: Settings, cluster: Cluster, leads: Callable[[], bool], *, now: Callable[[], datetime]
) -> CertificateManager:
    """Returns what keeps the certificate; *leads*: whether this replica may renew it."""
    return CertificateManager(
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
