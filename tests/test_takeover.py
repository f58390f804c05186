"""What ``testing.takeover`` observes."""

import pytest

from testing.takeover import TakeOver


class Kube:
    """An API server that calls the webhook from the ninth pod on."""

    def __init__(self):
        self.pods = 0

    def dry_run(self, item, namespace):
        self.pods += 1
        return {
            "spec": {"schedulerName": "hami-scheduler" if self.pods > 8 else "default-scheduler"}
        }

    def list(self, kind, namespace, **query):
        return []


def test_it_begins_when_the_webhook_is_called():
    kube = Kube()
    with TakeOver(kube, None, ["n0"]) as release:
        assert kube.pods > 8
    assert release.missed == []
    assert release.admitted > 5


def test_an_observation_that_ends_early_is_an_error(monkeypatch):
    def refuse(self, kind, namespace, **query):
        raise ConnectionError("refused")

    monkeypatch.setattr(Kube, "list", refuse)
    with pytest.raises(ConnectionError, match="refused"), TakeOver(Kube(), None, ["n0"]):
        pass
