"""Accounts of users with chosen rights."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from testing.eventually import eventually
from testing.kube import ApiError, Kube
from testing.sandbox import Sandbox

__all__ = [
    "CLAIM_CONTROLLER",
    "account",
    "binding",
    "is_refused",
    "may",
    "permit_priority",
    "permit_refusal",
    "permitted",
    "policies_in",
    "refusal",
    "refused",
    "wait_permitted",
]

Object = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
CLAIM_CONTROLLER = "system:serviceaccount:kube-system:resource-claim-controller"
"""The account of Kubernetes that creates claims from templates, wherever HAMi is."""
POLICY = re.compile(r"ValidatingAdmissionPolicy '([\w-]+)'")


def account(sandbox: Sandbox, name: str, *roles: str) -> Kube:
    """Returns a client of a new ServiceAccount of the sandbox with these ClusterRoles in its namespace."""
    sandbox.kube.create(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        sandbox.namespace,
    )
    for role in roles:
        sandbox.kube.create(binding(sandbox, name, role), sandbox.namespace)
    return sandbox.kube.with_token(sandbox.kube.token(name, sandbox.namespace))


def binding(sandbox: Sandbox, name: str, role: str, **fields: Any) -> Object:
    """Returns the binding of a ClusterRole to the ServiceAccount *name* of the sandbox."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": role},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": sandbox.namespace}],
        **fields,
    }


def may(kube: Kube, user: str, *, groups: Sequence[str] = (), **asked: str) -> bool:
    """Reports whether *user*, of these groups, has the right *asked*, the attributes of a resource."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": list(groups), "resourceAttributes": asked},
    }
    answer = kube.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def wait_permitted(
    sandbox: Sandbox, client: Kube, verb: str, resource: str, group: str = ""
) -> None:
    """Waits until the API server has seen the roles of *client*."""
    resource, _, subresource = resource.partition("/")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {
            "resourceAttributes": {
                "namespace": sandbox.namespace,
                "verb": verb,
                "group": group,
                "resource": resource,
                "subresource": subresource,
            }
        },
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    eventually(
        lambda: client.call("POST", path, review)["status"]["allowed"],
        f"the account may {verb} {resource}",
    )


def permit_priority(sandbox: Sandbox, *accounts: str) -> None:
    """Gives ServiceAccounts of the sandbox the right to priority 0 (default: all), and waits until they have it."""
    _permit(sandbox, "hami-priority-user", accounts, verb="use", resource="priorities")


def permit_refusal(sandbox: Sandbox, *accounts: str) -> None:
    """The same for the right to refuse preemptions."""
    _permit(sandbox, "hami-preemption-refuser", accounts, verb="refuse", resource="preemptions")


def _permit(sandbox: Sandbox, role: str, accounts: Sequence[str], **right: str) -> None:
    users = [
        {"kind": "ServiceAccount", "name": name, "namespace": sandbox.namespace}
        for name in accounts
    ] or [{"kind": "Group", "apiGroup": RBAC, "name": "system:serviceaccounts"}]
    sandbox.kube.create(binding(sandbox, "", role, subjects=users), sandbox.namespace)
    for name in accounts or ("default",):
        user = f"system:serviceaccount:{sandbox.namespace}:{name}"
        eventually(
            lambda user=user: may(
                sandbox.kube,
                user,
                groups=["system:serviceaccounts"],
                group="hami.io",
                namespace=sandbox.namespace,
                **right,
            ),
            f"{name} has the rights of {role}",
        )


@contextlib.contextmanager
def permitted(
    sandbox: Sandbox, name: str, resources: str, verbs: str, group: str = ""
) -> Iterator[Kube]:
    """Yields a client of an account that may do *verbs* to *resources* (words) in all namespaces."""
    role = f"{name}-{sandbox.namespace}"
    sandbox.kube.create(
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": role},
            "rules": [
                {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}
            ],
        }
    )
    client = account(sandbox, name)
    sandbox.kube.create(binding(sandbox, name, role, kind="ClusterRoleBinding"))
    wait_permitted(sandbox, client, verbs.split()[0], resources.split()[0], group)
    yield client
    client.close()
    sandbox.kube.delete("ClusterRoleBinding", role)
    sandbox.kube.delete("ClusterRole", role)


def policies_in(error: ApiError) -> list[str]:
    """Returns the names of the policies that have refused a call."""
    return POLICY.findall(error.message) if error.status == 403 else []


def is_refused(write: Callable[..., object], *arguments: Any, **options: Any) -> bool:
    """Reports whether a policy refuses *write*; any other error is no refusal."""
    try:
        write(*arguments, **options)
    except ApiError as error:
        return policies_in(error) != []
    return False


def refusal(write: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """Returns the message of the policy that refuses *write*. Raises: ApiError after another error."""
    try:
        write(*arguments, **options)
    except ApiError as error:
        if not policies_in(error):
            raise
        return error.message
    raise AssertionError("no policy has refused it")


def refused(write: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """Returns the name of the first policy that refuses *write*. Raises: as `refusal`."""
    return POLICY.findall(refusal(write, *arguments, **options))[0]
