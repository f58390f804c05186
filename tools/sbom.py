"""The software bill of materials of an image, as CycloneDX 1.6, from what is installed in it.

The build of the image runs ``python sbom.py NAME`` in a stage with the content of the image, and puts the output at
``/usr/share/hami/sbom.json``; ``--check FILE`` compares such a file with what is installed. The same content gives the
same text: there is no time in it. Runs alone, with the packages of either image.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from importlib.metadata import Distribution, distributions, version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

Component = dict[str, Any]
EXCLUDED = "excluded"
"""The scope of what an image was built from, and does not contain."""
LIMITER = ("libvgpu.so", "hami-memory-wall")
"""What the image has of the limiter."""
_MAX_LICENSE = 64  # characters; a longer one is the text of the license
_HEADERS = HeaderParser()


def python_packages(paths: list[str] | None = None) -> Iterator[Component]:
    """Yields the packages of this Python, or those whose metadata are in the directories *paths*."""
    found = distributions() if paths is None else distributions(path=paths)
    for package in {_normalized(one.name): one for one in found}.values():
        name = _normalized(package.name)
        yield _component(
            "library",
            name,
            package.version,
            f"pkg:pypi/{name}@{_quoted(package.version)}",
            licenses=_licenses(package),
        )


def debian_packages(status: Path, os_release: Path) -> Iterator[Component]:
    """Yields the distribution and its packages, by the database of dpkg."""
    lines = (line.partition("=") for line in read(os_release).splitlines() if "=" in line)
    system = {key: value.strip("\"'") for key, _, value in lines}
    if not system.get("ID"):
        raise click.ClickException(f"{os_release}: there is no ID of a distribution")
    yield _component(
        "operating-system", system["ID"], system.get("VERSION_ID", ""), f"os:{system['ID']}"
    )
    for text in read(status).split("\n\n"):
        package = _HEADERS.parsestr(text.strip())
        if package["Status"] != "install ok installed":
            continue
        if lacking := [
            name for name in ("Package", "Version", "Architecture") if not package[name]
        ]:
            raise click.ClickException(
                f"{status}: a package without {', '.join(lacking)}: {text.strip()[:200]!r}"
            )
        qualifiers = (
            f"arch={package['Architecture']}&distro={system.get('VERSION_CODENAME', system['ID'])}"
            f"{_upstream(package['Source'])}"
        )
        where = f"{system['ID']}/{_quoted(package['Package'])}@{_quoted(package['Version'])}"
        yield _component(
            "library", package["Package"], package["Version"], f"pkg:deb/{where}?{qualifiers}"
        )


def _upstream(source: str | None) -> str:
    """Returns the qualifier with the source package, for which Debian writes its advisories; empty if it has the
    package's name. *source*: the field of dpkg, ``NAME`` or ``NAME (VERSION)``."""
    if not source:
        return ""
    name, _, number = source.partition(" ")
    number = number.strip("()")
    return f"&upstream={_quoted(f'{name}@{number}' if number else name)}"


def limiter(folder: Path) -> Iterator[Component]:
    """Yields the limiter's library and program in *folder*, with their checksums."""
    for name in LIMITER:
        path = folder / name
        kind = "library" if path.suffix else "application"
        yield _component(kind, name, version("hami"), f"file:{path}", hashes=_hashes(path))


def build_inputs(sources: Path, built_with: Path) -> Iterator[Component]:
    """Yields what the limiter was built from: its *sources*, and the packages whose metadata are in *built_with*."""
    for path in sorted(sources.rglob("*")):
        if path.is_file():
            name = f"{sources.name}/{path.relative_to(sources)}"
            yield _component(
                "file", name, "", f"source:{name}", scope=EXCLUDED, hashes=_hashes(path)
            )
    for compiler in python_packages([str(built_with)]):
        yield compiler | {"scope": EXCLUDED}


def render(image: str, components: Iterable[Component]) -> str:
    """Returns the document."""
    found = sorted(components, key=lambda one: one["bom-ref"])
    refs = [one["bom-ref"] for one in found if one.get("scope") != EXCLUDED]
    inputs = [one["bom-ref"] for one in found if one.get("scope") == EXCLUDED]
    links = [{"ref": image, "dependsOn": refs}]
    built = tuple(f"/{name}" for name in LIMITER)
    links += [{"ref": ref, "dependsOn": inputs} for ref in refs if ref.endswith(built) and inputs]
    content = {
        "version": 1,
        "metadata": {"component": _component("container", image, version("hami"), image)},
        "components": found,
        "dependencies": links,
    }
    number = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(content))
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{number}",
        **content,
    }
    return json.dumps(document, indent=1) + "\n"


def differences(listed: Iterable[Component], installed: Iterable[Component]) -> list[str]:
    """Returns what is *listed* but not *installed*, or the other way round, and what has other checksums."""
    wanted = {one["bom-ref"]: one for one in listed if one.get("scope") != EXCLUDED}
    found = {one["bom-ref"]: one for one in installed}
    return [
        *(f"listed, but not installed: {ref}" for ref in sorted(wanted.keys() - found.keys())),
        *(f"installed, but not listed: {ref}" for ref in sorted(found.keys() - wanted.keys())),
        *(
            f"other checksum than listed: {ref}"
            for ref in sorted(wanted.keys() & found.keys())
            if wanted[ref].get("hashes") != found[ref].get("hashes")
        ),
    ]


def read(path: Path) -> str:
    """Returns the text of the file. Raises: ClickException if it is none; OSError."""
    try:
        return path.read_text()
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{path}: not UTF-8 text: {error.reason}") from error


def read_bill(path: Path) -> list[Component]:
    """Returns the components in a bill of materials. Raises: ClickException for another file; OSError."""
    try:
        document = json.loads(read(path))
    except ValueError as error:
        raise click.ClickException(f"{path}: not JSON: {error}") from error
    components = document.get("components") if isinstance(document, dict) else None
    if not isinstance(components, list):
        raise click.ClickException(
            f"{path}: components: expected a list: {str(components)[:200]!r}"
        )
    for index, component in enumerate(components):
        if not isinstance(component, dict) or not isinstance(component.get("bom-ref"), str):
            raise click.ClickException(
                f"{path}: components[{index}].bom-ref: expected a text: {str(component)[:200]!r}"
            )
    return components


def _component(kind: str, name: str, number: str, ref: str, **fields: Any) -> Component:
    """Returns a component. Its reference is its package URL, if it has one."""
    made: Component = {"type": kind, "bom-ref": ref, "name": name}
    made |= {"version": number} if number else {}
    made |= {"purl": ref} if ref.startswith("pkg:") else {}
    return made | {key: value for key, value in fields.items() if value}


def _licenses(package: Distribution) -> list[dict[str, Any]]:
    """Returns the license as an expression of SPDX, or else what the package calls it."""
    given = package.metadata
    if expression := given.get("License-Expression"):
        return [{"expression": expression}]
    text = given.get("License", "").strip()
    names = (
        [text]
        if text and len(text) <= _MAX_LICENSE and "\n" not in text
        else [
            line.rpartition(" :: ")[2]
            for line in given.get_all("Classifier") or ()
            if line.startswith("License :: OSI")
        ]
    )
    return [{"license": {"name": name}} for name in names]


def _hashes(path: Path) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}]


def _normalized(name: str) -> str:
    """Returns the name of a Python package as in package indexes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _quoted(text: str) -> str:
    return quote(text, safe="")


FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command(help="Print the bill of materials of the image NAME, in which this runs.")
@click.argument("name", required=False)
@click.option(
    "--check", type=FILE, help="Compare this bill with what is installed, instead of printing one."
)
@click.option("--limiter", "folder", type=FOLDER, help="The directory with the limiter's files.")
@click.option("--sources", type=FOLDER, help="The sources from which it was built.")
@click.option(
    "--built-with", type=FOLDER, help="The metadata of the Python packages with which it was built."
)
@click.option(
    "--dpkg-status",
    type=FILE,
    default="/var/lib/dpkg/status",
    help="The database of Debian's packages.",
)
@click.option(
    "--os-release", type=FILE, default="/etc/os-release", help="The name of the distribution."
)
def main(
    name: str | None,
    check: Path | None,
    folder: Path | None,
    sources: Path | None,
    built_with: Path | None,
    dpkg_status: Path,
    os_release: Path,
) -> None:
    if (name is None) is (check is None):
        raise click.UsageError("give either NAME or --check")
    inputs = None if sources is None or built_with is None else (sources, built_with)
    try:
        problems = _print_or_check(name, check, folder, inputs, dpkg_status, os_release)
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error
    if problems:
        sys.exit(1)


def _print_or_check(
    name: str | None,
    check: Path | None,
    folder: Path | None,
    inputs: tuple[Path, Path] | None,
    dpkg_status: Path,
    os_release: Path,
) -> list[str]:
    """Prints the bill of materials of *name*, or the differences of that in *check*, which it returns."""
    installed = [*python_packages(), *debian_packages(dpkg_status, os_release)]
    if folder is not None:
        installed += limiter(folder)
    if check is None:
        excluded = [] if inputs is None else build_inputs(*inputs)
        click.echo(render(str(name), [*installed, *excluded]), nl=False)
        return []
    found = differences(read_bill(check), installed)
    click.echo("\n".join(found) if found else f"{len(installed)} components, as listed")
    return found


if __name__ == "__main__":
    main()
