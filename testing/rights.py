"""Permissions of HAMi's accounts: those in the manifests, and those in use according to the audit log of the API
server.

A right is a verb on a resource: ``nodes``, ``pods/binding``, ``leases/hami-scheduler`` (a rule with a name).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testing.yaml_text import read_documents

__all__ = ["Call", "Right", "audit_policy", "calls", "granted", "refused", "shipped", "unused"]

Object = dict[str, Any]
BASE = Path(__file__).parents[1] / "manifests" / "base"
ACCOUNTS = ("hami-scheduler", "hami-scheduler-extender", "hami-device-plugin")
OF_POLICIES = "hami.io"
"""The API group of the rights that no request needs, but policies ask for."""
USER = "system:serviceaccount:kube-system:{}"


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """*verb* on *resource* (with subresource) of *group*; *name*: restricted to this object."""

    group: str
    resource: str
    verb: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request of an account. *allowed*: whether it had the permission."""

    right: Right
    allowed: bool
    namespace: str
    status: int


def audit_policy() -> Object:
    """Returns a policy that logs all requests of HAMi's accounts, without objects, and no others."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "users": [USER.format(account) for account in ACCOUNTS]},
            {"level": "None"},
        ],
    }


def calls(log: Path, account: str, since: int = 0) -> Iterator[Call]:
    """Yields the requests of *account* in the audit log, from the byte *since*."""
    for line in log.read_bytes()[since:].splitlines(keepends=True):
        if not line.endswith(b"\n"):  # being written
            continue
        event = json.loads(line)
        if event["user"]["username"] != USER.format(account) or "objectRef" not in event:
            continue
        decision = event["annotations"].get("authorization.k8s.io/decision")
        if decision is None:  # ended before, such as by priority and fairness
            continue
        asked = event["objectRef"]
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        yield Call(
            right=Right(asked.get("apiGroup", ""), resource, event["verb"], asked.get("name", "")),
            allowed=decision == "allow",
            namespace=asked.get("namespace", ""),
            status=event["responseStatus"]["code"],
        )


def refused(made: Iterable[Call]) -> set[Call]:
    """Returns the requests that lacked a permission."""
    return {call for call in made if not call.allowed}


def shipped(file: str) -> list[Object]:
    """Returns the objects in a file of the base."""
    return read_documents((BASE / file).read_text())


def granted(items: Iterable[Object], account: str) -> set[Right]:
    """Returns the permissions that roles among *items* grant *account*, without those of roles that Kubernetes ships,
    and without those that only policies ask for.
    """
    items = list(items)
    bound = {
        (item["roleRef"]["kind"], item["roleRef"]["name"])
        for item in items
        if item["kind"] in ("ClusterRoleBinding", "RoleBinding")
        and any(subject["name"] == account for subject in item["subjects"])
    }
    return {
        Right(group, resource, verb, name)
        for item in items
        if (item["kind"], item["metadata"]["name"]) in bound
        for rule in item["rules"]
        for group in rule["apiGroups"]
        if group != OF_POLICIES
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def unused(rights: Iterable[Right], made: Iterable[Call]) -> list[Right]:
    """Returns those of *rights* that no request needed."""
    asked = {call.right for call in made if call.allowed}
    anyone = {Right(right.group, right.resource, right.verb) for right in asked}
    return sorted(right for right in rights if right not in (asked if right.name else anyone))
