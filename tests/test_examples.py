"""Each example is admitted, and requests what its comment says."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from hami.cli.people import make_admit
from hami.codec.admission import Review
from hami.codec.pods import convert_pod
from hami.inspect.cluster import InspectedCluster
from hami.inspect.manifests import read_manifests
from hami.inspect.simulate import Scenario, simulate
from hami.scheduler.admit import Admitted, Admitter
from hami.scheduler.settings import Settings
from hami.scheduling.pod_request import make_pod_request
from hami.state.store import Store
from hami.state.view import Policies
from testing.builders import gpu, node
from testing.records import record
from testing.vendor_chart import CHART

pytestmark = pytest.mark.files
FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.yaml"))
SCHEDULER = "hami-scheduler"
STORE = Store(CHART, Policies(), clock=lambda: 0.0, now=lambda: datetime(2026, 11, 24, tzinfo=UTC))
SETTINGS = "kueue-configuration.yaml"  # no object of a cluster
APPLIED = [path for path in EXAMPLES if path.name != SETTINGS]
SIMULATED = [
    path for path in APPLIED if "hami simulate says" in path.read_text().replace("\n#", "")
]
WORKLOADS = [
    pytest.param(path, source, id=f"{path.stem}-{source.name}")
    for path in APPLIED
    for source in read_manifests(path.read_text(), path.name)[0]
]
TWO_CARDS = node(
    "n",
    *(
        gpu(f"GPU-{index}", index=index, model="NVIDIA A100-SXM4-40GB", memory_mib=40_960)
        for index in range(2)
    ),
)


def comment(path):
    """The words of the comment at the top."""
    lines = path.read_text().partition("apiVersion")[0].splitlines()
    assert all(line.startswith("#") for line in lines)
    return " ".join(" ".join(lines).replace("#", " ").split())


def admitted(pod):
    answer = Admitter(STORE.admissions, Settings(scheduler_name=SCHEDULER)).admit(
        Review(
            "u",
            "team-a",
            {**pod, "metadata": {"name": "p", **pod["metadata"]}},
            "v1",
            "AdmissionReview",
        )
    )
    assert isinstance(answer, Admitted), answer
    return answer.pod


def sentence(title, request):
    memory = (
        f"{request.memory_mib} MiB"
        if request.memory_mib
        else f"{request.memory_percent} percent of its memory"
    )
    cores = f"{request.cores} percent of its compute" if request.cores else "no limit of compute"
    return f"{title} requests {request.count} GPU, {memory}, {cores}."


@pytest.mark.parametrize(("path", "source"), WORKLOADS)
def test_an_example_requests_what_its_comment_says(path, source):
    pod = admitted(source.pod)
    request = make_pod_request(convert_pod(pod), STORE.vendors, "spread")
    if request is None:
        asked = (
            "has a claim with two requests"
            if "resourceClaims" in pod["spec"]
            else "requests no GPU."
        )
        assert f"{source.title} {asked}" in comment(path)
        return
    assert pod["spec"]["schedulerName"] == SCHEDULER
    (container,) = request.containers
    (request,) = container.requests
    assert request.vendor == "NVIDIA"
    assert sentence(source.title, request) in comment(path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_says_what_to_expect_and_how_to_apply_it(path):
    assert "Expect: " in comment(path)
    assert path.name == SETTINGS or f"kubectl apply -f examples/{path.name}" in comment(path)


@pytest.mark.parametrize("path", SIMULATED, ids=lambda path: path.name)
def test_as_many_pods_of_an_example_fit_as_its_comment_says(path):
    cluster = InspectedCluster(record([TWO_CARDS]))
    sources, _ = read_manifests(path.read_text(), path.name)
    report = simulate(cluster, sources, [], Scenario(), make_admit(SCHEDULER))
    for outcome in report.outcomes:
        assert f"{outcome.workload}: {outcome.placed} of {outcome.wanted} fit" in comment(path)


def test_examples_whose_kinds_no_test_cluster_has_are_simulated():
    assert {path.stem for path in SIMULATED} >= {
        "kueue",
        "jobset",
        "leaderworkerset",
        "rayjob",
        "gang",
    }


def test_the_list_names_every_example():
    text = (FOLDER / "README.md").read_text()
    assert [path.name for path in EXAMPLES if f"]({path.name})" not in text] == []
