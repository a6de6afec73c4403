"""Every command in the operations guide is run, in its order, on a machine that is a folder: paths of the system lie beneath it, and
systemd has a stand-in that runs the unit. A compiler is not: what is built is the build that this test belongs to."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys

import ampd_process
from ampd_process import DaemonTest, free_port
from fenced_blocks import fenced_blocks

HERE = os.path.dirname(os.path.realpath(__file__))
GUIDE = os.path.join(ampd_process.SOURCE, "docs/operations.md")
PATHS = ("/usr/local", "/usr/lib/sysusers.d", "/etc/ampd", "/etc/systemd", "/var/lib", "/var/backups", "/srv/ampd")
BUILD = os.path.dirname(os.path.realpath(ampd_process.BIN))

STAND_INS = {
    "sudo": 'exec "$@"\n',
    # The user is not made on this machine, but its description is read.
    "systemd-sysusers": 'mkdir -p "$STAND_IN_ROOT/etc" && exec {sysusers} --root="$STAND_IN_ROOT" "$@"\n',
    # Building is what came before this test: presets and targets must exist, and the build is the one at hand.
    "cmake": """case "$1 $2" in
  "--preset release") exec grep -q '"name": "release"' {source}/CMakePresets.json ;;
  "--build --preset") [ "$3 $4" = "release --target" ] && shift 4 && for t; do [ -x {bin}/$t ] || exit 1; done ;;
  "--install build/release") shift 2; exec {cmake} --install {build} "$@" ;;
  *) echo "no stand-in for cmake $*" >&2; exit 1 ;;
esac
""",
}


class GuideTest(DaemonTest):
    def setUp(self):
        super().setUp()
        for tool in ("sqlite3", "curl"):
            if shutil.which(tool) is None:
                self.skipTest(f"{tool} is not installed")
        self.root = os.path.join(self.folder, "root")
        self.tools = os.path.join(self.folder, "tools")
        os.makedirs(self.root)
        os.makedirs(self.tools)
        # As on any Debian.
        for folder in ("var/lib", "var/backups", "usr/local", "etc"):
            os.makedirs(os.path.join(self.root, folder))
        self.ports = {"7070": str(free_port()), "7071": str(free_port())}
        self.addCleanup(self.end_daemon)
        self.write_tools()

    def write_tools(self):
        values = {"source": ampd_process.SOURCE, "bin": os.path.realpath(ampd_process.BIN), "build": BUILD,
                  "cmake": shutil.which("cmake"), "sysusers": shutil.which("systemd-sysusers") or "true"}
        for name, text in STAND_INS.items():
            self.write_tool(name, "#!/bin/sh\n" + re.sub(r"\{(\w+)\}", lambda match: values[match[1]], text))
        for name in ("systemctl", "journalctl"):
            self.write_tool(name, f'#!/bin/sh\nexec {sys.executable} {self.tools}/stand-in/{name} "$@"\n')
            os.makedirs(os.path.join(self.tools, "stand-in"), exist_ok=True)
            shutil.copy(os.path.join(HERE, "systemctl_stand_in.py"), os.path.join(self.tools, "stand-in", name))

    def write_tool(self, name, text):
        path = os.path.join(self.tools, name)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, stat.S_IRWXU)

    def end_daemon(self):
        try:
            with open(os.path.join(self.root, "ampd.pid")) as file:
                os.kill(int(file.read()), signal.SIGKILL)
        except (OSError, ValueError):
            pass
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if b"ampd-worker" in (command := file.read()) and os.fsencode(self.root) in command:
                        os.kill(int(entry), signal.SIGKILL)
            except OSError:
                pass

    def here(self, text):
        """The text with the paths and ports of this test's machine."""
        text = re.sub("(?<![\\w./])(" + "|".join(map(re.escape, PATHS)) + ")", lambda match: self.root + match[1], text)
        return re.sub(r"127\.0\.0\.1:(\d+)", lambda match: f"127.0.0.1:{self.ports[match[1]]}", text)

    def run_blocks(self, blocks):
        """Runs them in one shell, as a reader would; the output of each by its line in the document."""
        script = "set -eu\n" + "".join(f"echo '@@ {block.line}'\n{self.here(block.text)}" for block in blocks)
        path = os.path.join(self.folder, "guide.sh")
        with open(path, "w") as file:
            file.write(script)
        environment = dict(os.environ, STAND_IN_ROOT=self.root, PATH=f"{self.tools}:{self.root}/usr/local/bin:{os.environ['PATH']}",
                           AMPD_SERVER=f"127.0.0.1:{self.ports['7070']}", AMPD_LISTEN=f"127.0.0.1:{self.ports['7070']}",
                           AMPD_HTTP=f"127.0.0.1:{self.ports['7071']}", AMPD_NVML_LIBRARY="")
        result = subprocess.run(["bash", path], cwd=ampd_process.SOURCE, env=environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500)
        self.assertEqual(result.returncode, 0, result.stdout + self.journal())
        parts = re.split(r"^@@ (\d+)\n", result.stdout, flags=re.M)
        return dict(zip(map(int, parts[1::2]), parts[2::2]))

    def journal(self):
        try:
            with open(os.path.join(self.root, "journal")) as file:
                return "\n--- journal\n" + file.read()
        except OSError:
            return ""

    def test_every_command_of_the_operations_guide(self):
        blocks = fenced_blocks(GUIDE)
        self.assertEqual({block.info for block in blocks}, {"sh"}, "other blocks would not be run")
        outputs = self.run_blocks(blocks)
        said = {block.line: (block.text, outputs[block.line]) for block in blocks}

        def output_of(command):
            (found,) = [output for text, output in said.values() if command in text]
            return found

        self.assertIn("SUCCEEDED", output_of("client/examples/glyphs-convnet.yaml --set"))
        self.assertIn('ampd_jobs{state="succeeded"} 1', output_of("/metrics"))
        self.assertIn("worker-1.log", output_of("ampctl why"))
        self.assertEqual(output_of("PRAGMA integrity_check").strip(), "ok")
        # The restored state is that of the backup.
        self.assertIn("SUCCEEDED", output_of("tar -C /var/lib -xf"))
        self.assertTrue(os.path.isdir(os.path.join(self.root, "var/lib/ampd.before")))
        self.assertIn("step-", output_of("ampctl checkpoints"))
        with open(os.path.join(self.root, "journal")) as file:
            lines = [json.loads(line) for line in file if line.startswith("{")]
        self.assertEqual([line for line in lines if line["severity"] == "ERROR"], [])
        drained = [line for line in lines if line["text"] == "drained"]
        stops = sum(text.count("systemctl stop ampd") for text, _ in said.values())
        self.assertEqual(len(drained), stops)

    def test_what_the_guide_names_is_there(self):
        with open(GUIDE) as file:
            text = file.read()
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            self.assertTrue(os.path.exists(os.path.join(os.path.dirname(GUIDE), link)), link)
        with open(os.path.join(ampd_process.SOURCE, "proto/ampd/v1/config.proto")) as file:
            fields = set(re.findall(r"(\w+) = \d+;", file.read()))
        named = set(re.findall(r"`(?:retention\.)?([a-z]+(?:_[a-z]+)+)(?:: \w+)?`", text))
        unknown = {name for name in named if name not in fields and not name.startswith(("ampd_", "keep_"))}
        self.assertEqual(unknown - {"max_per_second"}, set())


if __name__ == "__main__":
    ampd_process.main()
