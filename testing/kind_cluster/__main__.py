"""Starts and removes the cluster: ``python -m testing.kind_cluster up|down``."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import time
from pathlib import Path

from testing import binaries, interrupts, kind_cluster
from testing.kind_cluster.docker import Docker, KindUnavailable, call
from testing.kind_cluster.images import BASE, KIND, ensure_node_image, find_programs

NAME = "hami-e2e"
CLUSTER = Path(__file__).with_name("cluster.yaml")
WAIT = "--timeout=180s"


def up(docker: Docker, kubeconfig: Path) -> dict[str, str]:
    """Returns the variables with which the cluster is used, which runs then.

    When a signal ends it, nothing is left that it has started. Raises: KindUnavailable, BinariesMissing.
    """
    is_ours = docker.start()
    try:
        return create(docker, kubeconfig)
    except interrupts.Interrupted:
        if is_ours:
            down(docker, kubeconfig)
        raise


def create(docker: Docker, kubeconfig: Path) -> dict[str, str]:
    """Returns the variables with which the cluster is used, which runs then, in *docker*.

    Raises: KindUnavailable, BinariesMissing.
    """
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s  {line}", file=sys.stderr, flush=True)

    programs = find_programs(say)
    image = ensure_node_image(docker, programs, say)
    kind, kubectl, options = (
        programs["kind"],
        programs["kubectl"],
        (f"--name={NAME}", f"--kubeconfig={kubeconfig}"),
    )

    def is_whole() -> bool:
        """Tells whether a cluster that exists runs: one may be left that was killed while it was made."""
        try:
            call(kind, "export", "kubeconfig", *options, environment=docker.environment)
            wait_until_it_runs(kubectl, kubeconfig)
        except KindUnavailable as error:
            say(f"the cluster {NAME} exists, but does not run, and is made anew: {error}")
            return False
        return True

    exists = NAME in call(kind, "get", "clusters", environment=docker.environment).split()
    if not exists or not is_whole():
        if exists:
            call(kind, "delete", "cluster", *options, environment=docker.environment)
        say(f"creating the cluster {NAME}")
        call(
            kind,
            "create",
            "cluster",
            *options,
            f"--image={image}",
            f"--config={CLUSTER}",
            "--wait=180s",
            environment=docker.environment,
        )
        wait_until_it_runs(kubectl, kubeconfig)
    say("the cluster runs")
    return {
        "DOCKER_HOST": docker.host,
        "KUBECONFIG": str(kubeconfig),
        "KIND": str(kind),
        "KUBECTL": str(kubectl),
        "KIND_CLUSTER": NAME,
        "HAMI_E2E_BASE_IMAGE": BASE,
    }


def wait_until_it_runs(kubectl: Path, kubeconfig: Path) -> None:
    """Waits until the nodes are ready and names are resolved. Raises: KindUnavailable."""
    reach = (kubectl, f"--kubeconfig={kubeconfig}")
    call(*reach, "wait", "--for=condition=Ready", "nodes", "--all", WAIT)
    call(*reach, "--namespace=kube-system", "rollout", "status", "deployment/coredns", WAIT)


def down(docker: Docker, kubeconfig: Path) -> None:
    """Removes the cluster and ends Docker; programs and images stay. Raises: KindUnavailable."""
    try:
        kind = KIND.cache_folder() / "kind"
        if kind.exists() and docker.answers():
            call(
                kind,
                "delete",
                "cluster",
                f"--name={NAME}",
                f"--kubeconfig={kubeconfig}",
                environment=docker.environment,
            )
            with contextlib.suppress(KindUnavailable):  # another cluster uses it
                docker("network", "rm", "kind")  # or its bridge would stay
    finally:
        docker.stop()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m testing.kind_cluster",
        description=kind_cluster.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("up", "down"))
    folder = binaries.cache_root() / "kind"
    docker, kubeconfig = Docker(folder), folder / "kubeconfig"
    try:
        if parser.parse_args().command == "down":
            down(docker, kubeconfig)
        else:
            for name, value in up(docker, kubeconfig).items():
                print(f"export {name}={shlex.quote(value)}")
    except (KindUnavailable, binaries.BinariesMissing) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(interrupts.run(main))
