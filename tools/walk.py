"""Ways through the packages: which modules a pod, a watch event, a claim and a resize enter, in which order.

``python -m tools.walk [SCENE …]`` plays a scene on the fakes of the unit tests and follows each call that it makes. A
reader goes the same way, so it is to be short, and to lead from upper layers to lower ones:

- module: one of ``hami`` in which a function runs, in the order of first entry
- entry: a call from one module into another. What a fake calls, or an import, is no part of the way
- climb: an entry from a lower layer into a higher one, which only a function that was handed down can make. The layers
  are those of the contract of import-linter in ``setup.cfg``

A generator may be the first entry of its module, but no further one and no climb: its text stands where it is made.
"""

from __future__ import annotations

import configparser
import functools
import gc
import inspect
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FrameType

import click

from hami.codec.keys import ALLOCATION_MODE, LOCK_FREE, NODE_RESIZES, RESIZE
from hami.codec.resize import Size, render_resize
from hami.runtime.settings import ALLOCATE
from hami.scheduler.settings import Settings
from testing.builders import gpu, gpus, node, pod
from testing.replicas import Clock, Replica, WatchedCluster
from tools.marked import marked

__all__ = ["SCENES", "Walk", "follow", "layers", "render", "walks"]

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hami"
GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

Act = Callable[[], object]


@dataclass(slots=True)
class Walk:
    """What a scene calls."""

    modules: list[str] = field(default_factory=list)
    """Paths below the package, in the order of first entry."""
    returns: int = 0
    """How often a module is entered again."""
    climbs: list[str] = field(default_factory=list)
    """``caller -> callee`` of each, with the name of the function that is called."""


class Follower:
    """A profiler: records the entries of modules in *walk*.

    *levels*: the layer of each package, 0 for the lowest.
    """

    def __init__(self, levels: dict[str, int]) -> None:
        self.walk = Walk()
        self._levels = levels

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        callee = module_of(frame.f_code)
        if callee is None or is_import(frame):
            return
        begun_by = caller_of(frame)
        if begun_by is None or begun_by == callee:
            return
        walk = self.walk
        is_first = callee not in walk.modules
        if is_first:
            walk.modules.append(callee)
        if frame.f_code.co_flags & GENERATORS:
            return
        walk.returns += not is_first
        if begun_by == SCENE:
            return
        if self._levels[package_of(callee)] > self._levels[package_of(begun_by)]:
            walk.climbs.append(f"{begun_by} -> {callee} {frame.f_code.co_qualname}")


SCENE = ""
"""The caller of what a scene calls itself."""


@functools.cache
def module_of(code: CodeType) -> str | None:
    """Returns the path below the package of a function; None if it is none of ours."""
    path = Path(code.co_filename)
    return str(path.relative_to(PACKAGE)) if path.is_relative_to(PACKAGE) else None


@functools.cache
def is_beside(code: CodeType) -> bool:
    """Reports whether a function belongs to the fakes or to the scene."""
    path = Path(code.co_filename)
    return any(path.is_relative_to(ROOT / folder) for folder in ("tests", "testing", "tools"))


def is_import(frame: FrameType) -> bool:
    return frame.f_code.co_name == "<module>"


def caller_of(frame: FrameType) -> str | None:
    """Returns the module that has called, or SCENE; None if a fake has called, or an import.

    What stands between, such as the standard library, is left out.
    """
    current = frame.f_back
    is_fake = False
    while current is not None:
        module = module_of(current.f_code)
        if module is not None and is_import(current):
            return None
        if module is not None:
            return None if is_fake else module
        is_fake = is_fake or is_beside(current.f_code)
        current = current.f_back
    return SCENE


def package_of(module: str) -> str:
    return module.partition("/")[0].removesuffix(".py")


def layers() -> dict[str, int]:
    """Returns the layer of each package, 0 for the lowest, from the contract of import-linter."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    lines = parser["importlinter:contract:layers"]["layers"].split("\n")
    levels: dict[str, int] = {"__init__": 0}
    for level, line in enumerate(reversed(lines)):
        for package in line.split("|"):
            levels[package.strip()] = level
    return levels


def follow(act: Act) -> Walk:
    """Calls *act* and returns its way."""
    follower = Follower(layers())
    sys.setprofile(follower)
    try:
        act()
    finally:
        sys.setprofile(None)
    return follower.walk


# -- scenes: each prepares and returns the act that is followed


def replica(settings: Settings, **annotations: str) -> Replica:
    """Returns a leading scheduler, and a lock-free node with two cards."""
    by_claims = ALLOCATION_MODE in annotations
    cards = [gpu(f"GPU-{index}", index=index, by_claims=by_claims) for index in range(2)]
    cluster = WatchedCluster(
        nodes=[node("n1", *cards, annotations={LOCK_FREE: "NVIDIA", **annotations})]
    )
    return Replica(cluster, Clock(), settings=settings)


def seen(scheduler: Replica, **fields: object) -> object:
    """Creates a pod that asks for a part of a card, and shows it to the scheduler."""
    asked = pod(gpus(1, memory=3000, cores=30), name="p", phase="Pending", **fields)
    stored = scheduler.fake.put_pod(asked)
    scheduler.watch()
    return stored


def placed_pod() -> Act:
    """A pod is filtered and bound."""
    scheduler = replica(Settings())
    stored = seen(scheduler)
    return lambda: scheduler.schedule(stored)


def watch_event() -> Act:
    """The watch shows that a pod has been bound."""
    scheduler = replica(Settings())
    scheduler.schedule(seen(scheduler))
    return scheduler.watch


def bound_claim() -> Act:
    """A pod whose devices are given by a claim is bound."""
    scheduler = replica(Settings(dra=ALLOCATE), **{ALLOCATION_MODE: "dra"})
    stored = seen(scheduler, claim="hami-" + "a" * 32)
    scheduler.filter(stored)
    return lambda: scheduler.binder.bind(stored.ref, "n1")


def resize() -> Act:
    """A pod asks for more memory, and gets it."""
    scheduler = replica(Settings(), **{NODE_RESIZES: "true"})
    scheduler.schedule(seen(scheduler))
    (bound,) = scheduler.fake.pods.values()
    size = {"c": Size(memory_mib=5000)}
    scheduler.fake.put_pod(
        replace(
            bound,
            phase="Running",
            admitted=True,
            annotations={**bound.annotations, RESIZE: render_resize(size)},
        )
    )
    scheduler.watch()
    return scheduler.resizer.step


SCENES: dict[str, Callable[[], Act]] = {
    "pod": placed_pod,
    "watch-event": watch_event,
    "claim": bound_claim,
    "resize": resize,
}


# -- output


def walks(names: Iterable[str]) -> Iterator[tuple[str, Walk]]:
    """Yields the way of each scene. No cache of a function has been filled then, whatever has run before."""
    for name in names:
        act = SCENES[name]()
        clear_caches()
        yield name, follow(act)


def clear_caches() -> None:
    for wrapper in gc.get_objects():
        if isinstance(wrapper, functools._lru_cache_wrapper) and is_ours(wrapper):
            wrapper.cache_clear()


def is_ours(wrapper: Callable[..., object]) -> bool:
    return wrapper.__module__ == "hami" or wrapper.__module__.startswith("hami.")


def render(name: str, walk: Walk) -> str:
    """Returns one way for people, as Markdown: modules that follow each other in one package stand in one line."""
    title = (inspect.getdoc(SCENES[name]) or "").removesuffix(".")
    lines = [
        f"{title} (`{name}`): {len(walk.modules)} modules, {walk.returns} times entered again, "
        f"{len(walk.climbs)} climbs.\n"
    ]
    runs = [list(run) for _, run in itertools.groupby(walk.modules, package_of)]
    for number, run in enumerate(runs, 1):
        names = [module.rpartition("/")[2].removesuffix(".py") for module in run]
        package = package_of(run[0])
        lines.append(
            f"{number}. `{package}`" + (f": {', '.join(names)}" if names != [package] else "")
        )
    if walk.climbs:
        lines.append("")
    for climb, times in sorted(Counter(walk.climbs).items()):
        lines.append(f"Climb, {times} ×: `{climb}`")
    return "\n".join(lines) + "\n"


def rendered_page(page: str) -> str:
    """Returns the page of documentation *page* with the ways of all scenes."""
    ways = "\n".join(render(name, walk) for name, walk in walks(SCENES))
    return marked(page, "python -m tools.walk", ways)


@click.command(help="Follow the calls of scenes through the packages; all scenes if none is named.")
@click.argument("names", nargs=-1, metavar="SCENE", type=click.Choice(list(SCENES)))
def main(names: tuple[str, ...]) -> None:
    for name, walk in walks(names or SCENES):
        click.echo(render(name, walk))


if __name__ == "__main__":
    main()
