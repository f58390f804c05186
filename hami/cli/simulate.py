"""``hami simulate`` and ``hami capacity``: pods that are not there yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from hami.cli.client import CONTEXT_SETTINGS, NODE_POLICIES, Client, client_options, output_options, show_note
from hami.errors import HamiError

if TYPE_CHECKING:
    from hami.inspect.manifests import PodSource
    from hami.inspect.tables import Style
    from hami.model import Pod
    from hami.state.view import View

FILES = click.option("-f", "--filename", "files", type=click.File("r", encoding="utf-8"), multiple=True, required=True,
                     help="Manifests (YAML or JSON); - reads standard input. May be given several times.")
SCHEDULER_NAME = click.option("--scheduler-name", default="hami-scheduler", show_default=True, metavar="NAME",
                              help="Name of HAMi's scheduler in pods.")
MAX_CHARACTERS = 20_000_000  # of a manifest


@click.command(name="simulate", context_settings=CONTEXT_SETTINGS)
@FILES
@click.option("--replicas", type=click.IntRange(0, 100_000), metavar="N", help="Pods of each workload, instead of "
              "its own number.")
@click.option("--add-node", "added", multiple=True, metavar="like=NODE:COUNT",
              help="Add idle nodes like an existing one.")
@click.option("--drain", "drained", multiple=True, metavar="NODE",
              help="Do without this node and place its pods again.")
@click.option("--cordon", "cordoned", multiple=True, metavar="CARD", help="Do without this card (UUID) for new pods.")
@click.option("--without", "ended", multiple=True, metavar="POD", help="Do without this pod (NAMESPACE/NAME or NAME).")
@click.option("--policy", type=click.Choice(NODE_POLICIES), help="Node policy of the new pods, instead of their own.")
@SCHEDULER_NAME
@client_options
@output_options
@click.pass_context
def simulate_command(ctx: click.Context, *, client: Client, style: Style, files: tuple[Any, ...], replicas: int | None,
                     added: tuple[str, ...], drained: tuple[str, ...], cordoned: tuple[str, ...],
                     ended: tuple[str, ...], policy: str | None, scheduler_name: str) -> None:
    """Show how many pods of manifests would fit, where each would go, and why the next would not.

    Nothing is written. Pods, Deployments, ReplicaSets, StatefulSets, Jobs and CronJobs pass the same admission as in
    the cluster and are placed one after the other, in the order of the files. Exit status 1 if not all fit.
    """
    import msgspec

    from hami.inspect.cluster import InspectedCluster
    from hami.inspect.simulate import Scenario, change_record, render_simulation, simulate
    from hami.inspect.tables import render_document

    sources = read_files(files)
    scenario = Scenario(namespace=_namespace(client), added=added, drained=drained, cordoned=cordoned, ended=ended,
                        policy=policy or "", replicas=replicas)
    record, moved = change_record(client.read(), scenario)
    cluster = InspectedCluster(record)
    cluster.check_has_devices()
    report = simulate(cluster, sources, moved, scenario, make_admit(scheduler_name))
    if style.form in ("json", "yaml"):
        click.echo(render_document(msgspec.to_builtins(report), style.form))
    else:
        click.echo(render_simulation(report, style))
    ctx.exit(0 if report.all_fit else 1)


@click.command(name="capacity", context_settings=CONTEXT_SETTINGS)
@FILES
@SCHEDULER_NAME
@client_options
@output_options
def capacity_command(*, client: Client, style: Style, files: tuple[Any, ...], scheduler_name: str) -> None:
    """Show how many more pods of a manifest the cluster takes, in total and for each node.

    The manifest has one Pod or one workload. Nothing is written.
    """
    import msgspec

    from hami.inspect.cluster import InspectedCluster
    from hami.inspect.simulate import Scenario, count_capacity, render_capacity
    from hami.inspect.tables import render_document

    sources = read_files(files)
    if len(sources) != 1:
        raise HamiError(f"expected one pod or workload, found {', '.join(source.title for source in sources)}")
    cluster = InspectedCluster(client.read())
    cluster.check_has_devices()
    found = count_capacity(cluster, sources[0], Scenario(namespace=_namespace(client)),
                           make_admit(scheduler_name))
    if style.form in ("json", "yaml"):
        click.echo(render_document({"pods": sum(one.pods for one in found), "nodes": msgspec.to_builtins(found)},
                                   style.form))
    else:
        click.echo(render_capacity(sources[0], found, style))


def read_files(files: tuple[Any, ...]) -> list[PodSource]:
    """Returns what makes pods in *files*; says which other objects are left out. Raises: HamiError."""
    from hami.inspect.manifests import read_manifests

    found: list[PodSource] = []
    for file in files:
        try:
            text = file.read(MAX_CHARACTERS + 1)
        except UnicodeDecodeError as error:
            raise HamiError(f"{file.name}: not UTF-8 text: {error.reason}") from error
        if len(text) > MAX_CHARACTERS:
            raise HamiError(f"{file.name} is larger than {MAX_CHARACTERS:,} characters")
        sources, others = read_manifests(text, file.name)
        found += sources
        if others:
            show_note(f"{file.name}: left out, since they make no pods: {', '.join(others)}")
    return found


def make_admit(scheduler_name: str) -> Callable[[View, Mapping[str, Any], str], Pod | str]:
    """Returns the scheduler's own admission."""
    from hami.codec.admission import Review
    from hami.codec.pods import convert_pod
    from hami.scheduler.admit import Admitter, Denied
    from hami.scheduler.settings import Settings

    def admit(view: View, pod: Mapping[str, Any], namespace: str) -> Pod | str:
        review = Review("", namespace, pod, "admission.k8s.io/v1", "AdmissionReview")
        verdict = Admitter(view, Settings(scheduler_name=scheduler_name)).admit(review)
        if isinstance(verdict, Denied):
            return f"admission denies it: {verdict.message}"
        if verdict.message:
            return f"it is not for HAMi: {verdict.message}"
        return convert_pod(verdict.pod)
    return admit


def _namespace(client: Client) -> str:
    if client.all_namespaces:
        raise HamiError("new pods have one namespace: use -n instead of -A")
    return client.chosen_namespace()
