#!/usr/bin/env python3
"""What ptxas made of our own kernels: registers, shared memory, stack and spills.

usage: resource_report.py BUILD_DIR [--out docs/cuda_kernels.md] [--check]

BUILD_DIR holds what cmake/keep_resources.sh kept of the compilation of engine/backend/cuda, for each architecture that was
built for. What sm_90's are is judged, for which they are tuned. A kernel's stack holds registers that spilled, and arrays with indices that are not constant; one of HOT must have none, one of
WALK_PROGRAMS must not spill. Exit codes: 1 one has or does, or a name in HOT is no kernel's any more; 77 nothing was built for sm_90. --check
writes nothing.
"""
import argparse
import glob
import os
import re
import subprocess
import sys

# Kernels that large networks spend their time in, or that every step runs: (file, beginning of the name). None may spill
# registers; of HOT none may have a stack at all.
WALK_PROGRAMS = (("fused.cu", "RunFused"), ("resident_kernel.cu", "TakeSteps"))
HOT = (
    ("arena_passes.cu", "CheckEntries"), ("arena_passes.cu", "UpdateEntries"), ("attention.cu", "Forward"), ("attention_grad.cu", "KeyGrads"),
    ("attention_grad.cu", "QueryGrads"), ("batch_norm.cu", "channel_sums::"), ("cast.cu", "CastFloats"),
    ("elementwise_activation.cu", "Elementwise"), ("elementwise_binary.cu", "Elementwise"), ("lstm.cu", "LstmStep"), ("lstm_sequence.cu", "LstmSequence"),
    ("bias.cu", "SumColumns"), ("fused_chains.cu", "RunChain"), ("loss.cu", "Losses"), ("matmul.cu", "TransposeSquares"),
    ("pool2d.cu", "MaxPoolGradTiles"), ("quantize.cu", "Quantize"), ("gru.cu", "Gru"), ("row_norm.cu", "Forward"), ("row_norm.cu", "Backward"), ("softmax.cu", "ForwardRows"),
    ("softmax.cu", "BackwardRows"), ("step_control.cu", ""), ("resident_dataset.cu", "ExpandSamples"),
)
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


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


def kernels(build_dir):
    """(architecture, file, name, registers, stack, shared bytes, spilled bytes), sorted."""
    found = []
    pattern = os.path.join(build_dir, "engine", "backend", "cuda", "CMakeFiles", "ampd_backend_cuda.dir", "*.cu.o.resources")
    for path in sorted(glob.glob(pattern)):
        if not os.path.exists(path.removesuffix(".resources")):
            continue
        file, row = os.path.basename(path).removesuffix(".o.resources"), None
        for line in open(path):
            if match := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
                row = [match.group(2), file, match.group(1), 0, 0, 0, 0]
            elif row and (match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)):
                row[4], row[6] = int(match.group(1)), int(match.group(2)) + int(match.group(3))
            elif row and (match := re.search(r"Used (\d+) registers", line)):
                shared = re.search(r"(\d+) bytes smem", line)
                row[3], row[5] = int(match.group(1)), int(shared.group(1)) if shared else 0
                found.append(row)
                row = None
    for row, name in zip(found, demangled([row[2] for row in found])):
        row[2] = short(name)
    return sorted(found, key=lambda row: (row[1], row[2], row[0]))


def table(rows):
    architectures = ", ".join(sorted({row[0] for row in rows}))
    lines = ["# Resources of our CUDA kernels", "", f"Written by `tests/gpu/resource_report.py BUILD_DIR`, for {architectures}: what ptxas says. Registers a "
             "thread, bytes of stack a thread (arrays with indices that are not constant), bytes of static shared memory a block; what is asked for at "
             f"launch is not counted. {len(rows)} kernels, of which {sum(row[6] > 0 for row in rows)} spill registers; those of a file that differ in template "
             "arguments alone are one line. Hot ones do not (`ctest -R gpu_kernel_resources`).", "",
             "| file | kernel | instances | registers | stack | shared |", "|---|---|---|---|---|---|"]
    groups = {}
    for _, file, name, registers, stack, shared, _ in rows:
        groups.setdefault((file, re.sub(r"<.*", "", name)), []).append((registers, stack, shared))
    for (file, name), figures in sorted(groups.items()):
        columns = [f"{min(c)}-{max(c)}" if min(c) != max(c) else str(c[0]) for c in zip(*figures)]
        lines.append(f"| {file} | {name} | {len(figures)} | {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build_dir")
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "cuda_kernels.md"))
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    rows = kernels(arguments.build_dir)
    if not rows:
        sys.exit(f"no kernels in {arguments.build_dir}")
    if not arguments.check:
        with open(arguments.out, "w") as file:
            file.write(table(rows))
    rows = [row for row in rows if row[0] == "sm_90"]
    if not rows:
        print("no kernel was built for sm_90")
        sys.exit(77)
    hot = HOT + WALK_PROGRAMS
    wrong = [f"{name} ({file}, {architecture}) spills {spilled} bytes" for architecture, file, name, _, _, _, spilled in rows
             if spilled and any(file == f and name.startswith(beginning) for f, beginning in hot)]
    wrong += [f"{name} ({file}, {architecture}) has a stack of {stack} bytes" for architecture, file, name, _, stack, _, _ in rows
              if stack and any(file == f and name.startswith(beginning) for f, beginning in HOT)]
    wrong += [f"{f}: no kernel is called {beginning}..." for f, beginning in hot
              if not any(row[1] == f and row[2].startswith(beginning) for row in rows)]
    print(f"{len(rows)} kernels, {sum(row[4] > 0 for row in rows)} with a stack, most registers {max(row[3] for row in rows)}")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
