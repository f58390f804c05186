"""``explain`` by a user who may not list nodes, where the cluster explains pods, and where it does not."""

import json

import pytest
from click.testing import CliRunner

from hami.cli import main
from hami.errors import ClusterError, NotFound
from testing.cases import cases

GROUP = "/apis/inspect.hami.io/v1alpha1"
PATH = f"{GROUP}/namespaces/team/pods/train/explanation"
REPORT = {
    "apiVersion": "inspect.hami.io/v1alpha1",
    "kind": "PodExplanation",
    "state": "Bound",
    "namespace": "team",
    "name": "train",
    "node": "n1",
    "phase": "Running",
    "boundSeconds": 60,
    "requests": [],
    "cards": [
        {
            "container": "main",
            "index": 0,
            "uuid": "GPU-1",
            "memoryMib": 6000,
            "cores": 50,
            "pods": ["pods that you may not see"],
        }
    ],
    "problems": [],
}


def explain(*options, answer=None, error=None):
    """Asks a cluster where nodes may not be listed. *answer*, *error*: of the API group."""
    asked = []

    def request(method, path, **given):
        asked.append(path)
        if not path.startswith(GROUP):
            raise ClusterError(f"GET {path}: 403: forbidden", 403)
        if error:
            raise error
        return json.dumps(answer).encode()

    result = CliRunner().invoke(
        main, ["explain", "train", "-n", "team", *options], obj=lambda client: request
    )
    return result, asked


def test_the_cluster_explains_the_pod():
    result, asked = explain(answer=REPORT)
    assert result.exit_code == 0
    assert PATH in asked
    assert "pod team/train is bound to n1" in result.stdout
    assert "shared with pods that you may not see" in result.stdout


def test_the_document_is_the_same():
    result, _ = explain("-o", "json", answer=REPORT)
    document = json.loads(result.stdout)
    assert document.items() >= REPORT.items()


@cases(
    "error, answer, texts",
    (
        NotFound("GET: 404: 404 page not found", 404),
        None,
        ["you may not list nodes", "install the API group inspect.hami.io"],
    ),
    (
        NotFound('GET: 404: pods "train" not found', 404),
        None,
        ['pods "train" not found in namespace team'],
    ),
    (ClusterError("GET: 403: no", 403), None, ["you may not list nodes", "says: GET: 403"]),
    (ClusterError("GET: 503: no", 503), None, ["does not explain the pod: GET: 503"]),
    (None, {"state": "Odd"}, ["is of another version"]),
)
def test_what_is_wrong_is_one_line(error, answer, texts):
    result, _ = explain(error=error, answer=answer)
    assert (result.exit_code, result.stdout) == (2, "")
    for text in texts:
        assert text in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ["top", "audit"])
def test_other_commands_do_not_ask_there(command):
    asked = []

    def request(method, path, **given):
        asked.append(path)
        raise ClusterError("403", 403)

    CliRunner().invoke(main, [command], obj=lambda client: request)
    assert not any(path.startswith(GROUP) for path in asked)
