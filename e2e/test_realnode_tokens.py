"""A kubelet gives each program of the scheduler's pod the token of its own account, as the Deployment mounts them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from hami.codec.documents import parse_own_yaml
from testing.cluster import MANIFESTS, SCHEDULER
from testing.kube import Kube
from testing.pods import container, pod
from testing.scheduler import EXTENDER

pytestmark = pytest.mark.kind
Object = dict[str, Any]
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"
SECRET = f"{EXTENDER}-token"


def shipped() -> Object:
    """Returns the pod of the scheduler with its users and tokens alone; each container prints its token."""
    spec = parse_own_yaml((MANIFESTS / "deployment.yaml").read_text())["spec"]["template"]["spec"]
    made = pod("scheduler", scheduler=SCHEDULER)
    made["spec"] |= {
        key: spec[key] for key in ("serviceAccountName", "automountServiceAccountToken")
    }
    made["spec"]["securityContext"] = {
        key: value for key, value in spec["securityContext"].items() if key != "seccompProfile"
    }
    made["spec"]["volumes"] = [
        volume for volume in spec["volumes"] if volume["name"].endswith("-token")
    ]
    made["spec"]["containers"] = [
        container(program["name"])
        | {
            "command": ["sh", "-c", f"cd {TOKEN}; echo *; cat token; echo; echo end; sleep inf"],
            "volumeMounts": [
                mount for mount in program["volumeMounts"] if mount["name"].endswith("-token")
            ],
        }
        for program in spec["containers"]
    ]
    return made


def secret(kind: str, **fields: Object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": SECRET,
            "annotations": {"kubernetes.io/service-account.name": EXTENDER},
        },
        "type": kind,
        **fields,
    }


def claims(token: str) -> Object:
    """Returns what a token says."""
    text = token.split(".")[1]
    found: Object = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return found


def test_each_container_has_the_token_of_its_own_account(sandbox, real):
    """The container without a token yet waits for it, and is not started in vain."""
    kube, namespace = sandbox.kube, sandbox.namespace
    for name in (SCHEDULER, EXTENDER):
        kube.create(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}, namespace
        )
    kube.create(secret("Opaque"), namespace)  # as one that the control plane has not filled yet
    sandbox.create(shipped())
    sandbox.event("scheduler", "FailedMount", "references non-existent secret key: token")
    kube.delete("Secret", SECRET, namespace)
    kube.create(secret("kubernetes.io/service-account-token"), namespace)
    sandbox.running("scheduler", timeout=120)
    item = sandbox.pod("scheduler")
    assert [status["restartCount"] for status in item["status"]["containerStatuses"]] == [0, 0]
    shown = {
        name: real.output(item, name, until="end").splitlines()
        for name in ("kube-scheduler", "extender")
    }
    assert {name: lines[0] for name, lines in shown.items()} == dict.fromkeys(
        shown, "ca.crt namespace token"
    )
    first, second = (claims(shown[name][1]) for name in ("kube-scheduler", "extender"))
    assert first["sub"] == f"system:serviceaccount:{namespace}:{SCHEDULER}"
    assert first["kubernetes.io"]["pod"]["uid"] == item["metadata"]["uid"], "it ends with the pod"
    assert first["exp"] - first["iat"] == 3600
    assert second["sub"] == f"system:serviceaccount:{namespace}:{EXTENDER}"
    assert "exp" not in second
    check(kube, shown["extender"][1])


def check(kube: Kube, token: str) -> None:
    """Checks that the API server knows whose token it is."""
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token},
    }
    answer = kube.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)
    assert answer["status"]["user"]["username"].endswith(f":{EXTENDER}")
