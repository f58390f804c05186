"""The commands for people as users type them, with few rights, without a cluster, and from a snapshot."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from hami.codec.documents import parse_own_yaml
from hami.codec.keys import NODE_RESIZES, RESIZE, RESIZE_APPLIED, RESIZED
from hami.codec.resize import AppliedSizes, render_applied
from testing.accounts import account, permitted
from testing.kube import write_kubeconfig
from testing.nodes import gpus
from testing.people import DEVICE_CONFIG, hami
from testing.pods import container, job, pod
from testing.processes import free_port
from testing.scheduler import account_kubeconfig

BINPACK = {"hami.io/node-scheduler-policy": "binpack"}
PLUGIN = f"""\
#!{sys.executable}
from hami.cli.kubectl import kubectl_main
kubectl_main()
"""


@pytest.fixture
def ask(local, sandbox):
    """Runs a command as the administrator, for the namespace of the sandbox."""
    return lambda *words, **options: hami(
        local.kubeconfig,
        *words,
        f"-n={sandbox.namespace}",
        f"--device-config-file={DEVICE_CONFIG}",
        **options,
    )


@pytest.fixture
def shared(sandbox):
    """The sandbox with two nodes, of which pods hold parts, and a pod that waits.

    The pods name the policy: by the default one, a command would decide by the usual pods that it learns from them.
    """
    sandbox.add_gpu_nodes({"n0": gpus(2), "n1": gpus(1)})
    sandbox.create(
        pod("a", annotations=BINPACK, gpu=1, gpumem=30_000, gpucores=40),
        pod("b", annotations=BINPACK, gpu=1, gpumem=60_000),
    )
    sandbox.started()
    sandbox.create(pod("large", gpu=1, gpumem=90_000))
    sandbox.event("large", "FailedScheduling")
    sandbox.wait_phase("Running", "a", "b")
    sandbox.kube.wait("Pod", is_told, sandbox.namespace, what="the condition of large")
    return sandbox


def is_told(pods):
    """Reports whether kube-scheduler has written the condition of the pod that waits."""
    told = pods["large"]["status"].get("conditions") or []
    return any(condition.get("reason") == "Unschedulable" for condition in told)


def manifest(*names, **asked):
    """Returns a file with pods."""
    return json.dumps({"kind": "List", "items": [pod(name, **asked) for name in names]})


def names(answer):
    """Returns the names of the rows of a document. The command must have succeeded."""
    assert answer.status == 0, answer.errors
    return [item["name"] for item in answer.document["items"]]


def test_rows_in_each_form(ask, shared):
    mine = f"-l=hami-e2e/sandbox={shared.namespace}"
    full = [shared.node(name)["metadata"]["name"] for name in ("n0", "n1")]
    rows = ask("top", "nodes", mine, "-o", "json")
    assert names(rows) == full
    assert names(ask("top", "pods", "-o", "json")) == ["a", "b", "large"]
    assert parse_own_yaml(ask("top", "nodes", mine, "-o", "yaml").output) == rows.document
    table, wide = (
        ask("top", "cards", *full).text.splitlines(),
        ask("top", "cards", *full, "-o", "wide").text,
    )
    assert table[0].split()[:3] == ["NODE", "CARD", "MODEL"]
    assert table[-1].startswith("2 nodes, 3 cards: 87.9 of ")
    assert shared.uuid("n0") in wide
    assert shared.uuid("n0") not in "".join(table)
    assert f"{shared.namespace}/a" in wide


def test_kubectl_finds_the_commands(local, shared, tmp_path):
    plugin = tmp_path / "kubectl-hami"
    plugin.write_text(PLUGIN)
    plugin.chmod(0o755)
    done = subprocess.run(
        [
            local.binaries["kubectl"],
            "hami",
            "explain",
            "pod",
            "large",
            "-n",
            shared.namespace,
            f"--kubeconfig={local.kubeconfig}",
            f"--device-config-file={DEVICE_CONFIG}",
        ],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    said = done.stdout.splitlines()
    assert said[0].startswith(f"pod {shared.namespace}/large has been waiting for ")
    assert any("FailedScheduling" in line for line in said)
    assert any("asks for at most" in line for line in said)


def test_pods_that_are_not_there_yet(ask, shared):
    fits = manifest(
        "c", gpu=1, gpumem=10_000, annotations={"nvidia.com/use-gpuuuid": shared.uuid("n1")}
    )
    answer = ask("simulate", "-f", "-", "-o", "json", typed=fits)
    assert (answer.status, [one["node"] for one in answer.document["pods"]]) == (
        0,
        [shared.node("n1")["metadata"]["name"]],
    )
    answer = ask("simulate", "-f", "-", typed=manifest("c", "d", gpu=1, gpumem=90_000))
    assert answer.status == 1
    assert "pod/c: 0 of 1 fit" in answer.text
    assert "CardInsufficientMemory" in answer.text
    wish = {"nvidia.com/use-gpuuuid": ",".join(shared.uuid("n0", index) for index in range(2))}
    answer = ask(
        "capacity",
        "-f",
        "-",
        "-o",
        "json",
        typed=manifest("c", gpu=1, gpumem=40_000, annotations=wish),
    )
    before = {card: 2 for card in ("n0/0", "n0/1")}
    for name, memory in (("a", 30_000), ("b", 60_000)):
        for card in shared.cards(name) & before.keys():
            before[card] = (81_920 - memory) // 40_000
    assert answer.document["pods"] == sum(before.values())


def test_a_snapshot_answers_as_the_cluster(ask, shared, tmp_path):
    kept = tmp_path / "cluster.snapshot"
    answer = ask("snapshot")
    assert answer.status == 0, answer.errors
    kept.write_bytes(answer.output)
    typed = manifest("c", gpu=1, gpumem=40_000)
    for words in (
        ("top", "nodes"),
        ("top", "cards", "-o", "wide"),
        ("top", "namespaces"),
        ("audit",),
        ("simulate", "-f", "-"),
        ("capacity", "-f", "-"),
    ):
        live, again = ask(*words, typed=typed), ask(*words, f"--snapshot={kept}", typed=typed)
        assert live.status == 0, live.errors
        assert again.text == live.text
    live, again = (
        ask("explain", "pod", "a", "-o", "json", *more).document
        for more in ((), (f"--snapshot={kept}",))
    )
    assert again | {"boundSeconds": 0} == live | {"boundSeconds": 0}
    assert live["node"] == shared.pod("a")["spec"]["nodeName"]
    waiting = ask("explain", "pod", "large", "-o", "json", f"--snapshot={kept}").document
    assert waiting["suggestions"]
    assert waiting["events"]
    replayed = hami(kept, "replay", kept)
    assert replayed.status == 0
    assert replayed.text == "2 decisions, 0 of them different\n"


def test_a_running_pod_is_resized(ask, sandbox):
    """The test answers for the node."""
    sandbox.add_gpu_nodes({"n": gpus(1)}, annotations={NODE_RESIZES: "true"})
    sandbox.create(pod("a", gpu=1, gpumem=30_000, gpucores=40))
    sandbox.started()
    more = ("resize", "pod", "a", "--memory=50000Mi", "--timeout=50s")
    tried = ask(*more, "--dry-run")
    assert (tried.status, tried.text) == (0, "it fits: main 50,000 MiB and 40 cores\n"), (
        tried.errors
    )
    assert RESIZE not in sandbox.pod("a")["metadata"]["annotations"]
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(ask, *more)
        booked = sandbox.kube.wait(
            "Pod",
            lambda pods: pods["a"]["metadata"]["annotations"].get(RESIZED),
            sandbox.namespace,
            what="the new size is booked",
        )
        sandbox.kube.merge_patch(
            "Pod",
            "a",
            {"metadata": {"annotations": {RESIZE_APPLIED: render_applied(AppliedSizes(booked))}}},
            sandbox.namespace,
        )
        answer = following.result()
    first, *_, last = answer.text.splitlines()
    assert (answer.status, first, last) == (
        0,
        "requested: main 50,000 MiB",
        "applied: main 50,000 MiB and 40 cores",
    )
    (row,) = ask("top", "pods", "-o", "json").document["items"]
    assert (row["memoryMib"], row["memoryWantedMib"]) == (50_000, 50_000)
    refused = ask("resize", "pod", "a", "--cores=100")
    assert refused.status == 1
    assert refused.errors.startswith("error: infeasible; ")
    assert "Resize: infeasible; " in ask("explain", "pod", "a").text
    assert ask("audit").status == 0
    sandbox.delete("a")


def test_an_inconsistency_is_found(ask, shared):
    assert ask("audit").status == 0
    held = next(iter(shared.cards("a")))
    node = held.partition("/")[0]
    cards = gpus(2 if node == "n0" else 1)
    shared.register(
        node,
        *(card for index, card in enumerate(cards) if f"{node}/{index}" != held),
        *(gpus(1, uuid="GPU-new") if node == "n1" else ()),
    )
    answer = ask("audit", "-o", "json")
    shared.register(node, *cards)
    assert answer.status == 1
    assert f"{shared.namespace}/a" in {
        item["subject"].removeprefix("pod ") for item in answer.document["items"]
    }


def test_workloads_that_the_webhook_would_refuse(ask, local, shared):
    """What runs is not among them, also with the annotations of its placement; and the webhook refuses just so."""
    refused = pod(
        "p",
        containers=[
            container(gpu=1) | {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
        ],
    )
    local.kube.create(job("refused", refused, count=1), shared.namespace)
    local.kube.create(job("served", pod("p", gpu=1, gpumem=1), count=1), shared.namespace)
    answer = ask("audit", "--before-upgrade", "-o", "json")
    assert answer.status == 1, answer.errors
    assert [(item["rule"], item["subject"]) for item in answer.document["items"]] == [
        ("Refused", f"job {shared.namespace}/refused")
    ]
    assert answer.document["items"][0]["problem"] in shared.event("refused", "FailedCreate")


def test_which_right_is_missing(ask, shared, tmp_path):
    """What is missing is said one right after the other, as they are given."""

    def said(client, *words):
        answer = hami(
            client.write_kubeconfig(tmp_path / "config"), *words, f"-n={shared.namespace}"
        )
        return answer.status, answer.text, answer.errors.splitlines()

    client = account(shared, "nobody", "view")
    assert said(client, "top") == (
        2,
        "",
        [
            "note: you may not get configmaps in namespace kube-system: ask for the verb get on configmaps there; "
            "the chart's device configuration is assumed",
            "error: you may not list nodes in the whole cluster: ask for the verb list on nodes there",
        ],
    )
    client.close()
    with permitted(shared, "nodes", "nodes", "list") as client:
        status, _, errors = said(client, "top")
        assert status == 2
        assert errors[-1] == (
            "error: you may not list pods in the whole cluster: ask for the verb list on pods there"
        )
    with permitted(shared, "reader", "nodes pods", "list") as client:
        status, text, errors = said(client, "explain", "pod", "large")
        assert status == 0
        assert "has been waiting" in text
        assert errors[1:] == [
            "note: you may not list resourcequotas in the whole cluster: ask for the verb list on resourcequotas "
            "there; quotas are left out of account",
        ]
        assert "kube-scheduler (Unschedulable" in text  # as the pod says it


def test_the_account_of_the_scheduler_may_explain(local, shared, scheduler, monkeypatch):
    """As kubectl exec runs it in the scheduler's pod, which has no kubeconfig, and names the configuration."""
    monkeypatch.setenv("HAMI_DEVICE_CONFIG_FILE", str(DEVICE_CONFIG))
    answer = hami(account_kubeconfig(local), "explain", "large", f"-n={shared.namespace}")
    assert answer.status == 0
    assert "has been waiting" in answer.text
    # as the pod says it: the account may not list events
    assert "kube-scheduler (Unschedulable" in answer.text
    assert answer.errors == ""


def test_an_administrator_sees_what_others_see(ask, shared):
    answer = ask("top", "--as=alice", "--as-group=team-a")
    assert (answer.status, answer.text) == (2, "")
    assert "error: you may not list nodes in the whole cluster" in answer.errors
    assert names(ask("top", "-o", "json", "--as=alice", "--as-group=system:masters"))


def test_without_a_cluster(local, tmp_path):
    stranger = write_kubeconfig(local.kubeconfig, "no-such-token", tmp_path / "stranger")
    nowhere = tmp_path / "nowhere"
    nowhere.write_text(
        local.kubeconfig.read_text().replace(local.kube.server, f"https://127.0.0.1:{free_port()}")
    )
    for config, said in (
        (stranger, "does not accept your credentials: log in again"),
        (nowhere, "the API server does not answer"),
        (tmp_path / "none", "no API server to talk to"),
    ):
        answer = hami(config, "top")
        assert (answer.status, answer.text, answer.errors.count("\n")) == (2, "", 1)
        assert answer.errors.startswith("error: ")
        assert said in answer.errors
