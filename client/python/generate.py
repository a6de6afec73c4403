#!/usr/bin/env python3
"""Makes what the package needs of the protos: ampd/v1 (messages, stubs, types) and ampd/google_rpc.binpb.

generate.py PROTO_FOLDER PACKAGE_FOLDER. Uses protoc and grpc_python_plugin of the system (Debian: protobuf-compiler,
protobuf-compiler-grpc), or grpc_tools where those are missing. setup.py, build_backend.py and CMake call it; nothing it makes is
committed.
"""

import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile

# The oldest that the package works with, and the first major version that nobody has tried.
OLDEST_GRPC, OLDEST_PROTOBUF, UNTRIED_PROTOBUF = "1.51", "4.21", 8


def system_compiler():
    """The system's protoc and grpc_python_plugin; None where one is missing."""
    found = shutil.which("protoc"), shutil.which("grpc_python_plugin")
    return found if all(found) else None


def tools():
    """What pip must install for compiler() to find one."""
    return [] if system_compiler() else [f"grpcio-tools>={OLDEST_GRPC}"]


def find_compiler():
    """(command of protoc, arguments that have it write gRPC stubs); None where there is none."""
    if system_compiler():
        protoc, plugin = system_compiler()
        return [protoc], ["--grpc_out={out}", f"--plugin=protoc-gen-grpc={plugin}"]
    if importlib.util.find_spec("grpc_tools") is not None:
        return [sys.executable, "-m", "grpc_tools.protoc"], ["--grpc_python_out={out}"]
    return None


def compiler():
    """As find_compiler(), which must find one."""
    found = find_compiler()
    if found:
        return found
    sys.exit("error: no protoc with grpc_python_plugin: apt-get install protobuf-compiler protobuf-compiler-grpc, or "
             "pip install grpcio-tools")


def requirements():
    """The grpcio and protobuf that take what compiler() writes: newer ones write code that refuses older libraries."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "probe.proto"), "w") as file:
            file.write('syntax = "proto3"; message M {} service S { rpc R(M) returns (M); }')
        protoc, stubs = compiler()
        subprocess.run([*protoc, f"-I{folder}", f"--python_out={folder}", *(one.format(out=folder) for one in stubs),
                        os.path.join(folder, "probe.proto")], check=True)
        with open(os.path.join(folder, "probe_pb2.py")) as messages, open(os.path.join(folder, "probe_pb2_grpc.py")) as service:
            wanted = re.search(r"Domain\.PUBLIC,\s*(\d+),\s*(\d+),\s*(\d+)", messages.read())
            grpc = re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", service.read())
    protobuf = ".".join(wanted.groups()) if wanted else OLDEST_PROTOBUF
    untried = max(UNTRIED_PROTOBUF, int(protobuf.split(".")[0]) + 1)
    return [f"grpcio>={grpc[1] if grpc else OLDEST_GRPC},<2", f"protobuf>={protobuf},<{untried}"]


def generate(proto, package):
    """`package` is the folder "ampd" itself."""
    public = sorted(path for path in glob.glob(os.path.join(proto, "ampd/v1/*.proto"))
                    if not path.endswith(("worker_link.proto", "config.proto")))
    if not public:
        sys.exit(f"error: no protos in {proto}/ampd/v1: build from a checkout of ampd")
    out = os.path.dirname(os.path.abspath(package))
    protoc, stubs = compiler()
    run = lambda *arguments: subprocess.run([*protoc, f"-I{proto}", *arguments], check=True)
    run(f"--python_out={out}", f"--pyi_out={out}", *public)
    run(*(argument.format(out=out) for argument in stubs), os.path.join(proto, "ampd/v1/training_service.proto"))
    open(os.path.join(package, "v1", "__init__.py"), "w").close()
    run(f"--descriptor_set_out={os.path.join(package, 'google_rpc.binpb')}", "--include_imports",
        *sorted(glob.glob(os.path.join(proto, "google/rpc/*.proto"))))


if __name__ == "__main__":
    generate(*sys.argv[1:])
