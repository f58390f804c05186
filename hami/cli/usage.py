"""The command for people that shows what was held: usage."""

from __future__ import annotations

import click

from hami.cli.client import Answer, Client, people_command, show_note
from hami.errors import HamiError
from hami.inspect.tables import CSV, FOCUS, Style
from hami.inspect.usage import (
    GROUPS,
    SHARES,
    UsageQuery,
    make_report,
    parse_prices,
    parse_since,
    render_csv,
    render_focus,
    render_usage,
)
from hami.runtime.options import read_text


@people_command(
    "usage",
    examples="""
hami usage
hami usage --since 4w --by owner -n team-a
hami usage --since 2026-11-01 --prices prices.yaml -o csv
""",
    forms=(CSV, FOCUS),
)
@click.option(
    "--since",
    default="7d",
    show_default=True,
    metavar="TIME",
    help="From when: hours, days or weeks ago (36h, 7d, 4w), or a date in UTC.",
)
@click.option(
    "--by",
    type=click.Choice(tuple(GROUPS)),
    default="namespace",
    show_default=True,
    help="The rows. Workloads (owner) are known by whole days.",
)
@click.option(
    "--share",
    type=click.Choice(SHARES),
    default="dominant",
    show_default=True,
    help="The part of a device that GPU-hours count: the larger one of its memory and its cores (dominant), one of "
    "them, or their mean.",
)
@click.option(
    "--prices",
    default="",
    metavar="FILE",
    help="Prices of GPU-hours (YAML): currency, prices by model, and default.",
)
@click.option(
    "--usage-namespace",
    default="hami-usage",
    show_default=True,
    metavar="NAME",
    help="Namespace of the records, as the scheduler's flag says.",
)
def usage_command(
    *,
    client: Client,
    style: Style,
    since: str,
    by: str,
    share: str,
    prices: str,
    usage_namespace: str,
) -> Answer:
    """Show who has held how much of the devices, from the Bindings of pods to their ends.

    It shows what was allocated, not what was used; -n leaves the other namespaces out. -o csv and -o focus are for
    spreadsheets and billing; the latter has the columns of FOCUS by the hour. Needs the right to get ConfigMaps in the
    namespace of the records.
    """
    from hami.inspect.read_usage import UsageReader

    if client.snapshot:
        raise HamiError("--snapshot: a snapshot has no usage")
    priced = parse_prices(read_text("--prices", prices), prices) if prices else None
    reader = UsageReader(client.connect(client), usage_namespace, show_note)
    sums = reader.current()
    query = UsageQuery(
        since=parse_since(since, sums.settled),
        until=sums.settled,
        by=by,
        namespace=client.namespace,
        share=share,
        prices=priced,
    )
    days = list(reader.days(sums, query.start, with_owners=by == "owner"))
    report = make_report(days, query)

    def text() -> str:
        if style.form == CSV:
            return render_csv(report)
        if style.form == FOCUS:
            return render_focus(days, query)
        return render_usage(report, style)

    return Answer(document=report, text=text, kind="UsageReport")
