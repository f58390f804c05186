"""The limiter on a fake driver: what a call costs more than without it, whether limits hold, how soon it recovers.

Costs are the least of several rounds, alternately with and without the limiter, in one run. The calls of the fake
driver take next to nothing, so these are the costs of the limiter. *compared* names figures of HAMi-core 8f3a89c on a
fake driver of the same kind, in another run.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.processes import Run
from benchmarks.rows import Row, ratio
from testing.limiter.builds import Builds, Unavailable
from testing.limiter.rig import MIB, Client, Rig, rig
from testing.limiter.shares import SETTLE_S, Tenant, deciding, measured_shares, sampled

__all__ = ["limiter_rows"]

GROUP = "limiter"
LIMIT = 2048 * MIB
ROUNDS = 30
PAIRS = 200
POINTS = (10, 11, 12, 13, 14, 20, 21, 24, 25, 26, 27, 28, 40, 41, 43, 44, 50, 51, 52, 60, 61)
REAP_POINTS = (22, 30, 31)
"""Points that a process reaches when it clears up after another one that was killed."""
LOADS = ("flood", "sync", "decode", "mixed", "onoff", "medium")
LIMITS = (10, 30, 50, 70, 90)


def limiter_rows(run: Run) -> Iterator[Row]:
    """One row for each target; none where there is no compiler or no header."""
    builds = Builds()
    try:
        run.say("limiter: compiling")
        builds.client.exists()
        builds.library("points")
    except Unavailable as error:
        run.say(f"limiter: {error}")
        return
    for rows in (
        cost_rows,
        pool_rows,
        reset_rows,
        overshoot_rows,
        recovery_rows,
        random_kill_rows,
        broken_rows,
        start_rows,
        driver_memory_rows,
        simulated_rows,
        compute_rows,
        loading_rows,
        pattern_rows,
        second_gpu_rows,
        lonely_tenant_rows,
        elastic_rows,
        size_rows,
    ):
        run.say(f"limiter: {rows.__name__.removesuffix('_rows')}")
        yield from rows(builds)


# -- costs


def least(clients: Sequence[Client], command: str) -> list[float]:
    """Nanoseconds a call, by client; the clients take turns."""
    rounds = [[float(client.do(command)) for client in clients] for _ in range(ROUNDS)]
    return [min(column) for column in zip(*rounds, strict=True)]


def cost_row(what: str, bare: float, limited: float, target: float, compared: str) -> Row:
    more = limited - bare
    return Row(
        group=GROUP,
        what=what,
        measured=f"+{more:.0f} ns ({ratio(limited, bare, 'without')})",
        target=f"at most +{target:.0f} ns",
        met=more <= target,
        compared=compared,
        figures={"bare_ns": bare, "limited_ns": limited},
    )


def cost_rows(builds: Builds) -> Iterator[Row]:
    with rig(builds) as container:
        bare = container.client(preload=False, FAKE_CUDA_FAST="1").start()
        container.limit({"memory": LIMIT})
        ours = container.client(FAKE_CUDA_FAST="1").start()
        container.limit({"memory": LIMIT, "cores": 90})
        limited = container.client(FAKE_CUDA_FAST="1").start()
        without, free, with_limit = least((bare, ours, limited), "measure launch 60000 0")
        yield cost_row("launch, no compute limit", without, free, 10, "HAMi-core: +8 ns")
        yield cost_row(
            "launch, compute limit 90 %", without, with_limit, 60, "HAMi-core: not measured"
        )
        yield cost_row(
            "alloc + free", *least((bare, ours), "measure alloc 20000 0"), 500, "HAMi-core: +460 ns"
        )
        for client in (bare, ours):
            client.do("measure alloc 1 5000")
        yield cost_row(
            "alloc + free, 5,000 live allocations",
            *least((bare, ours), "measure alloc 20000 0"),
            500,
            "HAMi-core: +14,000 ns",
        )
        others = [container.client(FAKE_CUDA_FAST="1").start() for _ in range(6)]
        assert len(container.region.slots()) == 8
        yield cost_row(
            "memory info, 8 processes",
            *least((bare, ours), "measure info 40000 0"),
            150,
            "HAMi-core: +430 ns",
        )
        del others


def pool_rows(builds: Builds) -> Iterator[Row]:
    """Driver calls of an asynchronous allocation and release beyond the program's own, from a pool with room."""
    calls = []
    for preload in (False, True):
        with rig(builds) as container:
            container.limit({"memory": LIMIT})
            log = container.folder / "log"
            client = container.client(preload=preload, FAKE_CUDA_LOG=str(log)).start()
            for command in ("defaultpool 0 0", "keep 0", f"pairs async 3 {MIB} 0"):
                assert client.do(command) == 0
            before = log.read_text().count("call ")
            assert client.do(f"pairs async {PAIRS} {MIB} 0") == 0
            calls.append((log.read_text().count("call ") - before) / PAIRS)
    more = calls[1] - calls[0]
    yield Row(
        group=GROUP,
        what="asynchronous alloc + free, room in the pool",
        measured=f"{more:.2f} driver calls more",
        target="0, but for a look now and then",
        met=more < 0.1,
        figures={"calls": calls},
    )


def reset_rows(builds: Builds) -> Iterator[Row]:
    took = []
    for preload in (False, True):
        with rig(builds) as container:
            container.limit({"memory": LIMIT})
            client = container.client(preload=preload, FAKE_CUDA_FAST="1").start()
            assert client.do("allocs 100000 512") == 100_000
            begun = time.monotonic()
            assert client.do("reset 0") == 0
            took.append(time.monotonic() - begun)
    yield Row(
        group=GROUP,
        what="device reset with 100,000 allocations",
        target="at most 0.2 s",
        met=took[1] <= 0.2,
        measured=f"{took[1]:.3f} s ({took[0]:.3f} s without)",
        figures={"seconds": took},
    )


# -- memory


def driver_memory_rows(builds: Builds) -> Iterator[Row]:
    """Beside a neighbor that takes 6.4 GB a second, up to 8 GiB, and gives them back."""
    with rig(builds) as container:
        container.limit({"memory": LIMIT, "context": 400 * MIB})
        neighbor = container.client(preload=False).start()
        neighbor.send(f"neighbor {64 * MIB} {8192 * MIB} 10000 60000")
        counted = []
        for _ in range(5):
            client = container.client(FAKE_CUDA_CTX_MIB="400", FAKE_CUDA_CTX_US="200000").start()
            counted.append(container.region.total() / MIB)
            assert client.do("release 0") == 0
            client.kill()
        off = max(abs(one - 400) for one in counted) / 400
        client = container.client(FAKE_CUDA_LAZY="1").start()
        before = container.region.total()
        assert client.do("modules 1000") == 0
        modules = (container.region.total() - before) / MIB
    yield Row(
        group=GROUP,
        what="context of 400 MiB beside a neighbor at 6.4 GB/s",
        met=off <= 0.05,
        measured=f"{min(counted):.0f} to {max(counted):.0f} MiB",
        target="within 5 %",
        figures={"mib": counted},
    )
    yield Row(
        group=GROUP,
        what="1,000 empty modules beside it",
        measured=f"{modules:.0f} MiB",
        target="at most 16 MiB",
        met=modules <= 16,
        figures={"mib": modules},
    )


def overshoot_rows(builds: Builds) -> Iterator[Row]:
    """The fake card records the most bytes that were ever in use at once."""
    peaks: dict[str, int] = {}
    operations = 0
    for delay, rounds in ((0, 12500), (50, 3000), (500, 500)):
        with rig(builds) as container:
            container.limit({"memory": LIMIT})
            clients = [
                container.client(FAKE_CUDA_ALLOC_US=str(delay), FAKE_CUDA_FAST="1").start()
                for _ in range(8)
            ]
            for number, client in enumerate(clients):
                client.send(f"churn {rounds} {512 * MIB} {number + 1}")
            for client in clients:
                client.answer()
            peaks[f"{delay} us"] = container.machine.peak()
            operations += 8 * rounds
    over = max(0, max(peaks.values()) - LIMIT)
    yield Row(
        group=GROUP,
        what="overshoot, 8 processes, driver latency 0 to 500 µs",
        met=over == 0,
        measured=f"{over} bytes, {operations} operations; most in use {max(peaks.values()) / LIMIT:.1%}",
        target="0 bytes",
        compared="HAMi-core: 76 % (managed memory)",
        figures={"peak_bytes": peaks},
    )


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
    yield Row(
        group=GROUP,
        what=f"after kill -9, at {points} points",
        measured=f"{worst * 1000:.1f} ms at worst",
        target="below 100 ms",
        met=worst < 0.1,
        compared="HAMi-core: 328 s, or for ever",
        figures={"seconds": worst, "point": slowest},
    )


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
    yield Row(
        group=GROUP,
        what="after kill -9, 1,000 at random",
        target="below 100 ms",
        met=worst < 0.1 and over == 0,
        measured=f"{worst * 1000:.1f} ms at worst; {over} bytes above the limit",
        figures={"seconds": worst},
    )


def broken_rows(builds: Builds) -> Iterator[Row]:
    """A process uses regions of which random bytes were changed; it fails if more than the limit is granted."""
    program = builds.program("fuzz")
    worst = 0.0
    for seed in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            words = [program, Path(folder) / "region", "500000", str(seed)]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
        worst = max(worst, float(done.stdout.split()[2]))
    yield Row(
        group=GROUP,
        what="a million broken regions",
        measured=f"{worst:.1f} ms at worst",
        target="below 100 ms",
        met=worst < 100,
        figures={"milliseconds": worst},
    )


def start_once(container: Rig, count: int, **more: bool) -> float:
    """Seconds until *count* processes that wait for it have initialized CUDA and allocated."""
    env = container.environment(FAKE_CUDA_JUDGE=str(LIMIT), **more)
    clients = [
        subprocess.Popen(
            [container.builds.client, "symbol"],
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(count)
    ]
    try:
        for client in clients:
            assert client.stdin
            assert client.stdout
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
    yield Row(
        group=GROUP,
        what="300 processes start at once",
        target="below 2 s",
        met=ours < 2,
        measured=f"{ours:.2f} s ({ratio(ours, bare, 'without')})",
        compared="HAMi-core: 227 s (published)",
        figures={"seconds": ours, "bare_seconds": bare},
    )


# -- compute


def simulate(
    builds: Builds, load: str, *limits: int, processes: int = 0, samples: int = 1, seed: int = 132
) -> list[list[float]]:
    """*samples*: as in the program."""
    program = builds.program("simulate")
    words = [load, processes or len(limits), len(limits), samples, seed, *limits]
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=True)
    return [list(map(float, line.split())) for line in done.stdout.splitlines()]


def simulated_rows(builds: Builds) -> Iterator[Row]:
    """60 seconds of each workload and limit, in simulated time. At 90 % `decode` cannot use its share."""
    cases = {
        f"{load} {limit}": simulate(builds, load, limit)[0]
        for load in LOADS
        for limit in LIMITS
        if (load, limit) != ("decode", 90)
    }
    error = max(case[1] for case in cases.values())
    off = max(abs(case[0] - int(name.split()[1])) for name, case in cases.items())
    yield Row(
        group=GROUP,
        what="compute limit, simulated: 6 workloads, limits 10 to 90",
        met=error <= 3 and off <= 1.5,
        measured=f"mean error {error:.1f} at worst, mean off by {off:.1f}",
        target="at most 3 points, 1.5",
        compared="HAMi-core's law, simulated: 4.7 to 55.7 points",
        figures={"cases": cases},
    )
    tenants = {
        load: [case[0] for case in simulate(builds, load, 30, 70)]
        for load in ("sync", "mixed", "medium")
    }
    yield two_tenants(tenants, "simulated", "HAMi-core's law, simulated: 50/50")
    four = {
        load: [simulate(builds, load, 30, processes=4)[0][0]] for load in ("flood", "sync", "mixed")
    }
    yield four_processes(four, "simulated", "HAMi-core's law, simulated: 67 to 94")
    driver = {load: driver_samples(builds, load) for load in ("flood", "sync", "mixed", "medium")}
    yield Row(
        group=GROUP,
        what="2 and 3 tenants, samples as of a driver, simulated: points off in 50 s / in one",
        measured="; ".join(
            f"{load} {long:.1f} / {short:.1f}" for load, (long, short) in driver.items()
        ),
        figures=driver,
    )


def driver_samples(builds: Builds, load: str) -> tuple[float, float]:
    """Returns by how many points containers miss their limits, on average: in 50 seconds, and in single ones."""
    found = [
        (abs(mean - limit), error)
        for limits in ((50, 50), (30, 70), (20, 30, 50))
        for seed in range(1, 21)
        for (mean, error, *_), limit in zip(
            simulate(builds, load, *limits, samples=2, seed=seed), limits, strict=True
        )
    ]
    long, short = (sum(column) / len(found) for column in zip(*found, strict=True))
    return long, short


def two_tenants(cases: dict[str, list[float]], clock: str, compared: str = "") -> Row:
    what = f"two tenants, 30 and 70 %, {clock}"
    return limits_row(what, cases, (30, 70), "each within 3 points", compared)


def four_processes(cases: dict[str, list[float]], clock: str, compared: str = "") -> Row:
    what = f"4 processes of one container, 30 %, {clock}"
    return limits_row(what, cases, (30,), "within 3 points", compared)


def limits_row(
    what: str,
    cases: dict[str, list[float]],
    limits: tuple[int, ...],
    target: str,
    compared: str,
) -> Row:
    """Returns the row of *cases*: by workload, what each container got of the card, in percent like its limit."""
    errors = []
    for means in cases.values():
        errors += [abs(mean - limit) for mean, limit in zip(means, limits, strict=True)]
    return Row(
        group=GROUP,
        what=what,
        measured=shares(cases),
        met=max(errors) <= 3,
        target=target,
        compared=compared,
        figures=cases,
    )


def shares(cases: dict[str, list[float]]) -> str:
    return "; ".join(
        f"{load} {'/'.join(f'{mean:.1f}' for mean in means)}" for load, means in cases.items()
    )


def real_shares(
    containers: Sequence[Rig], clients: Sequence[Client], load: str, seconds: int
) -> list[float]:
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
            (measured[load],) = real_shares([container], [container.client().start()], load, 8)
    off = max(abs(share - 30) for share in measured.values())
    yield Row(
        group=GROUP,
        what="compute limit 30 %, real time, 5 workloads",
        met=off <= 3,
        measured="; ".join(f"{load} {share:.1f}" for load, share in measured.items()),
        target="within 3 points",
        figures=measured,
    )
    tenants: dict[str, list[float]] = {}
    for load in ("medium", "mixed"):
        with rig(builds) as one, rig(builds) as other:
            other.state = one.state
            one.limit({"memory": LIMIT, "cores": 30})
            other.limit({"memory": LIMIT, "cores": 70})
            tenants[load] = real_shares(
                [one, other], [one.client().start(), other.client().start()], load, 8
            )
    yield two_tenants(tenants, "real time")
    four: dict[str, list[float]] = {}
    for load in ("flood", "medium", "mixed"):
        with rig(builds) as container:
            container.limit({"memory": LIMIT, "cores": 30})
            four[load] = real_shares(
                [container], [container.client().start() for _ in range(4)], load, 8
            )
    yield four_processes(four, "real time")


def loading_rows(builds: Builds) -> Iterator[Row]:
    """200 kernels whose code is loaded at the first launch, 5 ms each, in 20 rounds."""
    lazy = {"FAKE_CUDA_LAZY_US": "5000"}
    with rig(builds) as container:
        bare = (
            float(container.client(preload=False, **lazy).start().do("many busy_10 200 20")[1])
            / 1000
        )
    took = {}
    for cores in (30, 90):
        with rig(builds) as container:
            container.limit({"memory": LIMIT, "cores": cores})
            took[cores] = (
                float(container.client(**lazy).start().do("many busy_10 200 20")[1]) / 1000
            )
    yield Row(
        group=GROUP,
        what="200 kernels that load for 5 ms, limit 30 and 90",
        measured=f"{took[30]:.2f} and {took[90]:.2f} s ({bare:.2f} s without)",
        target="at most 1.2 × without ÷ limit",
        figures={"seconds": took, "bare_seconds": bare},
        met=all(seconds <= 1.2 * bare / cores * 100 for cores, seconds in took.items()),
    )


def pattern_rows(builds: Builds) -> Iterator[Row]:
    """Launches of one kernel, of which one in so many takes 2 ms and the others 0.1 ms."""
    program = builds.program("simulate")
    means = {}
    for period in range(2, 34):
        for samples in (0, 1):
            done = subprocess.run(
                [program, str(period), "1", "1", str(samples), "132", "30"],
                capture_output=True,
                text=True,
                check=True,
            )
            means[f"{period}, {'monitor' if samples else 'none'}"] = float(done.stdout.split()[0])
    real = {}
    for period in (2, 4, 8, 16, 33):
        with rig(builds) as container:
            container.limit({"memory": LIMIT, "cores": 30})
            client = container.client().start()
            client.do(f"load period_{period}_2000_100 1000")
            client.send(f"load period_{period}_2000_100 7000")
            time.sleep(0.5)
            (real[period],) = measured_shares([Tenant(container.region, container.machine)], 5)
            client.answer()
    every = [*means.values(), *real.values()]
    yield Row(
        group=GROUP,
        what="patterns of launches of period 2 to 33, limit 30",
        target="30 ± 2",
        measured=f"{min(means.values()):.1f} to {max(means.values()):.1f} simulated; "
        f"{min(real.values()):.1f} to {max(real.values()):.1f} in real time",
        met=all(abs(mean - 30) <= 2 for mean in every),
        figures={"simulated": means, "real": real},
    )


def second_gpu_rows(builds: Builds) -> Iterator[Row]:
    with rig(builds) as container:
        container.limit(*({"memory": LIMIT, "cores": 30},) * 2)
        client = container.client(FAKE_CUDA_DEVICES="2").start()
        client.do("many busy_1000 200 2")
        assert client.do("ctx 1") == 0
        client.do("load busy_2000 1000")
        client.send("load busy_2000 7000")
        (share,) = measured_shares([Tenant(container.region, container.machine, 1)], 5)
        client.answer()
    yield Row(
        group=GROUP,
        what="second GPU of a process after 200 open measurements, limit 30",
        target="30 ± 2",
        measured=f"{share:.1f}",
        met=abs(share - 30) <= 2,
        figures={"share": share},
    )


def lonely_tenant_rows(builds: Builds) -> Iterator[Row]:
    """Two containers, and no monitor: events also measure the time of the other one."""
    found = {}
    for limits in ((30, 70), (50, 50)):
        with rig(builds) as one, rig(builds) as other:
            other.state = one.state
            clients = []
            for container, cores in zip((one, other), limits, strict=True):
                container.limit({"memory": LIMIT, "cores": cores})
                clients.append(container.client().start())
            for client in clients:
                client.send("load medium 9000")
            time.sleep(2)
            found["/".join(map(str, limits))] = measured_shares(
                [Tenant(container.region, container.machine) for container in (one, other)], 6
            )
            for client in clients:
                client.answer()
    off = max(
        abs(share - int(due))
        for name, both in found.items()
        for share, due in zip(both, name.split("/"), strict=True)
    )
    yield Row(
        group=GROUP,
        what="two tenants without a monitor, real time",
        measured=shares(found),
        met=off <= 3,
        target="within 3 points",
        figures=found,
    )


def elastic_rows(builds: Builds) -> Iterator[Row]:
    """A floor of 30 % and a ceiling of 100 %, with a monitor."""
    with rig(builds) as one, rig(builds) as other:
        other.state = one.state
        clients = []
        for container in (one, other):
            container.limit({"memory": LIMIT, "cores": 30, "cores-most": 100})
            clients.append(container.client().start())
            clients[-1].do("launch plain idle 1")
        tenants = [Tenant(container.region, container.machine) for container in (one, other)]
        with deciding(tenants), sampled(tenants):
            clients[0].send("load busy_2000 60000")
            time.sleep(2)
            alone, _ = measured_shares(tenants, 3)
            clients[1].send("load busy_2000 60000")
            time.sleep(2)
            both = measured_shares(tenants, 4)
    yield Row(
        group=GROUP,
        what="elastic, floor 30: alone; each 2 s after a neighbor has started",
        target="≥ 95; ≥ 28",
        measured=f"{alone:.1f}; {both[0]:.1f} and {both[1]:.1f}",
        met=alone >= 95 and min(both) >= 28,
        figures={"alone": alone, "both": both},
    )


# -- the library


def size_rows(builds: Builds) -> Iterator[Row]:
    try:
        release = builds.release()
    except Unavailable:
        return
    sizes = {target: library.stat().st_size for target, library in release.items()}
    yield Row(
        group=GROUP,
        what="library of the release",
        met=max(sizes.values()) <= 185_000,
        measured="; ".join(f"{target} {size / 1000:.0f} kB" for target, size in sizes.items()),
        target="at most 185 kB, 50 of them for copies",
        compared="HAMi-core: 724 kB (debug build, as it is released)",
        figures=sizes,
    )
