"""Parts of the wiring of the scheduler."""

import math

import pytest
import yaml

from hami.scheduler.program import SchedulerProgram, selection
from hami.scheduler.settings import Settings


@pytest.mark.parametrize(
    ("selector", "labels", "is_selected"),
    [
        ("", {}, True),
        ("gpu=on", {"gpu": "on"}, True),
        ("gpu=on", {}, False),
        ("generation>3", {}, True),
    ],
    ids=["none", "selected", "excluded", "an operator that is left to the API server"],
)
def test_the_nodes_of_a_simulation_are_selected_as_those_of_the_watch(
    selector, labels, is_selected
):
    assert selection(selector)(labels) is is_selected


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A scheduler that has not been started."""
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    return SchedulerProgram(Settings())


def test_the_cluster_has_metrics_only_while_the_cache_can_be_relied_on(program, monkeypatch):
    """What was read earlier would pass for what is there now."""

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
