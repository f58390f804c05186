"""A cluster in memory whose usage is recorded, by one replica of the scheduler or by several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE, BIND_TIME
from hami.codec.times import render_time
from hami.codec.usage_objects import CURRENT, parse_current
from hami.codec.usage_sums import UsageSums
from hami.model import Node, Pod
from hami.scheduler.held_pods import HeldPods
from hami.scheduler.settings import Settings
from hami.scheduler.usage import UsageRecorder
from hami.state.store import Store
from hami.state.view import Policies
from testing.builders import NVIDIA, ONLY_NVIDIA, gpu, gpus, node, pod
from testing.fake_cluster import FakeCluster

__all__ = ["NAMESPACE", "NODE", "UsageReplica", "UsageStage", "bound", "time_of"]

NAMESPACE = "hami-usage"
NODE = node("n1", *[gpu(f"GPU-{number}", memory_mib=40_000) for number in range(100)])
NOON = int(datetime(2026, 11, 28, 12, tzinfo=UTC).timestamp())


def time_of(seconds: int) -> str:
    """Returns a time in the API server's form."""
    return render_time(datetime.fromtimestamp(seconds, UTC))


def bound(name: str, at: int, *, memory: int = 10_000, cores: int = 10, **fields: object) -> Pod:
    """A pod that has a part of a device since *at*."""
    annotations = {
        ASSIGNED_NODE: "n1",
        BIND_TIME: str(at),
        BIND_PHASE: "success",
        NVIDIA.annotations.allocated: f"GPU-0,NVIDIA,{memory},{cores}:;",
    }
    usual = {
        "node_name": "n1",
        "phase": "Running",
        "annotations": annotations,
        "created": time_of(at),
        "workload": ("Deployment", "web"),
    }
    return pod(gpus(memory=memory, cores=cores), name=name, **{**usual, **fields})


class UsageStage:
    """The API server and the clocks."""

    def __init__(self) -> None:
        self.fake = FakeCluster()
        self.now = NOON
        self.monotonic = 0.0
        self.pods: dict[str, Pod] = {}

    def wait(self, seconds: int) -> None:
        """Lets time pass."""
        self.now += seconds
        self.monotonic += seconds

    def sums(self) -> UsageSums:
        """Returns what is recorded."""
        return parse_current(self.fake.config_maps[NAMESPACE, CURRENT].data)

    def seconds(self) -> int:
        """Returns the seconds times devices that are recorded since the beginning."""
        return sum([amounts.devices for amounts in self.sums().counters().values()])


class UsageReplica:
    """One replica. *leads*: whether it leads. *silence*: seconds since its watch has shown something."""

    def __init__(self, stage: UsageStage, *, nodes: Iterable[Node] = (NODE,), **settings: object):
        self.stage = stage
        self.leads, self.silence = True, 0.0
        self._version = 0
        self.store = Store(
            ONLY_NVIDIA, Policies(), clock=lambda: stage.monotonic, now=self._time_of_day
        )
        for each in nodes:
            self.store.nodes.upsert(each)
        self.held = HeldPods(self.store.pods, self.store, self._time_of_day)
        self.recorder = UsageRecorder(
            stage.fake,
            self.held,
            Settings(usage_namespace=NAMESPACE, **settings),
            leads=lambda: self.leads,
            silence=lambda: self.silence,
            clock=lambda: stage.monotonic,
            now=self._time_of_day,
        )
        for known in stage.pods.values():
            self._show(known)

    def put(self, shown: Pod) -> None:
        """Shows a pod, or another version of it."""
        self.stage.pods[shown.ref.uid] = shown
        self._show(shown)

    def delete(self, gone: Pod) -> None:
        """Shows that a pod is gone."""
        self.stage.pods.pop(gone.ref.uid, None)
        self.held.remove(gone)

    def relist(self) -> None:
        """Lists the pods."""
        self.stage.monotonic += 1
        for known in self.stage.pods.values():
            self._show(known)
        self.held.prune(set(self.stage.pods), self.stage.monotonic)

    def record(self, after: int = 300) -> None:
        """Takes a step after so many seconds."""
        self.stage.wait(after)
        self.step()

    def step(self) -> None:
        """Takes a step, as the thread of the recorder does."""
        self.recorder.beat()
        self.recorder.step()

    def _show(self, shown: Pod) -> None:
        self._version += 1
        self.held.upsert(replace(shown, resource_version=str(self._version)))

    def _time_of_day(self) -> datetime:
        return datetime.fromtimestamp(self.stage.now, UTC)
