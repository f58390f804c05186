"""``kubectl hami``: the commands for people as a plugin of kubectl, and their completion.

kubectl runs ``kubectl-hami`` for ``kubectl hami``, and ``kubectl_complete-hami`` with the words typed so far.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import ShellComplete

from hami import __version__
from hami.cli.group import LOCAL, PEOPLE, PLUGIN, Commands, run

NO_FILES = ":4"  # the last line of a completion: ShellCompDirectiveNoFileComp
WITH_FILES = ":0"


@click.group(
    cls=Commands, modules=PEOPLE | LOCAL, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="kubectl-hami", message="%(prog)s %(version)s")
def kubectl_main() -> None:
    """See how devices are shared in a cluster with HAMi, and why pods wait.

    Only resize writes anything. For the others, nothing needs to be installed in the cluster.
    """


def completions(words: list[str], connect: Callable[..., Any] | None = None) -> list[str]:
    """Returns the lines with which kubectl completes the last of *words*. *connect*: tests pass their own."""
    *args, incomplete = words or [""]
    shell = ShellComplete(kubectl_main, {"obj": connect}, "kubectl-hami", "_KUBECTL_HAMI_COMPLETE")
    items = shell.get_completions(args, incomplete)
    lines, directive = [], NO_FILES
    for item in items:
        if item.type == "file":
            directive = WITH_FILES
        elif item.type == "plain":
            lines.append(f"{item.value}\t{item.help}" if item.help else str(item.value))
    return [*lines, directive]


def console_script() -> None:
    """``kubectl-hami`` as a process."""
    run(kubectl_main, PLUGIN)


def complete() -> None:
    """``kubectl_complete-hami``: prints the completions of its arguments."""
    click.echo("\n".join(completions(sys.argv[1:])))
