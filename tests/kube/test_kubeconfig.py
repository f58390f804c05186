"""A kubeconfig that cannot be used ends in one sentence, which names the file, the field and its value."""

import copy

import pytest
import yaml

from hami.errors import ClusterError
from hami.kube.api import Api, context_namespace
from testing.cases import cases

GOOD = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "clusters": [
        {
            "name": "k",
            "cluster": {"server": "https://127.0.0.1:1", "certificate-authority-data": ""},
        }
    ],
    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
}


def changed(place, value):
    """Returns GOOD with *value* at *place*, a path such as `users.0.user`."""
    document = copy.deepcopy(GOOD)
    *path, last = [int(step) if step.isdigit() else step for step in place.split(".")]
    holder = document
    for step in path:
        holder = holder[step]
    holder[last] = value
    return document


def test_one_that_can_be_used_has_a_namespace(tmp_path):
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(GOOD))
    Api.connect(kubeconfig=str(file))
    assert context_namespace(str(file)) == "n"


@cases(
    "place, value, said",
    ("clusters", 5, "clusters: expected a list: '5'"),
    ("clusters.0", "k", "clusters[0]: expected a mapping: 'k'"),
    ("clusters.0.cluster", 1.5, "clusters[0].cluster: expected a mapping: '1.5'"),
    (
        "clusters.0.cluster.server",
        5,
        "cluster.server: expected an address such as https://10.0.0.1:6443: '5'",
    ),
    (
        "clusters.0.cluster.server",
        "http://[::1",
        "clusters[0].cluster.server: Invalid IPv6 URL: 'http://[::1'",
    ),
    ("clusters.0.cluster.server", "a b", "its address 'a b': Failed to parse: Host 'a b' contains"),
    (
        "clusters.0.cluster.certificate-authority-data",
        "x",
        "cluster.certificate-authority-data: not base64: ",
    ),
    ("contexts.0.context", "c", "contexts[0].context: expected a mapping: 'c'"),
    ("contexts.0.context.cluster", "other", "Expected object with name other in "),
    ("current-context", "other", "Expected object with name other in "),
    ("users.0.user", "u", "users[0].user: expected a mapping: 'not shown'"),
    ("users.0.user", {"tokenFile": 5}, "users[0].user.tokenFile: expected a text: 'not shown'"),
    (
        "users.0.user",
        {"username": 5, "password": "p"},
        "users[0].user.username: expected a text: 'not shown'",
    ),
    (
        "users.0.user.auth-provider",
        5,
        "users[0].user.auth-provider: expected a mapping: 'not shown'",
    ),
)
def test_what_is_wrong_with_a_field_is_said(tmp_path, place, value, said):
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(changed(place, value)))
    with pytest.raises(ClusterError) as error:
        Api.connect(kubeconfig=str(file))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "user",
    [
        {"client-key-data": "s3cret"},
        {"tokenFile": ["s3cret"]},
        {"username": ["s3cret"], "password": "s3cret"},
        "s3cret",
    ],
)
def test_no_credential_is_shown(tmp_path, user):
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(changed("users.0.user", user)))
    with pytest.raises(ClusterError, match=r"users\[0\].user") as error:
        Api.connect(kubeconfig=str(file))
    assert "s3cret" not in str(error.value)
    file.write_text("users:\n- token: s3cret: x\n")
    with pytest.raises(ClusterError, match="not YAML in line 2") as error:
        Api.connect(kubeconfig=str(file))
    assert "s3cret" not in str(error.value)


@cases(
    "content, said",
    ("empty", b"", "there is nothing in the file"),
    ("number", b"5", "expected a mapping: 'not shown'"),
    ("list", b"[]", "expected a mapping"),
    ("no YAML", b"a: [", "not YAML in line 1, column 5: "),
    ("no text", b"\xff", "not UTF-8 text: invalid start byte"),
    ("deep", b"[" * 5000, "not YAML: maximum recursion depth exceeded"),
    ("nothing", b"kind: Config\n", "Invalid kube-config file."),
)
@cases(
    "read", ("connect", lambda path: Api.connect(kubeconfig=path)), ("namespace", context_namespace)
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, content, said, read):
    file = tmp_path / "kubeconfig"
    file.write_bytes(content)
    with pytest.raises(ClusterError, match=str(file)) as error:
        read(str(file))
    assert said in str(error.value)
