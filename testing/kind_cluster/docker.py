"""A Docker daemon of our own, beside others of the machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from testing.needs import lacking
from testing.processes import is_alive

__all__ = ["Docker", "KindUnavailable", "call", "eventually_true"]

BRIDGE, ADDRESS = "hami-e2e0", "172.31.255.1/24"
"""With --bridge=none or --default-address-pool, dockerd would remove the bridge of another one."""
RUNC = Path(__file__).with_name("runc")
PACKAGES = ("docker.io", "iproute2", "iptables", "debootstrap")
START_SECONDS = STOP_SECONDS = 30.0


class KindUnavailable(RuntimeError):
    """The cluster cannot be started here; the message says why."""


def call(
    *command: str | Path, stdin: IO[bytes] | None = None, environment: dict[str, str] | None = None
) -> str:
    """Returns the standard output of *command*. Raises: KindUnavailable with the end of what it has printed."""
    done = subprocess.run(
        [str(word) for word in command],
        stdin=stdin or subprocess.DEVNULL,
        capture_output=True,
        env=os.environ | (environment or {}),
        check=False,
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode(errors="replace")[-3000:]
        raise KindUnavailable(
            f"{Path(command[0]).name} {command[1]} ended with {done.returncode}:\n{said}"
        )
    return done.stdout.decode()


def eventually_true(check: Callable[[], bool], seconds: float) -> bool:
    """Returns whether *check* becomes true in time."""
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True


class Docker:
    """The daemon at ``DOCKER_HOST`` if that is set, else one whose files are in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_ours = False
        self._started: subprocess.Popen[bytes] | None = None
        self.host = os.environ.get("DOCKER_HOST") or f"unix://{folder / 'docker.sock'}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which programs find the daemon."""
        return {"DOCKER_HOST": self.host, "DOCKER_BUILDKIT": "0"}  # Debian's package has no buildx

    def __call__(self, *words: str | Path, stdin: IO[bytes] | None = None) -> str:
        """Returns the output of ``docker`` with *words*. Raises: KindUnavailable."""
        return call("docker", *words, stdin=stdin, environment=self.environment)

    def pipe(self, producer: Sequence[str | Path], *words: str | Path) -> None:
        """Runs ``docker`` with *words* on what *producer* prints. Raises: KindUnavailable."""
        command = [str(word) for word in producer]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, env=os.environ | self.environment
        ) as process:
            self(*words, stdin=process.stdout)
        if process.returncode != 0:
            raise KindUnavailable(f"{command[0]} ended with {process.returncode}")

    def has(self, image: str) -> bool:
        """Reports whether there is *image*."""
        return bool(self("image", "ls", "--quiet", image).strip())

    def answers(self) -> bool:
        """Reports whether the daemon answers."""
        with contextlib.suppress(KindUnavailable, FileNotFoundError):
            self("version")
            return True
        return False

    def start(self) -> bool:
        """Starts the daemon, unless it answers; returns whether it did. When that fails, or a signal ends it, it is
        stopped again. Raises: KindUnavailable."""
        if os.geteuid() != 0:
            raise KindUnavailable("only root can start Docker")
        if missing := lacking(*PACKAGES):
            raise KindUnavailable(f"Debian's packages are missing: {', '.join(missing)}")
        if self.answers():
            return False
        self._is_ours = True
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return True

    def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if not Path("/sys/class/net", BRIDGE).exists():
            for words in (
                ("link", "add", BRIDGE, "type", "bridge"),
                ("addr", "add", ADDRESS, "dev", BRIDGE),
                ("link", "set", BRIDGE, "up"),
            ):
                call("ip", *words)
        log = self._folder / "dockerd.log"
        options = {
            "data-root": self._folder / "docker",
            "exec-root": self._folder / "docker-exec",
            "host": self.host,
            "pidfile": self._pid_file,
            "bridge": BRIDGE,
            "storage-driver": "overlay2",
            "add-runtime": f"bounded={RUNC}",
            "default-runtime": "bounded",
        }
        with log.open("wb") as output:
            self._started = subprocess.Popen(
                ["dockerd", *(f"--{name}={value}" for name, value in options.items())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        if not eventually_true(self.answers, START_SECONDS):
            raise KindUnavailable(
                f"dockerd does not answer:\n{log.read_text(errors='replace')[-3000:]}"
            )

    def stop(self) -> None:
        """Ends the daemon if it is ours, with what it has made outside of its folder."""
        try:
            pid = int(self._pid_file.read_text())
        except (OSError, ValueError):
            if not self._is_ours:
                return
            # it has not written its file yet
            pid = self._started.pid if self._started is not None else 0
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
                eventually_true(lambda: not is_alive(pid), STOP_SECONDS)
        for command in (
            ("umount", self._folder / "docker-exec" / "netns" / "default"),
            ("ip", "link", "del", BRIDGE),
        ):
            with contextlib.suppress(KindUnavailable):
                call(*command)

    @property
    def _pid_file(self) -> Path:
        return self._folder / "dockerd.pid"
