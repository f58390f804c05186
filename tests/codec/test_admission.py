"""AdmissionReview in and out; the patch is the difference between two pods and nothing else."""

import base64
import copy
import json

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.admission import Review, parse_review, render_allowed, render_denied
from hami.errors import MalformedInput
from testing.cases import cases
from testing.fuzz import bodies, paths, replaced, values

POD = {
    "metadata": {"name": "p", "annotations": {"a/b~c": "1"}},
    "spec": {
        "schedulerName": "default-scheduler",
        "novel": {"kept": [1, None]},
        "containers": [
            {
                "name": "c",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
                "later": {"field": 1.5},
            }
        ],
    },
}
REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {"uid": "r1", "namespace": "ns", "operation": "CREATE", "object": POD},
}
V1BETA1 = REVIEW | {"apiVersion": "admission.k8s.io/v1beta1"}


def review(pod=POD):
    return Review(
        uid="r1", namespace="ns", pod=pod, api_version="admission.k8s.io/v1", kind="AdmissionReview"
    )


def changed(path, value):
    return replaced(POD, path, value)


def patch_between(before, after):
    """The operations of the answer, ``None`` when it has none."""
    response = json.loads(render_allowed(review(before), after))["response"]
    assert response["allowed"] is True
    assert ("patch" in response) == (response.get("patchType") == "JSONPatch")
    return json.loads(base64.b64decode(response["patch"])) if "patch" in response else None


@cases(
    "document, api_version",
    ("v1", REVIEW, "admission.k8s.io/v1"),
    ("v1beta1", V1BETA1, "admission.k8s.io/v1beta1"),
)
def test_parse(document, api_version):
    assert parse_review(json.dumps(document).encode()) == Review(
        "r1", "ns", POD, api_version, "AdmissionReview"
    )


@cases(
    "text, expected",
    (
        "nothing but a request",
        '{"request":{}}',
        Review("", "", None, "admission.k8s.io/v1", "AdmissionReview"),
    ),
    (
        "null object",
        '{"request":{"uid":"x","object":null},"kind":null}',
        Review("x", "", None, "admission.k8s.io/v1", "AdmissionReview"),
    ),
    (
        "subresource",
        '{"request":{"subResource":"ephemeralcontainers"}}',
        Review("", "", None, "admission.k8s.io/v1", "AdmissionReview", "ephemeralcontainers"),
    ),
    (
        "unknown fields",
        '{"request":{"object":{"novel":{"x":[{}]}}}}',
        Review("", "", {"novel": {"x": [{}]}}, "admission.k8s.io/v1", "AdmissionReview"),
    ),
)
def test_missing_parts(text, expected):
    assert parse_review(text.encode()) == expected


@cases(
    "text, field, quoted",
    ("empty", b"", "body", ""),
    ("truncated", b'{"request":', "body", '{"request":'),
    ("no UTF-8", b"\xff", "body", "\ufffd"),
    (
        "no UTF-8 inside",
        b'{"request":{"object":{"x":"\xff"}}}',
        "body",
        '{"request":{"object":{"x":"\ufffd"}}}',
    ),
    ("NaN", b'{"request":{"object":{"x":NaN}}}', "body", '{"request":{"object":{"x":NaN}}}'),
    ("deep", b"[" * 100_000, "body", "[" * 200),
    ("null", b"null", "AdmissionReview", "None"),
    ("array", b"[]", "AdmissionReview", "[]"),
    ("no request", b"{}", "request", ""),
    ("request a list", b'{"request":[]}', "request", "[]"),
    ("uid a number", b'{"request":{"uid":7}}', "request.uid", "7"),
    ("namespace an object", b'{"request":{"namespace":{}}}', "request.namespace", "{}"),
    ("apiVersion a number", b'{"request":{},"apiVersion":1}', "apiVersion", "1"),
    ("pod a list", b'{"request":{"object":[]}}', "request.object", "[]"),
    ("pod a text", b'{"request":{"object":"pod"}}', "request.object", "pod"),
)
def test_malformed(text, field, quoted):
    with pytest.raises(MalformedInput) as caught:
        parse_review(text)
    assert (caught.value.field, caught.value.text) == (field, quoted)


@given(bodies(REVIEW) | bodies(V1BETA1))
def test_anything_is_read_or_malformed(data):
    try:
        parse_review(data)
    except MalformedInput as error:
        assert error.field


LIMITS = ("spec", "containers", 0, "resources", "limits")
ENV = ("spec", "containers", 0, "env")


@cases(
    "path, value, operations",
    (
        "scheduler",
        ("spec", "schedulerName"),
        "hami-scheduler",
        [{"op": "replace", "path": "/spec/schedulerName", "value": "hami-scheduler"}],
    ),
    (
        "cores",
        LIMITS,
        {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100"},
        [
            {
                "op": "add",
                "path": "/spec/containers/0/resources/limits/nvidia.com~1gpucores",
                "value": "100",
            }
        ],
    ),
    (
        "odd key",
        ("metadata", "annotations"),
        {"a/b~c": "2"},
        [{"op": "replace", "path": "/metadata/annotations/a~1b~0c", "value": "2"}],
    ),
    (
        "removal",
        ("spec", "containers", 0),
        POD["spec"]["containers"][0] | {"env": POD["spec"]["containers"][0]["env"][1:]},
        [{"op": "remove", "path": "/spec/containers/0/env/0"}],
    ),
    (
        "moved within a list",
        ENV,
        [{"name": "B", "value": "2"}, {"name": "N", "value": "3"}, {"name": "A", "value": "1"}],
        None,
    ),
    ("moved to another field", ("metadata",), {"name": "p", "labels": {"a/b~c": "1"}}, None),
)
def test_patch(path, value, operations):
    after = changed(path, value)
    patch = patch_between(POD, after)
    assert jsonpatch.apply_patch(POD, patch) == after
    assert operations is None or patch == operations


@cases("after", ("same", POD), ("equal", copy.deepcopy(POD)), ("none", None))
def test_an_unchanged_pod_has_no_patch(after):
    assert patch_between(POD, after) is None


@st.composite
def changed_pods(draw):
    """POD with a few parts replaced by others, or by what stands elsewhere in it."""
    after = POD
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from([path for path in paths(after) if path]))
        elsewhere = draw(st.sampled_from([value_at(after, path) for path in paths(after)]))
        after = replaced(after, path, draw(values | st.just(elsewhere)))
    return after


def value_at(document, path):
    for key in path:
        document = document[key]
    return document


@given(changed_pods())
def test_the_patch_turns_one_pod_into_the_other(after):
    patch = patch_between(POD, after)
    assert as_json(jsonpatch.apply_patch(POD, patch or [])) == as_json(after)


def as_json(value):
    return json.loads(json.dumps(value))


def test_fields_that_we_do_not_know_survive():
    patch = patch_between(POD, changed(("spec", "schedulerName"), "hami-scheduler"))
    after = jsonpatch.apply_patch(POD, patch)
    assert (after["spec"]["novel"], after["spec"]["containers"][0]["later"]) == (
        {"kept": [1, None]},
        {"field": 1.5},
    )


@cases("document", ("v1", REVIEW), ("v1beta1", V1BETA1))
def test_the_answer_echoes_version_and_uid(document):
    asked = parse_review(json.dumps(document).encode())
    for answer in (
        json.loads(render_allowed(asked, None)),
        json.loads(render_denied(asked, 403, "no")),
    ):
        assert (answer["apiVersion"], answer["kind"], answer["response"]["uid"]) == (
            document["apiVersion"],
            "AdmissionReview",
            "r1",
        )


def test_allowed_with_a_message():
    assert json.loads(
        render_allowed(review(), None, "pod already has different scheduler assigned")
    )["response"] == {
        "uid": "r1",
        "allowed": True,
        "status": {"code": 200, "message": "pod already has different scheduler assigned"},
    }


def test_allowed_with_a_warning():
    assert json.loads(render_allowed(review(), None, warnings=["no claim"]))["response"] == {
        "uid": "r1",
        "allowed": True,
        "warnings": ["no claim"],
    }


@cases(
    "code, reason",
    (403, "Forbidden"),
    (400, "BadRequest"),
    (413, "RequestEntityTooLarge"),
    (500, "InternalError"),
)
def test_denied(code, reason):
    assert json.loads(render_denied(None, code, "why"))["response"] == {
        "uid": "",
        "allowed": False,
        "status": {"status": "Failure", "message": "why", "reason": reason, "code": code},
    }
