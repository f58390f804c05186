"""No policy of the API server permits a write by a pattern of a name: see trusted_names.py."""

import re
from pathlib import Path

import pytest

from hami.codec.device_config import chart_config
from hami.codec.documents import parse_own_yaml
from hami.vendors.entry_points import full_catalog
from testing.cases import cases
from testing.cel import CelError, parse
from testing.trusted_names import patterns_that_permit
from testing.yaml_text import read_documents
from tools.policies import DEVICE_PLUGIN, EXTENDER, SCHEDULER, render_policies

param = pytest.param
MANIFESTS = Path(__file__).parent.parent / "manifests"
KINDS = ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy", "MutatingWebhookConfiguration")
USER = "request.userInfo.username"
BY_PATTERN = f"{USER}.matches('^system:serviceaccount:[^:]+:hami$')"
CONTROLLER = "system:serviceaccount:kube-system:resource-claim-controller"


def policies(text):
    """Returns what judges or changes requests in a file of the manifests: its policies, and webhooks in patches."""
    found = []
    for item in read_documents(text):
        if isinstance(item, list):
            found += patched_webhooks(item)
        elif item.get("kind") in KINDS:
            found.append(item)
        elif item.get("kind") == "Component":
            patches = [
                patch["patch"]
                for patch in item.get("patches", ())
                if patch["target"]["kind"] in KINDS and "patch" in patch
            ]
            found += [
                webhook for patch in patches for webhook in patched_webhooks(parse_own_yaml(patch))
            ]
    return found


def patched_webhooks(operations):
    """Yields the webhooks in JSON patches, also those of which only the conditions are replaced."""
    for operation in operations:
        value = operation.get("value")
        if operation.get("path", "").endswith("/matchConditions"):
            value = {"matchConditions": value}
        if isinstance(value, dict) and value.get("matchConditions"):
            yield {
                "kind": "MutatingWebhookConfiguration",
                "metadata": {"name": "patch"},
                "webhooks": [value],
            }


SHIPPED = {
    str(file.relative_to(MANIFESTS)): found
    for file in sorted(MANIFESTS.rglob("*.yaml"))
    if (found := policies(file.read_text()))
}


@pytest.mark.parametrize("file", SHIPPED)
def test_no_policy_permits_by_a_pattern_of_a_name(file):
    assert [sentence for policy in SHIPPED[file] for sentence in patterns_that_permit(policy)] == []


def test_all_files_with_policies_are_analyzed():
    texts = {
        str(file.relative_to(MANIFESTS)): file.read_text() for file in MANIFESTS.rglob("*.yaml")
    }
    judging = {
        file
        for file, text in texts.items()
        if re.search(
            rf"^kind: ({'|'.join(KINDS)})$|^ +matchConditions:$|/matchConditions$",
            text,
            re.MULTILINE,
        )
    }
    assert judging == SHIPPED.keys()
    written = [
        policy for found in SHIPPED.values() for policy in found if policy["kind"] == KINDS[0]
    ]
    assert len({policy["metadata"]["name"] for policy in written}) == len(written) > 10


def test_the_patterns_of_accounts_of_hami_restrict_in_all_of_their_places():
    """There are many, so that the analysis has something to find in each of them once it permits."""
    text = render_policies(full_catalog(chart_config()))
    for pattern in (DEVICE_PLUGIN, SCHEDULER, EXTENDER):
        places = list(re.finditer(re.escape(pattern), text))
        assert len(places) >= 2
        for place in places:
            inverted = f"{text[: place.start()]}!{text[place.start() :]}"
            assert any(map(patterns_that_permit, read_documents(inverted))), text[
                place.start() - 200 : place.end()
            ]


def policy(expression, *, place="validations", variables=()):
    entry = {"expression": expression, "name": "x"}
    return {
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "p"},
        "spec": {
            place: [entry],
            "variables": [{"name": name, "expression": text} for name, text in variables],
        },
    }


@cases(
    "expression",
    ("alone", BY_PATTERN),
    ("or", f"object == null || {BY_PATTERN}"),
    ("and", f"object.a && ({BY_PATTERN} && object.b)"),
    ("twice inverted", f"!(object.a && !{BY_PATTERN})"),
    ("compared", f"{BY_PATTERN} == true"),
    ("compared with the opposite", f"!({BY_PATTERN} == false)"),
    ("unlike the opposite", f"{BY_PATTERN} != false"),
    ("conditional", f"object.a ? {BY_PATTERN} : false"),
    ("condition", f"{BY_PATTERN} ? true : object.a"),
    ("in a list", f"[{BY_PATTERN}].exists(permitted, permitted)"),
    (
        "bound",
        "[request.userInfo.username].exists(u, u.startsWith('system:serviceaccount:kube-system:'))",
    ),
    ("bound as a whole", "[dyn(request).userInfo].exists(who, who.username.endsWith(':hami'))"),
    ("counted", f"!([{USER}].filter(u, u.contains('hami')).size() == 0)"),
    ("all of an inverted macro", f"!([1].all(i, !{BY_PATTERN}))"),
    ("group", "request.userInfo.groups.exists(g, g.startsWith('system:serviceaccounts:kube'))"),
    ("part", f"{USER}.split(':')[3] == 'hami'"),
    ("part as a name", f"{USER}.split(':').exists(part, part == 'system:hami')"),
    ("changed", f"{USER}.lowerAscii() == '{CONTROLLER}'"),
    ("name that anybody may have", f"{USER} == 'hami'"),
    ("account without a namespace", f"{USER} == 'system:serviceaccount:hami'"),
    ("name of an object", f"{USER} == object.metadata.name"),
    ("names of an object", f"{USER} in object.metadata.annotations"),
    ("one of two", f"{USER} in ['{CONTROLLER}', object.a]"),
)
def test_what_permits_by_a_name_that_is_not_exact_is_found(expression):
    assert patterns_that_permit(policy(expression))
    assert patterns_that_permit(policy("variables.it", variables=[("it", expression)]))
    assert patterns_that_permit(policy(f"!({expression})", place="matchConditions"))
    condition = policy(expression, place="matchConditions")
    assert patterns_that_permit({**condition, "kind": "MutatingAdmissionPolicy"})


@cases(
    "expression",
    ("restricts", f"!{BY_PATTERN} || object.a"),
    ("restricts within", f"!(object.a && {BY_PATTERN})"),
    ("restricts in a macro", f"[object].all(o, !{BY_PATTERN} || o.a)"),
    ("part restricts", f"!{USER}.split(':')[2].startsWith('hami')"),
    ("name restricts", f"{USER} != 'hami'"),
    ("right", "authorizer.group('hami.io').resource('claims').check('allocate').allowed()"),
    (
        "right of the pod's account",
        "authorizer.serviceAccount(request.namespace, object.spec.serviceAccountName).check('use').allowed()",
    ),
    ("account", f"{USER} == '{CONTROLLER}'"),
    ("account, the other way round", f"'{CONTROLLER}' == {USER}"),
    ("one of Kubernetes", f"{USER} in ['{CONTROLLER}', 'system:kube-controller-manager']"),
    ("group", "'system:nodes' in request.userInfo.groups"),
    ("group in a macro", "request.userInfo.?groups.orValue([]).exists(g, g == 'system:nodes')"),
    ("bound", f"[{USER}].exists(u, u == '{CONTROLLER}')"),
    (
        "statement of the authenticator",
        (
            "request.userInfo.?extra['authentication.kubernetes.io/node-name'].orValue([''])[0] "
            "== object.spec.nodeName"
        ),
    ),
    ("name of an object", "object.metadata.name.matches('^hami-[0-9a-f]{32}$')"),
)
def test_what_restricts_and_what_is_exact_is_not(expression):
    assert patterns_that_permit(policy(expression)) == []
    assert patterns_that_permit(policy("variables.it", variables=[("it", expression)])) == []


@pytest.mark.parametrize(
    "text", ["", "a &&", "a b", "a.matches('x'", "'open", "[a, b", "a ? b", "@"]
)
def test_what_is_no_expression_is_no_policy(text):
    with pytest.raises(CelError):
        parse(text)
