"""The claims that the scheduler makes when it binds a pod, on a real API server: with the rights of its account, under
the policies that hold it. The scheduler itself does not run here, and nobody else binds these pods."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import pytest

from hami.codec.claims import AllocatedClaim, parse_claim
from hami.codec.hami_claims import booked_claim, render_allocation, render_claim
from hami.codec.pods import parse_pod
from hami.codec.slices import device_name
from hami.errors import ClusterError, Conflict
from hami.kube.api import Api
from hami.kube.claims import ClaimWriter
from hami.kube.cluster import Cluster
from hami.model import Device, DeviceUsage, Share
from hami.scheduler.claim_bind import ClaimBinder
from hami.scheduling.refusal import Choice
from hami.state.bookings import Booking
from hami.state.promises import Promise, Stage, Terms
from testing.claims import COMPONENT, FIRST, component, missing
from testing.cluster import MANIFESTS, LocalCluster
from testing.eventually import eventually
from testing.kube import ApiError, Kube
from testing.pods import container, pod
from testing.sandbox import Sandbox
from testing.scheduler import account_kubeconfig

Object = dict[str, Any]
pytestmark = pytest.mark.since(*FIRST)
NAME = "hami-" + "0123456789abcdef" * 2
CARDS = {
    f"GPU-{index}": Device(
        uuid=f"GPU-{index}",
        vendor="NVIDIA",
        model="A100",
        slots=3,
        memory_mib=81_920,
        index=index,
        by_claims=True,
    )
    for index in range(3)
}
now = partial(datetime.now, UTC)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A control plane with the accounts, rights and policies of the components."""
    if reason := missing():
        pytest.skip(reason)
    with LocalCluster.started(extender=False, durable=False) as started:
        files = [
            MANIFESTS / "rbac.yaml",
            *(
                COMPONENT.with_name("dra-allocate") / f"{name}.yaml"
                for name in ("rbac", "policies")
            ),
        ]
        for file in files:
            started.kube.apply_yaml(file.read_text(), "kube-system")
        for item in component():
            started.kube.apply(item)
        eventually(lambda: forged_is_refused(started.kube), "the API server applies the policies")
        yield started
        started.kube.close()


@pytest.fixture(scope="module")
def api(cluster: LocalCluster) -> Api:
    """With the account of the extender."""
    return Api.connect(kubeconfig=str(account_kubeconfig(cluster)))


@pytest.fixture
def sandbox(cluster: LocalCluster) -> Iterator[Sandbox]:
    with Sandbox.opened(cluster.kube, keeps_namespace=True) as opened:
        opened.add_gpu_nodes({"n0": ()})
        yield opened


@pytest.fixture(autouse=True)
def audited(sandbox: Sandbox) -> Iterator[None]:
    """Checks after each test that no claim outlives its pod."""
    yield
    for name in [item["metadata"]["name"] for item in sandbox.kube.list("Pod", sandbox.namespace)]:
        sandbox.delete(name)
    sandbox.kube.wait(
        "ResourceClaim",
        lambda claims: not claims,
        sandbox.namespace,
        what="no claim is left",
    )


def forged_is_refused(kube: Kube) -> bool:
    """Reports whether an administrator may not create a claim with a name of the scheduler's."""
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": NAME},
        "spec": {
            "devices": {
                "requests": [{"name": "main", "exactly": {"deviceClassName": "gpu.hami.io"}}]
            }
        },
    }
    try:
        kube.dry_run(claim, "default")
    except ApiError as error:
        return "only the scheduler creates" in error.message
    return False


def reserved(
    sandbox: Sandbox, name: str, *shares: tuple[Share, ...], create: bool = True
) -> Promise:
    """Returns the promise to a pod with a container for each of *shares*."""
    containers = [
        {
            **container(f"c{number}"),
            "resources": {"claims": [{"name": "hami", "request": f"c{number}"}]},
        }
        for number in range(len(shares))
    ]
    item = pod(name, containers=containers, scheduler="nobody")
    item["spec"]["resourceClaims"] = [{"name": "hami", "resourceClaimName": NAME}]
    if create:
        sandbox.create(item)
    placed = parse_pod(msgspec.json.encode(sandbox.pod(name)))
    node = f"{sandbox.namespace}-n0"
    return Promise(
        pod=placed,
        choice=Choice(node, shares, (), 0, 1),
        booking=Booking(placed.ref.uid, sandbox.namespace, node, ()),
        stage=Stage.WRITING,
        terms=Terms(
            vendors=(),
            usages={"NVIDIA": [DeviceUsage(card) for card in CARDS.values()]},
            assumed=now(),
            lock_free=frozenset(),
        ),
    )


def share(card: int = 0, memory_mib: int = 3000, cores: int = 10) -> Share:
    return Share(f"GPU-{card}", "NVIDIA", memory_mib, cores)


def write(api: Api, promise: Promise) -> None:
    ClaimBinder(ClaimWriter(api), now=now).write(promise, lambda: 10.0)


def booked(promise: Promise) -> AllocatedClaim:
    return booked_claim(promise.pod, promise.node, promise.choice.placement, CARDS, promise.token)


def stored(sandbox: Sandbox) -> AllocatedClaim:
    """Returns the claim of the namespace as it is read on a node, without its uid."""
    found = sandbox.kube.get("ResourceClaim", NAME, sandbox.namespace)
    return replace(parse_claim(msgspec.json.encode(found)), uid="")


def test_a_claim_is_accepted_as_it_is(sandbox, api):
    """Several containers, cards of several sizes, a whole card, and parts that are no whole numbers."""
    reservation = reserved(
        sandbox,
        "p",
        (share(0, 40_000, 0), share(1, 7680, 0)),
        (share(0, 1, 1),),
        (share(2, 81_920, 100),),
    )
    write(api, reservation)
    assert stored(sandbox) == booked(reservation)
    Cluster(api).bind(reservation.ref, reservation.node, {}, {})
    assert sandbox.bound(1) == {"p": "n0"}
    found = sandbox.kube.get("ResourceClaim", NAME, sandbox.namespace)
    assert found["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]


def test_what_an_attempt_has_left_behind_is_written_again(sandbox, api):
    first = reserved(sandbox, "p", (share(0),))
    ClaimWriter(api).create_claim(render_claim(booked(first)), timeout=10)  # and then it died
    created = ClaimWriter(api).stored_claim(sandbox.namespace, NAME, timeout=10)
    assert created is not None
    assert not created.is_allocated
    write(api, first)
    version = sandbox.kube.get("ResourceClaim", NAME, sandbox.namespace)["metadata"][
        "resourceVersion"
    ]
    write(api, first)
    assert (
        sandbox.kube.get("ResourceClaim", NAME, sandbox.namespace)["metadata"]["resourceVersion"]
        == version
    )
    second = reserved(sandbox, "p", (share(1, 8000, 100),), create=False)
    write(api, second)
    assert stored(sandbox) == booked(second)
    with pytest.raises(Conflict):  # it arrives late
        ClaimWriter(api).write_claim_status(
            render_allocation(booked(first), created, first.node, now()), timeout=10
        )
    assert stored(sandbox).requests[0].devices[0].device == device_name("GPU-1")


def test_a_claim_that_arrives_after_its_pod_has_gone_is_removed(sandbox, api):
    reservation = reserved(sandbox, "p", (share(),))
    sandbox.delete("p")
    with contextlib.suppress(ClusterError):  # it may be removed before its status is written
        write(api, reservation)
    # the fixture waits until it is removed


def test_the_claim_of_another_pod_is_not_taken(sandbox, api):
    owner, thief = (reserved(sandbox, name, (share(),)) for name in ("owner", "thief"))
    write(api, owner)
    with pytest.raises(
        Conflict, match=f"{NAME} exists and does not belong to pod {sandbox.namespace}/thief"
    ):
        write(api, thief)
    assert stored(sandbox) == booked(owner)


def test_the_account_writes_no_other_claims(sandbox, api):
    """Whoever steals its token cannot give out cards of other drivers, nor take claims of users."""
    reservation = reserved(sandbox, "p", (share(),))
    claim = booked(reservation)
    document = render_claim(claim)
    with pytest.raises(ClusterError, match="writes only claims of its own"):
        ClaimWriter(api).create_claim(
            {**document, "metadata": {**document["metadata"], "name": "mine"}}, timeout=10
        )
    created = ClaimWriter(api).create_claim(document, timeout=10)
    written = render_allocation(claim, created, reservation.node, now())
    written["status"]["allocation"]["devices"]["results"][0]["driver"] = "nic.example.com"
    with pytest.raises(ClusterError, match="allocates only cards of HAMi"):
        ClaimWriter(api).write_claim_status(written, timeout=10)
