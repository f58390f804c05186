"""What is asked of the API server about viewers, and what is made of the answers."""

import pytest

from hami.errors import ClusterError, MalformedInput
from hami.kube.reviews import Identity, Reviews
from testing.cases import cases
from tests.kube.test_cluster import ScriptedApi

USER = {"username": "ann", "uid": "7", "groups": ["devs"], "extra": {"scopes": ["a", "b"]}}
ANN = Identity("ann", "7", ("devs",), {"scopes": ("a", "b")})


def test_a_token_is_reviewed():
    api = ScriptedApi({"status": {"authenticated": True, "user": USER}})
    assert Reviews(api).identity("abc") == ANN
    ((method, path, _, body, _),) = api.calls
    assert (method, path) == ("POST", "/apis/authentication.k8s.io/v1/tokenreviews")
    assert body == {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": "abc"},
    }


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"status": {}},
        {"status": {"authenticated": False, "user": USER}},
        {"status": {"authenticated": True}},
        {"status": {"error": "expired"}},
    ],
)
def test_a_token_that_is_not_accepted_belongs_to_nobody(answer):
    assert Reviews(ScriptedApi(answer)).identity("abc") is None


@cases(
    "status, allowed",
    ({"allowed": True}, True),
    ({"allowed": False}, False),
    ({"allowed": True, "denied": True}, False),
    ({}, False),
    (None, False),
)
def test_the_right_to_list_pods_is_reviewed(status, allowed):
    api = ScriptedApi({"status": status})
    assert Reviews(api).may_list_pods(ANN, "team") is allowed
    assert api.calls[0][1] == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    assert api.calls[0][3]["spec"] == {
        "user": "ann",
        "uid": "7",
        "groups": ["devs"],
        "extra": {"scopes": ["a", "b"]},
        "resourceAttributes": {"verb": "list", "resource": "pods", "namespace": "team"},
    }


@cases("answer, error", (ClusterError("403", 403), ClusterError), (b"[1]", MalformedInput))
def test_what_is_no_answer_is_an_error(answer, error):
    with pytest.raises(error):
        Reviews(ScriptedApi(answer)).identity("abc")
