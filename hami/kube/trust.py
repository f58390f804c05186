"""The calls to the API server about Secrets with private keys, and the CA bundles of webhook configurations."""

from __future__ import annotations

from hami.codec.trust import (
    SecretRecord,
    WebhookConfiguration,
    parse_secret,
    parse_webhook_configuration,
    render_bundle,
    render_secret,
)
from hami.kube.api import STRATEGIC_MERGE_PATCH
from hami.kube.calls import WEBHOOKS, Calls, as_json, path_of, target_of


class Trust(Calls):
    """Calls about private keys and CA bundles."""

    def secret(self, namespace: str, name: str) -> SecretRecord | None:
        """Returns the current Secret; ``None`` if there is none. Raises also: MalformedInput."""
        return self._get(path_of("secrets", namespace, name), parse_secret)

    def write_secret(self, secret: SecretRecord) -> SecretRecord:
        """Writes the Secret and returns it as stored. It is changed if its version is still
        ``secret.resource_version``, or created, with the type kubernetes.io/tls, if *secret* has no version.

        Raises: Conflict if it has changed or been created since, NotFound if it is gone.
        """
        method, path, content_type = target_of("secrets", secret)
        return parse_secret(
            self._write(
                method, path, body=as_json(render_secret(secret)), content_type=content_type
            )
        )

    def webhook_configuration(self, name: str) -> WebhookConfiguration | None:
        """Returns the current MutatingWebhookConfiguration; ``None`` if there is none. Raises also: MalformedInput."""
        return self._get(path_of(WEBHOOKS, None, name), parse_webhook_configuration)

    def publish_bundle(
        self, configuration: WebhookConfiguration, bundle: bytes
    ) -> WebhookConfiguration:
        """Makes the API server trust only the CAs in *bundle* (PEM) for all webhooks of *configuration*.

        Raises: Conflict if the configuration has changed since, NotFound if it is gone.
        """
        return parse_webhook_configuration(
            self._write(
                "PATCH",
                path_of(WEBHOOKS, None, configuration.name),
                body=as_json(render_bundle(configuration, bundle)),
                content_type=STRATEGIC_MERGE_PATCH,
            )
        )
