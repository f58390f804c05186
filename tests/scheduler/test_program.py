"""Parts of the wiring of the scheduler."""

import math
import re

import pytest
import yaml

from hami.runtime.settings import ALLOCATE
from hami.scheduler.program import SchedulerProgram, selection
from hami.scheduler.settings import Settings
from hami.web.exposition import render
from testing.builders import NVIDIA, gpu, node
from testing.cases import cases


@cases(
    "selector, labels, is_selected",
    ("none", "", {}, True),
    ("selected", "gpu=on", {"gpu": "on"}, True),
    ("excluded", "gpu=on", {}, False),
    ("an operator that is left to the API server", "generation>3", {}, True),
)
def test_the_nodes_of_a_simulation_are_selected_as_those_of_the_watch(
    selector, labels, is_selected
):
    assert selection(selector)(labels) is is_selected


@pytest.fixture
def kubeconfig(tmp_path, monkeypatch):
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))


@pytest.mark.usefixtures("kubeconfig")
def test_the_cluster_has_metrics_only_while_the_cache_can_be_relied_on(monkeypatch):
    """What was read earlier would pass for what is there now."""
    program = SchedulerProgram(Settings())

    def names():
        return {family.name for family in program._families()}

    bare = names()
    assert len(bare) == 1
    for task in program._watches.tasks:
        task.synced.set()
    monkeypatch.setattr("hami.kube.watches.STALE_S", math.inf)
    assert names() > bare
    monkeypatch.setattr("hami.kube.watches.STALE_S", -1.0)
    assert names() == bare


@pytest.mark.usefixtures("kubeconfig")
def test_nodes_that_offer_no_devices_are_told_of_unless_they_are_cordoned(monkeypatch):
    program = SchedulerProgram(Settings())
    for task in program._watches.tasks:
        task.synced.set()
    monkeypatch.setattr("hami.kube.watches.STALE_S", math.inf)
    for name, is_cordoned in (("away", False), ("cordoned", True)):
        program._store.nodes.upsert(
            node(
                name, gpu("a"), allocatable={NVIDIA.resources.count: "0"}, unschedulable=is_cordoned
            )
        )
    program._store.nodes.upsert(node("without"))
    page = "".join(render(program._families()))
    assert re.findall(r'^hami_node_devices\{node="(\w+)".*\} (\d+)', page, re.MULTILINE) == [
        ("away", "0")
    ]


@pytest.mark.usefixtures("kubeconfig")
def test_the_lease_is_given_back_after_all_writes_and_events_are_written_last(tmp_path):
    settings = Settings(
        leader_elect=True,
        dra=ALLOCATE,
        self_signed_cert_dir=str(tmp_path),
        cert_file="tls.pem",
        key_file="tls.pem",
    )
    program = SchedulerProgram(settings)
    assert [task.name for part in program._parts for task in part.tasks] == [
        "gc",
        "controller",
        "preemptor",
        "resizer",
        "remediation",
        "mover",
        "certificates",
        "waiting-claims",
        "leadership",
        "nodes",
        "pods",
        "resourcequotas",
        "election",
        "events",
    ]
