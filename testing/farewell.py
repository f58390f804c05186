"""The last words of a demonstration that keeps its cluster: commands to be copied into another terminal."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from testing.cluster import LocalCluster

__all__ = ["say_farewell"]

BEGIN = "The cluster stays up until Ctrl-C. Paste this into another terminal:"


def say_farewell(
    console: Console,
    cluster: LocalCluster,
    namespace: str,
    commands: Iterable[str],
    notes: Iterable[str],
) -> None:
    """Prints how to use the cluster. *namespace*: of its context from now on. *commands*: of kubectl and hami, and of
    the programs of the shell. *notes*: lines that are no commands.

    Nothing is put into a box and no line is broken: both would be copied, too.
    """
    cluster.kubectl("config", "set-context", "--current", f"--namespace={namespace}")
    lines = [BEGIN, "", *setup(cluster), *commands, "", *notes]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def setup(cluster: LocalCluster) -> list[str]:
    """Returns the commands after which a shell finds kubectl, hami and the cluster.

    The kubectl is that of the cluster's version. The folder of hami comes last: it has a Python, too.
    """
    kubectl, hami = (
        shlex.quote(str(folder))
        for folder in (cluster.binaries["kubectl"].parent, Path(sys.executable).parent)
    )
    return [
        f'export PATH={kubectl}:"$PATH":{hami}',
        f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}",
    ]
