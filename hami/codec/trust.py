"""Secrets with private keys, and the CA bundles of webhook configurations."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hami.codec.documents import decode, decode_object
from hami.errors import MalformedInput

TLS = "kubernetes.io/tls"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRecord:
    """A Secret. *resource_version*: empty for one that does not exist yet."""

    namespace: str
    name: str
    data: Mapping[str, bytes] = field(repr=False)
    resource_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """The address and CA bundle (PEM) of one webhook. *service*: namespace and name."""

    name: str
    service: tuple[str, str] | None = None
    url: str = ""
    bundle: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookConfiguration:
    """A MutatingWebhookConfiguration, as far as TLS is concerned."""

    name: str
    webhooks: tuple[Webhook, ...]
    resource_version: str


class _TrustMeta(msgspec.Struct, rename="camel"):
    name: str
    resource_version: str
    namespace: str = ""


class _Secret(msgspec.Struct):
    metadata: _TrustMeta
    data: dict[str, bytes] = {}


class _Service(msgspec.Struct):
    namespace: str
    name: str


class _ClientConfig(msgspec.Struct, rename="camel"):
    service: _Service | None = None
    url: str = ""
    ca_bundle: bytes = b""


class _Webhook(msgspec.Struct, rename="camel"):
    name: str
    client_config: _ClientConfig


class _Configuration(msgspec.Struct):
    metadata: _TrustMeta
    webhooks: tuple[_Webhook, ...] = ()


_SECRET = msgspec.json.Decoder(_Secret)
_CONFIGURATION = msgspec.json.Decoder(_Configuration)


def parse_secret(data: bytes) -> SecretRecord:
    """The record of a v1 Secret. Raises: MalformedInput without its content."""
    try:
        wire = decode_object(_SECRET, data)
    except (msgspec.DecodeError, ValueError) as error:
        raise MalformedInput("secret", "", str(error)) from error
    return SecretRecord(
        namespace=wire.metadata.namespace,
        name=wire.metadata.name,
        data=wire.data,
        resource_version=wire.metadata.resource_version,
    )


def render_secret(secret: SecretRecord) -> dict[str, Any]:
    """A merge patch that sets the data of the Secret unless it has changed, or a new one of type kubernetes.io/tls."""
    data = {key: base64.b64encode(value).decode() for key, value in secret.data.items()}
    if secret.resource_version:
        return {"metadata": {"resourceVersion": secret.resource_version}, "data": data}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": TLS,
        "metadata": {"name": secret.name},
        "data": data,
    }


def parse_webhook_configuration(data: bytes) -> WebhookConfiguration:
    """The record of a MutatingWebhookConfiguration. Raises: MalformedInput."""
    wire = decode("webhook configuration", _CONFIGURATION, data)
    return WebhookConfiguration(
        name=wire.metadata.name,
        resource_version=wire.metadata.resource_version,
        webhooks=tuple([_webhook(item.name, item.client_config) for item in wire.webhooks]),
    )


def _webhook(name: str, client: _ClientConfig) -> Webhook:
    service = None
    if client.service is not None:
        service = client.service.namespace, client.service.name
    return Webhook(name=name, url=client.url, bundle=client.ca_bundle, service=service)


def render_bundle(configuration: WebhookConfiguration, bundle: bytes) -> dict[str, Any]:
    """A strategic merge patch that sets *bundle* in every webhook unless the object has changed."""
    text = base64.b64encode(bundle).decode()
    return {
        "metadata": {"resourceVersion": configuration.resource_version},
        "webhooks": [
            {"name": webhook.name, "clientConfig": {"caBundle": text}}
            for webhook in configuration.webhooks
        ],
    }
