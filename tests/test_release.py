"""The tools of a release: one image for several architectures, what is known about it, and where it is published."""

import configparser
import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from hami import __version__
from hami.codec.documents import parse_own_yaml
from testing.cases import cases
from tools import image_index, rehearse, scan, site_versions, stamp
from tools.sbom import debian_packages
from tools.site import missing_files

pytestmark = pytest.mark.files
ROOT = Path(__file__).parent.parent
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


# -- image_index


def archive(path, architecture, *, attested=True):
    """Writes an image as BuildKit writes it: an index with the image and, if *attested*, its attestation."""
    blobs = {}

    def put(content, kind):
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    image = put(json.dumps({"image": architecture}).encode(), MANIFEST)
    entries = [image | {"platform": {"architecture": architecture, "os": "linux"}}]
    if attested:
        about = put(json.dumps({"about": architecture}).encode(), MANIFEST)
        entries.append(about | {"platform": {"architecture": "unknown", "os": "unknown"}})
    index = put(json.dumps({"manifests": entries}).encode(), image_index.INDEX)
    blobs["index.json"] = json.dumps({"manifests": [index]}).encode()
    with tarfile.open(path, "w") as files:
        for name, content in blobs.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            files.addfile(member, io.BytesIO(content))
    return path


def test_images_of_two_architectures_become_one_with_their_attestations(tmp_path):
    archives = [archive(tmp_path / f"{name}.tar", name) for name in ("amd64", "arm64")]
    folder = tmp_path / "image"
    folder.mkdir()
    digest = image_index.merged(folder, archives)
    blob = (folder / "blobs" / digest.replace(":", "/")).read_bytes()
    assert f"sha256:{hashlib.sha256(blob).hexdigest()}" == digest
    entries = json.loads(blob)["manifests"]
    assert [entry["platform"]["architecture"] for entry in entries] == [
        "amd64",
        "unknown",
        "arm64",
        "unknown",
    ]
    for entry in entries:
        assert (folder / "blobs" / entry["digest"].replace(":", "/")).stat().st_size == entry[
            "size"
        ]
    (descriptor,) = json.loads((folder / "index.json").read_text())["manifests"]
    assert descriptor["digest"] == digest


def test_the_same_images_have_the_same_digest(tmp_path):
    archives = [str(archive(tmp_path / f"{name}.tar", name)) for name in ("amd64", "arm64")]
    printed = [
        CliRunner().invoke(image_index.main, [str(tmp_path / name), *archives]).output
        for name in ("first", "second")
    ]
    assert printed[0].startswith("sha256:")
    assert printed[0] == printed[1]


@cases(
    "names, said",
    ("twice", ("amd64", "amd64"), "a second image for amd64"),
    ("no image", ("text",), "not an image in OCI's layout"),
)
def test_what_cannot_be_one_image_is_named(tmp_path, names, said):
    (tmp_path / "text.tar").write_text("text")
    (tmp_path / "image").mkdir()
    archives = [
        tmp_path / "text.tar" if name == "text" else archive(tmp_path / f"{n}.tar", name)
        for n, name in enumerate(names)
    ]
    with pytest.raises(image_index.click.ClickException, match=said):
        image_index.merged(tmp_path / "image", archives)


# -- scan

STATUS = """\
Package: libssl3
Status: install ok installed
Source: openssl
Architecture: amd64
Version: 3.0.17-1

Package: libgcc-s1
Status: install ok installed
Source: gcc-12 (12.2.0-14)
Architecture: amd64
Version: 12.2.0-14+b1

Package: tar
Status: install ok installed
Architecture: amd64
Version: 1.34
"""
OS_RELEASE = "ID=debian\nVERSION_ID=12\nVERSION_CODENAME=bookworm\n"


@pytest.fixture
def bill(tmp_path):
    """A bill of materials with packages of Debian."""
    (tmp_path / "status").write_text(STATUS)
    (tmp_path / "os").write_text(OS_RELEASE)
    components = list(debian_packages(tmp_path / "status", tmp_path / "os"))
    path = tmp_path / "sbom.json"
    path.write_text(json.dumps({"components": components}))
    return path


def test_debian_packages_are_looked_up_by_their_sources(bill):
    scanned = scan.scanned_bill(json.loads(bill.read_text())["components"])["components"]
    assert [(one["name"], one["version"]) for one in scanned] == [
        ("openssl", "3.0.17-1"),
        ("gcc-12", "12.2.0-14"),
        ("tar", "1.34"),
    ]
    assert all("distro=bookworm" in one["purl"] for one in scanned)


def vulnerability(score, *events, package="openssl"):
    """Returns the scanner's report of one vulnerability."""
    affected = {
        "package": {"name": package, "ecosystem": "Debian:12"},
        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, *events]}],
    }
    entry = {
        "package": {"name": "openssl", "version": "3.0.17-1", "ecosystem": "Debian:12"},
        "vulnerabilities": [{"id": "CVE-1", "affected": [affected]}],
        "groups": [{"ids": ["CVE-1"], "max_severity": score}],
    }
    return {"results": [{"source": {"path": "x"}, "packages": [entry]}]}


@cases(
    "report, status, said",
    ("nothing", {"results": []}, 0, "3 packages, 0 findings; severe, with a fix: 0"),
    (
        "severe with a fix",
        vulnerability("7.0", {"fixed": "3.0.18"}),
        1,
        "openssl 3.0.17-1: CVE-1: severity 7.0, fixed in 3.0.18",
    ),
    ("severe without a fix", vulnerability("9.8"), 0, "CVE-1: severity 9.8, no fix"),
    ("not severe", vulnerability("6.9", {"fixed": "3.0.18"}), 0, "severity 6.9, fixed in 3.0.18"),
    ("of unknown severity", vulnerability("", {"fixed": "3"}), 0, "no severity, fixed in 3"),
    (
        "fixed in another package",
        vulnerability("9.8", {"fixed": "3"}, package="other"),
        0,
        "severity 9.8, no fix",
    ),
)
def test_only_a_severe_vulnerability_with_a_fix_fails(tmp_path, bill, report, status, said):
    scanner = tmp_path / "scanner"
    code = 1 if report["results"] else 0
    scanner.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(report)}\nEND\nexit {code}\n")
    scanner.chmod(0o755)
    done = CliRunner().invoke(scan.main, [str(bill), "--scanner", str(scanner)])
    assert done.exit_code == status
    assert said in done.output


@cases(
    "script, said",
    ("fails", "echo no network >&2; exit 127", "ended with 127: no network"),
    ("prints text", "echo hello", "its output is not JSON"),
)
def test_a_scanner_that_cannot_tell_is_an_error(tmp_path, bill, script, said):
    scanner = tmp_path / "scanner"
    scanner.write_text(f"#!/bin/sh\n{script}\n")
    scanner.chmod(0o755)
    done = CliRunner().invoke(scan.main, [str(bill), "--scanner", str(scanner)])
    assert done.exit_code == 1
    assert said in done.output


# -- stamp

DIGEST = "sha256:" + "0" * 64
ADDRESS = "https://github.com/o/r"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A copy of what a release is stamped into."""
    for name in (*stamp.FILES, "hami/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(stamp, "ROOT", tmp_path)
    return tmp_path


def stamped(*words):
    return CliRunner().invoke(
        stamp.main, ["--repository=o/r", "--registry=ghcr.io/o", f"--image=hami={DIGEST}", *words]
    )


def test_a_stamped_chart_names_its_images_sources_and_runbooks(checkout):
    assert stamped().output == ""
    values = parse_own_yaml((checkout / "charts/hami/values.yaml").read_text())
    assert values["image"] == {"registry": "ghcr.io/o", "preloaded": False, "tag": ""}
    runbooks = f"{ADDRESS}/blob/v{__version__}/docs/alerts.md"
    assert values["prometheus"]["runbookUrl"] == runbooks
    chart = parse_own_yaml((checkout / "charts/hami/Chart.yaml").read_text())
    assert (chart["home"], chart["sources"]) == (ADDRESS, [ADDRESS])
    images = parse_own_yaml(chart["annotations"]["artifacthub.io/images"])
    assert images == [{"name": "hami", "image": f"ghcr.io/o/hami:{__version__}@{DIGEST}"}]


def test_the_page_of_a_stamped_chart_installs_the_published_one(checkout):
    stamped()
    text = (checkout / "charts/hami/README.md").read_text()
    assert f"helm install hami oci://ghcr.io/o/charts/hami --version {__version__} -n" in text
    for old in ("registry.example.com/", " charts/hami ", "There is no public one", "](../"):
        assert old not in text


def test_a_stamped_chart_says_what_is_published(checkout):
    stamped()
    folder = checkout / "charts/hami/templates"
    notes = (folder / "NOTES.txt").read_text()
    assert f"`kubectl hami` is on {ADDRESS}/releases/tag/v{__version__}. Without it" in notes
    assert "public" not in (folder / "_images.tpl").read_text()


def test_a_stamped_package_and_site_name_the_repository(checkout):
    stamped()
    setup = configparser.ConfigParser()
    setup.read(checkout / "setup.cfg")
    assert setup["metadata"]["url"] == ADDRESS
    assert f"Source = {ADDRESS}" in setup["metadata"]["project_urls"]
    assert f"\nrepo_url: {ADDRESS}\nedit_uri: edit/main/\n" in (checkout / "mkdocs.yml").read_text()


def test_no_address_is_kept_in_the_sources():
    for name in stamp.FILES:
        assert "ghcr.io" not in (ROOT / name).read_text()


def test_a_release_is_stamped_once_and_never_in_part(checkout):
    stamped()
    texts = {name: (checkout / name).read_text() for name in stamp.FILES}
    again = stamped()
    assert again.exit_code == 1
    assert "charts/hami/values.yaml: expected, but not there" in again.output
    assert {name: (checkout / name).read_text() for name in stamp.FILES} == texts


@cases(
    "option, said",
    ("--repository=x", "expected OWNER/NAME: 'x'"),
    ("--registry=ghcr.io/Owner", "expected HOST/FOLDER, lower case: 'ghcr.io/Owner'"),
    ("--image=hami=latest", "expected NAME=sha256:…: 'hami=latest'"),
)
def test_an_address_that_cannot_be_used_is_named(checkout, option, said):
    done = stamped(option)
    assert done.exit_code == 2
    assert said in done.output


def test_the_site_knows_its_address_if_it_is_given(checkout):
    stamped("--site=https://o.github.io/r")
    site = (checkout / "mkdocs.yml").read_text()
    assert f"\nsite_url: https://o.github.io/r/{__version__}/\n" in site
    assert "provider: mike" in site


# -- site_versions


def test_the_sites_of_versions_are_beside_each_other_and_the_newest_is_shown(tmp_path):
    (tmp_path / "built").mkdir()
    (tmp_path / "sites").mkdir()
    for version in ("1.9.0", "1.10.0", "1.8.7"):
        (tmp_path / "built" / "index.html").write_text(version)
        names = site_versions.add(tmp_path / "sites", tmp_path / "built", version)
    assert names == ["1.10.0", "1.9.0", "1.8.7"]
    listed = json.loads((tmp_path / "sites" / "versions.json").read_text())
    assert [entry["version"] for entry in listed] == names
    assert "url=1.10.0/" in (tmp_path / "sites" / "index.html").read_text()
    assert [(tmp_path / "sites" / name / "index.html").read_text() for name in names] == names


def test_a_site_that_is_made_again_replaces_its_predecessor(tmp_path):
    (tmp_path / "built").mkdir()
    (tmp_path / "sites" / "1.0.0").mkdir(parents=True)
    (tmp_path / "sites" / "1.0.0" / "old.html").write_text("old")
    assert site_versions.add(tmp_path / "sites", tmp_path / "built", "1.0.0") == ["1.0.0"]
    assert not (tmp_path / "sites" / "1.0.0" / "old.html").exists()


# -- site


@cases(
    "page, said",
    ("image", '<img src="none.png">', ["page.html: is not there: none.png"]),
    ("link", '<a href="../none/">', ["page.html: is not there: ../none/"]),
    (
        "script from elsewhere",
        '<script src="https://example.com/x.js"></script>',
        ["page.html: comes from elsewhere: https://example.com/x.js"],
    ),
    (
        "style from elsewhere",
        '<link rel="stylesheet" href="//example.com/x.css">',
        ["page.html: comes from elsewhere: //example.com/x.css"],
    ),
    (
        "all there",
        '<img src="a%20b.png"><a href="folder/#x"></a><a href="#x"></a><a href="https://x"></a>',
        [],
    ),
)
def test_a_site_lacks_nothing_that_its_pages_refer_to(tmp_path, page, said):
    (tmp_path / "page.html").write_text(page)
    (tmp_path / "a b.png").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "index.html").write_text("")
    assert missing_files(tmp_path) == said


# -- rehearse


@cases(
    "named, said",
    ("all", ["localhost:5000/hami:1", "registry.k8s.io/kube-scheduler:v1"], []),
    (
        "another tag",
        ["localhost:5000/hami:2"],
        ["hami: the chart does not name localhost:5000/hami:1"],
    ),
    (
        "no registry",
        ["localhost:5000/hami:1", "hami:1"],
        ["hami:1: an image without a registry"],
    ),
)
def test_what_a_chart_names_otherwise_is_found(named, said):
    assert rehearse.missing(named, {"hami": "localhost:5000/hami:1"}) == said
