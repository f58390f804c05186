"""Secrets and webhook configurations on the wire."""

import base64
import json

import pytest

from hami.codec.trust import SecretRecord, Webhook
from hami.errors import Conflict, MalformedInput, NotFound
from hami.kube.api import MERGE_PATCH, STRATEGIC_MERGE_PATCH
from testing.cases import cases
from tests.kube.test_cluster import talk

SECRETS = "/api/v1/namespaces/hami/secrets"
SECRET = {
    "kind": "Secret",
    "type": "Opaque",
    "data": {"tls.crt": base64.b64encode(b"pem").decode()},
    "metadata": {
        "namespace": "hami",
        "name": "s",
        "resourceVersion": "5",
        "labels": {"l": "v"},
        "managedFields": [{}],
    },
}
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
HOOK = {
    "metadata": {"name": "h", "resourceVersion": "9"},
    "webhooks": [
        {
            "name": "a",
            "clientConfig": {
                "service": {"namespace": "hami", "name": "s", "port": 443},
                "caBundle": "cGVt",
            },
        },
        {"name": "b", "clientConfig": {"url": "https://127.0.0.1/webhook"}},
    ],
}


def test_a_secret_is_read():
    api, cluster = talk(SECRET, NotFound("none", 404))
    secret = cluster.secret("hami", "s")
    assert (secret.data, secret.resource_version) == ({"tls.crt": b"pem"}, "5")
    assert cluster.secret("hami", "s") is None
    assert api.calls[0] == ("GET", f"{SECRETS}/s", "application/json", None, None)


def test_a_secret_is_created_with_the_type_of_certificates():
    api, cluster = talk(SECRET)
    cluster.write_secret(SecretRecord(namespace="hami", name="s", data={"tls.crt": b"pem"}))
    assert api.calls == [
        (
            "POST",
            SECRETS,
            "application/json",
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "kubernetes.io/tls",
                "data": {"tls.crt": "cGVt"},
                "metadata": {"name": "s"},
            },
            None,
        )
    ]


def test_an_update_changes_nothing_but_the_data_of_a_secret():
    api, cluster = talk(SECRET, SECRET)
    cluster.write_secret(cluster.secret("hami", "s"))
    assert api.calls[1] == (
        "PATCH",
        f"{SECRETS}/s",
        MERGE_PATCH,
        {"data": {"tls.crt": "cGVt"}, "metadata": {"resourceVersion": "5"}},
        None,
    )


@pytest.mark.parametrize("error", [Conflict("changed", 409), NotFound("gone", 404)], ids=str)
def test_a_secret_that_has_changed_is_not_overwritten(error):
    _, cluster = talk(SECRET, error)
    with pytest.raises(type(error)):
        cluster.write_secret(cluster.secret("hami", "s"))


def test_a_webhook_configuration_is_read():
    _, cluster = talk(HOOK, NotFound("none", 404))
    assert cluster.webhook_configuration("h").webhooks == (
        Webhook(name="a", service=("hami", "s"), bundle=b"pem"),
        Webhook(name="b", url="https://127.0.0.1/webhook"),
    )
    assert cluster.webhook_configuration("h") is None


def test_a_bundle_is_written_into_every_webhook_and_nothing_else_is_touched():
    api, cluster = talk(HOOK, HOOK)
    cluster.publish_bundle(cluster.webhook_configuration("h"), b"new")
    text = base64.b64encode(b"new").decode()
    assert api.calls[1] == (
        "PATCH",
        f"{HOOKS}/h",
        STRATEGIC_MERGE_PATCH,
        {
            "metadata": {"resourceVersion": "9"},
            "webhooks": [{"name": name, "clientConfig": {"caBundle": text}} for name in "ab"],
        },
        None,
    )


@cases(
    "answer",
    ("no JSON", b"{"),
    ("no version", {"metadata": {"name": "s"}}),
    ("no base64", SECRET | {"data": {"tls.key": "c2VjcmV0x"}}),
)
def test_a_secret_that_cannot_be_read_is_quoted_nowhere(answer):
    _, cluster = talk(answer)
    with pytest.raises(MalformedInput) as caught:
        cluster.secret("hami", "s")
    assert "c2VjcmV0" not in str(caught.value)


def test_a_webhook_configuration_that_cannot_be_read_is_named():
    _, cluster = talk(json.dumps({"metadata": {}}).encode())
    with pytest.raises(MalformedInput, match="webhook configuration"):
        cluster.webhook_configuration("h")
