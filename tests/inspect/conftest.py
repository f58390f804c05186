"""A kubeconfig for the commands for people."""

import pytest

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: mine
contexts:
- {name: mine, context: {cluster: c, user: u, namespace: team}}
- {name: other, context: {cluster: c, user: u}}
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
"""


@pytest.fixture(autouse=True)
def kubeconfig(tmp_path, monkeypatch):
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(path))
