"""What goes into the container image, checked without building it: the libraries that the programs need, and the bill of
materials. deploy/build_image.sh builds the image and looks at it from the inside."""

import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
import urllib.parse

import ampd_process
from ampd_process import program

DEPLOY = os.path.join(ampd_process.SOURCE, "deploy")
PROGRAMS = ("ampd", "ampd-worker", "ampctl")


def dpkg_status():
    """{name: fields} of the installed packages, as dpkg's own file has them."""
    with open("/var/lib/dpkg/status") as file:
        paragraphs = file.read().split("\n\n")
    found = {}
    for paragraph in paragraphs:
        fields = dict(re.findall(r"^([\w-]+): (.*)$", paragraph, re.M))
        if fields.get("Status", "").endswith(" installed"):
            found[fields["Package"]] = fields
    return found


def runtime_stage():
    with open(os.path.join(ampd_process.SOURCE, "Dockerfile")) as file:
        return re.search(r"^FROM \S+ AS runtime\n(.*?)^FROM ", file.read(), re.M | re.S)[1].replace("\\\n", " ")


def runtime_packages():
    """What the Dockerfile installs in the stage "runtime"."""
    return set(re.search(r"apt-get install ((?:-\S+ +)+)(.*?) &&", runtime_stage())[2].split())


def left_out():
    """dpkg's patterns of the files that are not unpacked there."""
    return re.findall(r"'([^']*)'", re.search(r"path-exclude=%s\\n'(.*?)>", runtime_stage())[1])


def with_dependencies(names, installed):
    """`names` and all that they depend on, of alternatives those that are installed here."""
    found, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name in found or name not in installed:
            continue
        found.add(name)
        depends = ", ".join(installed[name].get(field, "") for field in ("Depends", "Pre-Depends"))
        waiting += re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", depends)
    return found


def libraries_of(path):
    """Files of the libraries that a program is linked to, and those they are linked to."""
    said = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    return {os.path.realpath(name) for name in re.findall(r"=> (/\S+)", said)}


def owners_of(paths):
    """{Debian package: one of its files}; files of no package are left out."""
    # dpkg knows some files of /usr by their names before /lib became a link.
    names = [name for path in sorted(paths) for name in (path, path.removeprefix("/usr"))]
    said = subprocess.run(["dpkg-query", "-S", *names], capture_output=True, text=True).stdout
    return dict(re.findall(r"^([^:,\s]+)[^\s]*: (/.*)$", said, re.M))


@unittest.skipIf(shutil.which("dpkg-query") is None, "this is no Debian")
class LibrariesTest(unittest.TestCase):
    def test_the_image_has_every_library_of_the_programs(self):
        installed = dpkg_status()
        there = with_dependencies(runtime_packages(), installed)
        self.assertIn("libc6", there)
        for name in PROGRAMS:
            # Libraries that are no package's, such as CUDA's, are copied into the image.
            libraries = libraries_of(program(name))
            owners = owners_of(libraries)
            self.assertGreater(len(owners), 5)
            self.assertEqual({owner: library for owner, library in owners.items() if owner not in there}, {},
                             f"{name} would not start: the Dockerfile installs no such package")
            patterns = left_out()
            self.assertGreater(len(patterns), 5)
            gone = [library for library in libraries if any(fnmatch.fnmatch(library, pattern) for pattern in patterns)]
            self.assertEqual(gone, [], f"{name} would not start: the Dockerfile leaves these out")


@unittest.skipIf(shutil.which("dpkg-query") is None, "this is no Debian")
class SbomTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.programs = os.path.join(folder.name, "out")
        os.makedirs(self.programs)
        for name in PROGRAMS:
            os.symlink(os.path.realpath(program(name)), os.path.join(self.programs, name))
        self.built_with = os.path.join(folder.name, "built-with")
        with open(self.built_with, "w") as file:
            file.write("build deb libcli11-dev 1:2.1~rc+ds-1\nruntime pypi nvidia-cublas 13.0.2.14\n")
        self.sbom = json.loads(self.run_script())

    def run_script(self):
        return subprocess.run([os.path.join(DEPLOY, "sbom.sh"), "ampd-cpu", "0.1.0", self.programs, self.built_with], check=True,
                              capture_output=True, text=True, env=dict(os.environ, SOURCE_DATE_EPOCH="1700000000")).stdout

    def test_it_is_spdx(self):
        """What SPDX 2.3 demands of a document, of packages, files and relations."""
        sbom = self.sbom
        self.assertEqual((sbom["spdxVersion"], sbom["dataLicense"], sbom["SPDXID"]), ("SPDX-2.3", "CC0-1.0", "SPDXRef-DOCUMENT"))
        self.assertEqual(sbom["creationInfo"]["created"], "2023-11-14T22:13:20Z")
        self.assertRegex(sbom["documentNamespace"], r"^https://[^#\s]+$")
        ids = [element["SPDXID"] for element in sbom["packages"] + sbom["files"]]
        self.assertEqual(len(ids), len(set(ids)))
        for one in ids:
            self.assertRegex(one, r"^SPDXRef-[A-Za-z0-9.-]+$")
        for package in sbom["packages"]:
            self.assertTrue(package["name"] and package["versionInfo"] and package["downloadLocation"], package)
        related = set()
        for relation in sbom["relationships"]:
            related |= {relation["spdxElementId"], relation["relatedSpdxElement"]}
        self.assertEqual(related, {"SPDXRef-DOCUMENT", *ids}, "something belongs to nothing")

    def test_it_has_every_package_and_program(self):
        named = {}
        for package in self.sbom["packages"][1:]:
            (reference,) = package["externalRefs"]
            kind, name, version = re.fullmatch(r"pkg:(deb/debian|pypi)/([^@]+)@([^?]+)(?:\?.*)?", reference["referenceLocator"]).groups()
            decoded = (urllib.parse.unquote(name), urllib.parse.unquote(version))
            self.assertEqual(decoded, (package["name"], package["versionInfo"]))
            named.setdefault(kind, []).append(decoded)
        installed = [(name, fields["Version"]) for name, fields in dpkg_status().items()]
        # A package that is there for two architectures is there twice.
        self.assertEqual(set(named["deb/debian"]), {*installed, ("libcli11-dev", "1:2.1~rc+ds-1")})
        self.assertEqual(named["pypi"], [("nvidia-cublas", "13.0.2.14")])
        built = [one["spdxElementId"] for one in self.sbom["relationships"] if one["relationshipType"] == "BUILD_DEPENDENCY_OF"]
        self.assertEqual(len(built), 1)
        self.assertIn("libcli11-dev", built[0])
        self.assertEqual({file["fileName"] for file in self.sbom["files"]}, {f"./usr/local/bin/{name}" for name in PROGRAMS})
        for file in self.sbom["files"]:
            with open(program(os.path.basename(file["fileName"])), "rb") as content:
                held = content.read()
            sums = {one["algorithm"]: one["checksumValue"] for one in file["checksums"]}
            self.assertEqual(sums, {"SHA1": hashlib.sha1(held).hexdigest(), "SHA256": hashlib.sha256(held).hexdigest()})

    def test_the_same_system_gives_the_same_bytes(self):
        self.assertEqual(json.loads(self.run_script()), self.sbom)


class DockerfileTest(unittest.TestCase):
    def test_its_version_is_the_projects(self):
        with open(os.path.join(ampd_process.SOURCE, "CMakeLists.txt")) as file:
            version = re.search(r"project\(ampd VERSION (\S+)", file.read())[1]
        with open(os.path.join(ampd_process.SOURCE, "Dockerfile")) as file:
            self.assertIn(f"\nARG AMPD_VERSION={version}\n", file.read())


if __name__ == "__main__":
    ampd_process.main()
