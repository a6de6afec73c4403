#!/bin/bash
# Packs the programs on the emulated device, unpacks them elsewhere and runs stages of tests/gpu/run.sh on tiny sizes; then
# again, when nothing may be left to be done.
#   stages_test.sh BUILD_DIR
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$source_dir/tests/gpu/bundle.sh" --emulated --no-build --build-dir "$1" --out "$work/bundle.tar.gz" | tail -n 1
tar -C "$work" -xf "$work/bundle.tar.gz"
run=("$work/ampd-gpu/tests/gpu/run.sh" --tiny --state "$work/state" --out "$work/out")
stages=(correctness mlp)
[[ ! -f $work/ampd-gpu/bin/kernel_bench ]] || stages+=(kernels)
PATH=/usr/bin:$PATH "${run[@]}" "${stages[@]}" || { tail -n 20 "$work"/state/*/*.log && exit 1; }
PATH=/usr/bin:$PATH "${run[@]}" correctness >"$work/again"
if grep -E '^correctness: ' "$work/again"; then
  echo "the second call did something again" >&2
  exit 1
fi
for result in "${stages[@]}"; do
  ls "$work/out/"*"-gpu-$result.md" >/dev/null
done
tar -tzf "$work/out/results.tar.gz" >/dev/null
! grep -l FAIL "$work"/out/*.md
