"""The limiter on a fake driver: what a call costs more than without it, whether limits hold, how soon it recovers.

Costs are the least of several rounds, alternately with and without the limiter, in one run. The calls of the fake
driver take next to nothing, so these are the costs of the limiter. *compared* names figures of HAMi-core 8f3a89c on a
fake driver of the same kind, in another run.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import time
from collections.abc import Iterator, Sequence

from benchmarks.processes import Run
from benchmarks.rows import Row, ratio
from tests.libvgpu.rig import MIB, REGION_SOURCES, Builds, Client, Rig, Unavailable, make_release, rig
from tests.libvgpu.shares import SETTLE_S, Tenant, measured_shares, sampled
from tests.libvgpu.wheels import WheelMissing

__all__ = ["limiter_rows"]

GROUP = "limiter"
LIMIT = 2048 * MIB
ROUNDS = 30
POINTS = (10, 11, 12, 13, 14, 20, 21, 24, 25, 26, 27, 28, 40, 41, 43, 44, 50, 51, 52, 60, 61)
REAP_POINTS = (22, 30, 31)
"""Points that a process reaches when it clears up after another one that was killed."""
LOADS = ("flood", "sync", "decode", "mixed", "onoff", "medium")
LIMITS = (10, 30, 50, 70, 90)


def limiter_rows(run: Run) -> Iterator[Row]:
    """One row for each target; none where there is no compiler or no header."""
    builds = Builds(run.folder / "limiter")
    builds.folder.mkdir(exist_ok=True)
    try:
        run.say("limiter: compiling")
        builds.client.exists()
        builds.library("points")
    except Unavailable as error:
        run.say(f"limiter: {error}")
        return
    for rows in (cost_rows, overshoot_rows, recovery_rows, random_kill_rows, broken_rows, start_rows, simulated_rows,
                 compute_rows, size_rows):
        run.say(f"limiter: {rows.__name__.removesuffix('_rows')}")
        yield from rows(builds)


# -- costs


def least(clients: Sequence[Client], command: str) -> list[float]:
    """Nanoseconds a call, by client; the clients take turns."""
    rounds = [[float(client.do(command)) for client in clients] for _ in range(ROUNDS)]
    return [min(column) for column in zip(*rounds, strict=True)]


def cost_row(what: str, bare: float, limited: float, target: float, compared: str) -> Row:
    more = limited - bare
    return Row(group=GROUP, what=what, measured=f"+{more:.0f} ns ({ratio(limited, bare, 'without')})",
               target=f"at most +{target:.0f} ns", met=more <= target, compared=compared,
               figures={"bare_ns": bare, "limited_ns": limited})


def cost_rows(builds: Builds) -> Iterator[Row]:
    with rig(builds) as container:
        bare = container.client(preload=False, FAKE_CUDA_FAST="1").start()
        container.limit({"memory": LIMIT})
        ours = container.client(FAKE_CUDA_FAST="1").start()
        container.limit({"memory": LIMIT, "cores": 90})
        limited = container.client(FAKE_CUDA_FAST="1").start()
        without, free, with_limit = least((bare, ours, limited), "measure launch 60000 0")
        yield cost_row("launch, no compute limit", without, free, 10, "HAMi-core: +8 ns")
        yield cost_row("launch, compute limit 90 %", without, with_limit, 60, "HAMi-core: not measured")
        yield cost_row("alloc + free", *least((bare, ours), "measure alloc 20000 0"), 500, "HAMi-core: +460 ns")
        for client in (bare, ours):
            client.do("measure alloc 1 5000")
        yield cost_row("alloc + free, 5,000 live allocations", *least((bare, ours), "measure alloc 20000 0"), 500,
                       "HAMi-core: +14,000 ns")
        others = [container.client(FAKE_CUDA_FAST="1").start() for _ in range(6)]
        assert len(container.region.slots()) == 8
        yield cost_row("memory info, 8 processes", *least((bare, ours), "measure info 40000 0"), 150,
                       "HAMi-core: +430 ns")
        del others


# -- memory


def overshoot_rows(builds: Builds) -> Iterator[Row]:
    """The fake card records the most bytes that were ever in use at once."""
    peaks: dict[str, int] = {}
    operations = 0
    for delay, rounds in ((0, 12500), (50, 3000), (500, 500)):
        with rig(builds) as container:
            container.limit({"memory": LIMIT})
            clients = [container.client(FAKE_CUDA_ALLOC_US=str(delay), FAKE_CUDA_FAST="1").start() for _ in range(8)]
            for number, client in enumerate(clients):
                client.send(f"churn {rounds} {512 * MIB} {number + 1}")
            for client in clients:
                client.answer()
            peaks[f"{delay} us"] = container.machine.peak()
            operations += 8 * rounds
    over = max(0, max(peaks.values()) - LIMIT)
    yield Row(group=GROUP, what="overshoot, 8 processes, driver latency 0 to 500 µs", met=over == 0,
              measured=f"{over} bytes, {operations} operations; most in use {max(peaks.values()) / LIMIT:.1%}",
              target="0 bytes", compared="HAMi-core: 76 % (managed memory)", figures={"peak_bytes": peaks})


def recovery_rows(builds: Builds) -> Iterator[Row]:
    """From the moment a process has been killed until another one has all its memory."""
    worst, slowest = 0.0, 0
    for point in POINTS + REAP_POINTS:
        with rig(builds, "points") as container:
            container.limit({"memory": LIMIT})
            other = container.client().start() if point > 20 else None
            if point in REAP_POINTS:
                first = container.client().start()
                assert first.do(f"alloc plain 0 {LIMIT}") == 0
                first.kill()
            victim = container.client(VGPU_TEST_POINT=str(point))
            with contextlib.suppress(EOFError, BrokenPipeError):
                victim.start()
                victim.do(f"alloc plain 0 {LIMIT}")
                victim.do("free plain 0")
                raise AssertionError(f"point {point} was not reached")
            victim.process.wait()
            other = other or container.client().start()
            begun = time.monotonic()
            assert other.do(f"alloc plain 0 {LIMIT}") == 0
            if (took := time.monotonic() - begun) > worst:
                worst, slowest = took, point
    points = len(POINTS + REAP_POINTS)
    yield Row(group=GROUP, what=f"after kill -9, at {points} points", measured=f"{worst * 1000:.1f} ms at worst",
              target="below 100 ms", met=worst < 0.1, compared="HAMi-core: 328 s, or for ever",
              figures={"seconds": worst, "point": slowest})


def random_kill_rows(builds: Builds) -> Iterator[Row]:
    """A thousand processes are killed while they allocate, ten at a time; then another one takes all memory."""
    seed, worst = random.Random(14), 0.0
    with rig(builds) as container:
        container.limit({"memory": LIMIT})
        other = container.client(FAKE_CUDA_FAST="1").start()
        for _ in range(100):
            victims = [container.client(FAKE_CUDA_FAST="1") for _ in range(10)]
            for victim in victims:
                victim.send(f"init\nctx 0\nchurn 10000000 {LIMIT // 8} {seed.randrange(1 << 30)}")
            time.sleep(seed.uniform(0, 0.06))
            for victim in victims:
                victim.process.kill()
            for victim in victims:
                victim.process.communicate()
            begun = time.monotonic()
            assert other.do(f"alloc plain 0 {LIMIT}") == 0
            worst = max(worst, time.monotonic() - begun)
            assert other.do("free plain 0") == 0
        over = max(0, container.machine.peak() - LIMIT)
    yield Row(group=GROUP, what="after kill -9, 1,000 at random", target="below 100 ms", met=worst < 0.1 and over == 0,
              measured=f"{worst * 1000:.1f} ms at worst; {over} bytes above the limit", figures={"seconds": worst})


def broken_rows(builds: Builds) -> Iterator[Row]:
    """A process uses regions of which random bytes were changed; it fails if more than the limit is granted."""
    program = builds.program("fuzz", *REGION_SOURCES)
    worst = 0.0
    for seed in (1, 2):
        done = subprocess.run([program, builds.folder / f"region-{seed}", "500000", str(seed)], capture_output=True,
                              text=True, check=True)
        worst = max(worst, float(done.stdout.split()[2]))
    yield Row(group=GROUP, what="a million broken regions", measured=f"{worst:.1f} ms at worst", target="below 100 ms",
              met=worst < 100, figures={"milliseconds": worst})


def start_once(container: Rig, count: int, **more: bool) -> float:
    """Seconds until *count* processes that wait for it have initialized CUDA and allocated."""
    env = container.environment(FAKE_CUDA_JUDGE=str(LIMIT), **more)
    clients = [subprocess.Popen([container.builds.client, "symbol"], env=env, text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for client in clients:
            assert client.stdin and client.stdout
            client.stdin.write("umask\n")
            client.stdin.flush()
            client.stdout.readline()
        begun = time.monotonic()
        for client in clients:
            assert client.stdin
            client.stdin.write("init\nctx 0\nalloc plain 0 1048576\n")
            client.stdin.flush()
        for client in clients:
            assert client.stdout
            assert [client.stdout.readline() for _ in range(3)] == ["0\n"] * 3
        return time.monotonic() - begun
    finally:
        for client in clients:
            client.kill()
        for client in clients:
            client.communicate()


def start_rows(builds: Builds) -> Iterator[Row]:
    with rig(builds) as container:
        bare = start_once(container, 300, preload=False)
    with rig(builds) as container:
        container.limit({"memory": LIMIT})
        ours = start_once(container, 300)
    yield Row(group=GROUP, what="300 processes start at once", target="below 2 s", met=ours < 2,
              measured=f"{ours:.2f} s ({ratio(ours, bare, 'without')})", compared="HAMi-core: 227 s (published)",
              figures={"seconds": ours, "bare_seconds": bare})


# -- compute


def simulate(builds: Builds, load: str, *limits: int, processes: int = 0) -> list[list[float]]:
    program = builds.program("simulate", "control.c")
    words = [load, processes or len(limits), len(limits), 1, 132, *limits]
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=True)
    return [list(map(float, line.split())) for line in done.stdout.splitlines()]


def simulated_rows(builds: Builds) -> Iterator[Row]:
    """60 seconds of each workload and limit, in simulated time. At 90 % `decode` cannot use its share."""
    cases = {f"{load} {limit}": simulate(builds, load, limit)[0] for load in LOADS for limit in LIMITS
             if (load, limit) != ("decode", 90)}
    error = max(case[1] for case in cases.values())
    off = max(abs(case[0] - int(name.split()[1])) for name, case in cases.items())
    yield Row(group=GROUP, what="compute limit, simulated: 6 workloads, limits 10 to 90", met=error <= 3 and off <= 1.5,
              measured=f"mean error {error:.1f} at worst, mean off by {off:.1f}", target="at most 3 points, 1.5",
              compared="HAMi-core's law, simulated: 4.7 to 55.7 points", figures={"cases": cases})
    tenants = {load: [case[0] for case in simulate(builds, load, 30, 70)] for load in ("sync", "mixed", "medium")}
    off = max(abs(mean - due) for means in tenants.values() for mean, due in zip(means, (30, 70), strict=True))
    yield Row(group=GROUP, what="two tenants, 30 and 70 %, simulated", measured=shares(tenants), met=off <= 3,
              target="each within 3 points", compared="HAMi-core's law, simulated: 50/50", figures=tenants)
    four = {load: [simulate(builds, load, 30, processes=4)[0][0]] for load in ("flood", "sync", "mixed")}
    off = max(abs(means[0] - 30) for means in four.values())
    yield Row(group=GROUP, what="4 processes of one container, 30 %, simulated", measured=shares(four), met=off <= 3,
              target="within 3 points", compared="HAMi-core's law, simulated: 67 to 94", figures=four)


def shares(cases: dict[str, list[float]]) -> str:
    return "; ".join(f"{load} {'/'.join(f'{mean:.1f}' for mean in means)}" for load, means in cases.items())


def real_shares(containers: Sequence[Rig], clients: Sequence[Client], load: str, seconds: int) -> list[float]:
    """Percent of the card that each container gets while all of *clients* work, after a time to settle."""
    tenants = [Tenant(container.region, container.machine) for container in containers]
    for client in clients:
        client.send(f"load {load} {(SETTLE_S + seconds) * 1000:.0f}")
    with sampled(tenants):
        time.sleep(SETTLE_S)
        found = measured_shares(tenants, seconds)
    for client in clients:
        client.answer()
    return found


def compute_rows(builds: Builds) -> Iterator[Row]:
    """The same in real time, with the fake driver's busy clock. `onoff` is idle every other second."""
    measured: dict[str, float] = {}
    for load in ("flood", "sync", "decode", "mixed", "medium"):
        with rig(builds) as container:
            container.limit({"memory": LIMIT, "cores": 30})
            measured[load], = real_shares([container], [container.client().start()], load, 8)
    off = max(abs(share - 30) for share in measured.values())
    yield Row(group=GROUP, what="compute limit 30 %, real time, 5 workloads", met=off <= 3,
              measured="; ".join(f"{load} {share:.1f}" for load, share in measured.items()),
              target="within 3 points", figures=measured)
    tenants: dict[str, list[float]] = {}
    for load in ("medium", "mixed"):
        with rig(builds) as one, rig(builds) as other:
            other.state = one.state
            one.limit({"memory": LIMIT, "cores": 30})
            other.limit({"memory": LIMIT, "cores": 70})
            tenants[load] = real_shares([one, other], [one.client().start(), other.client().start()], load, 8)
    off = max(abs(share - due) for found in tenants.values() for share, due in zip(found, (30, 70), strict=True))
    yield Row(group=GROUP, what="two tenants, 30 and 70 %, real time", measured=shares(tenants), met=off <= 3,
              target="each within 3 points", figures=tenants)
    four: dict[str, list[float]] = {}
    for load in ("flood", "medium", "mixed"):
        with rig(builds) as container:
            container.limit({"memory": LIMIT, "cores": 30})
            four[load] = real_shares([container], [container.client().start() for _ in range(4)], load, 8)
    off = max(abs(found[0] - 30) for found in four.values())
    yield Row(group=GROUP, what="4 processes of one container, 30 %, real time", measured=shares(four), met=off <= 3,
              target="within 3 points", figures=four)


# -- the library


def size_rows(builds: Builds) -> Iterator[Row]:
    try:
        release = make_release(builds.folder / "release")
    except WheelMissing:
        return
    sizes = {target: library.stat().st_size for target, library in release.items()}
    yield Row(group=GROUP, what="library of the release", met=max(sizes.values()) <= 130_000,
              measured="; ".join(f"{target} {size / 1000:.0f} kB" for target, size in sizes.items()),
              target="at most 130 kB", compared="HAMi-core: 724 kB (debug build, as it is released)", figures=sizes)
