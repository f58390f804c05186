"""The MIG instances that a container has by a claim, in a file of its directory, which only root may write. The monitor
reads it; instances of pods without claims are in annotations."""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

from hami.devices.cards import Instance
from hami.errors import HostError
from hami.model import MigProfile, Partition
from hami.node.tenant_files import located_file, reopened

INSTANCES = "instances"
"""Name of the file."""
_MOST = 65_536  # bytes that are read: a claim has 32 devices


class GivenInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG instance of a container, with the size that its profile has. *start*, *size*: in memory slices."""

    card: str
    uuid: str
    profile: str
    start: int
    size: int
    gpu_instance: int
    compute_instance: int
    memory_mib: int
    cores: int

    @property
    def partition(self) -> Partition:
        """Its place and identity."""
        return Partition(
            self.start,
            self.size,
            self.profile,
            (self.uuid, str(self.gpu_instance), str(self.compute_instance)),
        )


_INSTANCES = msgspec.json.Decoder(tuple[GivenInstance, ...])


def given_instance(instance: Instance, profile: MigProfile) -> GivenInstance:
    """Returns *instance* as one of *profile*."""
    return GivenInstance(
        card=instance.gpu,
        uuid=instance.uuid,
        profile=profile.name,
        start=instance.start,
        size=instance.size,
        gpu_instance=instance.gpu_instance,
        compute_instance=instance.compute_instance,
        memory_mib=profile.memory_mib,
        cores=profile.cores,
    )


def render_instances(instances: Iterable[GivenInstance]) -> bytes:
    """Returns the content of the file."""
    return msgspec.json.encode(tuple(instances))


def read_instances(directory: int) -> tuple[GivenInstance, ...]:
    """Returns the instances of the file in a directory; none without one. Raises: OSError, HostError."""
    try:
        with located_file(directory, INSTANCES) as (seen, _), reopened(seen, os.O_RDONLY) as file:
            return _INSTANCES.decode(os.pread(file, _MOST, 0))
    except FileNotFoundError:
        return ()
    except msgspec.MsgspecError as error:
        raise HostError(f"{INSTANCES}: {error}") from error
