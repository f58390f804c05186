"""Stores the self-signed certificates in the cluster and on disk. What to store is decided in `revision`.

Every replica copies the serving certificate from the Secret to one local file. The file holds certificate and key, so
one rename replaces both. The leader also revises the Secret and publishes its CAs in the webhook configuration. The
manifests contain the Secret without data, so that the account needs no right to create one. Each write is a
compare-and-swap: when two replicas create a CA at the same time, one gets a conflict and uses the other's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from hami.certificates.revision import (
    CA_CERTIFICATES,
    CERTIFICATE,
    KEY,
    Lifetimes,
    PublishedBundles,
    adopt,
    revise,
    trusts,
    usable_until,
)
from hami.codec.trust import SecretRecord, WebhookConfiguration
from hami.errors import ClusterError, Conflict, HamiError, NotFound
from hami.kube.retry import CONFLICT_WAIT, Backoff
from hami.kube.trust import Trust
from hami.runtime.files import write_atomically
from hami.runtime.once import OncePerKey
from hami.runtime.tasks import Task

log = logging.getLogger(__name__)

MAX_SYNC_S = 10.0  # longest interval between two syncs
RETRY_S = 1.0
CONFLICTS = 10  # in a row, after which the process gives up to prepare a certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSettings:
    """The Secret, the MutatingWebhookConfiguration (*webhook*), and the *file* that the server reads.

    *default_names*: DNS names of the server if no webhook configuration tells them. *previous_secret*: of a program
    that this one replaces, such as HAMi; empty if there is none.
    """

    namespace: str
    secret: str
    webhook: str
    file: Path
    default_names: frozenset[str]
    previous_secret: str = ""
    lifetimes: Lifetimes = Lifetimes()


class CertificateManager(Task):
    """Syncs Secret, webhook configuration and file every few seconds. Only a replica that *leads* writes to the
    cluster, except for `prepare`."""

    def __init__(
        self,
        cluster: Trust,
        leads: Callable[[], bool],
        settings: CertificateSettings,
        *,
        now: Callable[[], datetime],
    ) -> None:
        super().__init__("certificates")
        self._sync_s = min(MAX_SYNC_S, settings.lifetimes.overlap.total_seconds() / 4)
        self._cluster = cluster
        self._leads = leads
        self._settings = settings
        self._now = now
        self._published: PublishedBundles | None = None
        self._failures = OncePerKey()
        self._expiry: float | None = None
        self.is_trusted = False
        """Whether the API server trusts the serving certificate, or no evidence says otherwise. Once true, it stays
        true."""

    def step(self) -> float:
        """Syncs once. A failure is logged once while it stays the same; the next step retries."""
        pause_s = 0.0
        try:
            self.sync()
            self._failures.clear("sync")
        except Conflict as error:
            log.info("another replica wrote first, retrying", extra={"error": error})
        except HamiError as error:
            self._report_failure(error)
            pause_s = error.retry_after_s if isinstance(error, ClusterError) else 0.0
        return max(pause_s, self._sync_s if self.is_trusted else RETRY_S)

    def expiry(self) -> float | None:
        """Returns when the serving certificate expires (Unix seconds); None before the first sync."""
        return self._expiry

    def sync(self) -> None:
        """Brings Secret, webhook configuration and file up to date. Raises: HamiError; Conflict means sync again."""
        secret = self._secret()
        if not self._leads():
            self._published = None  # a follower does not see every change of the bundles
            self._store(secret)
            if not self.is_trusted and secret.resource_version:
                self.is_trusted = _is_trusted(self._configuration()[0], secret)
            return
        configuration, problem = self._configuration()
        secret = self._revise(
            secret, configuration, problem, None if problem else self._observe(configuration)
        )
        self._store(secret)
        if problem is not None:
            self.is_trusted = True  # nothing says otherwise
            raise problem
        bundle = secret.data[CA_CERTIFICATES]
        if configuration is not None and not _is_published(configuration, bundle) and self._leads():
            self._cluster.publish_bundle(configuration, bundle)
            log.info("CA bundle published", extra={"webhook": configuration.name})
        self.is_trusted = True

    def prepare(self, wait: Callable[[float], object]) -> None:
        """Returns once a certificate can be served. Creates one if needed, even if another replica leads.

        While the API server does not answer, a certificate stored by an earlier run is enough. *wait* sleeps that many
        seconds between attempts. Raises: HamiError when the file cannot be written; Conflict when each attempt to
        create a certificate conflicts with another write.
        """
        conflicts, backoff = 0, Backoff(CONFLICT_WAIT)
        while True:
            try:
                secret = self._secret()
                if usable_until(secret.data, self._now()) is None:
                    secret = self._revise(secret, *self._configuration(), None)
                self._store(secret)
                return
            except Conflict as error:  # another replica has created one
                if (conflicts := conflicts + 1) == CONFLICTS:
                    raise
                wait(backoff.next(error))
            except ClusterError as error:
                self._report_failure(error)
                content = self._settings.file.read_bytes() if self._settings.file.exists() else b""
                if usable_until({CERTIFICATE: content, KEY: content}, self._now()) is not None:
                    return
                wait(max(RETRY_S, error.retry_after_s))

    def _secret(self) -> SecretRecord:
        """Returns the Secret, without data and version if it does not exist."""
        settings = self._settings
        return self._cluster.secret(settings.namespace, settings.secret) or SecretRecord(
            namespace=settings.namespace, name=settings.secret, data={}
        )

    def _previous(self) -> Mapping[str, bytes]:
        """Returns the data of the previous Secret; nothing if there is none."""
        settings = self._settings
        if not settings.previous_secret:
            return {}
        secret = self._cluster.secret(settings.namespace, settings.previous_secret)
        return secret.data if secret else {}

    def _configuration(self) -> tuple[WebhookConfiguration | None, ClusterError | None]:
        """Returns the webhook configuration, or the error that prevents reading it. Certificates are renewed even
        without it."""
        try:
            return self._cluster.webhook_configuration(self._settings.webhook), None
        except ClusterError as error:
            return None, error

    def _observe(self, configuration: WebhookConfiguration | None) -> PublishedBundles:
        """Returns the CA bundles that the API server trusts, and since when we have observed them."""
        bundles = (
            tuple(webhook.bundle for webhook in configuration.webhooks) if configuration else ()
        )
        if self._published is None or self._published.bundles != bundles:
            self._published = PublishedBundles(bundles, self._now())
        return self._published

    def _revise(
        self,
        secret: SecretRecord,
        configuration: WebhookConfiguration | None,
        problem: ClusterError | None,
        published: PublishedBundles | None,
    ) -> SecretRecord:
        """Returns *secret* as it is stored now. *problem*: why there is no *configuration*."""
        previous = self._previous()
        if previous and problem is not None and usable_until(secret.data, self._now()) is None:
            raise problem  # only the configuration tells whether the previous certificate is trusted
        if previous and not secret.resource_version and self._expiry is not None:
            raise ClusterError(
                f"Secret {secret.namespace}/{secret.name} has been deleted: expected while the program "
                f"with the Secret {self._settings.previous_secret} is restored, otherwise apply the "
                "manifests again"
            )
        bundles = [webhook.bundle for webhook in configuration.webhooks] if configuration else []
        data = adopt(secret.data, previous, bundles, self._now())
        revision = revise(
            data,
            names=_server_names(configuration),
            default=self._settings.default_names,
            published=published,
            now=self._now(),
            lifetimes=self._settings.lifetimes,
            previous=previous,
        )
        if revision is None:
            return secret
        try:
            stored = self._cluster.write_secret(replace(secret, data=revision.data))
        except NotFound as error:
            if not secret.resource_version:
                raise
            raise Conflict("the Secret was deleted during the update", 409) from error
        except ClusterError as error:
            if error.status != 403 or secret.resource_version:
                raise
            raise ClusterError(
                f"Secret {secret.namespace}/{secret.name} is missing and may not be created: "
                "apply the manifests again",
                403,
            ) from error
        log.info(
            "certificates revised",
            extra={
                "secret": f"{secret.namespace}/{secret.name}",
                "reasons": "; ".join(revision.reasons),
            },
        )
        return stored

    def _store(self, secret: SecretRecord) -> None:
        """Writes the serving certificate of *secret* to the file. An unusable one leaves the file unchanged."""
        expiry = usable_until(secret.data, self._now())
        if expiry is None:
            return
        content = secret.data[CERTIFICATE].rstrip() + b"\n" + secret.data[KEY]
        try:
            write_atomically(self._settings.file, content, mode=0o600)
            self._expiry = expiry.timestamp()
        except OSError as error:
            raise HamiError(
                f"certificate file {error.filename or self._settings.file}: {error.strerror}"
            ) from error

    def _report_failure(self, error: HamiError) -> None:
        if self._failures.is_new("sync", str(error)):
            log.warning("certificate sync failed", extra={"error": error})


def _is_trusted(configuration: WebhookConfiguration | None, secret: SecretRecord) -> bool:
    """Reports whether API servers trust the certificate in *secret*, whose CA it must contain. A webhook without a CA
    bundle is new, and waits for the leader; there must be another one."""
    if configuration is None:
        return True
    published = [webhook.bundle for webhook in configuration.webhooks if webhook.bundle]
    stored = secret.data.get(CA_CERTIFICATES, b"")
    return bool(published) and all(trusts(bundle, secret.data) for bundle in (stored, *published))


def _is_published(configuration: WebhookConfiguration | None, bundle: bytes | None) -> bool:
    return configuration is None or all(
        webhook.bundle == bundle for webhook in configuration.webhooks
    )


def _server_names(configuration: WebhookConfiguration | None) -> frozenset[str]:
    """Returns the host names under which the API server calls the webhooks."""
    webhooks = configuration.webhooks if configuration else ()
    services = {
        f"{service[1]}.{service[0]}.svc" for webhook in webhooks if (service := webhook.service)
    }
    return frozenset(
        services | {host for webhook in webhooks if (host := urlsplit(webhook.url).hostname)}
    )
