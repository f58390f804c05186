"""Recordings of what a scheduler's store decides about pods that come, wait, run and end."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from heapq import heappop, heappush
from pathlib import Path

from hami.codec.times import render_time
from hami.inspect.cluster import catalog_of
from hami.inspect.line_writer import LineWriter
from hami.inspect.recorder import Recorder
from hami.inspect.segments import SegmentWriter
from hami.model import Container, Node, Pod
from hami.scheduling.refusal import Choice
from hami.state.store import Store
from hami.state.view import Policies
from testing.builders import gpu, gpus, node, pod

__all__ = ["POLICIES", "SHAPES", "RecordedCluster", "record_week"]

POLICIES = Policies("least-waste", "binpack")
SHAPES = (
    gpus(memory=10_000, cores=20),
    gpus(memory=20_000, cores=50),
    gpus(memory=30_000),
    gpus(2, memory=46_000, cores=100),
    gpus(percent=50, cores=50),
)
START = 1_790_000_000.0
WEEK_S = 7 * 86_400
LOAD = 0.85  # of all devices, on average
SIZE = 0.72  # of a pod of SHAPES in devices, on average
FIRST_TRIED = 20  # of the pods that wait, when one has ended
SAID_EVERY = 10_000  # pods


class RecordedCluster:
    """A store that decides, and a recorder that sees what its watches see. *existing*: pods that were there before."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 6,
        *,
        cards: int = 4,
        policies: Policies = POLICIES,
        segment_bytes: int = 1 << 20,
        existing: Sequence[Pod] = (),
    ) -> None:
        self.at = START
        self.version = 1
        self.store = Store(
            catalog_of(""),
            policies,
            clock=lambda: self.at,
            now=lambda: datetime.fromtimestamp(self.at, UTC),
        )
        folder.mkdir(exist_ok=True)
        writer = SegmentWriter(folder, segment_bytes=segment_bytes, most_bytes=1 << 30)
        lines = LineWriter(writer, "", policies, b"salt", lambda: self.at)
        self.recorder = Recorder(lines, now=lambda: self.at, clock=lambda: self.at)
        self.recorder.begin()
        self.names = [f"secret-{number:03}" for number in range(nodes)]
        for number, name in enumerate(self.names):
            devices = [gpu(f"GPU-{name}-{index}", index=index) for index in range(cards)]
            self.show_node(
                node(
                    name,
                    *devices,
                    resource_version=str(number + 1),
                    allocatable={
                        "nvidia.com/gpu": str(10 * cards),
                        "cpu": str(16 * cards),
                        "memory": "1Ti",
                    },
                    labels={"zone": "secret"},
                )
            )
        self.recorder.nodes.prune(set(self.names), self.at)
        for each in existing:
            self.recorder.pods.upsert(each)
        self.recorder.pods.prune({each.ref.uid for each in existing}, self.at)

    def show_node(self, shown: Node) -> None:
        self.store.nodes.upsert(shown)
        self.recorder.nodes.upsert(shown)

    def show(self, shown: Pod) -> Pod:
        self.version += 1
        shown = replace(shown, resource_version=str(self.version))
        self.store.pods.upsert(shown)
        self.recorder.pods.upsert(shown)
        return shown

    def create(self, name: str, container: Container, **fields: object) -> Pod:
        """Returns a pod that waits."""
        fields = {"scheduler_name": "hami-scheduler", "controller_kind": "Job"} | fields
        created = render_time(datetime.fromtimestamp(self.at, UTC))
        return self.show(
            pod(container, name=name, namespace="secret-team", created=created, **fields)
        )

    def place(self, waiting: Pod) -> Pod | None:
        """Returns the bound pod, ``None`` if none fits."""
        choice = self.store.filtering.assume(waiting, self.names)
        if not isinstance(choice, Choice):
            return None
        promise = self.store.bindings.start(waiting.ref, choice.node)
        annotations = self.store.bindings.prepare(promise)
        self.store.bindings.finish(promise)
        return self.show(
            replace(
                waiting, node_name=choice.node, annotations={**waiting.annotations, **annotations}
            )
        )

    def end(self, bound: Pod) -> None:
        self.store.pods.remove(bound)
        self.recorder.pods.remove(bound)

    def run(
        self,
        pods: int,
        gap_s: float,
        runs_s: float,
        rng: random.Random,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Lets *pods* come with exponential gaps and durations, and wait until they fit; then ends the recording."""
        ends: list[tuple[float, int, Pod]] = []
        waiting: list[Pod] = []

        def place_some() -> None:
            for asked in sorted(waiting, key=lambda item: -item.priority)[:FIRST_TRIED]:
                bound = self.place(asked)
                if bound is not None:
                    waiting.remove(asked)
                    heappush(ends, (self.at + rng.expovariate(1 / runs_s), self.version, bound))

        next_at = self.at
        for number in range(pods):
            if say is not None and number and number % SAID_EVERY == 0:
                say(f"{number:,} of {pods:,} pods recorded")
            next_at += rng.expovariate(1 / gap_s)
            while ends and ends[0][0] <= next_at:
                self.at, _, ended = heappop(ends)
                self.end(ended)
                place_some()
            self.at = next_at
            waiting.append(
                self.create(
                    f"secret-pod-{number}",
                    rng.choice(SHAPES),
                    priority=rng.choice([0, 0, 100]),
                    requests={"cpu": "2", "memory": "4Gi"},
                )
            )
            place_some()
            self.recorder.sync()
        self.recorder.close()


def record_week(
    folder: Path,
    pods: int,
    nodes: int,
    rng: random.Random,
    say: Callable[[str], None] | None = None,
) -> None:
    """Records a week of *pods* on *nodes* with eight cards. *say* hears how far it is."""
    cluster = RecordedCluster(folder, nodes, cards=8, segment_bytes=64 << 20)
    gap_s = WEEK_S / pods
    cluster.run(pods, gap_s, LOAD * nodes * 8 * gap_s / SIZE, rng, say)
