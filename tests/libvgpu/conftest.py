"""Builds the limiter and the fake driver once in a run; every test has a container and cards of its own."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.libvgpu import rig as rigs
from tests.libvgpu.wheels import WheelMissing, fetch

collect_ignore_glob = [] if rigs.supported() else ["*"]


def pytest_configure(config):
    config.addinivalue_line("markers", "sanitized: runs with the sanitizers, too, whichever build is chosen")


def pytest_generate_tests(metafunc):
    """What is marked ``sanitized`` runs with each build. It reaches most of the library.

    The rest takes too long with sanitizers for every run: HAMI_LIMITER_BUILD chooses one for all.
    """
    if metafunc.definition.get_closest_marker("sanitized") and "HAMI_LIMITER_BUILD" not in os.environ:
        metafunc.parametrize("rig", ["plain", *rigs.SANITIZERS], indirect=True)


@pytest.fixture(scope="session")
def builds(tmp_path_factory, request):
    """The builds that the selected tests need; several compilers run at once."""
    made = rigs.Builds(tmp_path_factory.mktemp("limiter"))
    variants = {item.callspec.params.get("rig") for item in request.session.items if hasattr(item, "callspec")}
    try:
        with ThreadPoolExecutor() as pool:
            libraries = [pool.submit(made.library, variant) for variant in sorted({"plain", *variants} - {None})]
            made.client
            for library in libraries:
                library.result()
    except rigs.Unavailable as error:
        pytest.skip(str(error))
    return made


@pytest.fixture
def rig(builds, request):
    """A container. For another build: ``@pytest.mark.parametrize("rig", ["points"], indirect=True)``.

    HAMI_LIMITER_BUILD=asan, or tsan, runs whatever does not ask for a build with sanitizers.
    """
    with rigs.rig(builds, getattr(request, "param", os.environ.get("HAMI_LIMITER_BUILD", "plain"))) as made:
        yield made


@pytest.fixture(scope="session")
def release(tmp_path_factory):
    """Libraries of the release by architecture."""
    try:
        return rigs.make_release(tmp_path_factory.mktemp("release"))
    except WheelMissing as error:
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
