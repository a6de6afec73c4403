"""The dependency rules of the source tree, read from its #includes and its CMake files."""

import os
import re
import subprocess
import unittest

SOURCE = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))

MESSAGES = {"ampd/v1", "proto/spec"}
CORE = {"engine/core"}
IR = CORE | {"engine/ir"}
OPS = IR | {"engine/ops"}
# The plan carries the update rules, which the backend applies; engine/optim/optimizer.h and loss_scaler.h include
# nothing of the engine but core.
RUNTIME = OPS | {"engine/autodiff", "engine/passes", "engine/runtime", "engine/optim/optimizer.h", "engine/optim/loss_scaler.h"}
# Header-only, for all: absl::Status macros, and mutexes that know what they guard.
STATUS = {"engine/core/status.h", "engine/core/mutex.h"}
FILES = STATUS | {"server/files"}
STORE = FILES | MESSAGES | {"server/store"}
EVENTS = STORE | {"server/events"}

# Folder (the longest that fits holds): what its files may include of the project, as folders or single files.
ALLOWED = {
    "proto/spec": MESSAGES | {"google/rpc"},
    "proto/onnx": {"proto/onnx", "proto/spec"},
    "engine/core": CORE,
    "engine/ir": IR,
    "engine/ops": OPS,
    "engine/autodiff": OPS | {"engine/autodiff"},
    "engine/passes": OPS | {"engine/passes"},
    "engine/optim": {"engine/optim", "engine/core/host_device.h"},
    "engine/runtime": RUNTIME,
    "engine/backend": RUNTIME | {"engine/backend", "engine/optim"},
    "engine/data": CORE | MESSAGES | {"engine/data"},
    "engine/models": OPS | MESSAGES | {"proto/onnx", "engine/autodiff", "engine/passes", "engine/models"},
    "engine/train": {"engine", "proto/onnx"} | MESSAGES,
    "server/files": FILES,
    # Of launching, which users there are that workers can be.
    "server/config": STATUS | MESSAGES | {"server/config", "server/launch/worker_account.h"},
    "server/store": STORE,
    "server/events": EVENTS,
    "server/scheduling": STATUS | MESSAGES | {"server/scheduling"},
    "server/gpu": STATUS | MESSAGES | {"server/gpu", "server/events/clock.h"},
    "server/metrics": EVENTS | {"server/metrics"},
    "server/tensorboard": EVENTS | {"server/tensorboard", "tensorboard"},
    "server/http": STATUS | MESSAGES | {"server/http", "google/rpc", "server/config/address.h",
                                        "server/files/descriptors.h", "server/files/openssl_handles.h",
                                        "server/files/unique_fd.h"},
    "server/page": {"server/page", "server/web/assets.h"},
    # A client of the service within the daemon; of the store it reads events.
    "server/web": EVENTS | {"server/web", "server/http", "server/auth", "server/service", "server/jobs/credentials.h",
                            "server/config/address.h"},
    # Jobs know launchers by an interface, server/jobs/launcher.h, which server/launch implements. Of server/launch they
    # know the constants alone that tell how a worker ended, whoever launched it.
    "server/jobs": EVENTS | {"server/jobs", "server/scheduling", "server/metrics", "server/launch/worker_contract.h"},
    # Of jobs, what random ids and secrets are made with.
    "server/auth": EVENTS | {"server/auth", "server/jobs/credentials.h", "server/jobs/job_id.h"},
    "server/launch": FILES | MESSAGES | {"server/launch", "server/jobs/launcher.h"},
    # Of scheduling, what a submitted job is checked against.
    "server/service": EVENTS | {"server/service", "server/auth", "server/jobs", "server/launch", "server/scheduling/capability.h",
                                "google/rpc"},
    "server/main": STATUS | MESSAGES | {"server"},
    # The worker alone is both: a process of the daemon's, and the home of the engine.
    "server/worker": FILES | MESSAGES | {"server/worker", "server/launch", "engine/train"},
    "client": MESSAGES | {"client", "proto/onnx", "engine/core/mutex.h", "google/rpc"},
}
PROJECT = ("engine/", "server/", "client/", "proto/", "ampd/", "google/rpc/", "tensorboard/", "tests/", "cmake/")
GRPC_USERS = ("server/service", "server/web", "server/main", "server/worker", "server/launch", "client")
SOURCES = re.compile(r"^(engine|server|client|proto)/.*\.(h|cc|cu|cuh)$")


def tracked_files():
    listing = subprocess.run(["git", "-C", SOURCE, "ls-files", "-z"], capture_output=True)
    if listing.returncode == 0:
        names = listing.stdout.decode().split("\0")
        return sorted(name for name in names if name and os.path.isfile(os.path.join(SOURCE, name)))
    found = []
    for folder, folders, files in os.walk(SOURCE):
        folders[:] = [name for name in folders if name not in (".git", "build", "ampd-state", "__pycache__")]
        found += [os.path.relpath(os.path.join(folder, name), SOURCE) for name in files]
    return sorted(found)


def read(name):
    with open(os.path.join(SOURCE, name), errors="replace") as file:
        return file.read()


def rule_of(name):
    folders = [folder for folder in ALLOWED if name.startswith(folder + "/")]
    return max(folders, key=len) if folders else None


def includes(text):
    return re.findall(r'^\s*#\s*include\s*[<"]([^">]+)[">]', text, re.M)


def may_include(name, included):
    allowed = ALLOWED[rule_of(name)]
    return included in allowed or any(included.startswith(folder + "/") for folder in allowed)


class LayeringTest(unittest.TestCase):
    def setUp(self):
        self.files = tracked_files()
        self.sources = [name for name in self.files if SOURCES.match(name)]
        self.assertGreater(len(self.sources), 100)

    def test_includes_point_one_way(self):
        wrong = []
        for name in self.sources:
            self.assertIsNotNone(rule_of(name), f"{name}: its folder is in no rule; add it to ALLOWED")
            for included in includes(read(name)):
                if included.startswith(PROJECT) and not may_include(name, included):
                    wrong.append(f"{name} includes {included}")
        self.assertEqual(wrong, [])

    def test_the_rules_refuse_what_they_should(self):
        self.assertFalse(may_include("engine/ir/graph.h", "engine/ops/op_def.h"))
        self.assertFalse(may_include("engine/runtime/plan.h", "ampd/v1/job.pb.h"))
        self.assertFalse(may_include("engine/runtime/plan.h", "engine/optim/schedule.h"))
        self.assertFalse(may_include("server/jobs/core.h", "engine/core/tensor.h"))
        self.assertFalse(may_include("server/main/main.cc", "engine/train/trainer.h"))
        self.assertFalse(may_include("client/main.cc", "server/config/address.h"))
        self.assertTrue(may_include("server/jobs/core.h", "engine/core/status.h"))

    def test_grpc_stays_at_the_edges(self):
        wrong = [name for name in self.sources if not name.startswith(GRPC_USERS) and
                 any(i.startswith(("grpc/", "grpcpp/")) or i.endswith(".grpc.pb.h") for i in includes(read(name)))]
        self.assertEqual(wrong, [])

    def test_messages_are_read_by_few(self):
        readers = ("engine/models/", "engine/data/", "engine/train/")
        wrong = [name for name in self.sources if name.startswith("engine/") and not name.startswith(readers) and
                 any(i.endswith(".pb.h") or i.startswith("google/") for i in includes(read(name)))]
        self.assertEqual(wrong, [])

    def test_only_the_worker_links_the_engine(self):
        engine = {library for name in self.files if re.fullmatch(r"engine/.*/CMakeLists\.txt", name)
                  for library in re.findall(r"ampd_library\((\w+)", read(name))}
        self.assertIn("ampd_train", engine)
        for name in self.files:
            if re.fullmatch(r"(server|client|proto)/.*CMakeLists\.txt", name) and name != "server/worker/CMakeLists.txt":
                self.assertEqual(engine & set(re.findall(r"\w+", read(name))), set(), name)

    def test_no_ifdef_of_cuda_outside_the_backends(self):
        # The one macro by which shared functions are callable from kernels.
        allowed = ("engine/backend/", "engine/core/host_device.h")
        wrong = [name for name in self.sources if not name.startswith(allowed) and
                 re.search(r"^\s*#\s*(el)?if\w*\b.*(CUDA|NVCC|CUDNN)", read(name), re.M)]
        self.assertEqual(wrong, [])

    def test_no_path_of_a_machine(self):
        machine_path = re.compile(r"(?<![\w.])/(work|home|root|Users)/\w")
        wrong = [name for name in self.files if machine_path.search(read(name))]
        self.assertEqual(wrong, [])

    def test_no_source_is_too_long(self):
        long = [name for name in self.files if name.endswith((".h", ".cc", ".cu", ".py")) and
                read(name).count("\n") > 700]
        self.assertEqual(long, [])

    def test_headers_are_guarded_by_their_path(self):
        wrong = []
        for name in self.files:
            if name.endswith(".h") and not name.startswith("tests/"):
                guard = "AMPD_" + re.sub(r"[/.]", "_", name).upper() + "_"
                if f"#ifndef {guard}\n#define {guard}\n" not in read(name):
                    wrong.append(name)
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
