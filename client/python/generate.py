#!/usr/bin/env python3
"""Makes what the package needs of the protos: ampd/v1 (messages, stubs, types) and ampd/google_rpc.binpb.

generate.py PROTO_FOLDER PACKAGE_FOLDER. Uses protoc and grpc_python_plugin of the system (Debian: protobuf-compiler,
protobuf-compiler-grpc), or grpc_tools where those are missing. setup.py and CMake call it; nothing it makes is committed.
"""

import glob
import importlib.util
import os
import shutil
import subprocess
import sys


def compiler():
    """(command of protoc, arguments that have it write gRPC stubs)."""
    protoc, plugin = shutil.which("protoc"), shutil.which("grpc_python_plugin")
    if protoc and plugin:
        return [protoc], ["--grpc_out={out}", f"--plugin=protoc-gen-grpc={plugin}"]
    if importlib.util.find_spec("grpc_tools") is not None:
        return [sys.executable, "-m", "grpc_tools.protoc"], ["--grpc_python_out={out}"]
    sys.exit("error: no protoc with grpc_python_plugin: apt-get install protobuf-compiler protobuf-compiler-grpc, or "
             "pip install grpcio-tools")


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
