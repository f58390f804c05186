"""Memory that processes share: random programs of several processes in two containers, against a model.

A block counts once in each container whose processes hold it, whoever allocated it, in whichever order they open,
close, free, or are killed.
"""

import random
from dataclasses import dataclass, field

import pytest

from testing.limiter import rig as rigs
from testing.limiter.rig import MIB
from tests.libvgpu.test_sharing import (
    Fabric,
    Ipc,
    Physical,
    Pooled,
    allocate,
    check_rest,
    free,
    passed,
    release,
    shared,
)

LIMIT, UNIT = 4096 * MIB, 32 * MIB
PROCESSES = 3  # in each container
IMPORTED = 64


class External:
    """Memory of another interface, by a file. Nobody allocates it here: who made the file imports it first."""

    def open(self, client, handle, number, size):
        return client.do(f"alloc external {number} {size} {passed(*handle, client)}")

    def close(self, client, number):
        return client.do(f"free external {number}")


IPC, POOLED, PHYSICAL, FABRIC, EXTERNAL = Ipc(), Pooled(), Physical(), Fabric(), External()


@dataclass(eq=False)
class Process:
    container: int
    client: rigs.Client
    numbers: int = 20

    def next_number(self):
        self.numbers += 2  # the second is for a mapping
        return self.numbers


@dataclass(eq=False)
class Block:
    way: object
    size: int
    handle: object
    owner: Process | None
    """Who has allocated it and not freed it."""
    number: int = 0
    source: Process | None = None
    """Whose file is passed on."""
    holders: list = field(default_factory=list)
    """Process and number of each import."""


class World:
    """What was done, and what each container must be charged for it."""

    def __init__(self, containers, seed):
        self.containers = containers
        self.random = random.Random(seed)
        self.processes = [self.begin(container) for container in (0, 1) for _ in range(PROCESSES)]
        self.blocks = []
        self.killed = set()

    def begin(self, container):
        state = str(self.containers[0].state)
        return Process(container, self.containers[container].client(FAKE_CUDA_STATE=state).start())

    def charged(self, container):
        held = 0
        for block in self.blocks:
            holders = [process for process, _ in block.holders] + [block.owner]
            held += block.size * any(
                one is not None and one.container == container for one in holders
            )
        return held

    def step(self):
        doing = self.random.choices(
            [self.allocate, self.open, self.close, self.free, self.kill], [3, 6, 3, 2, 1]
        )[0]
        doing()
        self.blocks = [block for block in self.blocks if block.owner or block.holders]

    def allocate(self):
        if len(self.blocks) > 6:
            return
        process, way = (
            self.random.choice(self.processes),
            self.random.choice([IPC, POOLED, PHYSICAL, FABRIC, EXTERNAL]),
        )
        size, number = self.random.randint(1, 6) * UNIT, process.next_number()
        if way is EXTERNAL:
            handle = process.client, process.client.do("memfd")
            assert way.open(process.client, handle, number, size) == 0
            self.blocks.append(
                Block(way, size, handle, None, source=process, holders=[(process, number)])
            )
            return
        assert allocate(process.client, way, number, size) == 0
        self.blocks.append(
            Block(way, size, way.export(process.client, number), process, number, process)
        )

    def open(self):
        """By a handle of the owner, or of an importer where that can pass it on."""
        choice = [
            block
            for block in self.blocks
            if block.source and (block.owner or block.way is EXTERNAL)
        ]
        if not choice:
            return
        block, process = self.random.choice(choice), self.random.choice(self.processes)
        number = process.next_number()
        more = {"size": block.size} if block.way in (PHYSICAL, FABRIC, EXTERNAL) else {}
        handle = block.handle
        if block.way is PHYSICAL and block.holders and self.random.random() < 0.5:
            importer, held = self.random.choice(block.holders)
            handle = PHYSICAL.export(importer.client, held)
        assert block.way.open(process.client, handle, number=number, **more) == 0
        block.holders.append((process, number))

    def close(self):
        choice = [block for block in self.blocks if block.holders]
        if choice:
            block = self.random.choice(choice)
            process, number = block.holders.pop(self.random.randrange(len(block.holders)))
            assert block.way.close(process.client, number) == 0

    def free(self):
        choice = [block for block in self.blocks if block.owner]
        if choice:
            block = self.random.choice(choice)
            assert release(block.owner.client, block.way, block.number) == 0
            block.owner = None

    def kill(self):
        process = self.processes.pop(self.random.randrange(len(self.processes)))
        process.client.kill()
        self.killed.add(process.container)
        self.processes.append(self.begin(process.container))
        for block in self.blocks:
            block.owner = None if block.owner is process else block.owner
            block.source = None if block.source is process else block.source
            block.holders = [(one, number) for one, number in block.holders if one is not process]

    def check(self):
        for container in (0, 1):
            client = self.random.choice(
                [one for one in self.processes if one.container == container]
            ).client
            rest = LIMIT - self.charged(container)
            if container in self.killed:
                check_rest(client, rest)
            assert free(client) == rest
        self.killed = set()


@pytest.mark.parametrize("seed", range(8))
def test_every_block_counts_once_in_each_container_that_holds_it(rig, builds, seed):
    with rigs.rig(builds, rig.variant) as other:
        containers = rig, other
        for one in containers:
            one.limit({"memory": LIMIT})
        world = World(containers, seed)
        for _ in range(60):
            world.step()
            world.check()
        for process in list(world.processes):
            process.client.kill()
        for one in containers:
            client = one.client(FAKE_CUDA_STATE=str(rig.state)).start()
            check_rest(client, LIMIT)
            assert (one.region.records(), shared(one, IMPORTED)) == ([], 0)
        assert rig.machine.used() == 0
