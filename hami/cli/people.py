"""The commands for people: top, explain, simulate, audit and snapshot."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from hami.cli.client import Answer, Client, people_command, show_note
from hami.cli.complete import complete_top, pod_argument
from hami.cli.targets import pod_and_rest, type_and_names
from hami.codec.policies import NODE_POLICIES
from hami.errors import HamiError
from hami.inspect.tables import Style
from hami.model import DisruptionBudget, Pod, PodRef
from hami.scheduler.settings import Settings

if TYPE_CHECKING:
    from hami.inspect.cluster import InspectedCluster
    from hami.inspect.explain import BoundReport, WaitingReport
    from hami.inspect.gpu_hours import BudgetReport
    from hami.inspect.manifests import PodSource
    from hami.inspect.upgrade import AdmissionVerdict
    from hami.scheduler.admit import Admitted, Denied
    from hami.state.view import View

SORTS = ("name", "memory", "cores", "free", "pods", "age", "stranded")
INTERVAL_S = 2.0
PAUSE_FACTOR = 10  # the pause of -w is at least so many times as long as reading takes
FILES = click.option(
    "-f",
    "--filename",
    "files",
    type=click.File("r", encoding="utf-8"),
    multiple=True,
    required=True,
    help="Manifests (YAML or JSON); - reads standard input. May be given several times.",
)
SCHEDULER_NAME = click.option(
    "--scheduler-name",
    default="hami-scheduler",
    show_default=True,
    metavar="NAME",
    help="Name of HAMi's scheduler in pods.",
)
MAX_CHARACTERS = 20_000_000  # of a manifest


@people_command(
    "top",
    examples="""
hami top
hami top cards gpu-node-1
hami top pods -A --sort-by memory
hami top namespaces
""",
)
@click.argument(
    "words",
    nargs=-1,
    metavar="[nodes|cards|pods|namespaces] [NAME]...",
    shell_complete=complete_top,
)
@click.option(
    "-l",
    "--selector",
    default="",
    metavar="SELECTOR",
    help="Label selector of nodes (nodes, cards) or pods.",
)
@click.option(
    "--sort-by",
    "sort",
    type=click.Choice(SORTS),
    default="name",
    show_default=True,
    help="Order of the rows; the greatest is first, except by name.",
)
@click.option(
    "-w",
    "--watch",
    is_flag=True,
    help=f"Show it again every {INTERVAL_S:g} seconds, or less often where "
    "reading takes long, until Ctrl-C.",
)
def top_command(
    *,
    client: Client,
    style: Style,
    words: tuple[str, ...],
    selector: str,
    sort: str,
    watch: bool,
) -> None:
    """Show how much of the devices is allocated.

    It shows that by node, by card, by pod or by namespace. NAMEs are those of nodes (for nodes and cards), pods or
    namespaces. Pods are those of one namespace, unless -A is given. Memory is in MiB; bars show memory and cores that
    pods hold, not what they use. Needs the right to list nodes and pods of the cluster.
    """
    from hami.inspect.top import TopQuery, render_top

    kind, names = type_and_names(words)
    namespace = client.namespace
    if kind == "pods":
        namespace = client.chosen_namespace()
    query = TopQuery(kind=kind, names=names, namespace=namespace, selector=selector, sort=sort)
    if watch and client.snapshot:
        raise HamiError("-w needs a cluster: a snapshot does not change")
    if not watch:
        _show(render_top(client.cluster(), query, style), namespace)
        return
    try:
        while True:
            begun = time.monotonic()
            text = render_top(client.cluster(), query, style)
            if sys.stdout.isatty():
                click.clear()
            _show(text, namespace)
            time.sleep(max(INTERVAL_S, PAUSE_FACTOR * (time.monotonic() - begun)))
    except KeyboardInterrupt:
        return


def _show(text: str, namespace: str) -> None:
    """Prints *text*; if there is none, that nothing was found, as kubectl says it."""
    if text:
        click.echo(text)
        return
    where = f" in {namespace} namespace" if namespace else ""
    click.echo(f"No resources found{where}.", err=True)


@people_command(
    "explain",
    examples="""
hami explain train-0
hami explain pod/train-0 -n team-a
hami explain pod train-0 -v
hami explain train-0 -w
""",
    hidden=("-A",),
)
@pod_argument()
@click.option(
    "-v", "--verbose", is_flag=True, help="Show the nearest nodes and cards; -o wide shows all."
)
@click.option(
    "-w", "--watch", is_flag=True, help="Show it again whenever it changes, until Ctrl-C."
)
def explain_command(
    *, client: Client, style: Style, words: tuple[str, ...], verbose: bool, watch: bool
) -> Answer | None:
    """Explain why a pod waits, or what is allocated to it.

    First why; then the smallest changes with which the pod would fit, each tried with the scheduler's own decision;
    then the nearest nodes and what they lack, whom it would preempt, and what kube-scheduler said last. Needs the
    right to list nodes and pods of the cluster, or that the cluster has the API group inspect.hami.io; for gangs, also
    the right to get podgroups in their namespaces; and to count with PodDisruptionBudgets, the right to list them. Of
    a pod that waits for claims which kube-scheduler allocates, it shows what kube-scheduler said.
    """
    name, _ = pod_and_rest(words, 0)
    namespace = client.single_namespace("a pod has one namespace")

    def explain() -> Answer:
        return _explanation(client, style, PodRef(namespace, name, ""), verbose=verbose)

    if not watch:
        return explain()
    if client.snapshot:
        raise HamiError("-w needs a cluster: a snapshot does not change")
    if style.is_document:
        raise HamiError("-w shows text: leave out -o json and other documents")
    _follow(client, namespace, name, explain)
    return None


def _follow(client: Client, namespace: str, name: str, explain: Callable[[], Answer]) -> None:
    """Prints the answer of *explain* whenever it has changed."""
    from hami.cli.following import LONGEST_S, PodWatch, follow
    from hami.kube.api import Api

    api = Api.connect(client.access, pool=1)

    def streams(path: str, query: Mapping[str, str]) -> Any:
        return api.stream(path, query, read_timeout=2.0 * LONGEST_S)

    def document_and_text() -> tuple[object, str]:
        answer = explain()
        return answer.document, answer.text()

    follow(document_and_text, PodWatch(streams, namespace, name).wait)


def _explanation(client: Client, style: Style, ref: PodRef, *, verbose: bool) -> Answer:
    """Returns the explanation of a pod. Raises: HamiError."""
    from hami.cli.remote_explanation import remote_explanation
    from hami.inspect.claims import explain_claims, render_claims
    from hami.inspect.cluster import unknown_pod
    from hami.inspect.explain import explain_pod, render_report
    from hami.inspect.preemption import is_possible
    from hami.inspect.read import MissingRight

    def of_report(explained: WaitingReport | BoundReport) -> Answer:
        report = structs.replace(explained, budget=_budget_of(client, ref.namespace))
        return Answer(
            document=report,
            text=lambda: render_report(report, detailed=verbose, wide=style.form == "wide"),
            kind="PodExplanation",
            name=f"pod/{ref.name}",
        )

    try:
        cluster = client.cluster()
    except MissingRight as lacking:
        return of_report(
            remote_explanation(client.connect(client), ref.namespace, ref.name, lacking)
        )
    pod = cluster.pod_named(ref.namespace, ref.name) or client.find_pod(ref)
    if pod is None:
        raise unknown_pod(cluster, ref.namespace, ref.name)
    claims = _waiting_claims(client, cluster, pod)
    if claims:
        events = client.events(cluster.record, pod)
        of_claims = explain_claims(cluster, pod, claims, events)
        return Answer(
            document=of_claims,
            text=lambda: render_claims(of_claims),
            kind="PodExplanation",
            name=f"pod/{ref.name}",
        )
    if pod.node_name:
        return of_report(explain_pod(cluster, pod, ()))
    budgets = client.budgets() if pod.preempts and is_possible(cluster.view, pod) else ()
    report = explain_pod(
        cluster,
        pod,
        client.events(cluster.record, pod),
        budgets=budgets,
        pod_groups=client.pod_groups(),
    )
    moves = _moves_for(client, cluster, pod, report)
    if moves:
        report = structs.replace(report, moves=moves)
    return of_report(report)


def _budget_of(client: Client, namespace: str) -> BudgetReport | None:
    """Returns the budget of a namespace in GPU-hours, as far as the user may see it."""
    from hami.inspect.gpu_hours import read_budget

    if client.snapshot:
        return None
    return read_budget(client.connect(client), namespace, int(time.time()))


def _moves_for(
    client: Client, cluster: InspectedCluster, pod: Pod, report: WaitingReport | BoundReport
) -> int:
    """Returns after how many moves of other pods *pod* fits; 0 if that is not found in a moment, or not asked."""
    from hami.inspect.explain import WaitingReport
    from hami.inspect.moves import EXPLAIN_S, find_moves, movables
    from hami.state.moves import MoveLimits

    if not isinstance(report, WaitingReport) or report.fits or report.gang is not None:
        return 0

    def found(budgets: Sequence[DisruptionBudget]) -> int:
        limits = MoveLimits(seconds=EXPLAIN_S, cascades=False)
        movable = movables(cluster, budgets, pod)
        return len(find_moves(cluster, pod, movable, limits, time.monotonic).moves)

    moves = found(())
    if not moves:
        return 0
    budgets = client.budgets()  # not read where they cannot matter
    return found(budgets) if budgets else moves


def _waiting_claims(client: Client, cluster: InspectedCluster, pod: Pod) -> Sequence[str]:
    """Returns the claims for which *pod* waits and which kube-scheduler allocates, in words; none if it asks HAMi's
    scheduler, or does not wait."""
    from hami.vendors.request import requests_devices

    if pod.claim or pod.node_name or pod.is_terminated:
        return ()
    if requests_devices(cluster.vendors, pod.containers):
        return ()
    return client.claims_of(pod.ref)


@people_command(
    "simulate",
    examples="""
hami simulate -f job.yaml
hami simulate -f job.yaml --add-node like=gpu-node-1:2
hami simulate -f job.yaml --drain gpu-node-1
""",
    hidden=("-A",),
)
@FILES
@click.option(
    "--replicas",
    type=click.IntRange(0, 100_000),
    metavar="N",
    help="Pods of each workload, instead of its own number.",
)
@click.option(
    "--add-node",
    "added",
    multiple=True,
    metavar="like=NODE:COUNT",
    help="Add idle nodes like an existing one.",
)
@click.option(
    "--drain",
    "drained",
    multiple=True,
    metavar="NODE",
    help="Do without this node and place its pods again.",
)
@click.option(
    "--cordon",
    "cordoned",
    multiple=True,
    metavar="CARD",
    help="Do without this card (UUID) for new pods.",
)
@click.option(
    "--without",
    "ended",
    multiple=True,
    metavar="POD",
    help="Do without this pod (NAMESPACE/NAME or NAME).",
)
@click.option(
    "--policy",
    type=click.Choice(NODE_POLICIES),
    help="Node policy of the new pods, instead of their own.",
)
@click.option(
    "--with-preemption",
    is_flag=True,
    help="Evict pods of lower priority for pods that fit nowhere.",
)
@SCHEDULER_NAME
def simulate_command(
    *,
    client: Client,
    style: Style,
    files: tuple[Any, ...],
    scheduler_name: str,
    with_preemption: bool,
    **changes: Any,
) -> Answer:
    """Show how many pods of manifests would fit, and where.

    It also says why the next would not. Nothing is written. Pods, Deployments, ReplicaSets, StatefulSets, Jobs and
    CronJobs pass the same admission as in the cluster and are placed one after the other, in the order of the files.
    Exit status 1 if not all fit, or if some are not judged: pods with claims that kube-scheduler allocates.
    """
    from hami.inspect.cluster import InspectedCluster
    from hami.inspect.simulate import (
        Scenario,
        SimulatedPreemption,
        change_record,
        render_simulation,
        simulate,
    )

    scenario = Scenario(namespace=client.single_namespace("new pods have one namespace"), **changes)
    sources = read_files(files)
    record, moved = change_record(client.read(), scenario)
    cluster = InspectedCluster(record)
    cluster.check_has_devices()
    sources = with_claims(client, sources, cluster)
    preemption = None
    if with_preemption:
        preemption = SimulatedPreemption(
            budgets=client.budgets(),
            classes=client.priority_classes(),
            pod_groups=client.pod_groups(),
        )
    report = simulate(cluster, sources, moved, scenario, make_admit(scheduler_name), preemption)
    return Answer(
        document=report,
        text=lambda: render_simulation(report, style),
        kind="Simulation",
        status=int(not report.all_fit),
    )


@people_command(
    "audit",
    examples="""
hami audit
hami audit --before-upgrade -n team-a
""",
)
@click.option(
    "--before-upgrade",
    is_flag=True,
    help="List instead the workloads that would have to change before this HAMi replaces another.",
)
@click.option(
    "-f",
    "--filename",
    "files",
    type=click.File("r", encoding="utf-8"),
    multiple=True,
    help="With "
    "--before-upgrade: manifests (YAML or JSON) instead of the cluster's workloads; - reads standard input.",
)
@SCHEDULER_NAME
def audit_command(
    *,
    client: Client,
    style: Style,
    before_upgrade: bool,
    files: tuple[Any, ...],
    scheduler_name: str,
) -> Answer:
    """Find contradictions in a cluster, and what to do.

    Over-committed cards, allocations and inventories that cannot be read, cards and nodes that are gone, stale locks,
    ghost reservations, pods without the devices that they request, resizes that hang, upgrades from HAMi that have not
    been finished, and rights that are left of an upgrade.
    Exit status 1 if there is any.

    With --before-upgrade: workloads whose pods the webhook would refuse or warn of, and why. Nothing needs to be
    installed for it.
    """
    from hami.inspect.audit import audit, render_audit, settle
    from hami.inspect.cluster import InspectedCluster
    from hami.inspect.read_installation import InstallationReader

    if before_upgrade:
        return _before_upgrade(client, files, scheduler_name)
    if files:
        raise click.UsageError("-f is an option of --before-upgrade")
    record = client.read()
    if not client.snapshot:
        reader = client.reader()
        installation = InstallationReader(reader).installation()
        record = settle(replace(record, installation=installation), reader.pod, time.sleep)
    cluster = InspectedCluster(record)
    findings = audit(cluster)
    return Answer(
        document={"items": findings},
        text=lambda: render_audit(cluster, findings),
        kind="FindingList",
        status=bool(findings),
    )


def _before_upgrade(client: Client, files: tuple[Any, ...], scheduler_name: str) -> Answer:
    """Answers from *files*, else from the cluster: all of it, unless -n is given."""
    from hami.codec.keys import IGNORE, WEBHOOK
    from hami.inspect.cluster import ClusterRecord, InspectedCluster
    from hami.inspect.manifests import read_documents
    from hami.inspect.read_installation import InstallationReader
    from hami.inspect.upgrade import UpgradeCheck, render_upgrade
    from hami.runtime.clock import utc_now

    if client.snapshot and not files:
        raise HamiError(
            "a snapshot has no environment variables, on which the answer depends: add -f FILE, from "
            "kubectl get cronjobs,jobs,deployments,statefulsets,daemonsets,replicasets,pods -A -o json"
        )
    record = ClusterRecord(taken=utc_now(), nodes=(), pods=(), device_config=client.device_config())
    cluster, judge = InspectedCluster(record), make_judge(scheduler_name)
    if files:
        namespace = client.single_namespace("manifests without a namespace are of one namespace")
        check = UpgradeCheck(cluster, judge, namespace=namespace)
        for file in files:
            if others := check.add_all(list(read_documents(read_file(file), file.name))):
                show_note(
                    f"{file.name}: left out, since they make no pods: {', '.join(sorted(others))}"
                )
    else:
        reader = InstallationReader(client.reader())
        check = UpgradeCheck(
            cluster, judge, ignored=reader.labeled_namespaces(f"{WEBHOOK}={IGNORE}")
        )
        reader.workloads("" if client.all_namespaces else client.namespace, check.add)
    findings, count = check.findings, check.workloads
    return Answer(
        document={"items": findings},
        text=lambda: render_upgrade(count, findings),
        kind="UpgradeFindingList",
        status=bool(findings),
    )


@people_command(
    "snapshot",
    examples="""
hami snapshot --anonymize > cluster.json.gz
hami top --snapshot cluster.json.gz
""",
    has_forms=False,
    hidden=("-n", "-A"),
)
@click.option(
    "--anonymize",
    is_flag=True,
    help="Replace the names of nodes, pods, namespaces, quotas, priority "
    "classes and devices, and leave labels and events out.",
)
def snapshot_command(*, client: Client, anonymize: bool) -> None:
    """Write what decisions depend on to standard output.

    The file is compressed JSON: nodes, pods with devices, quotas, the device configuration and why pods could not be
    scheduled; no environment variables and no secrets. Every other command answers from it with --snapshot FILE.
    """
    from hami.inspect import snapshot
    from hami.inspect.read_installation import InstallationReader

    if sys.stdout.isatty():
        raise HamiError("a snapshot is not for terminals: hami snapshot > FILE")
    record = client.read()
    if not client.snapshot:
        reader = client.reader()
        installation = InstallationReader(reader).installation()
        record = replace(record, events=reader.all_events(), installation=installation)
    if anonymize:
        record = snapshot.anonymize(record)
    click.echo(snapshot.render_snapshot(record), nl=False)


def read_files(files: tuple[Any, ...]) -> list[PodSource]:
    """Returns what makes pods in *files*. Says which other objects, and which labels, are left out.

    Raises: HamiError.
    """
    from hami.codec.keys import ALLOCATION_MODE, CLAIM_ALLOCATION_MODES
    from hami.inspect.manifests import read_manifests

    sources: list[PodSource] = []
    for file in files:
        of_file, others = read_manifests(read_file(file), file.name)
        sources += of_file
        if others:
            show_note(f"{file.name}: left out, since they make no pods: {', '.join(others)}")
    claiming: list[str] = []
    for source in sources:
        labels = source.pod["metadata"].get("labels")
        if isinstance(labels, dict) and labels.get(ALLOCATION_MODE) in CLAIM_ALLOCATION_MODES:
            claiming.append(source.title)
    if claiming:
        show_note(
            f"the label {ALLOCATION_MODE} is not simulated, so it is ignored: {', '.join(claiming)}"
        )
    return sources


def with_claims(
    client: Client, sources: list[PodSource], cluster: InspectedCluster
) -> list[PodSource]:
    """Returns *sources* with what their pods name that kube-scheduler allocates to claims. Raises: HamiError."""
    from hami.codec.device_requests import claim_titles

    reader = None if client.snapshot else client.reader()

    def classes() -> Mapping[str, str]:
        return {} if reader is None else reader.classes_by_resource()

    managed = cluster.vendors.resources
    return [
        replace(source, claims=claim_titles(source.pod, classes, managed)) for source in sources
    ]


def read_file(file: Any) -> str:
    """Returns the text of *file*. Raises: HamiError."""
    try:
        text: str = file.read(MAX_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise HamiError(f"{file.name}: not UTF-8 text: {error.reason}") from error
    if len(text) > MAX_CHARACTERS:
        raise HamiError(f"{file.name} is larger than {MAX_CHARACTERS:,} characters")
    return text


def make_admit(scheduler_name: str) -> Callable[[View, Mapping[str, Any], str], Pod | str]:
    """Returns the scheduler's own admission."""
    from hami.codec.pods import convert_pod
    from hami.scheduler.admit import Denied

    decide = _make_decide(scheduler_name)

    def admit(view: View, pod: Mapping[str, Any], namespace: str) -> Pod | str:
        verdict = decide(view, pod, namespace)
        if isinstance(verdict, Denied):
            return f"admission denies it: {verdict.message}"
        if verdict.message:
            return f"it is not for HAMi: {verdict.message}"
        return convert_pod(verdict.pod)

    return admit


def make_judge(
    scheduler_name: str,
) -> Callable[[View, Mapping[str, Any], str], AdmissionVerdict]:
    """Returns the verdicts of the scheduler's own admission."""
    from hami.inspect.upgrade import AdmissionVerdict
    from hami.scheduler.admit import Denied

    decide = _make_decide(scheduler_name)

    def judge(view: View, pod: Mapping[str, Any], namespace: str) -> AdmissionVerdict:
        verdict = decide(view, pod, namespace)
        if isinstance(verdict, Denied):
            return AdmissionVerdict(verdict.message)
        if verdict.message:  # another scheduler's pod is not created in another way than before
            return AdmissionVerdict()
        return AdmissionVerdict(warnings=verdict.warnings)

    return judge


def _make_decide(
    scheduler_name: str,
) -> Callable[[View, Mapping[str, Any], str], Admitted | Denied]:
    from hami.codec.admission import Review
    from hami.scheduler.admit import Admitter

    settings = Settings(scheduler_name=scheduler_name)

    def decide(view: View, pod: Mapping[str, Any], namespace: str) -> Admitted | Denied:
        review = Review("", namespace, pod, "admission.k8s.io/v1", "AdmissionReview")
        return Admitter(view, settings).admit(review)

    return decide
