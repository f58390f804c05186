"""The bill of materials lists what is installed, in the form of CycloneDX, and the same each time."""

import hashlib
import json
import re
from importlib.metadata import distribution, distributions

import pytest
from click.testing import CliRunner

from hami import __version__
from testing.cases import cases
from tools.sbom import (
    EXCLUDED,
    build_inputs,
    debian_packages,
    differences,
    limiter,
    main,
    python_packages,
    render,
)

STATUS = """\
Package: openssl
Status: install ok installed
Architecture: amd64
Version: 3.0.17-1~deb12u2
Description: a toolkit
 Status: not a field
 .
 more

Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2:2.36-9+deb12u10

Package: removed
Status: deinstall ok config-files
Architecture: all
Version: 1
"""
OS_RELEASE = 'PRETTY_NAME="Debian"\nID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n'


@pytest.fixture
def system(tmp_path):
    """The files of a distribution, of a limiter, and of what it was built from."""
    (tmp_path / "status").write_text(STATUS)
    (tmp_path / "os-release").write_text(OS_RELEASE)
    (tmp_path / "limiter").mkdir()
    (tmp_path / "limiter" / "libvgpu.so").write_text("library")
    (tmp_path / "limiter" / "hami-memory-wall").write_text("program")
    (tmp_path / "libvgpu" / "src").mkdir(parents=True)
    (tmp_path / "libvgpu" / "Makefile").write_text("all:")
    (tmp_path / "libvgpu" / "src" / "a.c").write_text("int a;")
    (tmp_path / "built" / "ziglang-0.17.1.dist-info").mkdir(parents=True)
    (tmp_path / "built" / "ziglang-0.17.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: ziglang\nVersion: 0.17.1\nLicense-Expression: MIT\n"
    )
    return tmp_path


@pytest.fixture
def call(system):
    """Runs the command on this system."""

    def call(*words):
        return CliRunner().invoke(
            main,
            [
                *words,
                "--dpkg-status",
                str(system / "status"),
                "--os-release",
                str(system / "os-release"),
                "--limiter",
                str(system / "limiter"),
            ],
            catch_exceptions=False,
        )

    return call


@pytest.fixture
def made(system, call):
    """The bill of this system, as text."""
    done = call(
        "hami-device-plugin",
        "--sources",
        str(system / "libvgpu"),
        "--built-with",
        str(system / "built"),
    )
    assert done.exit_code == 0
    return done.stdout


def sha256(text):
    return [{"alg": "SHA-256", "content": hashlib.sha256(text.encode()).hexdigest()}]


def test_the_required_fields_of_the_schema_are_there(made):
    """Those of bom-1.6.schema.json, and the forms that it asks for."""
    document = json.loads(made)
    assert (document["bomFormat"], document["specVersion"], document["version"]) == (
        "CycloneDX",
        "1.6",
        1,
    )
    assert re.fullmatch(
        r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", document["serialNumber"]
    )
    assert document.keys() == {
        "bomFormat",
        "specVersion",
        "serialNumber",
        "version",
        "metadata",
        "components",
        "dependencies",
    }
    root, components = document["metadata"]["component"], document["components"]
    refs = [one["bom-ref"] for one in (root, *components)]
    assert all(refs)
    assert len(set(refs)) == len(refs)
    for one in (root, *components):
        assert one["type"] in ("application", "container", "library", "operating-system", "file")
        assert one["name"]
        assert one.get("scope", EXCLUDED) == EXCLUDED
        assert one.keys() <= {
            "type",
            "bom-ref",
            "name",
            "version",
            "purl",
            "scope",
            "hashes",
            "licenses",
        }
        for digest in one.get("hashes", ()):
            assert digest["alg"] == "SHA-256"
            assert re.fullmatch("[0-9a-f]{64}", digest["content"])
        given = one.get("licenses", [])
        assert all(
            entry.keys() == {"license"} and entry["license"].keys() == {"name"} for entry in given
        ) or (len(given) == 1 and given[0].keys() == {"expression"})
    for link in document["dependencies"]:
        assert link["ref"] in refs
        assert set(link["dependsOn"]) <= set(refs)


def test_python_packages_are_those_that_are_installed():
    found = {one["name"]: one for one in python_packages()}
    assert found.keys() == {re.sub(r"[-_.]+", "-", one.name).lower() for one in distributions()}
    for name in ("msgspec", "prometheus-client", "pyyaml"):
        number = distribution(name).version
        assert (found[name]["version"], found[name]["purl"]) == (
            number,
            f"pkg:pypi/{name}@{number}",
        )
    assert found["hami"]["version"] == __version__


def test_packages_of_the_distribution_are_those_that_are_installed(system):
    system_, *packages = debian_packages(system / "status", system / "os-release")
    assert (system_["type"], system_["name"], system_["version"]) == (
        "operating-system",
        "debian",
        "12",
    )
    assert {one["name"]: one["purl"] for one in packages} == {
        "openssl": "pkg:deb/debian/openssl@3.0.17-1~deb12u2?arch=amd64&distro=bookworm",
        "libc6": "pkg:deb/debian/libc6@2%3A2.36-9%2Bdeb12u10?arch=amd64&distro=bookworm",
    }


def test_the_limiter_has_its_checksum_and_names_what_it_was_built_from(system, made):
    files = [(one["type"], one["hashes"]) for one in limiter(system / "limiter")]
    assert files == [("library", sha256("library")), ("application", sha256("program"))]
    inputs = list(build_inputs(system / "libvgpu", system / "built"))
    assert [(one["name"], one.get("version"), one.get("hashes")) for one in inputs] == [
        ("libvgpu/Makefile", None, sha256("all:")),
        ("libvgpu/src/a.c", None, sha256("int a;")),
        ("ziglang", "0.17.1", None),
    ]
    assert {one["scope"] for one in inputs} == {EXCLUDED}
    image, *built = json.loads(made)["dependencies"]
    parts = [one["bom-ref"] for one in inputs[2:] + inputs[:2]]
    folder = f"file:{system}/limiter"
    assert built == [
        {"ref": f"{folder}/hami-memory-wall", "dependsOn": parts},
        {"ref": f"{folder}/libvgpu.so", "dependsOn": parts},
    ]
    assert {one["ref"] for one in built} <= set(image["dependsOn"])
    assert not set(parts) & set(image["dependsOn"])


@cases(
    "metadata, licenses",
    (
        "expression",
        "License-Expression: Apache-2.0 OR MIT\nLicense: x",
        [{"expression": "Apache-2.0 OR MIT"}],
    ),
    ("name", "License: BSD 3-Clause", [{"license": {"name": "BSD 3-Clause"}}]),
    (
        "the whole text",
        "License: Copyright\n  Permission is hereby\nClassifier: License :: OSI Approved :: MIT License",
        [{"license": {"name": "MIT License"}}],
    ),
    (
        "classifier",
        "Classifier: License :: OSI Approved\nClassifier: Topic :: Software",
        [{"license": {"name": "OSI Approved"}}],
    ),
    ("none", "Summary: a package", None),
)
def test_the_license_is_the_clearest_that_the_package_gives(tmp_path, metadata, licenses):
    (tmp_path / "a-1.dist-info").mkdir()
    text = f"Metadata-Version: 2.4\nName: A_b\nVersion: 1+x\n{metadata}\n"
    (tmp_path / "a-1.dist-info" / "METADATA").write_text(text)
    (found,) = python_packages([str(tmp_path)])
    assert (found["purl"], found.get("licenses")) == ("pkg:pypi/a-b@1%2Bx", licenses)


def test_equal_content_gives_equal_text_in_any_order():
    found = list(python_packages())
    assert render("hami", found) == render("hami", reversed(found))
    assert render("hami", found) != render("hami", found[1:])
    assert (
        json.loads(render("hami", found))["serialNumber"]
        != json.loads(render("hami", found[1:]))["serialNumber"]
    )


def listed(**fields):
    return {"type": "library", "bom-ref": "a", "name": "a", "version": "1"} | fields


@cases(
    "wanted, installed, found",
    ("equal", [listed()], [listed()], []),
    (
        "missing",
        [listed(), listed(**{"bom-ref": "b"})],
        [listed()],
        ["listed, but not installed: b"],
    ),
    ("more", [], [listed()], ["installed, but not listed: a"]),
    (
        "changed",
        [listed(hashes=sha256("x"))],
        [listed(hashes=sha256("y"))],
        ["other checksum than listed: a"],
    ),
    ("what it was built from", [listed(scope=EXCLUDED)], [], []),
)
def test_differences(wanted, installed, found):
    assert differences(wanted, installed) == found


def test_a_bill_is_compared_with_what_is_installed(system, call, made):
    (system / "sbom.json").write_text(made)
    done = call("--check", str(system / "sbom.json"))
    assert (
        done.exit_code,
        re.fullmatch(r"\d+ components, as listed\n", done.stdout) is not None,
    ) == (0, True)
    (system / "limiter" / "libvgpu.so").write_text("another library")
    (system / "status").write_text(STATUS.replace("3.0.17", "3.0.16"))
    done = call("--check", str(system / "sbom.json"))
    assert (done.exit_code, done.stdout.splitlines()) == (
        1,
        [
            "listed, but not installed: pkg:deb/debian/openssl@3.0.17-1~deb12u2?arch=amd64&distro=bookworm",
            "installed, but not listed: pkg:deb/debian/openssl@3.0.16-1~deb12u2?arch=amd64&distro=bookworm",
            f"other checksum than listed: file:{system}/limiter/libvgpu.so",
        ],
    )


@cases("words", ("neither", []), ("both", ["hami", "--check", "status"]))
def test_either_a_name_or_a_bill_is_given(system, call, words, monkeypatch):
    monkeypatch.chdir(system)
    done = call(*words)
    assert done.exit_code == 2
    assert "give either NAME or --check" in done.stderr
