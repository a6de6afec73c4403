#!/bin/bash
# Packs what a machine with a GPU needs to test and time the CUDA backend: programs, shared libraries, scripts, workloads.
#
#   tests/gpu/bundle.sh [--build-dir DIR] [--out FILE] [--no-build] [--jobs N] [--emulated]
#
# DIR: default build/gpu, configured here where it is new: release, AMPD_CUDA=REQUIRED, sm_90 alone. FILE: default
# build/gpu-bundle.tar.xz (.tar.gz: quicker, but each program keeps its copy of the device code). --no-build: what DIR
# holds is packed as it is. --emulated: the same programs on the emulated device (tests/support/cuda_on_host), from DIR,
# default build/dev, to try tests/gpu/run.sh without a GPU; kernel_bench only where DIR has it (AMPD_BUILD_BENCHMARKS).
# Prints contents and size; a bundle over 55 MB is an error.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly MOST_BYTES=55000000
# program in the bundle: its target here, and the target on the emulated device
readonly PROGRAMS=(
  "cuda_kernels_test cuda_on_host_kernels_test"
  "cuda_arena_passes_test cuda_on_host_arena_passes_test"
  "train_cuda_test train_cuda_on_host_test"
  "bench_steps bench_steps_on_host"
  "kernel_bench kernel_bench_on_host"
  "checkpoint_tool checkpoint_tool_on_host"
)
readonly FILES=(
  tests/gpu tests/bench/workloads tests/bench/peers tests/conformance/torch_curves.py tests/conformance/torch_training.py
  tests/conformance/torch_checkpoint_test.py
)
# What every machine has, and what comes with CUDA or PyTorch there.
readonly NOT_PACKED='^(ld-linux|libc|libm|libdl|librt|libpthread|libresolv|linux-vdso|libcublas|libcublasLt|libcudnn|libnccl|libcudart|libcuda|libcupti|libnvrtc)[^a-z]'

build_dir="" out=build/gpu-bundle.tar.xz build=yes jobs=$(nproc) emulated=no
while (($#)); do
  case $1 in
    --build-dir) build_dir=$2 && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    --jobs) jobs=$2 && shift 2 ;;
    --no-build) build=no && shift ;;
    --emulated) emulated=yes && shift ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
  esac
done
[[ -n $build_dir ]] || { [[ $emulated = yes ]] && build_dir=build/dev || build_dir=build/gpu; }

target_of() {  # PROGRAM TARGET EMULATED_TARGET
  if [[ $emulated = yes ]]; then echo "$3"; else echo "$2"; fi
}

if [[ $build = yes ]]; then
  if [[ ! -f $build_dir/CMakeCache.txt && $emulated = no ]]; then
    cmake -B "$build_dir" -G Ninja -DCMAKE_BUILD_TYPE=Release -DAMPD_BUILD_TESTS=ON -DAMPD_BUILD_BENCHMARKS=ON \
      -DAMPD_CUDA=REQUIRED -DCMAKE_CUDA_ARCHITECTURES=90
  fi
  targets=()
  for entry in "${PROGRAMS[@]}"; do
    read -r real host <<<"$entry"
    [[ $emulated = yes && $real = kernel_bench ]] && continue
    targets+=("$(target_of "$real" "$real" "$host")")
  done
  cmake --build "$build_dir" -j "$jobs" --target "${targets[@]}"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/ampd-gpu
mkdir -p "$root/bin" "$root/lib"
for entry in "${PROGRAMS[@]}"; do
  read -r real host <<<"$entry"
  [[ $emulated = yes && $real = kernel_bench && ! -f $build_dir/bin/$host ]] && continue
  cp "$build_dir/bin/$(target_of "$real" "$real" "$host")" "$root/bin/$real"
done
strip "$root"/bin/*

# CUDA loads it into programs that run.sh records kernels of.
cuda=$(sed -n 's/^\(CMAKE_CUDA_COMPILER\|AMPD_NVCC\):[A-Z]*=\(.*\)\/bin\/nvcc$/\2/p' "$build_dir/CMakeCache.txt" | head -n 1)
if [[ $emulated = no && -f $cuda/include/cupti.h ]]; then
  c++ -O2 -std=c++20 -Wall -Wextra -shared -fPIC -isystem "$cuda/include" tests/gpu/kernel_times.cc -o "$root/lib/gpu_kernel_times.so" \
    "$(find -L "$cuda/lib" "$cuda/lib64" "$cuda/extras/CUPTI/lib64" -maxdepth 1 -name 'libcupti.so.[0-9]*' 2>/dev/null | head -n 1)"
fi

# The closure of what they link, by the loader's own search.
for program in "$root"/bin/*; do ldd "$program"; done | awk '$3 ~ /^\// {print $1, $3} / not found/ {print "MISSING", $1}' |
  sort -u >"$work/libraries"
while read -r name path; do
  [[ $name = MISSING ]] && [[ ! $path =~ $NOT_PACKED ]] && { echo "not found here: $path" >&2; exit 1; }
  [[ $name = MISSING || $name =~ $NOT_PACKED ]] && continue
  cp -L "$path" "$root/lib/$name"
done <"$work/libraries"
chmod u+w "$root"/lib/*
strip --strip-unneeded "$root"/lib/*

for file in "${FILES[@]}"; do
  mkdir -p "$root/$(dirname "$file")"
  cp -r "$file" "$root/$(dirname "$file")/"
done
find "$root" -name __pycache__ -prune -exec rm -rf {} +
commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
[[ -z $(git status --porcelain --untracked-files=no 2>/dev/null) ]] || commit+=" with changes"
printf 'commit=%q\nemulated=%s\nbuilt=%s\n' "$commit" "$emulated" "$(date -u +%F)" >"$root/bundle.env"

mkdir -p "$(dirname "$out")"
case $out in
  *.tar.gz) tar -C "$work" -cf - ampd-gpu | gzip -9 >"$out" ;;
  # Every program holds the same device code: a dictionary over all of them keeps one copy.
  *) tar -C "$work" --sort=name -cf - ampd-gpu | xz --lzma2=preset=6,dict=192MiB >"$out" ;;
esac
(cd "$root" && find bin lib -type f -printf '%s %p\n' | sort -rn | awk '{printf "%12d %s\n", $1, $2}')
size=$(stat -c %s "$out")
echo "$out: $size bytes packed, $(du -sb "$root" | cut -f1) unpacked, commit $commit"
if ((size > MOST_BYTES)); then
  echo "the bundle is larger than $MOST_BYTES bytes" >&2
  exit 1
fi
