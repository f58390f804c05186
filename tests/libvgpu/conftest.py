"""The limiter and the fake driver as they were built before; every test has a container and cards of its own."""

import os

import pytest

from testing.binaries import BUILD_VARIABLE
from testing.limiter import rig as rigs
from testing.limiter.builds import SANITIZERS, Builds, Unavailable
from testing.limiter.wheels import WheelMissing, fetch

collect_ignore_glob = [] if rigs.supported() else ["*"]


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "sanitized: runs with the sanitizers, too, whichever build is chosen"
    )


def pytest_generate_tests(metafunc):
    """What is marked ``sanitized`` runs with each build. It reaches most of the library.

    The rest takes too long with sanitizers for every run: HAMI_LIMITER_BUILD chooses one for all.
    """
    if (
        metafunc.definition.get_closest_marker("sanitized")
        and "HAMI_LIMITER_BUILD" not in os.environ
    ):
        metafunc.parametrize("rig", ["plain", *SANITIZERS], indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop():
    """Forbids builds while tests run, as in the end-to-end tests: see testing/limiter/builds.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BUILD_VARIABLE, "never")
        return (yield)


@pytest.fixture(scope="session")
def builds():
    """What has been built, where there is a compiler."""
    made = Builds()
    try:
        made.client
    except Unavailable as error:
        pytest.skip(str(error))
    return made


@pytest.fixture
def rig(builds, request):
    """A container. For another build: ``@pytest.mark.parametrize("rig", ["points"], indirect=True)``.

    HAMI_LIMITER_BUILD=asan, or tsan, runs whatever does not ask for a build with sanitizers.
    """
    with rigs.rig(
        builds, getattr(request, "param", os.environ.get("HAMI_LIMITER_BUILD", "plain"))
    ) as made:
        yield made


@pytest.fixture(scope="session")
def release(builds):
    """Libraries of the release by architecture."""
    try:
        return builds.release()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def wheel():
    """Fetches wheels by name; what cannot be had is a skip."""

    def had(name):
        try:
            return fetch(name)
        except WheelMissing as error:
            pytest.skip(str(error))

    return had
