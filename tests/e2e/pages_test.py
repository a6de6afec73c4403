"""Every command in the README and in docs/ is run as it stands, or is named here with the reason why not. The operations guide, which is
about a whole machine, is docs_test.py's, Python code python_client_test.py's."""

import functools
import glob
import gzip
import itertools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import unittest
import zlib

import numpy

import ampd_process
import certificates
import safetensors_file
from ampd_process import DaemonTest, glyphs_job
from fenced_blocks import fenced_blocks
from gan_networks import acgan_job

SHELL = ("sh", "console")
# Blocks of these are not commands.
OTHERS = {"text", "yaml", "json", "ini", "python", "mermaid"}
RUN_HERE = {"README.md", "docs/ampctl.md", "docs/benchmarking.md", "docs/data.md", "docs/mixed_precision.md", "docs/onnx.md",
            "docs/security.md"}
RUN_ELSEWHERE = {"docs/json_api.md": "json_api_test.py", "docs/operations.md": "docs_test.py"}
# By the first line.
NOT_RUN = {
    "cmake --preset dev": "it builds what this test belongs to; tests/run.sh does so before",
    "ninja -C build/dev ampd_references": "it changes the sources; schema_test.py and metrics_test compare what it would write",
}
# In place of what takes a reader minutes.
BRIEF = "--set train.epochs=null --set train.steps=40"
COMMAND = re.compile(r"\$ |(sudo |[\w./]*/)?(ampctl|ampd|ampd-worker|cmake|ninja|ctest|docker|curl|systemctl|journalctl|promtool)( |$)|export \w+=")


def pages():
    """Paths of the documents for people, from the root of the sources; decisions tell of the past."""
    found = glob.glob(os.path.join(ampd_process.SOURCE, "docs/*.md"))
    found += [os.path.join(ampd_process.SOURCE, name) for name in ("README.md", "CONTRIBUTING.md", "client/python/README.md")]
    return sorted(os.path.relpath(path, ampd_process.SOURCE) for path in found)


def blocks_of(page):
    return fenced_blocks(os.path.join(ampd_process.SOURCE, page))


def commands_of(page):
    return [block for block in blocks_of(page) if block.info in SHELL]


def lines_outside_blocks(page):
    with open(os.path.join(ampd_process.SOURCE, page)) as file:
        inside = False
        for number, line in enumerate(file, 1):
            if line.startswith("```"):
                inside = not inside
            elif not inside:
                yield number, line


def typed(block):
    """What a reader types: of a console what stands behind the prompts."""
    if block.info == "sh":
        return block.text
    return "".join(line[2:] + "\n" for line in block.text.splitlines() if line.startswith("$ "))


def write_idx(path, values):
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(">BBBB", 0, 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes())


@functools.lru_cache(maxsize=None)
def help_of(program, verb=()):
    result = subprocess.run([ampd_process.program(program), *verb, "--help"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, f"{program} {' '.join(verb)}: no such verb\n{result.stderr}"
    return result.stdout


def known_options(program, verb):
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", help_of(program, verb)))


def verb_of(program, words):
    """("contexts", "add") of "contexts add NAME"; () where it begins with an option."""
    verb = ()
    for word in words.split():
        verbs = re.findall(r"^  ([a-z]+)  ", help_of(program, verb).partition("\nVerbs:\n")[2], re.M)
        if word not in verbs:
            # Behind a verb a value may be in lower case, too.
            assert verb or not re.fullmatch("[a-z]+", word), f"{program} has no verb {word}"
            break
        verb += (word,)
    return verb


class ListTest(unittest.TestCase):
    def test_every_command_is_run_or_has_a_reason(self):
        seen = set()
        for page in pages():
            for block in blocks_of(page):
                place = f"{page}:{block.line}"
                if block.info not in SHELL:
                    self.assertIn(block.info, OTHERS, f"{place}: say what it is; commands are sh or console")
                    continue
                first = block.text.splitlines()[0]
                if first in NOT_RUN:
                    seen.add(first)
                else:
                    self.assertIn(page, RUN_HERE | set(RUN_ELSEWHERE), f"{place}: no test runs it")
            for number, line in lines_outside_blocks(page):
                self.assertFalse(re.match(r"( {4,}|\t)", line) and COMMAND.match(line.strip()),
                                 f"{page}:{number}: a command outside of a block: {line}")
        self.assertEqual(seen, set(NOT_RUN), "they are gone")

    def test_what_the_text_names_is_there(self):
        """Verbs and options in inline code, such as `ampctl cancel JOB --now`."""
        named = 0
        for page in pages():
            for number, line in lines_outside_blocks(page):
                for program, words in re.findall(r"`(ampctl|ampd)((?: [^`]*)?)`", line):
                    place = f"{page}:{number}: {program}{words}"
                    options, verb = set(re.findall(r"(?<![\w-])(--?[a-z][\w-]*)", words)), verb_of(program, words)
                    known = known_options(program, ()) | known_options(program, verb)
                    self.assertLessEqual(options, known, place)
                    named += len(options) + len(verb)
        self.assertGreater(named, 50)


class PagesTest(DaemonTest):
    """A machine as the pages tell of it: a server with TLS and tokens, and a user who works in a folder of his own."""

    def setUp(self):
        super().setUp()
        if shutil.which("curl") is None:
            self.skipTest("curl is not installed")
        self.work = os.path.join(self.folder, "work")
        self.home = os.path.join(self.folder, "home")
        self.etc = os.path.join(self.folder, "etc/ampd")
        for folder in (self.work, self.etc, os.path.join(self.home, ".config/fish/completions")):
            os.makedirs(folder)
        os.makedirs(os.path.join(self.work, "client"))
        os.symlink(os.path.join(ampd_process.SOURCE, "client/examples"), os.path.join(self.work, "client/examples"))
        # Of the server of the user, once it is there.
        self.address = self.http = ""
        self.addCleanup(self.end_all)
        self.servers = []

    def end_all(self):
        for server in self.servers:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            server.stdout.close()
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if b"ampd-worker" in (command := file.read()) and os.fsencode(self.folder) in command:
                        os.kill(int(entry), signal.SIGKILL)
            except OSError:
                pass

    def path(self, *names):
        return os.path.join(self.work, *names)

    def write(self, name, text):
        path = self.path(name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def here(self, text, changes):
        for old, new in {"/etc/ampd": self.etc, "/var/lib/ampd": self.etc, **changes}.items():
            text = text.replace(old, new)
        return text

    def environment(self, **more):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AMPD_", "AMPCTL_"))}
        return dict(kept, HOME=self.home, PATH=f"{os.path.realpath(ampd_process.BIN)}:{os.environ['PATH']}", AMPD_NVML_LIBRARY="none", **more)

    def as_user(self):
        return self.environment(AMPD_SERVER=self.address, AMPD_CA=self.path("ca.pem"), AMPD_TOKEN_FILE=self.path("ann.token"))

    def run_text(self, text, environment, what):
        # XDG folders of the machine are not the user's.
        environment.pop("XDG_CONFIG_HOME", None)
        result = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=self.work, env=environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500)
        self.assertEqual(result.returncode, 0, f"{what}\n{text}\n{result.stdout}\n{self.said()}")
        return result.stdout

    def run_page(self, page, changes):
        """Runs its blocks in one shell, as a reader would; what they print."""
        text = "\n".join(typed(block) for block in commands_of(page))
        return self.run_text(self.here(text, changes), self.as_user(), page)

    def start(self, text, environment):
        """Starts a server as `text` says and waits until it is ready; its addresses."""
        with open(os.path.join(self.folder, "ampd.log"), "a") as log:
            server = subprocess.Popen(["bash", "-c", f"exec {text}"], cwd=self.work, env=environment, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        self.servers.append(server)
        line = server.stdout.readline()
        ready = re.fullmatch(r"ampd ready grpc=(\S+) http=(\S+)\n", line)
        self.assertTrue(ready, f"{line}\n{self.said()}")
        return ready.groups()

    def said(self):
        with open(os.path.join(self.folder, "ampd.log"), "a+") as file:
            file.seek(0)
            return "--- ampd\n" + "".join(file.readlines()[-40:])

    def idx(self, folder, images, labels, samples=256):
        os.makedirs(folder, exist_ok=True)
        numbers = numpy.random.default_rng(3)
        write_idx(os.path.join(folder, images), numbers.integers(0, 255, (samples, 28, 28), dtype=numpy.uint8))
        write_idx(os.path.join(folder, labels), numbers.integers(0, 10, samples, dtype=numpy.uint8))

    def quick_job(self, **fields):
        """In the place of a reader's job.yaml; JSON is YAML."""
        return self.write("job.yaml", json.dumps(glyphs_job(steps=3, **fields)))

    def test_pages(self):
        self.secure_server()
        self.own_server()
        self.first_screen()
        self.client_page()
        self.data_page()
        output = self.run_page("docs/benchmarking.md", {"--steps 30": "--steps 2 --warmup 1"})
        self.assertIn("bf16", output.lower())
        with open(self.path("bench.svg")) as file:
            self.assertIn("<svg", file.read())
        self.mixed_precision_page()
        self.quick_job(optimizer={"adamw": {}, "ema": {"decay": 0.9}})
        job_id = self.ended_job("job.yaml")
        self.write("gan.yaml", json.dumps(acgan_job(train={"steps": 2, "batch_size": 8})))
        self.run_page("docs/onnx.md", {" JOB ": f" {job_id} ", " GAN ": f" {self.ended_job('gan.yaml')} "})
        for name in ("model.onnx", "model.safetensors", "average.safetensors", "generator.onnx"):
            self.assertGreater(os.path.getsize(self.path(name)), 1000, name)

    def mixed_precision_page(self):
        output = self.run_page("docs/mixed_precision.md", {"train.steps=600": "train.steps=12", "every_steps=200": "every_steps=6"})
        self.assertRegex(output, r"fp16 flushes [\d.]+% of the values that are not 0 without a scale")
        # From a scale of 1e9 the first steps of any network overflow.
        self.assertRegex(output, r"overflow  step 1 skipped, scale 1e\+09 -> 500000000, (NaN|Inf) in GRADIENT")
        self.assertRegex(output, r"none +SUCCEEDED  BF16")
        self.assertRegex(output, r"(?m)^skipping$")

    def ended_job(self, path):
        job_id = self.run_text(f"ampctl submit {path} -q", self.as_user(), "a job").strip()
        self.run_text(f"ampctl wait {job_id}", self.as_user(), "its end")
        return job_id

    def first_screen(self):
        """The README's, with the names of what deploy/demo.sh made there."""
        newest = "$(ampctl list --limit 1 | awk 'NR == 2 {print $1}')"
        changes = {"--watch": f"--watch {BRIEF}", "01m7z2rv60wygv8y37snyrexb9": newest, "127.0.0.1:37295": self.http,
                   "/tmp/tmp.eNmh9nlMTo": self.path("first")}
        output = self.run_text(self.here(typed(commands_of("README.md")[0]), changes), self.as_user(), "README.md")
        self.assertRegex(output, "SUCCEEDED accuracy=")
        self.assertIn("ampd_job_steps_applied_total", output)
        self.assertIn("step-000000040: 4 files", output)

    def secure_server(self):
        page = "docs/security.md"
        authority = certificates.Authority(os.path.join(self.folder, "authority"))
        certificate, key = authority.issue("server")
        certificates.install((certificate, key), os.path.join(self.etc, "server.pem"), os.path.join(self.etc, "server.key"))
        os.chmod(os.path.join(self.etc, "server.key"), 0o600)
        os.symlink(authority.certificate, self.path("ca.pem"))
        configuration = next(block for block in blocks_of(page) if block.text.startswith("# ampd.yaml"))
        self.write("ampd.yaml", self.here(configuration.text, {"0.0.0.0:7070": "127.0.0.1:0"}))
        self.quick_job()
        server, *users = [typed(block) for block in commands_of(page)]
        address, self.http = self.start(server, self.environment(AMPD_HTTP="127.0.0.1:0"))
        # As its certificate calls it.
        self.address = address.replace("127.0.0.1", "localhost")
        for text in users:
            self.assertIn("SUCCEEDED", self.run_text(self.here(text, {"gpu1:7070": self.address}), self.environment(), page))
        self.assertEqual(os.stat(os.path.join(self.etc, "admin.token")).st_mode & 0o777, 0o600)

    def own_server(self):
        """The README's own job: on images that a reader has, through the death of the server, and home."""
        page = "README.md"
        server, *client = [typed(block) for block in commands_of(page)[1:]]
        self.assertEqual(len(client), 3)
        photos = os.path.join(self.folder, "photos")
        for kind, name in itertools.product(("train", "val"), ("cat", "dog")):
            self.pictures(os.path.join(photos, kind, name))
        (job,) = [one.text for one in blocks_of(page) if one.text.startswith("name: my-photos")]
        self.write("photos.yaml", job)
        here = {"export PATH=$PWD/build/release/bin:$PATH\n": "", "~/photos": photos, "--watch": "--watch --set train.epochs=2"}
        # Beside the other server.
        beside = self.environment(AMPD_LISTEN="127.0.0.1:0", AMPD_HTTP="127.0.0.1:0", AMPD_STATE_DIR=os.path.join(self.folder, "own-state"))
        server = self.here(server, here).split("#")[0].strip()
        address, http = self.start(server, beside)
        environment = self.environment(AMPD_SERVER=address)
        self.assertIn("SUCCEEDED", self.run_text(self.here(client[0], here), environment, page))
        here["$(pgrep -x ampd)"] = str(self.servers[-1].pid)
        job_id = self.run_text(self.here(client[1], here) + "echo $JOB", environment, page).split()[-1]
        killed = self.servers.pop()
        self.assertEqual(killed.wait(timeout=60), -signal.SIGKILL)
        killed.stdout.close()
        self.start(server, dict(beside, AMPD_LISTEN=address, AMPD_HTTP=http))
        self.run_text(f"JOB={job_id}\n" + client[2], environment, page)
        self.check_every_step_once(self.run_text(f"ampctl watch {job_id} -o jsonl", environment, page))
        self.check_python(next(one.text for one in blocks_of(page) if "load_state_dict" in one.text))
        # docs/ampctl.md makes them anew.
        os.remove(self.path("photos.yaml"))
        shutil.rmtree(self.path("checkpoint"))

    def pictures(self, folder, count=20):
        """PNG files of noise, no two of one size."""
        os.makedirs(folder)
        numbers = numpy.random.default_rng(5)
        for i in range(count):
            width, height = 40 + i, 70 - i
            rows = numbers.integers(0, 255, (height, 3 * width), dtype=numpy.uint8)
            # Before each row stands its filter: none.
            pixels = zlib.compress(numpy.hstack([numpy.zeros((height, 1), numpy.uint8), rows]).tobytes())
            with open(os.path.join(folder, f"{i}.png"), "wb") as file:
                file.write(b"\x89PNG\r\n\x1a\n")
                for kind, body in ((b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)), (b"IDAT", pixels), (b"IEND", b"")):
                    file.write(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))

    def check_every_step_once(self, events):
        last = 0
        for event in map(json.loads, events.splitlines()):
            if "rewound" in event:
                last = int(event["rewound"]["to_step"])
            elif "step" in event:
                self.assertEqual(int(event["step"]["first_step"]), last + 1, event)
                last = int(event["step"]["last_step"])
        # 20 epochs of 40 images, by 32.
        self.assertEqual(last, 20)

    def check_python(self, text):
        """The README's network has the names and shapes of the checkpoint, and loads it where PyTorch is."""
        with open(self.path("checkpoint/state.json")) as file:
            self.assertEqual(json.load(file)["input"]["classes"], ["cat", "dog"])
        tensors = safetensors_file.read_safetensors(self.path("checkpoint/model.safetensors"))
        self.assertEqual({name.split(".")[0] for name in tensors}, set(re.findall(r'add_module\("(\w+)", nn\.(?:Conv2d|Linear)', text)))
        self.assertEqual(tensors["head.weight"].shape, (2, 16 * 32 * 32))
        self.assertIn("nn.Linear(16 * 32 * 32, 2)", text)
        wanted = "import torch, safetensors.torch"
        if subprocess.run([sys.executable, "-c", wanted], capture_output=True).returncode == 0:
            result = subprocess.run([sys.executable, "-c", text], cwd=self.work, capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result.stderr)

    def client_page(self):
        os.remove(self.path("job.yaml"))
        os.symlink(self.path("ann.token"), os.path.join(self.home, ".ampd.token"))
        output = self.run_page("docs/ampctl.md", {"trainer:7070": self.address, "--set train.epochs=1": BRIEF})
        self.assertIn("SUCCEEDED", output)
        self.assertIn("CANCELLED", output)
        with open(self.path("ampd-job.schema.json")) as file:
            self.assertIn("JobSpec", json.load(file)["$defs"])
        for name in ("photos.yaml", "events.jsonl", "again.yaml", "checkpoint/model.safetensors"):
            self.assertGreater(os.path.getsize(self.path(name)), 100, name)
        self.assertGreater(os.path.getsize(os.path.join(self.home, ".config/fish/completions/ampctl.fish")), 100)

    def data_page(self):
        self.idx(self.path("fashion-mnist"), "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
        self.quick_job(data={"train": {"idx": {"images": "elsewhere", "labels": "dataset:fashion/train-labels-idx1-ubyte.gz"}}})
        output = self.run_page("docs/data.md", {})
        self.assertIn("SUCCEEDED", output)
        self.assertIn("train-images-idx3-ubyte.gz", output)
        self.assertNotIn("fashion", self.run_text("ampctl datasets list", self.as_user(), "the end of it"))


if __name__ == "__main__":
    ampd_process.main()
