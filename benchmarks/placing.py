"""Rows about the complete path of pods: created, admitted, placed by a real kube-scheduler with the extender, bound.

In the same run, the same kube-scheduler without an extender places pods that request a plain ``nvidia.com/gpu``: as
shipped, and without the rate limit of its client.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import yaml

from benchmarks import arrivals, cycles, fleet
from benchmarks.admission import POLICIES, WEBHOOK, switch_to
from benchmarks.processes import Cpu, Run, disturbed
from benchmarks.rows import Latency, Row, ratio, remarks
from testing.claims import ALLOCATE, call_webhooks, claiming
from testing.cluster import MANIFESTS, LocalCluster, scheduler_config
from testing.eventually import eventually
from testing.nodes import LOCK_FREE, fake_node, gpus
from testing.pods import pod as any_pod
from testing.priorities import add_priorities, of_priority
from testing.processes import Program, free_port
from testing.scheduler import Certificates, Scheduler, install

__all__ = [
    "CLIENT_LIFTED",
    "GROUPS",
    "LARGE",
    "NAMESPACE",
    "Asks",
    "Case",
    "Outcome",
    "Stage",
    "disturbance",
    "each",
    "figures",
    "mean",
    "placing_rows",
    "trouble",
]

Object = dict[str, Any]
GROUPS = ("e2e", "large", "settings", "burst", "queue", "unplaceable", "refused")
NAMESPACE = "bench"
CROWD, OTHERS = "crowd", "others"
"""The namespaces of pods that no node fits, and of pods without devices that hold the nodes."""
ALLOCATION_MODE = "hami.io/allocation-mode"
HOLD = 2  # of them on each node
ALLOCATOR_DELAY = 0.02
DELETING = 4  # pods at once


class Asks(StrEnum):
    """What a pod asks for where there is no extender: a whole GPU by its plain name, nothing, or a claim, whose
    template is called so. With the extender, part of a GPU: from a device plugin, or by a claim of its own, for what
    its containers request or that template says."""

    GPU = "gpu"
    NOTHING = "nothing"
    CLAIM = "claim"
    OWN_CLAIM = "own claim"


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A number of pods on a number of nodes. *extender* False: kube-scheduler alone, with *client*; its pods ask for
    *asks*. *lock_free*: the device plugins need no lock; otherwise they are simulated. *wishes*: the pods wish to be
    apart, so that kube-scheduler chooses the nodes. *between*: options of ``benchmarks.refusals`` between both,
    ``None`` without it. *policies*: the API server admits the pods by itself; otherwise it calls the webhook. *config*,
    *flags*, *environment*: of kube-scheduler, beside those that it is shipped with.
    """

    name: str
    nodes: int
    pods: int
    policy: str = "binpack"
    lock_free: bool = False
    extender: bool = True
    allocated: bool = False
    wishes: bool = False
    between: tuple[str, ...] | None = None
    client: Object = field(default_factory=dict)
    asks: Asks = Asks.GPU
    policies: bool = False
    config: Object = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def allocates_claims(self) -> bool:
        """Reports whether HAMi's scheduler gives the pods claims."""
        return self.extender and self.asks in (Asks.CLAIM, Asks.OWN_CLAIM)


SPREAD = Case("spread", 200, 500, "spread")
BINPACK = Case("binpack", 200, 500)
SPREAD_FREE = Case("spread, lock-free", 200, 500, "spread", lock_free=True)
BINPACK_FREE = Case("binpack, lock-free", 200, 500, lock_free=True)
BY_POLICIES = replace(BINPACK_FREE, name="binpack, lock-free, admission by policies", policies=True)
WISHES_FREE = Case(
    "spread, lock-free, soft wishes", 200, 500, "spread", lock_free=True, wishes=True
)
CLIENT_LIFTED = {"qps": 2000, "burst": 4000}
SHIPPED = Case("kube-scheduler alone, as shipped", 200, 500, extender=False)
LIFTED = Case(
    "kube-scheduler alone, its client limit lifted", 200, 500, extender=False, client=CLIENT_LIFTED
)
LARGE = Case("spread, lock-free", 1000, 2000, "spread", lock_free=True)
LARGE_BY_POLICIES = replace(LARGE, name="spread, lock-free, admission by policies", policies=True)
LARGE_LOCKED = Case("spread", 1000, 2000, "spread")
LARGE_LIFTED = Case(
    "kube-scheduler alone, its client limit lifted", 1000, 500, extender=False, client=CLIENT_LIFTED
)
SETTINGS = [
    replace(BINPACK_FREE, name="as shipped"),
    replace(BINPACK_FREE, name="with clientConnection.qps: 100", client={"qps": 100, "burst": 200}),
    replace(
        BINPACK_FREE,
        name="with SchedulerAsyncAPICalls=true",
        flags=("--feature-gates=SchedulerAsyncAPICalls=true",),
    ),
    replace(BINPACK_FREE, name="with GOGC=400", environment={"GOGC": "400"}),
    replace(BINPACK_FREE, name="with parallelism: 4", config={"parallelism": 4}),
]
BURST = Case("binpack", 20, 30)
BURST_FREE = Case("binpack, lock-free", 20, 30, lock_free=True)
QUEUE = Case("queue", 1, 40, allocated=True)
BESIDE = Case("lock-free", 1500, 10, lock_free=True)
UNRESOLVABLE = Case("as our filter refuses", 1000, 200, lock_free=True, between=())
RESOLVABLE = replace(
    UNRESOLVABLE, name="the end of other pods could help", between=("--resolvable",)
)
CYCLES = 500  # pods with wishes, and as many without, one after the other
HOPELESS = 400
SETTLED = 20  # seconds after which kube-scheduler has tried each of them more than once
LOCKED = {SPREAD: 52, BINPACK: 44}
"""Pods per second. The API server carries out four writes for a pod with a lock, one for a pod without."""
FREE = (SPREAD_FREE, BY_POLICIES, BINPACK_FREE)
"""The policies that admit pods are removed before the next case; without an extender they would stay."""
UPSTREAM = {"spread": 16, "binpack": 9}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run of a case. *failed*: failure events by reason."""

    seconds: float
    bound: float
    created: float
    pods: int
    nodes_used: int
    failed: dict[str, int]
    cpu: dict[str, float]
    missing: int

    @property
    def rate(self) -> float:
        return (self.pods - self.missing) / self.seconds

    @property
    def extender_ms(self) -> float:
        return self.each_ms("hami")

    @property
    def api_server_ms(self) -> float:
        return self.each_ms("kube-apiserver")

    @property
    def kube_scheduler_ms(self) -> float:
        return self.each_ms("kube-scheduler")

    def each_ms(self, program: str) -> float:
        """Returns the CPU time of *program* for each pod."""
        return 1000 * self.cpu.get(program, 0) / self.pods

    def figures(self) -> Object:
        return {
            "pods_per_second": self.rate,
            "seconds": self.seconds,
            "bound_seconds": self.bound,
            "created_seconds": self.created,
            "nodes_used": self.nodes_used,
            "failed": self.failed,
            "missing": self.missing,
            "cpu_seconds": self.cpu,
            "extender_cpu_ms": self.extender_ms,
        }


@dataclass(frozen=True, slots=True)
class Refused:
    """How often pods were refused, and the CPU seconds of each program meanwhile."""

    count: int
    cpu: dict[str, float]

    def each_ms(self, program: str) -> float:
        return 1000 * self.cpu[program] / self.count

    def figures(self) -> Object:
        return {"count": self.count, "cpu_seconds": self.cpu}


def placing_rows(run: Run, groups: list[str], rounds: int, large: int) -> Iterator[Row]:
    """Yields the rows of *groups*; each case runs *rounds* times, alternating with those it is compared to. *large*:
    the number of nodes of the group large."""
    with LocalCluster.started(say=run.say) as cluster:
        cluster.components["kube-scheduler"].kill()
        stage = Stage(run, cluster)
        if "e2e" in groups:
            cases = [*LOCKED, *FREE, WISHES_FREE, SHIPPED, LIFTED]
            with stage.nodes(SPREAD.nodes):
                turns = [{case.name: stage.play(case) for case in cases} for _ in range(rounds)]
                serial = stage.cycles(SPREAD_FREE)
            found = {case.name: [turn[case.name] for turn in turns] for case in cases}
            for case in (*LOCKED, *FREE):
                yield throughput_row(found, case)
            yield wishes_row(found)
            yield cycles_row(*serial)
            yield baseline_row(found, SHIPPED)
            yield baseline_row(found, LIFTED)
        if "large" in groups:
            *cases, with_locks = (
                replace(case, nodes=large, pods=case.pods * large // case.nodes)
                for case in (LARGE_BY_POLICIES, LARGE, LARGE_LIFTED, LARGE_LOCKED)
            )
            with stage.nodes(large):
                played = [[stage.play(case) for case in cases] for _ in range(rounds)]
                locked = stage.play(with_locks)
            *free, lifted = zip(*played)
            for case, outcomes in zip(cases, free):
                yield large_row(case, outcomes, locked, lifted)
        if "settings" in groups:
            with stage.nodes(BINPACK_FREE.nodes):
                tried = [[stage.play(case) for case in SETTINGS] for _ in range(rounds)]
            for case, outcomes in zip(SETTINGS, zip(*tried), strict=True):
                yield settings_row(case, outcomes, [turn[0] for turn in tried])
        if "burst" in groups:
            with stage.nodes(BURST.nodes):
                yield burst_row(BURST, [stage.play(BURST) for _ in range(rounds + 1)], 1.5)
                yield burst_row(
                    BURST_FREE, [stage.play(BURST_FREE) for _ in range(rounds + 1)], 0.6
                )
        if "queue" in groups:
            with stage.nodes(QUEUE.nodes):
                yield queue_row([stage.play(QUEUE) for _ in range(rounds + 1)])
        if "refused" in groups:
            with stage.nodes(UNRESOLVABLE.nodes), stage.held():
                refused = [
                    [stage.refuse(case) for case in (UNRESOLVABLE, RESOLVABLE)]
                    for _ in range(rounds)
                ]
            yield refused_row(*zip(*refused))
        if "unplaceable" in groups:
            with stage.nodes(BESIDE.nodes):
                yield from unplaceable_rows(
                    *(
                        stage.beside(BESIDE, crowd, rounds + 1)
                        for crowd in (
                            [],
                            crowd_of(lambda number: 90_000),
                            crowd_of(lambda number: 90_000 + number),
                        )
                    )
                )


class Stage:
    """The control plane that runs the cases."""

    def __init__(self, run: Run, cluster: LocalCluster) -> None:
        self.run, self.cluster, self.kube = run, cluster, cluster.kube
        self.names: list[str] = []
        self.kube_scheduler_port = free_port()
        self.certificates = Certificates(cluster.folder / "tls")
        self.kubeconfig = install(cluster, self.certificates)
        for namespace in (NAMESPACE, CROWD, OTHERS):
            for kind, meta in (
                ("Namespace", {"name": namespace}),
                ("ServiceAccount", {"name": "default", "namespace": namespace}),
            ):
                self.kube.apply({"apiVersion": "v1", "kind": kind, "metadata": meta})

    @contextlib.contextmanager
    def nodes(self, count: int) -> Iterator[None]:
        """Provides ready nodes with eight GPUs each, which the scheduler does not meet for the first time."""
        self.names = names = [fleet.node_name(number) for number in range(count)]
        for name in names:
            self.kube.create(fake_node(name, gpus(fleet.GPUS), annotations=fleet.asked()))
        self.kube.wait(
            "Node",
            lambda nodes: all(is_ready(nodes.get(name)) for name in names),
            what="nodes are Ready",
            timeout=300,
        )
        yield
        for name in names:
            self.kube.delete("Node", name)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Provides pods without devices on all nodes, which may be evicted for urgent ones."""
        add_priorities(self.kube, ["urgent"])
        pods = [
            any_pod(f"holds-{number}-{name}", cpu=100, node_name=name)
            for name in self.names
            for number in range(HOLD)
        ]
        with ThreadPoolExecutor(DELETING) as pool:
            list(pool.map(lambda item: self.kube.create(item, OTHERS), pods))
        yield
        self.clear(OTHERS)

    def play(self, case: Case) -> Outcome:
        """Runs *case* once, starting and ending without pods."""
        with self.running(case) as pids:
            outcome = self.place(case, case.pods, pids)
        self.say(case, outcome)
        return outcome

    def beside(self, case: Case, crowd: list[Object], rounds: int) -> list[Outcome]:
        """Runs *case* again and again while the pods of *crowd* wait."""
        outcomes = []
        with self.running(case) as pids:
            with ThreadPoolExecutor(DELETING) as pool:
                list(pool.map(self.kube.create, crowd))
            time.sleep(SETTLED if crowd else 0)
            for _ in range(rounds):
                outcomes.append(self.place(case, case.pods, pids))
                self.say(case, outcomes[-1])
                self.clear()
            self.clear(CROWD)
        return outcomes

    def cycles(self, case: Case) -> tuple[Latency, Latency]:
        """Returns how long the verbs take for a pod without wishes and for one with them, which come in turns."""
        asked = [replace(case, wishes=wishes) for _ in range(CYCLES) for wishes in (False, True)]
        with self.running(case):
            pods = []
            for number, one in enumerate(asked):
                pod = pod_of(one)
                pod["metadata"]["name"] = f"cycle-{number:04}"
                pod["spec"]["schedulerName"] = "benchmark"  # so that kube-scheduler leaves it alone
                pods.append(pod)
            with ThreadPoolExecutor(DELETING) as pool:
                pods = list(pool.map(self.kube.create, pods))
            answer = self.run.ask(
                "cycles", cycles.job(port=self.cluster.extender_port, pods=pods, names=self.names)
            )
        chosen = answer["choices"]
        if any((choices > 1) != one.wishes for choices, one in zip(chosen, asked, strict=True)):
            raise RuntimeError(f"kube-scheduler chooses from {sorted(set(chosen))} nodes")
        return Latency.of(answer["microseconds"][::2]), Latency.of(answer["microseconds"][1::2])

    def refuse(self, case: Case) -> Refused:
        """Creates pods that no node fits, and waits until kube-scheduler has tried each.

        They are urgent, since kube-scheduler looks for victims among pods of lower priority only.
        """
        with self.running(case) as pids:
            pods = [
                of_priority("urgent", item) for item in crowd_of(lambda number: 90_000)[: case.pods]
            ]
            before, cpu = self.refusals(), Cpu(pids)
            with ThreadPoolExecutor(DELETING) as pool:
                list(pool.map(self.kube.create, pods))
            eventually(
                lambda: self.refusals() - before >= case.pods,
                "each pod is refused",
                timeout=180,
                interval=0.2,
            )
            count, spent = self.refusals() - before, cpu.spent()
            self.clear(CROWD)
        self.run.say(
            remarks(
                f"{case.name}: {count} refusals, {1000 * spent['kube-scheduler'] / count:.1f} ms each",
                disturbed(spent),
            )
        )
        return Refused(count, spent)

    def refusals(self) -> int:
        """Returns for how many pods kube-scheduler has found no node, as often as it has tried."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = (
            False,
            ssl.CERT_NONE,
        )  # its certificate is of its own
        url = f"https://127.0.0.1:{self.kube_scheduler_port}/metrics"
        with urllib.request.urlopen(url, context=context, timeout=30) as answer:
            text = answer.read().decode()
        return sum(
            int(float(count))
            for count in re.findall(
                r'^scheduler_schedule_attempts_total\{.*result="unschedulable"\} (\S+)',
                text,
                re.MULTILINE,
            )
        )

    def say(self, case: Case, outcome: Outcome) -> None:
        self.run.say(
            remarks(
                f"{case.name}: {case.pods} pods on {case.nodes} nodes: "
                f"{outcome.seconds:.2f} s, {outcome.rate:.1f} pods/s",
                trouble([outcome]),
                disturbed(outcome.cpu),
            )
        )

    @contextlib.contextmanager
    def running(self, case: Case) -> Iterator[dict[str, int]]:
        """Runs what *case* needs, without pods at first and at the end. Yields the processes by name."""
        with contextlib.ExitStack() as stack:
            pids = {
                name: program.pid
                for name, program in self.cluster.components.items()
                if program.running()
            }
            for name in self.names:
                texts = {key: text if case.lock_free else None for key, text in LOCK_FREE.items()}
                texts[ALLOCATION_MODE] = "dra" if case.allocates_claims else None
                self.kube.merge_patch("Node", name, {"metadata": {"annotations": texts}})
            if case.extender:
                flags = {}
                if case.allocates_claims:
                    call_webhooks(self.kube, self.certificates, self.cluster.webhook_port)
                    flags["dra"] = "allocate"
                replica = Scheduler(self.cluster, self.certificates, self.kubeconfig)
                replica.start(node_scheduler_policy=case.policy, **flags)
                stack.callback(replica.stop)
                pids["hami"] = replica.program.pid
                if not case.allocates_claims:
                    switch_to(POLICIES if case.policies else WEBHOOK, self.kube, replica)
                if not case.lock_free:
                    pids["allocator"] = stack.enter_context(
                        self.started(
                            "allocator",
                            [
                                sys.executable,
                                "-m",
                                "testing.agent",
                                "--kubeconfig",
                                str(self.cluster.kubeconfig),
                                "--delay",
                                str(ALLOCATOR_DELAY),
                            ],
                        )
                    )
            else:
                self.kube.delete("MutatingWebhookConfiguration", "hami-webhook")
            port = self.cluster.extender_port
            if case.between is not None:
                port = free_port()
                pids["between"] = stack.enter_context(
                    self.started(
                        "between",
                        [
                            sys.executable,
                            "-m",
                            "benchmarks.refusals",
                            f"--port={port}",
                            f"--extender-port={self.cluster.extender_port}",
                            *case.between,
                        ],
                    )
                )
            pids["kube-scheduler"] = stack.enter_context(self.kube_scheduler(case, port))
            stack.callback(self.clear)
            self.place(case, 1, {})
            self.clear()
            time.sleep(1)
            yield {name: pid for name, pid in pids.items() if pid}

    def place(self, case: Case, count: int, pids: dict[str, int]) -> Outcome:
        """Creates pods and waits until all are done."""
        events = self.kube.page("Event", NAMESPACE)["metadata"]["resourceVersion"]
        job = arrivals.job(
            kubeconfig=self.cluster.kubeconfig,
            pod=pod_of(case),
            namespace=NAMESPACE,
            count=count,
            allocated=case.allocated,
        )
        cpu = Cpu(pids)
        answer = self.run.ask("arrivals", job)
        spent = cpu.spent(load=answer["cpu_seconds"])
        if answer["refused"]:
            raise RuntimeError(f"the API server refused pods: {answer['refused']}")
        used = {pod["spec"].get("nodeName") for pod in self.kube.list("Pod", NAMESPACE)} - {None}
        return Outcome(
            seconds=max(answer["done"], default=0),
            bound=max(answer["bound"], default=0),
            created=answer["created"],
            pods=count,
            nodes_used=len(used),
            failed=self.failures(events),
            cpu=spent,
            missing=count - len(answer["done"]),
        )

    def failures(self, since: str) -> dict[str, int]:
        """Returns failure events after the version *since*, by reason."""
        counts: dict[str, int] = {}
        for event in self.kube.list("Event", NAMESPACE):
            if int(event["metadata"]["resourceVersion"]) > int(since) and "Fail" in event["reason"]:
                counts[event["reason"]] = counts.get(event["reason"], 0) + (event.get("count") or 1)
        return counts

    def clear(self, namespace: str = NAMESPACE) -> None:
        """Deletes all pods, one by one: the API server ends a request for all of them after a minute."""
        names = [pod["metadata"]["name"] for pod in self.kube.list("Pod", namespace)]
        with ThreadPoolExecutor(DELETING) as pool:
            list(
                pool.map(
                    lambda name: self.kube.delete("Pod", name, namespace, grace_seconds=0), names
                )
            )
        self.kube.wait(
            "Pod", lambda pods: not pods, namespace, timeout=180, what="the pods are gone"
        )

    @contextlib.contextmanager
    def kube_scheduler(self, case: Case, port: int) -> Iterator[int]:
        """Runs kube-scheduler with the shipped configuration and the extender at *port*, or with the defaults of
        Kubernetes."""
        if case.extender:
            folder = ALLOCATE if case.allocates_claims else MANIFESTS
            config = scheduler_config(port, folder=folder)
        else:
            config = {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "profiles": [{"schedulerName": "hami-scheduler"}],
                "clientConnection": {},
            }
        config |= case.config
        config["clientConnection"] |= case.client | {"kubeconfig": str(self.cluster.kubeconfig)}
        config["leaderElection"] = {"leaderElect": False}
        path = self.cluster.folder / "kube-scheduler-under-test.yaml"
        path.write_text(yaml.safe_dump(config))
        with self.started(
            "kube-scheduler",
            [
                str(self.cluster.binaries["kube-scheduler"]),
                f"--config={path}",
                f"--secure-port={self.kube_scheduler_port}",
                "--bind-address=127.0.0.1",
                "--authorization-always-allow-paths=/metrics",
                *case.flags,
            ],
            case.environment,
        ) as pid:
            yield pid

    @contextlib.contextmanager
    def started(
        self, name: str, argv: list[str], environment: Object | None = None
    ) -> Iterator[int]:
        program = Program(
            name,
            argv,
            self.cluster.folder / f"{name}-bench.log",
            env=os.environ | environment if environment else None,
        ).start()
        try:
            yield program.pid or 0
        finally:
            program.kill()


def pod_of(case: Case) -> Object:
    """Returns a user's pod with the extender; without it, one that asks for what *case* says."""
    pod = fleet.asking_pod("pod")
    pod["metadata"]["namespace"] = NAMESPACE
    if case.extender:
        del pod["spec"]["schedulerName"]
        if case.allocates_claims:
            pod["metadata"]["labels"] |= {ALLOCATION_MODE: "dra"}
        if case.asks == Asks.CLAIM:
            del pod["spec"]["containers"][0]["resources"]
            return claiming(pod, Asks.CLAIM)
        if case.wishes:
            pod["metadata"]["labels"] = {"app": "bench"}
            pod["spec"]["affinity"] = {
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "weight": 1,
                            "podAffinityTerm": {
                                "topologyKey": "kubernetes.io/hostname",
                                "labelSelector": {"matchLabels": {"app": "bench"}},
                            },
                        }
                    ]
                }
            }
    else:
        amounts = pod["spec"]["containers"][0]["resources"]
        for kind in amounts.values():
            del kind["nvidia.com/gpumem"], kind["nvidia.com/gpucores"]
            if case.asks != Asks.GPU:
                del kind["nvidia.com/gpu"]
        if case.asks == Asks.CLAIM:
            return claiming(pod, Asks.CLAIM)
    return pod


def crowd_of(memory: Callable[[int], int]) -> list[Object]:
    """Returns pods of another tenant, each of which requests more *memory* (MiB) than a device has."""
    pods = []
    for number in range(HOPELESS):
        pod = pod_of(BESIDE)
        pod["metadata"] |= {"namespace": CROWD, "name": f"hopeless-{number:04}"}
        for amounts in pod["spec"]["containers"][0]["resources"].values():
            amounts["nvidia.com/gpumem"] = str(memory(number))
        pods.append(pod)
    return pods


def is_ready(node: Object | None) -> bool:
    conditions = (node or {}).get("status", {}).get("conditions") or []
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def throughput_row(found: dict[str, list[Outcome]], case: Case) -> Row:
    outcomes = found[case.name]
    rate = mean(outcomes, "rate")
    shipped, lifted = (mean(found[alone.name], "rate") for alone in (SHIPPED, LIFTED))
    if case in LOCKED:
        target, met = (
            f"≥ {LOCKED[case]} pods/s; ≤ 5 ms",
            rate >= LOCKED[case] and mean(outcomes, "extender_ms") <= 5,
        )
    else:
        target, met = cost_target(case, outcomes)
        target = remarks("≥ 2.1 × kube-scheduler as shipped, ≥ 0.6 × limit lifted", target)
        met = met and rate >= max(2.1 * shipped, 0.6 * lifted)
    return Row(
        group="e2e",
        what=f"end to end, {case.nodes} × {fleet.GPUS}, {case.pods} pods, {case.name}",
        measured=placed(outcomes),
        target=target,
        met=met and not any(outcome.missing for outcome in outcomes),
        compared=remarks(
            ratio(rate, shipped, "kube-scheduler alone as shipped"),
            ratio(rate, lifted, "with its limit lifted"),
            f"upstream, measured elsewhere: {UPSTREAM[case.policy]}/s",
            disturbance(outcomes),
        ),
        figures=figures(outcomes),
    )


def cost_target(case: Case, outcomes: Sequence[Outcome]) -> tuple[str, bool]:
    """Returns what a pod on a node without locks may cost, and whether it does not cost more."""
    extender, api_server = mean(outcomes, "extender_ms"), mean(outcomes, "api_server_ms")
    if case.policies:
        return "extender ≤ 2.2 ms, API server ≤ 5.5 ms", extender <= 2.2 and api_server <= 5.5
    return "extender ≤ 4 ms", extender <= 4


def wishes_row(found: dict[str, list[Outcome]]) -> Row:
    outcomes, plain = found[WISHES_FREE.name], mean(found[SPREAD_FREE.name], "rate")
    rate = mean(outcomes, "rate")
    return Row(
        group="e2e",
        what=f"{WISHES_FREE.pods} pods that wish to be apart, {WISHES_FREE.nodes} × {fleet.GPUS}",
        measured=placed(outcomes),
        target="≥ 0.6 × without wishes",
        met=rate >= 0.6 * plain and not any(outcome.missing for outcome in outcomes),
        compared=remarks(
            ratio(rate, plain, f"without wishes ({plain:.1f} pods/s)"), disturbance(outcomes)
        ),
        figures=figures(outcomes),
    )


def cycles_row(plain: Latency, wishing: Latency) -> Row:
    return Row(
        group="e2e",
        what="filter, prioritize and bind of a pod that wishes to be apart, p50 / p99",
        measured=str(wishing),
        target="p99 ≤ 2 × without wishes",
        met=wishing.p99 <= 2 * plain.p99,
        compared=remarks(
            ratio(wishing.p99, plain.p99, "the p99 of filter and bind without wishes, in turns"),
            ratio(wishing.p50, plain.p50, "its p50"),
            f"{plain}; {CYCLES} pods each",
        ),
        figures={
            "wishes_p50_ms": wishing.p50,
            "wishes_p99_ms": wishing.p99,
            "p50_ms": plain.p50,
            "p99_ms": plain.p99,
        },
    )


def refused_row(unresolvable: Sequence[Refused], resolvable: Sequence[Refused]) -> Row:
    cost, other = (
        statistics.mean(one.each_ms("kube-scheduler") for one in turns)
        for turns in (unresolvable, resolvable)
    )
    hami = statistics.mean(one.each_ms("hami") for one in unresolvable)
    return Row(
        group="refused",
        what=f"a pod that none of {UNRESOLVABLE.nodes:,} nodes fits: CPU of kube-scheduler for "
        "each time it is tried",
        measured=remarks(f"{cost:.1f} ms", f"extender {hami:.1f} ms"),
        target="≤ 0.5 × looking for victims",
        met=cost <= 0.5 * other,
        compared=remarks(
            ratio(cost, other, f"told that the end of other pods could help ({other:.1f} ms)"),
            next(filter(None, (disturbed(one.cpu) for one in unresolvable)), ""),
        ),
        figures={
            "unresolvable": [one.figures() for one in unresolvable],
            "resolvable": [one.figures() for one in resolvable],
        },
    )


def large_row(
    case: Case, outcomes: Sequence[Outcome], locked: Outcome, lifted: Sequence[Outcome]
) -> Row:
    rate, alone = mean(outcomes, "rate"), mean(lifted, "rate")
    target, met = cost_target(case, outcomes)
    return Row(
        group="large",
        what=f"end to end, {case.nodes} × {fleet.GPUS}, {case.pods} pods, {case.name}",
        measured=placed(outcomes),
        target=remarks("≥ 0.55 × kube-scheduler with its limit lifted", target),
        met=met and rate >= 0.55 * alone and not any(outcome.missing for outcome in outcomes),
        compared=remarks(
            ratio(rate, alone, f"kube-scheduler alone with its limit lifted ({alone:.1f} pods/s)"),
            ratio(rate, locked.rate, f"nodes with locks ({locked.rate:.1f} pods/s)"),
            disturbance(outcomes),
        ),
        figures=figures(outcomes) | {"locked": locked.figures(), "lifted": figures(lifted)},
    )


def settings_row(case: Case, outcomes: Sequence[Outcome], shipped: Sequence[Outcome]) -> Row:
    return Row(
        group="settings",
        what=f"kube-scheduler {case.name}, {case.nodes} × {fleet.GPUS}, {case.pods} pods",
        measured=placed(outcomes),
        compared=remarks(
            ratio(mean(outcomes, "rate"), mean(shipped, "rate"), "as shipped"),
            ratio(
                mean(outcomes, "kube_scheduler_ms"),
                mean(shipped, "kube_scheduler_ms"),
                "the CPU time of kube-scheduler",
            ),
            disturbance(outcomes),
        ),
        figures=figures(outcomes),
    )


def placed(outcomes: Sequence[Outcome]) -> str:
    return remarks(
        f"{mean(outcomes, 'rate'):.1f} pods/s {each(outcomes)}".rstrip(),
        f"CPU a pod: extender {mean(outcomes, 'extender_ms'):.1f} ms, API server "
        f"{mean(outcomes, 'api_server_ms'):.1f}, kube-scheduler {mean(outcomes, 'kube_scheduler_ms'):.1f}",
        f"{outcomes[-1].nodes_used} nodes used",
        trouble(outcomes),
    )


def baseline_row(found: dict[str, list[Outcome]], case: Case) -> Row:
    outcomes = found[case.name]
    return Row(
        group="e2e",
        what=f"{case.name}, the same pods asking for a plain nvidia.com/gpu",
        measured=f"{mean(outcomes, 'rate'):.1f} pods/s {each(outcomes)}",
        compared=disturbance(outcomes),
        figures=figures(outcomes),
    )


def burst_row(case: Case, outcomes: list[Outcome], target: float) -> Row:
    slowest = max(outcome.seconds for outcome in outcomes)
    failed = any(outcome.failed or outcome.missing for outcome in outcomes)
    return Row(
        group="burst",
        what=f"{case.pods} pods on {case.nodes} nodes at once, {case.name}",
        measured=remarks(
            seconds(outcomes), f"nodes used: {outcomes[-1].nodes_used}", trouble(outcomes)
        ),
        target=f"< {target} s, none failed",
        met=slowest < target and not failed,
        compared=remarks(
            "the slowest run counts",
            "upstream, measured elsewhere: 74 s, 89 failed binds",
            disturbance(outcomes),
        ),
        figures=figures(outcomes),
    )


def queue_row(outcomes: list[Outcome]) -> Row:
    slowest = max(outcome.seconds for outcome in outcomes)
    return Row(
        group="queue",
        what=f"{QUEUE.pods} pods on one node, allocator answers after 20 ms",
        measured=remarks(
            f"{seconds(outcomes)} until all have their devices",
            f"{1000 * mean(outcomes, 'seconds') / QUEUE.pods:.0f} ms a pod",
            trouble(outcomes),
        ),
        target="< 2.5 s",
        met=slowest < 2.5 and not any(outcome.missing for outcome in outcomes),
        compared=remarks(
            f"the slowest run counts; the allocator alone: {QUEUE.pods * ALLOCATOR_DELAY:.1f} s",
            "upstream, by its users' reports: 15 to 30 minutes",
            disturbance(outcomes),
        ),
        figures=figures(outcomes),
    )


def unplaceable_rows(
    quiet: list[Outcome], equal: list[Outcome], different: list[Outcome]
) -> Iterator[Row]:
    """Yields rows for a tenant whose pods no node fits."""
    usual = mean(equal, "seconds")
    for what, outcomes, limit in (("equal", equal, 0.0), ("different", different, 1.2)):
        slowest, taken = max(outcome.seconds for outcome in outcomes), mean(outcomes, "seconds")
        met = (
            slowest <= 5
            and not any(outcome.missing for outcome in outcomes)
            and taken <= (limit or 1) * usual
        )
        yield Row(
            group="unplaceable",
            what=f"{BESIDE.pods} pods on {BESIDE.nodes} nodes beside {HOPELESS} with {what} requests, "
            "which no node fits",
            measured=remarks(seconds(outcomes), trouble(outcomes)),
            target=remarks("≤ 5 s", f"≤ {limit:g} × beside equal requests" if limit else ""),
            met=met,
            compared=remarks(
                ratio(taken, usual, "beside equal requests") if limit else "",
                ratio(taken, mean(quiet, "seconds"), f"without them ({seconds(quiet)})"),
                disturbance(outcomes),
            ),
            figures=figures(outcomes),
        )


def mean(outcomes: Sequence[Outcome], name: str) -> float:
    return float(statistics.mean(getattr(outcome, name) for outcome in outcomes))


def each(outcomes: Sequence[Outcome]) -> str:
    return (
        f"({', '.join(f'{outcome.rate:.1f}' for outcome in outcomes)})" if len(outcomes) > 1 else ""
    )


def seconds(outcomes: list[Outcome]) -> str:
    return ", ".join(f"{outcome.seconds:.2f}" for outcome in outcomes) + " s"


def trouble(outcomes: Sequence[Outcome]) -> str:
    """Returns what failed; empty if nothing did."""
    reasons = {reason for outcome in outcomes for reason in outcome.failed}
    told = [
        f"{sum(o.failed.get(reason, 0) for o in outcomes)} {reason}" for reason in sorted(reasons)
    ]
    if missing := sum(outcome.missing for outcome in outcomes):
        told.append(f"{missing} pods never placed")
    return ", ".join(told)


def disturbance(outcomes: Sequence[Outcome]) -> str:
    return next(filter(None, (disturbed(outcome.cpu) for outcome in outcomes)), "")


def figures(outcomes: Sequence[Outcome]) -> Object:
    return {"runs": [outcome.figures() for outcome in outcomes]}
