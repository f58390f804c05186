"""Keeps the self-signed certificates in the cluster and on disk as ``certificates`` says; knows nothing of their form.

Every replica takes what is served from the Secret into one file (certificate and key, so that one rename replaces
both). The leader revises the Secret and has the API server trust what it holds; each write is a compare-and-swap, so
that of two replicas that make a CA at the same time one is told so, and takes the other's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from hami.codec.trust import SecretRecord, WebhookConfiguration
from hami.certificates.revision import CA_CERTIFICATES, CERTIFICATE, KEY, Published, Terms, end_of, is_usable, revise
from hami.kube.lease import LeaderTerm
from hami.runtime.periodic import PeriodicTask
from hami.errors import ClusterError, Conflict, HamiError, NotFound

__all__ = ["CertificateManager", "Place"]

log = logging.getLogger(__name__)

LOOK_EVERY = 10.0  # seconds between looks, at most
RETRY_SECONDS = 1.0


class CertificateCalls(Protocol):
    """What is needed of the cluster."""

    def secret(self, namespace: str, name: str) -> SecretRecord | None: ...
    def create_secret(self, secret: SecretRecord) -> SecretRecord: ...
    def update_secret(self, secret: SecretRecord) -> SecretRecord: ...
    def webhook_configuration(self, name: str) -> WebhookConfiguration | None: ...
    def publish_bundle(self, configuration: WebhookConfiguration, bundle: bytes) -> WebhookConfiguration: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where things are: the Secret, the MutatingWebhookConfiguration, and the *file* that the server reads.

    *names*: how the server is called where no webhook configuration says so.
    """

    namespace: str
    secret: str
    webhook: str
    file: Path
    names: frozenset[str]


class CertificateManager(PeriodicTask):
    """Looks every few seconds. *role* says whether this replica may write."""

    def __init__(self, cluster: CertificateCalls, role: LeaderTerm, place: Place, terms: Terms, *, clock: Callable[[], float],
                 now: Callable[[], datetime]) -> None:
        super().__init__(RETRY_SECONDS)
        self._usual_pause = min(LOOK_EVERY, terms.overlap.total_seconds() / 4)
        self._cluster = cluster
        self._role = role
        self._place = place
        self._terms = terms
        self._clock = clock
        self._now = now
        self._published: Published | None = None
        self._complaint = ""
        self._ends: float | None = None
        self._trusted = False

    def run(self) -> None:
        """Look at once, and then until stopped."""
        self.tick()
        super().run()

    def tick(self) -> None:
        """One look. What fails is logged, once for as long as it fails the same way, and tried again in the next."""
        try:
            self.look()
            self._complaint = ""
        except Conflict as error:
            log.info("certificates: somebody else was faster", extra={"error": error})
        except HamiError as error:
            self._complain(error)
        except Exception:
            log.exception("certificates: look failed")
        self._pause = self._usual_pause if self._trusted else RETRY_SECONDS

    def is_trusted(self) -> bool:
        """The API server has trusted what is served, or nothing speaks against it. Once true it stays so."""
        return self._trusted

    def ends(self) -> float | None:
        """Until when what is served is valid (Unix seconds); ``None`` while nobody has looked."""
        return self._ends

    def look(self) -> None:
        """See that Secret, webhook configuration and file are right. Raises: HamiError; Conflict: look again."""
        secret = self._cluster.secret(self._place.namespace, self._place.secret)
        if not self._leads():
            self._published = None  # what is not watched by us may change, and change back
            self._store(secret)
            if not self._trusted and secret is not None:
                configuration = self._configuration()[0]
                self._trusted = configuration is None or (
                    CA_CERTIFICATES in secret.data and _is_published(configuration, secret.data[CA_CERTIFICATES]))
            return
        configuration, problem = self._configuration()
        secret = self._revise(secret, configuration, None if problem else self._sight(configuration))
        self._store(secret)
        if problem is not None:
            self._trusted = True  # for all that is known
            raise problem
        self._publish(configuration, secret.data[CA_CERTIFICATES])
        self._trusted = True

    def prepare(self, wait: Callable[[float], object]) -> None:
        """Return once there is a certificate to be served; make one if need be, whoever leads.

        One that an earlier run has left will do while the API server does not answer. *wait* sleeps that many seconds
        between attempts. Raises: HamiError when the file cannot be written.
        """
        while True:
            try:
                secret = self._cluster.secret(self._place.namespace, self._place.secret)
                if secret is None or not is_usable(secret.data, self._now()):
                    secret = self._revise(secret, self._configuration()[0], None)
                self._store(secret)
                return
            except Conflict:
                continue  # another replica has made one
            except ClusterError as error:
                self._complain(error)
                if self._is_stored():
                    return
                wait(RETRY_SECONDS)

    def _leads(self) -> bool:
        return self._role.leads_until() > self._clock()

    def _configuration(self) -> tuple[WebhookConfiguration | None, ClusterError | None]:
        """The webhook configuration, or why it cannot be read; what is served is renewed nevertheless."""
        try:
            return self._cluster.webhook_configuration(self._place.webhook), None
        except ClusterError as error:
            return None, error

    def _sight(self, configuration: WebhookConfiguration | None) -> Published:
        """What the API server trusts, and since when we have seen it so."""
        bundles = tuple(webhook.bundle for webhook in configuration.webhooks) if configuration else ()
        if self._published is None or self._published.bundles != bundles:
            self._published = Published(bundles, self._now())
        return self._published

    def _revise(self, secret: SecretRecord | None, configuration: WebhookConfiguration | None,
                published: Published | None) -> SecretRecord:
        held = secret or SecretRecord(namespace=self._place.namespace, name=self._place.secret, data={})
        revision = revise(held.data, names=_names(configuration), default=self._place.names, published=published,
                          now=self._now(), terms=self._terms)
        if revision is None:
            return held
        wanted = replace(held, data=revision.data)
        try:
            stored = self._cluster.update_secret(wanted) if secret else self._cluster.create_secret(wanted)
        except NotFound as error:
            if secret is None:
                raise
            raise Conflict("the Secret has been deleted meanwhile", 409) from error
        log.info("certificates revised", extra={"secret": f"{held.namespace}/{held.name}",
                                                "reasons": "; ".join(revision.reasons)})
        return stored

    def _publish(self, configuration: WebhookConfiguration | None, bundle: bytes) -> None:
        if configuration is None or _is_published(configuration, bundle):
            return
        if self._leads():
            self._cluster.publish_bundle(configuration, bundle)
            log.info("CA bundle written", extra={"webhook": configuration.name})

    def _store(self, secret: SecretRecord | None) -> None:
        """Take what is to be served into the file, unless it cannot be used: then what is served stays."""
        if secret is None or not is_usable(secret.data, self._now()):
            return
        content = secret.data[CERTIFICATE].rstrip() + b"\n" + secret.data[KEY]
        try:
            if self._read() != content:
                _replace(self._place.file, content)
            ends = end_of(secret.data)
            self._ends = ends.timestamp() if ends else None
        except OSError as error:
            raise HamiError(f"certificate file {error.filename or self._place.file}: {error.strerror}") from error

    def _is_stored(self) -> bool:
        content = self._read()
        return is_usable({CERTIFICATE: content, KEY: content}, self._now())

    def _read(self) -> bytes:
        try:
            return self._place.file.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise HamiError(f"certificate file {self._place.file}: {error.strerror}") from error

    def _complain(self, error: HamiError) -> None:
        if str(error) != self._complaint:
            self._complaint = str(error)
            log.warning("certificates cannot be looked after", extra={"error": error})


def _is_published(configuration: WebhookConfiguration, bundle: bytes) -> bool:
    return all(webhook.bundle == bundle for webhook in configuration.webhooks)


def _names(configuration: WebhookConfiguration | None) -> frozenset[str]:
    """By which names the API server calls the webhooks."""
    webhooks = configuration.webhooks if configuration else ()
    services = {f"{service[1]}.{service[0]}.svc" for webhook in webhooks if (service := webhook.service)}
    return frozenset(services | {host for webhook in webhooks if (host := urlsplit(webhook.url).hostname)})


def _replace(file: Path, content: bytes) -> None:
    """Put *content* in the place of *file* in one step, for this account's eyes only."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
        target.write(content)
    fresh.replace(file)
