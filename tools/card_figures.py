"""The figures in docs/limiter.md that a GPU has given: made from the files in ``benchmarks/results/gpu``.

``python -m tools.generate`` writes them between the marks of the page; ``python -m tools.card_figures`` prints them.
Each row names the file and the step that it comes from, and says what that step has not asked.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click

from tools.marked import marked

__all__ = ["BLOCKS", "Results", "render_page"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "limiter.md"
FOLDER = ROOT / "benchmarks" / "results" / "gpu"
MIB = 1 << 20
OLDER = ("h200-2.json", "h200-3.json")
"""Of a library that did not count contexts of the CUDA runtime, and charged what two events tell of nothing."""
NO_PROGRAMS = ("context", "module", "1 GiB")
"""Rows of step a6 that are single calls."""

Step = dict[str, Any]


class Results:
    """What the steps have written. *folder*: their files."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._sources: list[str] = []

    def sources(self) -> str:
        """Returns the files and steps that have been read since the last question, as the page cites them."""
        cited = "; ".join(dict.fromkeys(self._sources))
        self._sources.clear()
        return cited

    def step(self, file: str, name: str) -> Step:
        """Returns a step of a file. Raises: KeyError."""
        age = ", older library" if file in OLDER else ""
        self._sources.append(f"`{file}` {name}{age}")
        return self._steps(file)[name]

    def rows(self, file: str, name: str) -> dict[Any, list[Any]]:
        """Returns the rows of a step by their first cell, each without it."""
        return {row[0]: row[1:] for row in self.step(file, name)["rows"]}

    def cards(self) -> Iterator[tuple[str, Step]]:
        """Yields each file that says what its figures belong to, with the step that does."""
        for path in sorted(self._folder.glob("*.json")):
            steps = json.loads(path.read_text())
            if isinstance(steps, list) and steps and steps[0]["step"] == "a1":
                yield path.name, steps[0]

    def minutes(self) -> float:
        """Returns how long all steps took."""
        files = sorted(self._folder.glob("h200-[0-9].json"))
        took = [step["took_s"] for file in files for step in self._steps(file.name).values()]
        return float(sum(took)) / 60

    def nanoseconds(self, call: str) -> int:
        """Returns what a call of the driver took, by h200-driver.txt."""
        self._sources.append("`h200-driver.txt`")
        text = (self._folder / "h200-driver.txt").read_text()
        found = re.search(rf"^ns {re.escape(call)} (\d+)$", text, re.MULTILINE)
        if found is None:
            raise KeyError(call)
        return int(found[1])

    def sample_gaps(self) -> list[int]:
        """Returns the milliseconds between two new samples of NVML, in all runs of h200-nvml.json."""
        gaps: list[int] = []
        for run in json.loads((self._folder / "h200-nvml.json").read_text()).values():
            times = sorted({sample[0] for sample in run["new_samples_ms_pid_percent"]})
            gaps += [later - earlier for earlier, later in itertools.pairwise(times)]
        return gaps

    def _steps(self, file: str) -> dict[str, Step]:
        steps = json.loads((self._folder / file).read_text())
        return {step["step"]: step for step in steps}


# -- parts of sentences


def mib(size: float) -> str:
    return f"{size / MIB:,.0f}"


def between(values: Iterable[float], digits: int = 0) -> str:
    """Returns the least and the most of *values*."""
    least, most = (f"{value:,.{digits}f}" for value in _ends(values))
    return least if least == most else f"{least} to {most}"


def _ends(values: Iterable[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[0], ordered[-1]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


# -- memory


def tensors(results: Results) -> int:
    """Returns the bytes of the program with PyTorch itself: counted before contexts of the CUDA runtime were."""
    return int(results.rows("h200-2.json", "a6")["torch"][0])


def torch_context(results: Results) -> tuple[int, int]:
    """Returns what is counted for the context of a program with PyTorch, and what it takes with PyTorch's code."""
    counted, seen = results.rows("h200-4.json", "a6")["torch"]
    return counted - tensors(results), seen - tensors(results)


def beyond_context(results: Results, file: str, step: str, program: str) -> int:
    """Returns the bytes of *program* that are neither counted nor PyTorch's context and code."""
    counted, seen = results.rows(file, step)[program]
    plain_counted, plain_seen = results.rows(file, "a6")["torch"]
    return int((seen - counted) - (plain_seen - plain_counted))


def contexts(results: Results) -> str:
    counted, seen = results.rows("h200-4.json", "a6")["context"]
    _, with_code = torch_context(results)
    return (
        f"{mib(seen)} MiB, all counted ({mib(counted)}), in a program without the CUDA runtime; "
        f"{mib(with_code)} MiB in one with PyTorch, whose code is in it"
    )


def lazy_modules(results: Results) -> str:
    graphs = beyond_context(results, "h200-4.json", "a6", "30 graphs")
    nccl = beyond_context(results, "h200-3.json", "a9", "NCCL")
    return f"not for 30 CUDA graphs, {mib(graphs)} MiB, and NCCL, {mib(nccl)} MiB, which are not counted"


def pages(results: Results) -> str:
    step = results.step("h200-3.json", "a5")
    taken = [row[2] / row[3] for row in step["rows"] if row[0] == "plain" and row[2]]
    return (
        f"holds for plain memory: taken are {between(taken, 2)} of what is charged; managed "
        "memory, which is charged the same, "
        "takes nothing before it is used"
    )


def counted_programs(results: Results) -> str:
    counted, seen = torch_context(results)
    rows = results.rows("h200-4.json", "a6")
    programs = [name for name in rows if name not in NO_PROGRAMS]
    worst = max(programs, key=lambda program: 1 - rows[program][0] / rows[program][1])
    return (
        f"{mib(counted)} of the {mib(seen)} MiB that a context with PyTorch takes. The worst of "
        f"{len(programs)} programs is `{worst}`: {mib(rows[worst][0])} of {mib(rows[worst][1])} MiB"
    )


def other_programs(results: Results) -> str:
    rows = results.rows("h200-3.json", "a9")
    counted = [
        f"{name} {mib(row[0])} of {mib(row[1])} MiB"
        for name, row in rows.items()
        if name in ("JAX", "CuPy", "NCCL")
    ]
    return (
        f"counted were {', '.join(counted)}; numba failed by itself. The library of today has not "
        "been asked, and none of them "
        "was asked for more than the limit"
    )


def out_of_memory(results: Results) -> str:
    results.step("h200-4.json", "a6")
    return (
        "not shown: the program asked for 1 TiB, more than the card has, and would have passed "
        "without an error, too"
    )


def kills(results: Results) -> str:
    took = results.step("h200-2.json", "a7")["free_again_ms"]
    return f"after {between(took, 1)} ms, {len(took)} times of {len(took)}"


def neighbor(results: Results) -> str:
    counted = results.step("h200-4.json", "a8")["counted"]
    return f"{between([size / MIB for size in counted])} MiB each time, {len(counted)} times of {len(counted)}"


# -- compute


def resolution(results: Results) -> str:
    step = results.step("h200-1.json", "a2")
    return (
        f"holds, for all {step['functions']} functions" if not step["differ"] else "does not hold"
    )


def capture_calls(results: Results) -> str:
    step = results.step("h200-1.json", "a3")
    relaxed = [row for row in step["rows"] if row[3]]
    calls = {row[0] for row in relaxed}
    situations = {(row[1], row[2]) for row in relaxed}
    verdict = "does not hold" if step["broken"] else "holds"
    return f"{verdict}, for all {len(calls)} calls in {len(situations)} situations each"


def charges(results: Results) -> str:
    rows = results.rows("h200-4.json", "b2")
    empty = [row[0] for row in results.rows("h200-4.json", "b8").values()]
    long = [row[1] for micro, row in rows.items() if micro >= 50]
    short = [
        f"{row[1]:.2f} for {micro} µs, which lets it have {1 / row[1]:.2f} times its limit"
        for micro, row in rows.items()
        if micro <= 5
    ]
    return (
        f"holds for kernels of 50 µs and more, which are charged {between(long, 2)} of what they "
        "take. A program of shorter ones "
        f"is charged too little: {'; '.join(short)}. An empty pair of events is "
        f"{between(empty, 2)} µs apart, which is not charged"
    )


def accuracy(results: Results) -> str:
    by_limit: dict[int, list[float]] = {}
    paused: list[str] = []
    for load, limit, percent in results.step("h200-2.json", "b4")["rows"]:
        if load == "decode":
            paused.append(f"{percent:.0f}")
        else:
            by_limit.setdefault(limit, []).append(percent)
    parts = [f"{between(values, 1)} at {limit}" for limit, values in by_limit.items()]
    return (
        f"{', '.join(parts)}, with kernels of 50 µs, 2 ms and 100 ms. A program that keeps the "
        "card busy for 6 of 7 ms gets "
        f"{', '.join(paused)} % of what it does without a limit, since its pauses cost nothing. "
        "How the library of today charges "
        "has not been asked so"
    )


def second_step(results: Results) -> str:
    rows = results.step("h200-2.json", "b3")["rows"]
    seconds = {(row[0], row[1]): row[2] for row in rows}
    parts = []
    for loading in ("LAZY", "EAGER"):
        program = f"transformer, {loading}"
        parts.append(
            f"{seconds[program, 30]:.1f} s, {seconds[program, 100]:.1f} without ({loading})"
        )
    return "; ".join(parts)


def launch_cost(results: Results) -> str:
    parts = []
    for file in OLDER:
        bare, unlimited, limited = results.rows(file, "b1")["launch"]
        more = f"{unlimited - bare:+,.0f} and {limited - bare:+,.0f}"
        parts.append(f"{more} ns of {bare:,.0f} (`{file}`)")
    return (
        f"without a compute limit and with one: {'; '.join(parts)}. "
        "It is less than two measurements differ, so it is not known"
    )


def event_cost(results: Results) -> str:
    more = results.nanoseconds("record+launch+record x130") - results.nanoseconds(
        "launch idle x400"
    )
    return f"{more / 1000:.1f} µs of the CPU for each launch that is measured, one in sixteen"


def autotuners(results: Results) -> str:
    rows = results.rows("h200-3.json", "b6")
    bare, limited = rows["bare"], rows["limited"]
    return f"{between(bare)} µs without the limiter, {between(limited)} with a limit of 30 %"


def busy(results: Results) -> str:
    step = results.step("h200-5.json", "b7")
    totals = [sum(sample.values()) for sample in step["samples"][0]]
    shares = [
        sum(row[2:])
        for name in ("b5", "b7")
        for row in results.step("h200-5.json", name)["rows"][:2]
    ]
    return (
        f"NVML tells {sum(totals) / len(totals):.0f} %, while both together get {between(shares)} "
        "% done: the rest goes into "
        "changing from one process to the other"
    )


# -- other things


def deep_binding(results: Results) -> str:
    result = results.step("h200-3.json", "c2")["result_beyond_the_limit"]
    stopped = "was stopped" if result == 2 else "was not stopped"
    return (
        "a program that loads the driver itself with the flag, and asks it with `dlsym`, "
        f"{stopped} (error {result}). A library that "
        "is linked with the driver, as in CUDA.jl, has not been asked: it escapes"
    )


def tools(results: Results) -> str:
    names = ", ".join(results.step("h200-3.json", "c5")["tools"])
    return f"{names} were only asked for their version. `nvidia-smi` has not run with the library"


def starts(results: Results) -> str:
    seconds = results.step("h200-3.json", "c6")["seconds"]
    return f"{seconds:.0f} s; how long without the limiter has not been asked"


def own_pids(results: Results) -> str:
    counted = results.step("h200-3.json", "c4")["counted"]
    return f"{mib(counted)} MiB, of which 100 are the program's own"


def captures(results: Results) -> str:
    good = results.step("h200-4.json", "c1")["good"]
    return "the same results as without the limiter" if good else "other results"


def hami_core(results: Results) -> str:
    percent = [row[1] for row in results.rows("h200-4.json", "d2").values()]
    return (
        f"{between(percent)} % of what they do without a limit. "
        "It charges by threads, of which these kernels have few"
    )


ASSUMPTIONS: tuple[tuple[str, Callable[[Results], str], str], ...] = (
    (
        "`cuGetProcAddress` answers the address that `dlsym` answers",
        resolution,
        "the limiter finds the function by name and version, and says so once",
    ),
    (
        "calls in relaxed capture mode break no capture",
        capture_calls,
        "captures of programs with a compute limit fail; `computeBy: 'off'`",
    ),
    (
        "events around a launch measure the time of the kernel; an idle stream passes the first "
        "one at once",
        charges,
        "compute limits are too strict or too lax; `computeBy: nvml`",
    ),
    (
        "a context takes as much in each process of a model and driver",
        contexts,
        "the difference shows as `hami_container_uncounted_bytes`",
    ),
    (
        "modules take nothing when they are loaded lazily",
        lazy_modules,
        "the same",
    ),
    (
        "plain memory of more than 1 MiB takes whole pages of 2 MiB, as on cards since Pascal; "
        "smaller memory shares pages",
        pages,
        "a program with much memory of such sizes gets less than its limit; what a process takes "
        "for shared pages beyond its "
        "memory shows as the same",
    ),
)
QUESTIONS: tuple[tuple[str, Callable[[Results], str]], ...] = (
    ("How much of what a program takes is counted?", counted_programs),
    ("Of JAX, CuPy and NCCL?", other_programs),
    ("Is an allocation beyond the limit PyTorch's own error?", out_of_memory),
    ("Beside a neighbor that moves much memory, what does a context count?", neighbor),
    ("In a PID namespace of its own?", own_pids),
    ("When is the memory of a process free that was killed in a kernel?", kills),
    ("What percent of the card do programs get?", accuracy),
    ("How long does a transformer take to its second step, at 30 %?", second_step),
    ("What does a launch cost more?", launch_cost),
    ("And with a compute limit, the two events?", event_cost),
    ("What does an autotuner measure for the same kernel?", autotuners),
    ("What do two containers with kernels of 50 µs lose?", busy),
    ("Does a capture in another thread go on?", captures),
    ("Does RTLD_DEEPBIND escape?", deep_binding),
    ("Do NVIDIA's tools run?", tools),
    ("How long do 100 processes take to start, one after the other?", starts),
    ("What does HAMi-core 8f3a89c let programs have at a limit of 30 %?", hami_core),
)
"""What was asked, in words; the sentence that answers it."""


# -- blocks of the page


def render_assumptions(results: Results) -> str:
    rows = []
    for assumption, answer, otherwise in ASSUMPTIONS:
        rows.append([assumption, answer(results), results.sources(), otherwise])
    rows.append(
        ["an array without memory tells what one with memory takes", "not asked", "", "the same"]
    )
    return table(("assumption", "on an H200", "from", "if it does not hold"), rows)


def render_questions(results: Results) -> str:
    rows = []
    for question, answer in QUESTIONS:
        rows.append([question, answer(results), results.sources()])
    return table(("question", "on an H200", "from"), rows)


def render_tenants(results: Results) -> str:
    rows = []
    pairs = zip(
        results.step("h200-5.json", "b5")["rows"],
        results.step("h200-5.json", "b7")["rows"],
        strict=True,
    )
    for alone, monitored in pairs:
        micro = int(alone[0].removeprefix("busy_"))
        kernels = f"{micro} µs" if micro < 1000 else f"{micro // 1000} ms"
        limits = alone[1].replace("/", " and ")
        rows.append([kernels, limits, _both(alone), _both(monitored)])
    columns = ("kernels", "limits", "no monitor (`h200-5.json` b5)", "monitor (`h200-5.json` b7)")
    return table(columns, rows)


def render_cards(results: Results) -> str:
    rows = []
    for file, step in results.cards():
        parts = [
            _named(step["card"], name)
            for name in ("Product Name", "Driver Version", "CUDA Version")
        ]
        rows.append([*parts, f"`{file}`"])
    return table(("card", "driver", "CUDA", "results"), rows)


def _named(text: str, name: str) -> str:
    """Returns what `nvidia-smi -q` tells under a name; empty if it does not."""
    found = re.search(rf"^ *{name} *: (.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def render_duration(results: Results) -> str:
    return (
        f"It has run on one, an H200 with driver 580, for {results.minutes():.0f} minutes in all.\n"
    )


def render_samples(results: Results) -> str:
    gaps = results.sample_gaps()
    a_second = round(1000 / median(gaps))
    steps = [100 * count // a_second for count in range(a_second + 1)]
    listed = f"{', '.join(map(str, steps[:-1]))} or {steps[-1]}"
    return (
        f"NVML has a new sample of an H200 every {between(gaps)} ms (`h200-nvml.json`), "
        f"{a_second} a second. Each counts all that "
        "the card did since the one before for the process that it meets. So one second tells a "
        "container with half of the card "
        f"that it had {listed} percent.\n"
    )


def render_distorted(results: Results) -> str:
    counted = results.step("h200-3.json", "a8")["counted"]
    own = results.rows("h200-2.json", "a6")["context"][0]
    return (
        f"Before NVML was asked for the process, a context of {mib(own)} MiB counted as "
        f"{between([size / MIB for size in counted])} MiB on an H200, beside a neighbor that "
        "moves much memory "
        "(`h200-3.json` a8).\n"
    )


def _both(row: Sequence[Any]) -> str:
    return f"{row[2]:.0f} and {row[3]:.0f}"


BLOCKS: Mapping[str, Callable[[Results], str]] = {
    "cards": render_cards,
    "duration": render_duration,
    "assumptions": render_assumptions,
    "questions": render_questions,
    "tenants": render_tenants,
    "samples": render_samples,
    "distorted": render_distorted,
}


def render_page(page: str, results: Results) -> str:
    """Returns *page* with the figures between its marks. Raises: ValueError if it lacks a mark."""
    for name, render in BLOCKS.items():
        page = marked(page, f"python -m tools.card_figures {name}", render(results))
    return page


@click.command(help="Print the figures of docs/limiter.md that a GPU has given.")
def main() -> None:
    results = Results()
    for render in BLOCKS.values():
        click.echo(render(results))


if __name__ == "__main__":
    main()
