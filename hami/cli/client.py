"""The commands for people as one kind: the user's own access to the cluster, and the form of the answer."""

from __future__ import annotations

import functools
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from hami.cli.complete import complete_form, complete_namespace
from hami.cli.group import PLUGIN
from hami.codec.policies import NODE_POLICIES
from hami.errors import ClusterError, HamiError
from hami.inspect.tables import Style, parse_form, printable, render_document, versioned
from hami.kube.access import UserAccess
from hami.model import DisruptionBudget, Pod, PodRef
from hami.runtime.options import TIMEOUT, Value, read_text

if TYPE_CHECKING:
    from hami.codec.objects import PriorityClass
    from hami.inspect.cluster import ClusterRecord, InspectedCluster, SchedulingEvent
    from hami.inspect.read import Reader
    from hami.kube.pages import Writer
    from hami.scheduling.preemption import PodGroups

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
REQUESTS_VERBOSITY = 6  # from which on requests are shown, as kubectl does
MAX_TIMEOUT_S = 3600.0  # of a request, if the user asks for none
YOUNG_OBJECTS = 1_000_000
"""Objects between two garbage collections: a command ends soon, and most of what it allocates stays until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The cluster as the user reaches it. *connect*: tests pass their own."""

    access: UserAccess
    request_timeout: float
    namespace: str
    all_namespaces: bool
    device_config_file: str
    device_config_map: str
    node_policy: str
    device_policy: str
    snapshot: str
    verbosity: int
    connect: Callable[[Client], Writer]

    def reader(self) -> Reader:
        """Returns a reader that shows its progress on a terminal, and notes on standard error."""
        from hami.inspect.read import Reader

        return Reader(self.connect(self), progress=show_progress, note=show_note)

    def writer(self) -> Writer:
        """Returns the calls of a command that writes.

        Whoever may run commands in a pod of ours could otherwise write with the rights of its program, and the API
        server would not know who it was.
        Raises: HamiError.
        """
        from hami.kube.api import uses_pod_account

        if uses_pod_account(self.access):
            raise HamiError(
                "a command that writes does not use the account of its pod: run it where you have a kubeconfig, "
                "or name one with --kubeconfig"
            )
        return self.connect(self)

    def read(self) -> ClusterRecord:
        """Returns the record of the cluster, or that of the snapshot. Raises: HamiError."""
        from hami.runtime.interpreter import collect_rarely
        from hami.state.view import Policies

        collect_rarely(YOUNG_OBJECTS)
        if self.snapshot:
            return read_snapshot(self.snapshot)
        text = None
        if self.device_config_file:
            text = read_text("--device-config-file", self.device_config_file)
        return self.reader().record(
            config_map=self.config_map(),
            device_config=text,
            policies=Policies(self.node_policy, self.device_policy),
        )

    def device_config(self) -> str:
        """Returns the text of the device configuration alone, empty for the chart's. Raises: HamiError."""
        if self.snapshot:
            return read_snapshot(self.snapshot).device_config
        if self.device_config_file:
            return read_text("--device-config-file", self.device_config_file)
        return self.reader().device_config(*self.config_map())

    def config_map(self) -> tuple[str, str]:
        """Returns namespace and name of the ConfigMap with the device configuration. Raises: HamiError."""
        namespace, slash, name = self.device_config_map.partition("/")
        if not slash:
            raise HamiError(
                f"--device-config-map={self.device_config_map}: expected NAMESPACE/NAME"
            )
        return namespace, name

    def cluster(self) -> InspectedCluster:
        """Returns the cluster. Raises: HamiError, also if no node offers devices."""
        from hami.inspect.cluster import InspectedCluster

        cluster = InspectedCluster(self.read())
        cluster.check_has_devices()
        return cluster

    def find_pod(self, ref: PodRef) -> Pod | None:
        """Returns the pod of this namespace and name, also one without devices; ``None`` if there is none."""
        if self.snapshot:
            return None
        return self.reader().pod(ref)

    def events(self, record: ClusterRecord, pod: Pod) -> Sequence[SchedulingEvent]:
        """Returns why *pod* of *record* could not be scheduled, in the words of kube-scheduler."""
        from hami.inspect.cluster import condition_event

        if self.snapshot:
            return record.events.get(pod.ref.uid, ())
        return self.reader().events(pod.ref, instead=condition_event(pod))

    def pod_groups(self) -> PodGroups:
        """Returns what reads the PodGroups; those of a snapshot are not known."""
        if self.snapshot:
            return lambda ref: None
        return self.reader().pod_group

    def claims_of(self, ref: PodRef) -> Sequence[str]:
        """Returns what a pod names that kube-scheduler allocates to claims, in words; nothing for a snapshot."""
        return () if self.snapshot else self.reader().claims_of(ref)

    def budgets(self) -> Sequence[DisruptionBudget]:
        """Returns the PodDisruptionBudgets; a snapshot has none."""
        if self.snapshot:
            return ()
        return self.reader().budgets()

    def priority_classes(self) -> Mapping[str, PriorityClass]:
        """Returns the PriorityClasses by name; a snapshot has none."""
        if self.snapshot:
            return {}
        return self.reader().priority_classes()

    def single_namespace(self, reason: str) -> str:
        """Returns the chosen namespace. Raises: HamiError with *reason* if it is not a single one."""
        if self.all_namespaces:
            raise HamiError(f"{reason}: use -n instead of -A")
        return self.chosen_namespace()

    def chosen_namespace(self) -> str:
        """Returns the namespace of the command line, else of the context; empty for all namespaces."""
        from hami.kube.api import context_namespace

        if self.all_namespaces:
            return ""
        if self.snapshot:
            return self.namespace or "default"
        return self.namespace or context_namespace(self.access.kubeconfig, self.access.context)


def read_snapshot(path: str) -> ClusterRecord:
    """Returns the record in the snapshot at *path*; ``-`` is standard input. Raises: HamiError."""
    from hami.inspect.snapshot import parse_snapshot

    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise HamiError(f"{path}: {error.strerror}") from error
    return parse_snapshot(data, path)


def connect_api(client: Client) -> Writer:
    """Returns calls to the API server of the user's kubeconfig. Raises: HamiError."""
    from hami.kube.api import Api

    api = Api.connect(client.access, timeout=client.request_timeout or MAX_TIMEOUT_S, pool=2)
    if client.verbosity < REQUESTS_VERBOSITY:
        return api.request
    return shown_requests(api.request, api.server)


def shown_requests(request: Writer, server: str) -> Writer:
    """Returns *request*, each call of which is shown on standard error with its status and time."""

    def call(method: str, path: str, **options: Any) -> bytes:
        begun = time.monotonic()
        status = "200"
        try:
            return request(method, path, **options)
        except ClusterError as error:
            status = str(error.status or "no answer")
            raise
        finally:
            query = urlencode(options.get("query") or {})
            url = f"{server}{path}?{query}" if query else f"{server}{path}"
            milliseconds = round(1000 * (time.monotonic() - begun))
            click.echo(printable(f"{method} {url} {status} in {milliseconds} ms"), err=True)

    return call


ACCESS_OPTIONS = (
    click.Option(
        ["--kubeconfig"],
        default="",
        metavar="FILE",
        help="Configuration of the access; without it that of KUBECONFIG, else ~/.kube/config.",
    ),
    click.Option(
        ["--context"], default="", metavar="NAME", help="Context of the configuration to use."
    ),
    click.Option(
        ["--cluster"], default="", metavar="NAME", help="Cluster of the configuration to use."
    ),
    click.Option(["--user"], default="", metavar="NAME", help="User of the configuration to use."),
    click.Option(["-s", "--server"], default="", metavar="URL", help="Address of the API server."),
    click.Option(
        ["--as", "impersonated"],
        default="",
        metavar="USER",
        help="User to act as; system:serviceaccount:NAMESPACE:NAME is a service account.",
    ),
    click.Option(
        ["--as-group", "groups"],
        multiple=True,
        metavar="GROUP",
        help="Group to act as. May be given several times.",
    ),
    click.Option(["--as-uid", "uid"], default="", metavar="UID", help="UID to act as."),
)
"""The fields of UserAccess."""
CLUSTER_OPTIONS = (
    click.Option(
        ["--request-timeout"],
        type=TIMEOUT,
        default="30s",
        show_default=True,
        metavar="DURATION",
        help="How long to wait for one answer of the API server; 0 for no limit.",
    ),
    click.Option(
        ["--device-config-file"],
        default="",
        metavar="FILE",
        envvar="HAMI_DEVICE_CONFIG_FILE",
        help="Device configuration of the scheduler, instead of the ConfigMap.",
    ),
    click.Option(
        ["--device-config-map"],
        default="kube-system/hami-scheduler-device",
        show_default=True,
        metavar="NAMESPACE/NAME",
        help="ConfigMap with the device configuration. kustomize adds a hash to the name: leave it out.",
    ),
    click.Option(
        ["--node-scheduler-policy", "node_policy"],
        type=click.Choice(NODE_POLICIES),
        default="least-waste",
        show_default=True,
        envvar="HAMI_NODE_SCHEDULER_POLICY",
        help="Default node policy of the scheduler, as its flag says.",
    ),
    click.Option(
        ["--gpu-scheduler-policy", "device_policy"],
        default="binpack",
        show_default=True,
        metavar="POLICY",
        envvar="HAMI_GPU_SCHEDULER_POLICY",
        help="Default device policy of the scheduler, as its flag says.",
    ),
)
VERBOSITY = click.Option(
    ["--v", "verbosity"],
    type=click.IntRange(0, 10),
    default=0,
    metavar="LEVEL",
    help="Verbosity, also as -v=LEVEL: from 6 on, each request to the API server is shown.",
)
COMMON_OPTIONS = (*ACCESS_OPTIONS, *CLUSTER_OPTIONS, VERBOSITY)
"""The options that all commands of a cluster have, and that `hami options` lists."""


def client_options(hidden: Sequence[str] = ()) -> tuple[click.Option, ...]:
    """Returns the options of what a command is about. *hidden*: those that no help shows."""
    return (
        click.Option(
            ["-n", "--namespace"],
            default="",
            metavar="NAME",
            help="Namespace of pods; without it that of the context.",
            hidden="-n" in hidden,
            shell_complete=complete_namespace,
        ),
        click.Option(
            ["-A", "--all-namespaces"],
            is_flag=True,
            help="Pods of all namespaces.",
            hidden="-A" in hidden,
        ),
        click.Option(
            ["--snapshot"],
            default="",
            metavar="FILE",
            help="Answer from a file that hami snapshot has written, "
            "instead of a cluster; it contains the device configuration and the policies.",
            hidden="--snapshot" in hidden,
        ),
    )


CLIENT_OPTIONS = client_options()
"""With CLUSTER_OPTIONS and VERBOSITY, the fields of `Client` but the first and the last."""


def output_options(forms: Sequence[str]) -> tuple[click.Option, ...]:
    """Returns the options of the output of a command that has *forms* of its own."""
    listed = "".join([f"{form}, " for form in forms])
    return (
        click.Option(
            ["-o", "--output", "form"],
            type=Value("form", functools.partial(parse_form, more=forms)),
            default="table",
            show_default=True,
            metavar="FORM",
            help=f"Form of the output: table, wide, {listed}json, yaml, name, jsonpath=TEMPLATE or "
            "custom-columns=SPEC.",
            shell_complete=complete_form,
        ),
        click.Option(
            ["--no-headers"], is_flag=True, help="Leave out headings and summaries of tables."
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a command. *document*: records, for JSON and YAML, which are of this *kind*. *text*: returns the
    text of the other forms.

    *status*: the exit status. *name*: of the object that it is about, as TYPE/NAME.
    """

    document: object
    text: Callable[[], str]
    kind: str
    status: int = 0
    name: str = ""


class PeopleCommand(click.Command):
    """A command for people. Its help leaves out the options that all of them have, and its examples name the program
    as it was called: hami, or the plugin of kubectl."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options."""
        own = [param for param in self.get_params(ctx) if param not in COMMON_OPTIONS]
        records = [param.get_help_record(ctx) for param in own]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the examples."""
        text = self.epilog or ""
        if ctx.find_root().info_name == PLUGIN:
            text = text.replace("hami ", f"{PLUGIN} ")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)


def people_command(
    name: str,
    *,
    examples: str,
    of_cluster: bool = True,
    has_forms: bool = True,
    forms: Sequence[str] = (),
    hidden: Sequence[str] = (),
) -> Callable[..., click.Command]:
    """Declares a command for people by a function that has the command's own arguments and options.

    *examples*: lines of a shell, for its help. *of_cluster*: the command has the options of the access, and the
    function takes ``client``. *has_forms*: the command has the options of the output, and the function takes ``style``
    and returns an `Answer`, or ``None`` if it has printed everything itself. *forms*: of the text, beside the usual
    ones. *hidden*: those of CLIENT_OPTIONS that mean nothing here: the help leaves them out.
    """

    def declare(function: Callable[..., Answer | None]) -> click.Command:
        @click.pass_context
        @functools.wraps(function)
        def run(ctx: click.Context, /, **values: Any) -> None:
            if of_cluster:
                values["client"] = _client_of(values, ctx)
            style = Style()
            if has_forms:
                style = make_style(values.pop("form"), headers=not values.pop("no_headers"))
                values["style"] = style
            answer = function(**values)
            if answer is None:
                return
            if style.form == "name" and answer.name:
                click.echo(answer.name)
            elif style.is_document:
                document = versioned(answer.kind, answer.document)
                click.echo(render_document(document, style.form, headers=style.headers))
            else:
                click.echo(answer.text())
            ctx.exit(answer.status)

        epilog = "\b\nExamples:\n" + textwrap.indent(examples.strip(), "  ")
        if of_cluster:
            epilog += (
                "\n\nFor the options of the access, which all commands have, see hami options."
            )
        command = click.command(
            name=name, cls=PeopleCommand, context_settings=CONTEXT_SETTINGS, epilog=epilog
        )(run)
        if of_cluster:
            command.params.extend(client_options(hidden))
            command.params.extend(COMMON_OPTIONS)
        if has_forms:
            command.params.extend(output_options(forms))
        return command

    return declare


def _client_of(values: dict[str, Any], ctx: click.Context) -> Client:
    """Takes the options of the access out of *values*, and returns what they say. Raises: click.UsageError."""
    access = _taken(values, ACCESS_OPTIONS)
    if (access["groups"] or access["uid"]) and not access["impersonated"]:
        raise click.UsageError("--as-group and --as-uid need --as")
    fields = _taken(values, (*CLUSTER_OPTIONS, *CLIENT_OPTIONS, VERBOSITY))
    return Client(access=UserAccess(**access), **fields, connect=ctx.obj or connect_api)


def _taken(values: dict[str, Any], options: Iterable[click.Option]) -> dict[str, Any]:
    """Takes the values of *options* out of *values*, and returns them by name."""
    return {str(option.name): values.pop(str(option.name)) for option in options}


def make_style(form: str, *, headers: bool) -> Style:
    """Returns the style of the output: with colors only on a terminal, and not if NO_COLOR is set."""
    # there is no output where it was closed
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return Style(form, headers, color=is_terminal and not os.environ.get("NO_COLOR"))


def show_note(text: str) -> None:
    """Prints a note on standard error."""
    click.echo(f"note: {printable(text)}", err=True)


def show_progress(resource: str, count: int, total: int) -> None:
    """Shows on a terminal how much of a list has been read; the line disappears with the last page."""
    if sys.stderr.isatty():
        line = ""
        if count < total:
            line = f"reading {resource}: {count:,} of {total:,}"
        click.echo(f"\r\x1b[K{line}", err=True, nl=False)


@click.command("options", context_settings=CONTEXT_SETTINGS)
@click.pass_context
def options_command(ctx: click.Context) -> None:
    """List the options that all these commands have."""
    formatter = ctx.make_formatter()
    records = [option.get_help_record(ctx) for option in COMMON_OPTIONS]
    with formatter.section("Options"):
        formatter.write_dl([record for record in records if record])
    click.echo(formatter.getvalue().rstrip())
