"""The commands for people on the command line, with an API server in memory."""

import json

import pytest
from click.testing import CliRunner

from hami.cli import main
from hami.cli.group import LOCAL, PEOPLE
from hami.cli.kubectl import completions, kubectl_main
from hami.codec.keys import OVER_BUDGET
from hami.errors import ClusterError
from hami.kube.access import UserAccess
from testing.cases import cases
from testing.fake_api import FakeApi, bound, node, pending, refused
from testing.pods import pod


def api():
    return FakeApi(
        [node("n1"), node("n2")], [bound("a", "n1", (0, 100, 10)), pending("b", "team", gpu=1)]
    )


def hami(*args, of=None, program=main):
    return CliRunner().invoke(program, args, obj=lambda client: (of or api()).request)


def names(result):
    assert result.exit_code == 0, result.output
    return [item["name"] for item in json.loads(result.stdout)["items"]]


@cases(
    "args, expected",
    (["top"], ["n1", "n2"]),
    (["top", "nodes", "n2"], ["n2"]),
    (["top", "pods"], ["b"]),
    (["top", "pods", "--context=other"], ["a"]),
    (["top", "pods", "-A"], ["a", "b"]),
    (["top", "pods", "-n", "default"], ["a"]),
    (["top", "nodes", "-l", "gpu=off"], []),
    (["top", "pods", "-n=default"], ["a"]),
    (["top", "nodes", "-l=gpu=off"], []),
    (["top", "nodes", "--sort-by=memory"], ["n1", "n2"]),
    (["top", "namespaces"], ["default"]),
)
def test_top(args, expected):
    assert names(hami(*args, "-o", "json")) == expected
    assert names(hami(*args, "-o", "json", program=kubectl_main)) == expected


def test_explain_pod():
    event = {
        "reason": "FailedScheduling",
        "message": "0/2 nodes",
        "reportingComponent": "hami-scheduler",
        "eventTime": "2026-08-21T12:00:00Z",
        "series": {"count": 4, "lastObservedTime": "2026-08-21T12:05:00Z"},
    }
    of = FakeApi(
        [node("n1")], [pending("b", "team", gpu=1, gpumem=100_000)], events=[event, {"count": "x"}]
    )
    lines = hami("explain", "pod", "b", of=of).stdout.splitlines()
    assert lines[0].startswith("pod team/b has been waiting for ")
    assert (
        "hami-scheduler (FailedScheduling, 4 times, last at 2026-08-21T12:05:00Z): 0/2 nodes"
        in lines
    )
    detailed = hami("explain", "pod", "b", "-v", of=of).stdout.splitlines()
    assert detailed[0] == lines[0]
    assert "Nearest first:" in detailed
    report = json.loads(hami("explain", "pod", "b", "-o", "json", of=of).stdout)
    assert report["suggestions"] == [
        {
            "changes": [
                {
                    "kind": "LessMemory",
                    "text": "it asks for at most 81,920 MiB of each NVIDIA device",
                    "vendor": "NVIDIA",
                    "memoryMib": 81_920,
                }
            ],
            "node": "n1",
        }
    ]
    assert hami("explain", "pod", "a", "-n", "default").stdout.startswith(
        "pod default/a is bound to n1"
    )


@cases(
    "made, start",
    (pending("b", "team", gpu=1, gpumem=100_000), "pod team/b has been waiting for"),
    (bound("b", "n1", (0, 100, 10), namespace="team"), "pod team/b is bound to n1"),
)
def test_explain_what_the_budget_of_the_namespace_did_to_a_pod(made, start):
    made["metadata"]["annotations"][OVER_BUDGET] = "namespace team has used it\x1b[0m" + "x" * 2000
    said = hami("explain", "pod", "b", of=FakeApi([node("n1")], [made])).stdout
    assert said.startswith(start)
    (line,) = [line for line in said.splitlines() if "has used it" in line]
    assert line.startswith("When it was created: namespace team has used it?[0m")
    assert len(line) < 1100


def test_explain_a_pod_of_a_gang():
    members = [pending(f"ring-{number}", "team", gpu=1, gpucores=100) for number in range(3)]
    for member in members:
        member["spec"]["schedulingGroup"] = {"podGroupName": "ring"}
    of = FakeApi(
        [node("n1")], members, groups={"ring": {"schedulingPolicy": {"gang": {"minCount": 3}}}}
    )
    said = hami("explain", "pod", "ring-0", "-n", "team", of=of).stdout
    assert "It belongs to the gang ring, which needs 3 pods together." in said
    assert (
        "HAMi would place 1 of the 3 that are not bound now: the gang lacks devices for 2 pods."
        in said
    )


def test_events_that_may_not_be_listed_are_left_out():
    of = api()
    of.errors["/api/v1/namespaces/team/events"] = refused()
    result = hami("explain", "pod", "b", of=of)
    assert result.exit_code == 0
    assert "you may not list events in namespace team" in result.stderr


def test_what_the_pod_says_of_kube_scheduler_is_shown_in_place_of_events_that_may_not_be_listed():
    of = api()
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/2 nodes",
        "lastTransitionTime": "2026-08-21T12:05:00Z",
    }
    for waiting in of.pods:
        waiting["status"]["conditions"] = [condition]
    of.errors["/api/v1/namespaces/team/events"] = refused()
    result = hami("explain", "pod", "b", of=of)
    assert result.stderr == ""
    said = "kube-scheduler (Unschedulable, once, at 2026-08-21T12:05:00Z): 0/2 nodes"
    assert said in result.stdout.splitlines()
    of.errors["/api/v1/namespaces/team/events"] = ClusterError("broken", 500)
    assert "note: broken" in hami("explain", "pod", "b", of=of).stderr


def test_explain_whom_a_pod_would_preempt():
    waits = pending("b", "team", gpu=1, gpumem=80_000)
    waits["spec"]["priority"] = 100
    budget = {
        "metadata": {"namespace": "default", "name": "b"},
        "spec": {"selector": {}},
        "status": {},
    }
    of = FakeApi(
        [node("n1")],
        [bound("a", "n1", (0, 40_000, 10)), waits],
        others={"poddisruptionbudgets": [budget]},
    )
    said = hami("explain", "pod", "b", of=of).stdout
    assert (
        "It would preempt 1 pod on n1: default/a.\n1 eviction would violate a PodDisruptionBudget.\n"
        in said
    )
    report = json.loads(hami("explain", "pod", "b", "-o", "json", of=of).stdout)
    assert report["preemption"] == {"node": "n1", "evicted": ["default/a"], "violations": 1}
    of.errors["/apis/policy/v1/poddisruptionbudgets"] = refused()
    result = hami("explain", "pod", "b", of=of)
    assert result.exit_code == 0
    assert "violate" not in result.stdout
    assert "PodDisruptionBudgets are left out of account" in result.stderr


def test_simulate_with_preemption(tmp_path):
    path = tmp_path / "web.yaml"
    urgent = pod("web", gpu=1, gpumem=80_000)
    urgent["spec"]["priorityClassName"] = "urgent"
    path.write_text(json.dumps(urgent))
    of = FakeApi(
        [node("n1")],
        [bound("a", "n1", (0, 40_000, 10))],
        others={"priorityclasses": [{"metadata": {"name": "urgent"}, "value": 500}]},
    )
    assert hami("simulate", "-f", str(path), of=of).exit_code == 1
    result = hami("simulate", "-f", str(path), "--with-preemption", of=of)
    assert result.exit_code == 0
    assert "web would preempt default/a on n1\n" in result.stdout


@cases(
    "labels, said",
    ({"hami.io/allocation-mode": "dra"}, True),
    ({"hami.io/allocation-mode": "dra-preferred"}, True),
    ({"hami.io/allocation-mode": "device-plugin"}, False),
    ([], False),
    (None, False),
)
@pytest.mark.parametrize("command", ["simulate", "capacity"])
def test_that_the_label_of_claims_is_not_simulated_is_said(tmp_path, command, labels, said):
    path, web = tmp_path / "web.yaml", pod("web", gpu=1)
    web["metadata"]["labels"] = labels
    path.write_text(json.dumps(web))
    result = hami(command, "-f", str(path))
    assert (
        "the label hami.io/allocation-mode is not simulated, so it is ignored: pod/web"
        in result.stderr
    ) is said


def test_simulate_and_capacity(tmp_path):
    path = tmp_path / "web.yaml"
    path.write_text(
        json.dumps(pod("web", gpu=1, gpumem=50_000)) + "\n---\nkind: Service\nmetadata: {name: s}\n"
    )
    result = hami("simulate", "-f", str(path), "--replicas=2", "-o", "json")
    assert result.exit_code == 0
    assert [placed["node"] for placed in json.loads(result.stdout)["pods"]] == ["n1", "n2"]
    assert "left out, since they make no pods: service/s" in result.stderr
    result = hami("simulate", "-f", str(path), "--replicas=3")
    assert result.exit_code == 1
    assert result.stdout.startswith("pod/web: 2 of 3 fit\n")
    assert json.loads(hami("capacity", "-f", str(path), "-o", "json").stdout)["pods"] == 2
    assert hami("capacity", "-f", str(path)).stdout.startswith(
        "2 more pods like those of pod/web fit"
    )


@cases(
    "args, text, said",
    (["simulate"], b"kind: Pod\nspec: 3", "error: {path}: document 1: spec: expected a mapping"),
    (["simulate"], b"\xff", "error: {path}: not UTF-8 text"),
    (
        ["simulate", "-A"],
        b"kind: Pod\nspec: {containers: []}",
        "error: new pods have one namespace: use -n",
    ),
    (
        ["capacity"],
        b"kind: Pod\nspec: {}\n---\nkind: Pod\nspec: {}",
        "error: expected one pod or workload, found pod/",
    ),
)
def test_manifests_with_errors(tmp_path, args, text, said):
    path = tmp_path / "web.yaml"
    path.write_bytes(text)
    result = hami(*args, "-f", str(path))
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(said.format(path=path))


def test_a_snapshot_answers_as_the_cluster(tmp_path):
    of = api()
    of.events = [
        {
            "reason": "FailedScheduling",
            "message": "0/2 nodes",
            "involvedObject": {"uid": "uid-team-b"},
        }
    ]
    path = tmp_path / "snapshot"
    path.write_bytes(hami("snapshot", of=of).stdout_bytes)
    broken = FakeApi(errors={"/api/v1/nodes": refused()})
    for args in (["top"], ["top", "pods", "-A"], ["explain", "pod", "a", "-n", "default"]):
        assert hami(*args, f"--snapshot={path}", of=broken).stdout == hami(*args).stdout
    assert "0/2 nodes" in hami("explain", "pod", "b", "-n", "team", f"--snapshot={path}").stdout
    assert hami("explain", "pod", "c", "-n", "team", f"--snapshot={path}").exit_code == 2
    result = hami("replay", str(path))
    assert result.exit_code == 0
    assert result.stdout == "1 decision, 0 of them different\n"
    path.write_bytes(hami("snapshot", "--anonymize", of=of).stdout_bytes)
    assert names(hami("top", f"--snapshot={path}", "-o", "json")) == ["node-1", "node-2"]


@cases(
    "args, said",
    (["top", "--snapshot=/no/such"], "error: /no/such: No such file"),
    (["replay", "/no/such"], "error: /no/such: No such file"),
    (["top", "-w", "--snapshot=x"], "error: -w needs a cluster: a snapshot does not change"),
)
def test_snapshots_that_cannot_be_used(args, said):
    result = hami(*args)
    assert result.exit_code == 2
    assert result.stderr.startswith(said)


def test_audit():
    result = hami("audit")
    assert (result.exit_code, result.stdout) == (0, "2 nodes with devices and 2 pods: consistent\n")
    of = FakeApi([node("n1")], [bound("a", "n1", (7, 1, 1))])
    assert hami("audit", of=of).exit_code == 1
    findings = json.loads(hami("audit", "-o", "json", of=of).stdout)["items"]
    assert [finding["rule"] for finding in findings] == ["CardGone"]


def test_a_table_has_no_colors_where_there_is_no_terminal():
    result = hami("top", "--no-headers")
    assert result.stdout.splitlines()[0].startswith("n1 ")
    assert "\x1b" not in result.stdout


@cases(
    "args, of, said",
    (
        ["top"],
        FakeApi(errors={"/api/v1/nodes": refused()}),
        "error: you may not list nodes in the whole cluster",
    ),
    (["top"], FakeApi(), "error: no node has registered devices"),
    (["top", "nodes", "n3"], None, "error: there is no node n3; did you mean n"),
    (
        ["explain", "pod", "bb"],
        None,
        'error: pods "bb" not found in namespace team; did you mean b?',
    ),
    (["explain", "pod", "b", "-A"], None, "error: a pod has one namespace: use -n instead of -A"),
    (
        ["explain", "pod", "web"],
        FakeApi([node("n1")], [pending("web", "team")]),
        "error: pod team/web requests no devices",
    ),
    (
        ["top", "--device-config-map=x"],
        None,
        "error: --device-config-map=x: expected NAMESPACE/NAME",
    ),
    (
        ["top", "--device-config-file=/no/such"],
        None,
        "error: --device-config-file /no/such: No such file",
    ),
)
def test_errors_are_one_line(args, of, said):
    result = hami(*args, of=of)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1].startswith(said)


def test_errors_have_no_control_codes():
    result = hami("top", "nodes", "n\x1b[2J\u202e")
    assert result.exit_code == 2
    assert "there is no node" in result.stderr
    assert result.stderr.rstrip("\n").isprintable()


def test_without_a_cluster_there_is_one_line():
    result = CliRunner().invoke(main, ["top"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "the API server does not answer" in result.stderr


@cases(
    "args, said",
    (["--kubeconfig=/no/such"], "no API server to talk to: kubeconfig /no/such"),
    (["--context=no"], "no API server to talk to: kubeconfig"),
)
def test_a_configuration_that_cannot_be_used(args, said):
    result = CliRunner().invoke(main, ["top", *args])
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize("command", list(PEOPLE))
def test_each_command_has_help(command):
    result = hami(command, "--help")
    assert result.exit_code == 0
    assert "Examples:\n    hami " in result.stdout or command == "options"
    assert ("hami options" in result.stdout) is (command not in ("replay", "options"))


@cases(
    "command, left_out",
    ("explain", {"-A"}),
    ("top", set()),
    ("resize", {"-A"}),
    ("snapshot", {"-n", "-A"}),
    ("record", {"-n", "-A", "--snapshot"}),
    ("dashboard", {"-A", "--snapshot"}),
    ("compact", {"-n", "-A"}),
)
def test_the_help_of_a_command_has_no_options_that_mean_nothing_there(command, left_out):
    words = hami(command, "--help", program=kubectl_main).stdout.replace(",", " ").split()
    assert {"-n", "-A", "--snapshot"}.difference(words) == left_out


@pytest.mark.parametrize("program", [main, kubectl_main])
def test_the_list_of_commands_has_whole_sentences(program):
    listed = (
        CliRunner().invoke(program, ["--help"], terminal_width=78).stdout.partition("Commands:")[2]
    )
    assert len(listed.split("\n")) > 10
    assert "..." not in listed


def test_the_options_of_the_access_are_listed_once():
    result = hami("options")
    assert result.exit_code == 0
    for option in ("--kubeconfig FILE", "--as USER", "--as-group GROUP", "--request-timeout"):
        assert option in result.stdout
    as_plugin = CliRunner().invoke(kubectl_main, ["top", "--help"], prog_name="kubectl hami")
    assert "\n    kubectl hami top cards" in as_plugin.stdout
    assert "see kubectl hami options" in " ".join(as_plugin.stdout.split())


@cases(
    "words",
    (["pod", "b"],),
    (["pods", "b"],),
    (["po", "b"],),
    (["b"],),
    (["pod/b"],),
    (["po/b"],),
)
def test_a_pod_is_named_as_in_kubectl(words):
    for command in (["explain"], ["resize", "--cores=1", "--dry-run"]):
        result = hami(*command, *words, "-n=team")
        assert "team/b" in result.output or "b is not bound yet" in result.output


@cases(
    "words, expected",
    (["node"], ["n1", "n2"]),
    (["no", "n2"], ["n2"]),
    (["node/n1"], ["n1"]),
    (["nodes/n1", "no/n2"], ["n1", "n2"]),
    (["po", "-n=team"], ["b"]),
    (["pod/b", "-n=team"], ["b"]),
    (["ns"], ["default"]),
)
def test_types_have_the_names_of_kubectl(words, expected):
    assert names(hami("top", *words, "-o", "json")) == expected


@cases(
    "args, text",
    (["top", "-o", "name"], "node/n1\nnode/n2\n"),
    (["top", "cards", "n1", "-o", "name"], "card/GPU-n1-0\n"),
    (["top", "ns", "-o", "name"], "namespace/default\n"),
    (["explain", "b", "-n=team", "-o", "name"], "pod/b\n"),
    (["top", "pods", "-A", "-o", "jsonpath={.items[*].name}"], "a b\n"),
    (["explain", "b", "-n=team", "-o", "jsonpath={.name}"], "b\n"),
    (
        ["explain", "b", "-n=team", "-o", "jsonpath={.apiVersion} {.kind} {.state}"],
        "inspect.hami.io/v1alpha1 PodExplanation Waiting\n",
    ),
    (["audit", "-o", "jsonpath={.kind}"], "FindingList\n"),
    (["top", "cards", "-o", "jsonpath={.kind}"], "CardUsageList\n"),
    (["explain", "b", "-n=team", "-o", 'jsonpath={.name}{"\\t\\u001b"}.'], "b\t?.\n"),
    (
        ["top", "pods", "-A", "-o=custom-columns=NAME:.name,NODE:.node"],
        "NAME  NODE\na     n1\nb     <none>\n",
    ),
    (["top", "pods", "-A", "--no-headers", "-o=custom-columns=NAME:.name"], "a\nb\n"),
)
def test_forms_of_kubectl(args, text):
    result = hami(*args)
    assert (result.exit_code, result.stdout) == (0, text), result.output


@cases(
    "args, said",
    (["top", "-o", "xml"], "'xml': expected one of table, wide, json, yaml, name, jsonpath=…"),
    (["top", "-o", "jsonpath="], "'jsonpath=': expected one of table"),
    (["audit", "-o", "name"], "error: -o name: only top and explain have names"),
    (["explain", "b", "-n=team", "-o=custom-columns=A:.a"], "this command has no rows"),
    (["top", "-o", "jsonpath={.a[}"], "error: .a[: expected .field, [0] or [*] at '['"),
)
def test_forms_that_are_none(args, said):
    result = hami(*args)
    assert result.exit_code == 2
    assert said in result.stderr


@cases(
    "args, said",
    (["tpo"], "No such command 'tpo'. Did you mean 'top'?"),
    (["top", "nods"], "expected nodes, cards, pods, namespaces. Did you mean 'nodes'?"),
    (["top", "pod/a", "b"], "'b' has no type; expected TYPE/NAME, as before it"),
    (["top", "pod/a", "node/b"], "expected objects of one type, found nodes, pods"),
    (["explain", "deploy/web"], "there is no resource type 'deploy' here; expected pods."),
    (["explain", "node", "n1"], "there is no resource type 'node' here; expected pods."),
    (["explain", "pod"], "expected the name of a pod after 'pod'"),
    (["explain", "pod/"], "expected the name of a pod after 'pod/'"),
    (["explain", "pod", "a", "b"], "unexpected argument 'b'"),
    (["resize", "pod/a", "main", "b", "--cores=1"], "unexpected argument 'b'"),
    (["top", "--as-group=g"], "--as-group and --as-uid need --as"),
)
def test_words_that_nobody_knows(args, said):
    result = hami(*args)
    assert result.exit_code == 2
    assert said in result.stderr


@cases(
    "args, said",
    (["top", "pods", "-n", "nosuch"], "No resources found in nosuch namespace.\n"),
    (["top", "nodes", "-l", "gpu=off"], "No resources found.\n"),
)
def test_nothing_is_found(args, said):
    result = hami(*args)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", said)


def test_the_namespace_that_has_the_pod_is_named():
    result = hami("explain", "b", "-n", "default")
    assert result.exit_code == 2
    assert result.stderr == (
        'error: pods "b" not found in namespace default; there is one with -n team\n'
    )


def test_the_access_is_as_the_options_say():
    seen = []

    def connect(client):
        seen.append((client.access, client.request_timeout))
        return api().request

    args = ["--as=alice", "--as-group=a", "--as-group=b", "--cluster=c", "-s=https://k", "--user=u"]
    CliRunner().invoke(main, ["top", *args, "--request-timeout=5s"], obj=connect)
    CliRunner().invoke(main, ["top", *args, "--request-timeout", "5"], obj=connect)
    access = UserAccess(
        impersonated="alice", groups=("a", "b"), cluster="c", server="https://k", user="u"
    )
    assert seen == [(access, 5.0)] * 2


@cases(
    "words, expected",
    (["explain", ""], ["b"]),
    (["explain", "-A", ""], ["a", "b"]),
    (["explain", "pod", "b"], ["b"]),
    (["explain", "pod", "b", ""], []),
    (["top", "nodes", "n1", "n"], ["n2"]),
    (["top", "cards", ""], ["n1", "n2"]),
    (["top", "nosuch", ""], []),
)
def test_names_are_completed(words, expected):
    *lines, directive = completions(words, lambda client: api().request)
    assert (lines, directive) == (expected, ":4")


def test_where_the_cluster_does_not_answer_no_name_is_completed():
    assert completions(
        ["top", "nodes", ""], lambda client: FakeApi(errors={"/api/v1/nodes": refused()}).request
    ) == [":4"]


@cases(
    "words, expected",
    ([""], [*PEOPLE, *LOCAL]),
    (["to"], ["top"]),
    (["top", "c"], ["cards"]),
    (["top", "nodes", "--sort-by", "me"], ["memory"]),
)
def test_kubectl_completes(words, expected):
    *lines, directive = completions(words)
    assert sorted(line.partition("\t")[0] for line in lines) == sorted(expected)
    assert directive == ":4"
