"""The calls about claims and slices: what is sent, and which ones are repeated."""

import pytest

from hami.errors import ClusterError, Conflict, MalformedInput, NotFound
from hami.kube.claims import ClaimWriter, DynamicResources
from testing.cases import cases
from testing.fake_cluster import FakeCluster
from tests.kube.test_cluster import BROKEN, LATE, REFUSED, ScriptedApi, calls

GROUP = "/apis/resource.k8s.io/v1"
SLICE = {"metadata": {"name": "0-gpu.hami.io-n1"}, "spec": {"driver": "gpu.hami.io"}}
STORED = {
    "metadata": {"name": "0-gpu.hami.io-n1", "resourceVersion": "7"},
    "spec": {"driver": "gpu.hami.io"},
}


def talk(*answers):
    api = ScriptedApi(*answers)
    return api, DynamicResources(api, "n1", sleep=lambda seconds: None)


def test_a_claim():
    claim = {"metadata": {"namespace": "team", "name": "train", "uid": "u"}}
    api, resources = talk(BROKEN, claim, NotFound("no", 404))
    assert resources.claim("team", "train").uid == "u"
    assert resources.claim("team/../x", "..%") is None
    assert [path for _, path, *_ in api.calls[1:]] == [
        f"{GROUP}/namespaces/team/resourceclaims/train",
        f"{GROUP}/namespaces/team%2F..%2Fx/resourceclaims/..%25",
    ]


def test_a_claim_that_cannot_be_read():
    with pytest.raises(MalformedInput):
        talk(b"{")[1].claim("team", "train")


def test_the_slices_of_the_node_are_read_in_pages():
    api, resources = talk(
        {"metadata": {"resourceVersion": "9", "continue": "more"}, "items": [SLICE]},
        {"metadata": {"resourceVersion": "9"}, "items": [STORED]},
    )
    assert resources.slices() == [SLICE, STORED]
    assert {query["fieldSelector"] for query in api.queries} == {
        "spec.nodeName=n1,spec.driver=gpu.hami.io"
    }


@cases(
    "document, method, path",
    (SLICE, "POST", f"{GROUP}/resourceslices"),
    (STORED, "PUT", f"{GROUP}/resourceslices/0-gpu.hami.io-n1"),
)
def test_a_slice_is_created_or_replaced(document, method, path):
    api, resources = talk(REFUSED, STORED)
    assert resources.write_slice(document) == STORED
    assert [call[:2] + call[3:4] for call in api.calls] == [(method, path, document)] * 2


@pytest.mark.parametrize("error", [Conflict("changed", 409), LATE])
def test_a_write_that_may_have_had_an_effect_is_not_repeated(error):
    api, resources = talk(error, error)
    with pytest.raises(ClusterError):
        resources.write_slice(STORED)
    with pytest.raises(ClusterError):
        resources.delete_slice("0-gpu.hami.io-n1")
    assert [call[:2] for call in api.calls] == [
        (method, f"{GROUP}/resourceslices/0-gpu.hami.io-n1") for method in ("PUT", "DELETE")
    ]


def test_the_watch_passes_on_what_has_changed():
    seen = []

    class Sink:
        def upsert(self, item, as_of=0.0):
            seen.append(item.name)

        def remove(self, item):
            raise AssertionError

        def prune(self, keys, started):
            seen.append(keys)
            watch.stop()

    _, resources = talk({"metadata": {"resourceVersion": "9"}, "items": [STORED]})
    watch = resources.watch(Sink())
    watch.step()
    assert seen == ["0-gpu.hami.io-n1", {"0-gpu.hami.io-n1"}]


# ---- claims that the scheduler makes

CLAIM = {
    "metadata": {
        "namespace": "team",
        "name": "hami-1",
        "uid": "u",
        "resourceVersion": "7",
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p"}],
    },
    "status": {},
}
PATH = f"{GROUP}/namespaces/team/resourceclaims"


def own(*answers):
    api = ScriptedApi(*answers)
    return api, ClaimWriter(api)


def test_a_claim_is_created_read_and_allocated_in_one_attempt_each():
    api, claims = own(CLAIM, CLAIM, NotFound("no", 404), CLAIM)
    assert claims.create_claim(CLAIM, timeout=3.0) == claims.stored_claim(
        "team", "hami-1", timeout=3.0
    )
    assert claims.stored_claim("team", "gone", timeout=3.0) is None
    assert claims.write_claim_status(CLAIM, timeout=3.0).owners == {"uid-p"}
    assert [call[:2] + call[3:4] for call in api.calls] == [
        ("POST", PATH, CLAIM),
        ("GET", f"{PATH}/hami-1", None),
        ("GET", f"{PATH}/gone", None),
        ("PUT", f"{PATH}/hami-1/status", CLAIM),
    ]
    assert {call[4] for call in api.calls} == {3.0}


def test_a_template_is_read_in_one_attempt():
    api, claims = own({"spec": {"spec": {}}}, NotFound("no", 404))
    assert claims.template("team", "slice", timeout=2.0) == {"spec": {"spec": {}}}
    assert claims.template("te/am", "a b", timeout=2.0) is None
    assert [(*call[:2], call[4]) for call in api.calls] == [
        ("GET", f"{GROUP}/namespaces/team/resourceclaimtemplates/slice", 2.0),
        ("GET", f"{GROUP}/namespaces/te%2Fam/resourceclaimtemplates/a%20b", 2.0),
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda claims: claims.create_claim(CLAIM, timeout=3.0),
        lambda claims: claims.stored_claim("team", "hami-1", timeout=3.0),
        lambda claims: claims.template("team", "slice", timeout=3.0),
        lambda claims: claims.write_claim_status(CLAIM, timeout=3.0),
    ],
)
@pytest.mark.parametrize("error", [REFUSED, LATE, BROKEN, Conflict("changed", 409)])
def test_no_call_about_own_claims_is_repeated(call, error):
    api, claims = own(error, CLAIM)
    with pytest.raises(ClusterError):
        call(claims)
    assert len(api.calls) == 1


@pytest.mark.parametrize("name", sorted(calls(ClaimWriter)))
def test_the_fake_takes_the_same_calls(name):
    assert calls(FakeCluster)[name] == calls(ClaimWriter)[name]
