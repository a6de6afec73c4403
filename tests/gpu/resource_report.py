#!/usr/bin/env python3
"""What nvcc made of our own kernels: registers, shared memory and stack, by cuobjdump.

usage: resource_report.py LIBRARY [--out docs/cuda_kernels.md] [--cuobjdump PROGRAM] [--check]

LIBRARY: libampd_backend_cuda.a (or a program or object with device code). A kernel's stack holds what does not fit its
registers, and arrays with indices that are not constant; one of HOT must have none. Exit codes: 1 one has, or a name in HOT
is no kernel's any more; 77 (skipped) there is no cuobjdump. --check writes nothing.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys

# Kernels that large networks spend their time in, or that every step runs: (file, beginning of the name).
HOT = (
    ("arena_passes.cu", "CheckEntries"), ("attention.cu", "Forward"), ("attention_grad.cu", "KeyGrads"),
    ("attention_grad.cu", "QueryGrads"), ("batch_norm.cu", "channel_sums::"), ("cast.cu", "CastFloats"),
    ("elementwise_activation.cu", "Elementwise"), ("elementwise_binary.cu", "Elementwise"), ("lstm.cu", "LstmStep"),
    ("gru.cu", "Gru"), ("row_norm.cu", "Forward"), ("row_norm.cu", "Backward"), ("softmax.cu", "ForwardRows"),
    ("softmax.cu", "BackwardRows"), ("step_control.cu", ""),
)
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def find_cuobjdump(given):
    places = [given, shutil.which("cuobjdump"), "/usr/local/cuda/bin/cuobjdump"]
    return next((p for p in places if p and os.path.exists(p)), None)


def demangled(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def short(name):
    """Without namespaces and parameters."""
    name = re.sub(r"\(anonymous namespace\)::|ampd::|cuda::|\bvoid ", "", name)
    depth = 0
    for i, c in enumerate(name):
        depth += (c in "<") - (c in ">")
        if c == "(" and depth == 0:
            return name[:i]
    return name


def kernels(program, library):
    """(architecture, file, name, registers, stack, shared bytes), sorted."""
    text = subprocess.run([program, "--dump-resource-usage", library], capture_output=True, text=True, check=True).stdout
    found, file, architecture = [], "", ""
    for line in text.splitlines():
        if match := re.match(r"member .*?:(\S+?)\.o:|Fatbin .*|arch = (\S+)", line.strip()):
            file, architecture = match.group(1) or file, match.group(2) or architecture
        elif match := re.match(r"\s*Function (\S+):\s*$", line):
            name = match.group(1)
        elif match := re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", line):
            found.append([architecture, file, name, *map(int, match.groups())])
    for row, name in zip(found, demangled([row[2] for row in found])):
        row[2] = short(name)
    return sorted(found, key=lambda row: (row[1], row[2], row[0]))


def table(rows, version):
    lines = ["# Resources of our CUDA kernels", "", f"Written by `tests/gpu/resource_report.py` ; {version}. Registers a thread, bytes of "
             "stack a thread (spills lie there, and arrays with indices that are not constant), bytes of static shared memory a block; what is asked for at "
             f"launch is not counted. {len(rows)} kernels; those of a file that need the same are one line.", "",
             "| file | kernel | instances | registers | stack | shared |", "|---|---|---|---|---|---|"]
    groups = {}
    for _, file, name, registers, stack, shared in rows:
        groups.setdefault((file, re.sub(r"<.*", "", name)), []).append((registers, stack, shared))
    for (file, name), figures in sorted(groups.items()):
        columns = [f"{min(c)}-{max(c)}" if min(c) != max(c) else str(c[0]) for c in zip(*figures)]
        lines.append(f"| {file} | {name} | {len(figures)} | {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("library")
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "cuda_kernels.md"))
    parser.add_argument("--cuobjdump")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    program = find_cuobjdump(arguments.cuobjdump)
    if program is None:
        print("SKIPPED: no cuobjdump here")
        sys.exit(77)
    rows = kernels(program, arguments.library)
    if not rows:
        sys.exit(f"no kernels in {arguments.library}")
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.strip().splitlines()[-1]
    if not arguments.check:
        with open(arguments.out, "w") as file:
            file.write(table(rows, version))
    wrong = [f"{name} ({file}) has a stack of {stack} bytes" for _, file, name, _, stack, _ in rows
             if stack and any(file == f and name.startswith(beginning) for f, beginning in HOT)]
    wrong += [f"{f}: no kernel is called {beginning}..." for f, beginning in HOT
              if not any(row[1] == f and row[2].startswith(beginning) for row in rows)]
    print(f"{len(rows)} kernels, {sum(row[4] > 0 for row in rows)} with a stack, most registers {max(row[3] for row in rows)}")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
