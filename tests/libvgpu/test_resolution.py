"""Which function a program gets when it asks: our wrapper where there is one, else the driver's own; always of the
variant that the driver itself would have given."""

import subprocess

import pytest

from testing.cases import cases
from testing.limiter.builds import SOURCE

LINES = [
    line.split()
    for line in (SOURCE / "hooks.txt").read_text().splitlines()
    if line.startswith("cu") and line.split()[1] != "call"
]
COPIES = {words[0] for words in LINES if words[1] == "copy"}
HOOKED = {words[0] for words in LINES} - COPIES
"""As a program gets them where copies are not charged."""
RUNTIMES = {"runtime-11.8": 300, "runtime-12.1": 300, "runtime-12.9": 300, "runtime-13.5": 300}


def ask(rig, questions, **more):
    done = subprocess.run(
        [rig.builds.program("ask")],
        env=rig.environment(**more),
        input="\n".join(questions),
        text=True,
        capture_output=True,
        check=True,
    )
    return [tuple(line.split()) for line in done.stdout.splitlines()]


def check(rig, asked, hooked=frozenset(HOOKED)):
    """*asked*: name, version, flags and the driver's symbol."""
    answers = ask(rig, [" ".join(one[:3]) for one in asked])
    assert len(answers) == len(asked)
    for (name, version, flags, symbol), (library, got) in zip(asked, answers, strict=True):
        if symbol == "-":
            assert library == "-", name
        else:
            assert (library, got) == (
                "libvgpu.so" if symbol in hooked else "libcuda.so.1",
                symbol,
            ), (name, version)


COPIES_CHARGED = {"memory": 2 << 30, "cores": 30}, {"compute_of": "all"}


@cases(
    "device, keys, hooked",
    ("copies cost nothing", {"memory": 2 << 30}, {}, HOOKED),
    ("without a compute limit", {"memory": 2 << 30}, {"compute_of": "all"}, HOOKED),
    ("without the switch", {"memory": 2 << 30, "cores": 30}, {}, HOOKED),
    ("of launches alone", {"cores": 30}, {"compute_of": "launches"}, HOOKED),
    ("with a policy of none", {"cores": 30}, {"compute_of": "all", "policy": "disable"}, HOOKED),
    ("copies are charged", *COPIES_CHARGED, HOOKED | COPIES),
)
def test_every_symbol_in_every_version(rig, device, keys, hooked):
    rig.limit(device, **keys)
    rows = [line.split("\t") for line in (SOURCE / "abi" / "cuda.tsv").read_text().splitlines()[1:]]
    asked = [
        (base, version, "2" if per_thread == "1" else "1", symbol)
        for symbol, base, version, per_thread, _ in rows
    ]
    # of one base name and version the fake driver takes any symbol; none are asked for twice
    assert len({one[:3] for one in asked}) == len(asked)
    check(rig, asked, hooked)


def test_address_that_no_symbol_has_is_found_by_its_name(rig):
    rig.limit()
    rows = [line.split("\t") for line in (SOURCE / "abi" / "cuda.tsv").read_text().splitlines()[1:]]
    rows = [row for row in rows if row[2] != "-"]
    questions = [
        f"{base} {version} {2 if per_thread == '1' else 1}"
        for _, base, version, per_thread, _ in rows
    ]
    answers = ask(rig, questions, FAKE_CUDA_TABLE="thunk")
    wrong = [
        (row[0], answer)
        for row, answer in zip(rows, answers, strict=True)
        if (answer[0] == "libvgpu.so") != (row[0] in HOOKED)
        or (row[0] in HOOKED and answer[1] != row[0])
    ]
    assert wrong == []
    client = rig.client("procaddr", FAKE_CUDA_TABLE="thunk").start()
    assert client.do(f"alloc plain 0 {2049 << 20}") == 2
    assert client.close().count("\n") == 1


def test_function_that_shares_an_address_with_a_hooked_one_is_the_drivers(rig):
    rig.limit()
    questions = ["cuEventSynchronize 2000 1", "cuMemPoolDestroy 11020 1"]
    answers = ask(rig, questions, FAKE_CUDA_TABLE="alias")
    assert [library for library, _ in answers] == ["libcuda.so.1", "libvgpu.so"]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_real_runtime_gets_our_wrappers_and_nothing_else_of_ours(rig, wheel, runtime):
    library = next(wheel(runtime).rglob("libcudart.so.*"))
    rig.limit()
    log = rig.folder / "log"
    done = subprocess.run(
        [rig.builds.program("ask"), library],
        env=rig.environment(FAKE_CUDA_LOG=str(log)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (
        done.stderr.strip() != "0"
    )  # it wants NVIDIA's private tables, which the fake driver does not imitate
    # 12.9 and later also ask for a function without a name
    lines = [line.split() for line in log.read_text().splitlines() if line.startswith("asked cu")]
    assert len(lines) >= RUNTIMES[runtime]
    assert {line[5] for line in lines} == {
        "libvgpu.so"
    }  # every question has come through our wrapper
    asked = [tuple(line[1:5]) for line in lines]
    assert {symbol for *_, symbol in asked} & HOOKED
    # those of the older entry point have no per-thread answers to be asked for again
    check(rig, sorted(set(asked)))


def test_library_that_is_not_loaded_has_no_functions(rig):
    rig.limit()
    code = (
        "import ctypes; own = ctypes.CDLL(None)\n"
        "print(hasattr(own, 'cuMemAlloc_v2'))\n"
        "ctypes.CDLL('libcuda.so.1'); print(hasattr(ctypes.CDLL('libcuda.so.1'), 'cuMemAlloc_v2'))"
    )
    assert rig.python(code).split() == ["False", "True"]


def test_function_of_the_same_name_in_another_library_is_left_alone(rig, tmp_path):
    source = tmp_path / "other.c"
    source.write_text(
        "int cuMemAlloc_v2(void *a, unsigned long b) { (void)a; return (int)b + 1; }\n"
    )
    other = tmp_path / "libother.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-o", other, source], check=True)
    rig.limit()
    code = f"import ctypes; ctypes.CDLL('libcuda.so.1'); print(ctypes.CDLL('{other}').cuMemAlloc_v2(None, 41))"
    assert rig.python(code) == "42\n"


def test_preload_costs_other_programs_nothing(rig):
    """No file, no thread, no line of output in a program that uses no GPU."""
    rig.limit()
    done = subprocess.run(
        ["/bin/sh", "-c", "ls /proc/self/task | wc -l"],
        env=rig.environment(),
        text=True,
        capture_output=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert not rig.path.exists()


def test_old_driver_without_a_function_answers_so(rig):
    """cuCtxCreate_v4 is of 12.5: a driver of 11.8 does not give it, and neither do we."""
    rig.limit()
    env = rig.environment(FAKE_CUDA_VERSION="11080")
    done = subprocess.run(
        [rig.builds.program("ask")],
        env=env,
        text=True,
        capture_output=True,
        check=True,
        input="cuCtxCreate 12050 0\ncuLaunchKernelEx 11080 2\ncuGetProcAddress 12000 0\n",
    )
    assert done.stdout.splitlines() == [
        "libvgpu.so cuCtxCreate_v3",
        "libvgpu.so cuLaunchKernelEx_ptsz",
        "libvgpu.so cuGetProcAddress",
    ]
