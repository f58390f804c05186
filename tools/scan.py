"""Known vulnerabilities of an image, from its bill of materials: ``python -m tools.scan SBOM --scanner PROGRAM``.

*PROGRAM* is osv-scanner, which asks osv.dev. All findings are printed; one that is severe and has a fix fails, so an
image with it is not published. Debian's advisories name source packages, and the scanner looks for the names of a bill,
so it gets a bill with these.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import click

from tools.sbom import EXCLUDED, read_bill

__all__ = ["SEVERE", "Finding", "findings", "main", "scanned_bill"]

SEVERE = 7.0
"""The lowest CVSS score of the severity "high"."""
TIMEOUT_SECONDS = 600
FOUND = 1
"""The scanner's exit status where it has found something."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A vulnerability of a package. *score*: by CVSS; 0 if nobody has given one. *fix*: a version; empty if none."""

    package: str
    version: str
    names: str
    score: float
    fix: str

    @property
    def fails(self) -> bool:
        """An update would remove a severe vulnerability."""
        return self.score >= SEVERE and bool(self.fix)

    def __str__(self) -> str:
        score = f"severity {self.score}" if self.score else "no severity"
        fix = f"fixed in {self.fix}" if self.fix else "no fix"
        return f"{self.package} {self.version}: {self.names}: {score}, {fix}"


def scanned_bill(components: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a bill with the packages among *components*, those of Debian by their source packages."""
    scanned = []
    for component in components:
        if component.get("scope") != EXCLUDED and "purl" in component:
            scanned.append(_by_source(component))
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": scanned}


def _by_source(component: dict[str, Any]) -> dict[str, Any]:
    """Returns *component*, with name and version of the source package that its package URL names."""
    _, _, qualifiers = component["purl"].partition("?")
    upstream = parse_qs(qualifiers).get("upstream")
    if not upstream:
        return component
    name, _, number = unquote(upstream[0]).partition("@")
    return component | {"name": name, "version": number or component["version"]}


def findings(report: dict[str, Any]) -> Iterator[Finding]:
    """Yields what the scanner's *report*, its output as JSON, has found. Vulnerabilities with one cause are one."""
    for source in report.get("results") or ():
        for entry in source["packages"]:
            by_id = {one["id"]: one for one in entry.get("vulnerabilities") or ()}
            for group in entry.get("groups") or ():
                yield Finding(
                    entry["package"]["name"],
                    entry["package"]["version"],
                    ", ".join(group["ids"]),
                    float(group.get("max_severity") or 0),
                    _fix([by_id[name] for name in group["ids"] if name in by_id], entry["package"]),
                )


def _fix(vulnerabilities: list[dict[str, Any]], package: dict[str, Any]) -> str:
    """Returns the last version that the *vulnerabilities* call fixed for *package*; empty if there is none."""
    fixed = ""
    for vulnerability in vulnerabilities:
        for affected in vulnerability.get("affected") or ():
            if affected.get("package", {}).get("name") != package["name"]:
                continue
            if affected["package"].get("ecosystem") != package["ecosystem"]:
                continue
            for versions in affected.get("ranges") or ():
                for event in versions.get("events") or ():
                    fixed = event.get("fixed", fixed)
    return fixed


def scan(bill: dict[str, Any], scanner: str) -> dict[str, Any]:
    """Returns the report of *scanner* about *bill*. Raises: ClickException."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sbom.cdx.json")  # the scanner knows the form by this ending
        path.write_text(json.dumps(bill))
        command = [scanner, "scan", "source", "--format=json", f"--lockfile={path}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise click.ClickException(f"--scanner: {error}") from None
    if done.returncode not in (0, FOUND):
        raise click.ClickException(
            f"{scanner} ended with {done.returncode}: {done.stderr.strip()[-2000:]}"
        )
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        raise click.ClickException(f"{scanner}: its output is not JSON: {error}") from None
    return report


@click.command(help="Print the known vulnerabilities of the image that SBOM describes.")
@click.argument("sbom", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--scanner", default="osv-scanner", show_default=True, help="The program to ask.")
def main(sbom: Path, scanner: str) -> None:
    bill = scanned_bill(read_bill(sbom))
    found = sorted(findings(scan(bill, scanner)))
    for finding in found:
        click.echo(str(finding))
    failing = [finding for finding in found if finding.fails]
    click.echo(
        f"{len(bill['components'])} packages, {len(found)} findings; severe, with a fix: {len(failing)}"
    )
    if failing:
        sys.exit(1)


if __name__ == "__main__":
    main()
