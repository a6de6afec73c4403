#!/bin/bash
# Tests and times the CUDA backend on a machine with a GPU, from an unpacked bundle (tests/gpu/bundle.sh).
#
#   tests/gpu/run.sh [--state DIR] [--out DIR] [--seconds N] [--tiny] STAGE...
#
# Stages: correctness sanitize profile overview mlp convnet acgan resnet50 gpt2 gpt_wide speech kernels; "all" is all
# of them but profile and overview, as they stand here but for sanitize, which comes last. Each ends within N seconds
# (default 480). What is done is noted in DIR (default /tmp/ampd-gpu-state), so calling again with the same stages goes
# on; --out (default $OUT, else DIR/results) gets dated results, and results.tar.gz with everything, logs included. A
# check that fails does not stop the next. Exit code: 0 all passed, 1 something failed, 3 nothing failed but some is left
# to be done by calling again. --tiny: sizes that the emulated device can bear.
# Functions are called through bash -c, which shellcheck does not follow.
# shellcheck disable=SC2317
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
commit=unknown emulated=no
# shellcheck source=/dev/null
source "$root/bundle.env"

state=/tmp/ampd-gpu-state out=${OUT:-} seconds=480 tiny=no stages=()
while (($#)); do
  case $1 in
    --state) state=$2 && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    --seconds) seconds=$2 && shift 2 ;;
    --tiny) tiny=yes && shift ;;
    --*) sed -n '2,11s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
    all) stages+=(correctness mlp convnet resnet50 gpt2 speech acgan kernels gpt_wide sanitize) && shift ;;
    *) stages+=("$1") && shift ;;
  esac
done
((${#stages[@]})) || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
out=${out:-$state/results}
mkdir -p "$state" "$out" || exit 2

# --- Libraries: ours, then CUDA's from the toolkit or from PyTorch's wheels.

python=$(command -v python3 || true)

# Those that PyTorch brings come first, so that it and ours are compared on the same.
library_folders() {
  local name=$1
  [[ -n $python ]] && "$python" - "$name" <<'PY' 2>/dev/null
import glob, os, site, sys, sysconfig
places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages(), *sys.path}
for place in sorted(p for p in places if p):
    print("\n".join(sorted(glob.glob(os.path.join(place, "nvidia", "*", "lib", sys.argv[1] + "*")))))
PY
  ldconfig -p 2>/dev/null | awk -v n="$name" '$1 ~ "^" n {print $NF}'
  find -L /usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib /usr/local/cuda*/lib /usr/local/cuda*/extras/CUPTI/lib64 -maxdepth 1 -name "$name*" 2>/dev/null
}

find_libraries() {
  local path=$root/lib name found
  : >"$state/notes"
  for name in libcublasLt.so.13 libcudnn.so.9 libnccl.so.2 libnvrtc.so.13 libcupti.so.13; do
    found=$(library_folders "$name" | grep -m1 /)
    if [[ -z $found ]]; then
      [[ $emulated = yes ]] || echo "note: no $name found" >>"$state/notes"
    elif [[ :$path: != *:$(dirname "$found"):* ]]; then
      path+=:$(dirname "$found")
    fi
  done
  echo "$path"
}

libraries=$(find_libraries)
# Programs by way of these, so that Python keeps to its own libraries.
write_wrappers() {
  mkdir -p "$state/bin"
  local program
  for program in "$root"/bin/*; do
    # The driver's own folder may be on the path already.
    printf '#!/bin/bash\nexport LD_LIBRARY_PATH=%q\nexec %q "$@"\n' "$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$program" >"$state/bin/${program##*/}"
    chmod +x "$state/bin/${program##*/}"
  done
}
write_wrappers
bin=$state/bin
workloads=$root/tests/bench/workloads

describe_machine() {
  echo "commit: $commit"
  [[ $emulated = no ]] || echo "The device is emulated: no figure here is a GPU's."
  if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit,ecc.mode.current --format=csv,noheader |
      sed 's/^/GPU, driver, memory, SM clock, power limit, ECC: /'
    nvidia-smi | sed -n 's/.*CUDA Version: \([0-9.]*\).*/CUDA of the driver: \1/p'
  else
    echo "GPU: no nvidia-smi"
  fi
  if [[ -n $python ]]; then
    "$python" -c 'import torch; print("PyTorch:", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version())' \
      2>/dev/null || echo "PyTorch: none"
  fi
  echo "$libraries" | tr : '\n' | while read -r folder; do
    find "$folder" -maxdepth 1 -regextype posix-extended -regex '.*/lib(cublasLt|cudnn|nccl)[.]so[.].*' -exec readlink -f {} \; 2>/dev/null
  done | sort -u | sed 's/^/library: /'
  echo "machine: $(nproc) cores, $(awk '/MemTotal/ {printf "%.0f GiB", $2 / 2^20}' /proc/meminfo), $(uname -r), glibc $(getconf GNU_LIBC_VERSION | cut -d' ' -f2)"
}

# --- Checks.

deadline=0 stage="" unfinished=no

left() { echo $((deadline - SECONDS)); }

# check NAME LIMIT COMMAND...: runs it once. 0 is PASS, 77 SKIP. Cut short by the stage's end, it is left for the next call.
check() {
  local name=$1 limit=$2 most rc start=$SECONDS result
  shift 2
  [[ -f $state/$stage/$name.done ]] && return
  most=$(($(left) < limit ? $(left) : limit))
  if ((most < 5)); then unfinished=yes && return; fi
  timeout -k 5 "$most" "$@" >"$state/$stage/$name.log" 2>&1
  rc=$?
  if ((rc == 124 || rc == 137)) && ((most < limit)); then unfinished=yes && return; fi
  case $rc in
    0) result=PASS ;;
    77) result=SKIP ;;
    124 | 137) result="FAIL (over $limit s)" ;;
    *) result="FAIL (exit code $rc)" ;;
  esac
  echo "$result|$((SECONDS - start))|$(tail -n 1 "$state/$stage/$name.log" | tr '|' '/' | cut -c1-200)" >"$state/$stage/$name.done"
  echo "$stage: $name: $result, $((SECONDS - start)) s"
}

# tests PROGRAM SHARDS ARGUMENT...: shards of a GoogleTest program side by side; says how many passed. 77: none ran.
tests() {
  local program=$1 shards=$2 i pids=() rc=0 folder
  shift 2
  folder=$(mktemp -d)
  for ((i = 0; i < shards; ++i)); do
    (cd "$folder" && mkdir "$i" && cd "$i" && GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i exec "$program" "$@") >"$folder/$i.log" 2>&1 &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || rc=1; done
  grep -hE '^\[  (FAILED|SKIPPED)|Failure|^[A-Z ]+: AddressSanitizer|=========|Segmentation|terminate' "$folder"/*.log | sort | uniq -c | sort -rn | head -n 60
  cat "$folder"/*.log | grep -h -B1 -A12 Failure | head -n 400
  local passed skipped
  passed=$(cat "$folder"/*.log | sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' | awk '{n += $1} END {print n + 0}')
  skipped=$(cat "$folder"/*.log | sed -n 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' | awk '{n += $1} END {print n + 0}')
  rm -rf "$folder"
  echo "$passed passed, $skipped skipped, exit code $rc"
  ((rc)) && return 1
  ((passed > 0)) || return 77
}

field() { sed -n "s/.*\"$1\": \[\{0,1\}\([^],}]*\).*/\1/p"; }

# losses FOLDER DEVICE MODE BATCH STEPS_OPTION JOB INPUT TARGET [LEARNING_RATE]: losses after 1 and 5 steps, by algorithms as FOLDER has them.
losses() {
  # From the default scale FP16 skips the first steps of a deep network, which says nothing of its gradients.
  printf '1\n4\n' | "$bin/bench_steps" "--autotune=$1" "--device=$2" "--set=train.batch_size=$4" --set=precision.loss_scale.init=256 \
    ${9:+"--set=optimizer.sgd.learning_rate=$9"} "--steps=$5" "$workloads/$6.yaml" "$7" "$8" "$3" 4 | field loss
}

# network_agrees MODE BOUND BATCH JOB INPUT TARGET [LEARNING_RATE]: the losses of first and fifth step against the CPU
# backend's; whoever decides the steps, they are equal.
network_agrees() {
  local mode=$1 bound=$2 cpu device way folder
  shift 2
  folder=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$folder'" EXIT
  cpu=$(losses "$folder" cpu-0 "$mode" "$1" captured "${@:2}" | tr '\n' ' ')
  device=$(losses "$folder" cuda "$mode" "$1" captured "${@:2}" | tr '\n' ' ')
  for way in enqueued host; do
    [[ $(losses "$folder" cuda "$mode" "$1" "$way" "${@:2}" | tr '\n' ' ') = "$device" ]] || { echo "$way steps differ from captured ones: $device" && return 1; }
  done
  echo "losses after 1 and 5 steps: CPU $cpu, device $device, bound $bound"
  awk -v c="$cpu" -v d="$device" -v b="$bound" 'BEGIN {
    n = split(c, x); m = split(d, y); if (n != 2 || m != 2) exit 1
    for (i = 1; i <= 2; ++i) {
      e = x[i] - y[i]; if (e < 0) e = -e; s = x[i] < 0 ? -x[i] : x[i]; if (s < 1) s = 1
      if (!(e <= s * b * (i == 1 ? 1 : 10))) exit 1
    }
    # Half of what was learnt must have been learnt, whatever a mode may be off by.
    learnt = x[1] - x[2]
    if (learnt > 0 && !(y[1] - y[2] >= learnt / 2)) exit 1
  }'
}

# soak STEPS MODE BATCH JOB INPUT TARGET: nothing may be held at the end that was not after the first tenth; the process
# may grow by 16 MiB.
soak() {
  local answer
  answer=$(echo "soak $1" | "$bin/bench_steps" --device=cuda --steps=resident "--set=train.batch_size=$3" "$workloads/$4.yaml" "$5" "$6" "$2" 4) || return 1
  echo "$answer"
  awk -v line="$answer" 'BEGIN {
    if (split(line, part, /[][]/) < 4 || split(part[2], device, ", ") != 3 || split(part[4], resident, ", ") != 3) exit 1
    exit !(device[3] <= device[2] && resident[3] <= resident[2] + 16 * 2^20) }'
}

curves() {
  if [[ -z $python ]] || ! "$python" -c 'import torch, numpy' 2>/dev/null; then echo "no PyTorch" && return 77; fi
  local where=cpu
  "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' && where=cuda
  CURVES=$1 PYTHONDONTWRITEBYTECODE=1 "$python" "$root/tests/conformance/torch_curves.py" --tool "$bin/checkpoint_tool" --device cuda --torch "$where"
}

# attention MODE BATCH JOB INPUT TARGET: says what attention runs on; of a GPU's, all of it has to be cuDNN.
attention() {
  local said
  said=$(echo notes | "$bin/bench_steps" --device=cuda "--set=train.batch_size=$2" "$workloads/$3.yaml" "$4" "$5" "$1" 4) || return 1
  grep '^attention runs on ' <<<"$said" || { echo "nothing is said of attention" && return 1; }
  [[ $emulated = yes ]] || ! grep -q 'own kernels' <<<"$said"
}

opens() { printf '2\nmemory\n' | "$bin/bench_steps" --device=cuda "$workloads/transformer.yaml" ids=1000:16 classes=1000:16 FP32 1; }

export -f opens attention tests field losses network_agrees soak curves
export bin workloads python root emulated

# MODE BOUND: of a forward pass in that mode.
readonly MODES=("FP32 2e-4" "TF32 5e-3" "FP16 1e-2" "BF16 3e-2" "FP8 1e-1")
# BATCH JOB INPUT TARGET [LEARNING_RATE]. At its own rate of 0.1 a ResNet with so few images goes elsewhere by roundings
# alone: on the CPU, too, its fifth losses in FP32 and in TF32 have nothing in common.
readonly NETWORKS=(
  "8 resnet50 64,64,3 classes=1000 3e-7" "8 acgan 32,32,3 classes=10" "8 resnet20 32,32,3 classes=10 1e-3"
  "2 transformer ids=1000:256 classes=1000:256" "2 transformer ids=1000:64 classes=1000:64" "4 speech_small time=32:40 spelled=29:6"
  "4 lstm 16,256 classes=10" "4 convnet 32,32,3 classes=10" "64 mlp 8 features=1"
)

# Checks side by side.
AT_ONCE=$(($(nproc) * 2 / 3))
((AT_ONCE > 0)) || AT_ONCE=1
readonly AT_ONCE
besides=()

in_bash() { check "$1" "$2" bash -c '"$@"' bash "${@:3}"; }

# beside NAME LIMIT COMMAND...: as in_bash, beside others; for those that are not finished waits all_besides.
beside() {
  (in_bash "$@" && [[ $unfinished = no ]]) &
  besides+=($!)
  ((${#besides[@]} < AT_ONCE)) && return
  wait "${besides[0]}" || unfinished=yes
  besides=("${besides[@]:1}")
}

all_besides() {
  local pid
  for pid in "${besides[@]}"; do wait "$pid" || unfinished=yes; done
  besides=()
}

stage_correctness() {
  local shards=12 filter='*' mode bound entry steps=10000 networks=("${NETWORKS[@]}") modes=("${MODES[@]}") name
  if [[ $tiny = yes ]]; then
    shards=1 filter='*relu*f16*' steps=20 networks=("4 convnet 16,16,3 classes=10") modes=("FP16 1e-2")
  fi
  in_bash opens 60 opens
  if [[ $tiny = yes ]]; then
    in_bash attention 60 attention BF16 2 transformer ids=1000:16 classes=1000:16
  else
    in_bash attention 120 attention BF16 8 gpt2 ids=50257:1024 classes=50257:1024
  fi
  cat "$state/$stage/attention.log" 2>/dev/null
  # What follows takes processors' time more than the device's, so all of it side by side.
  beside kernels 300 tests "$bin/cuda_kernels_test" "$shards" "--gtest_filter=$filter"
  beside arena_passes 60 tests "$bin/cuda_arena_passes_test" 1
  beside trainings 200 tests "$bin/train_cuda_test" "$shards" "--gtest_filter=$([[ $tiny = yes ]] && echo '*StaysNear*Normed' || echo '*')"
  local words
  for entry in "${networks[@]}"; do
    for mode in "${modes[@]}"; do
      read -r mode bound <<<"$mode"
      read -r -a words <<<"$entry"
      # Whole networks amplify roundings a little.
      beside "network-${words[1]}-${words[2]}-$mode" 120 network_agrees "$mode" "$bound" "${words[@]}"
    done
  done
  if [[ $tiny != yes ]]; then
    for name in MLP convnet GRU LSTM transformer DCGAN; do beside "curves-$name" 240 curves "$name"; done
  fi
  all_besides
  # Alone: what they look at is all of the device's memory.
  in_bash soak-mlp 120 soak "$steps" FP16 512 mlp 8 features=1
  in_bash soak-convnet 120 soak "$steps" FP16 16 convnet "$([[ $tiny = yes ]] && echo 16,16,3 || echo 32,32,3)" classes=10
  [[ $tiny = yes ]] && return
  in_bash soak-transformer 120 soak "$steps" BF16 2 transformer ids=1000:64 classes=1000:64
}

# recorded NAME MODE BATCH STEPS JOB INPUT TARGET: which kernels the last quarter of a second went to, in NAME.txt.
recorded() {
  printf '1\n17\n%s\n' "$4" | AMPD_KERNEL_TIMES=$records/$1.txt CUDA_INJECTION64_PATH=$root/lib/gpu_kernel_times.so \
    "$bin/bench_steps" --device=cuda --steps=resident "--set=train.batch_size=$3" "$workloads/$5.yaml" "$6" "$7" "$2" 4 || return 1
  head -n 1 "$records/$1.txt"
}

stage_profile() {
  if [[ ! -f $root/lib/gpu_kernel_times.so ]]; then
    check profile 10 bash -c 'echo "no recorder of kernels in this bundle"; exit 77'
    return
  fi
  export records=$state/$stage root
  export -f recorded
  local entry words
  for entry in "${RECORDED[@]}"; do
    read -r -a words <<<"$entry"
    in_bash "${words[0]}" 120 recorded "${words[@]}"
  done
}

sanitized() {  # TOOL SHARD SHARDS FILTER
  GTEST_TOTAL_SHARDS=$3 GTEST_SHARD_INDEX=$2 compute-sanitizer --tool "$1" --error-exitcode 9 --target-processes all \
    "$bin/cuda_kernels_test" "--gtest_filter=$4"
}

# NAME MODE BATCH STEPS JOB INPUT TARGET
readonly RECORDED=(
  "gpt_wide-fp8 FP8 8 8 gpt_wide ids=32768:1024 classes=32768:1024" "mlp FP16 512 4000 mlp 8 features=1"
  "convnet FP16 128 60 convnet 256,256,3 classes=10" "convnet-32 FP16 32 200 convnet 256,256,3 classes=10"
  "speech_small FP16 16 100 speech_small time=128:40 spelled=29:20"
  "speech_large FP16 64 4 speech_large time=512:80 spelled=29:80" "gpt_wide BF16 8 8 gpt_wide ids=32768:1024 classes=32768:1024"
  "resnet50 FP16 256 12 resnet50 224,224,3 classes=1000" "gpt2 BF16 8 16 gpt2 ids=50257:1024 classes=50257:1024"
  "acgan-64 FP16 64 400 acgan 32,32,3 classes=10" "acgan FP16 256 200 acgan 32,32,3 classes=10" "gpt_4096-fp8 FP8 8 6 gpt_4096 ids=32768:1024 classes=32768:1024"
  "gpt_4096 BF16 8 6 gpt_4096 ids=32768:1024 classes=32768:1024"
)

# The walk over kernels that compares with the references; half of the rows, so that 16 cores are done in time.
stage_sanitize() {
  export -f sanitized sanitized_all
  if ! command -v compute-sanitizer >/dev/null; then
    PATH=$PATH:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer
  fi
  if ! command -v compute-sanitizer >/dev/null; then
    check sanitizer 10 bash -c 'echo "no compute-sanitizer here"; exit 77'
    return
  fi
  local tool
  for tool in memcheck racecheck synccheck initcheck; do
    in_bash "$tool" 230 sanitized_all "$tool"
  done
}

sanitized_all() {
  local i pids=() rc=0
  for i in 0 1 2 3 4 5 6 7 8 9 10 11; do
    sanitized "$1" "$i" 24 '*AgreesWithReference*' >"$sanitizer_logs/$1-$i.log" 2>&1 &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || rc=1; done
  grep -hE '^========= (Invalid|Error|Race|Uninit|Barrier|Warning).*|ERROR SUMMARY' "$sanitizer_logs/$1"-*.log | sort | uniq -c | sort -rn | head -n 40
  return "$rc"
}

stage_speed() {
  if [[ -z $python ]]; then
    check speed 10 bash -c 'echo "no python3 here"; exit 77'
    return
  fi
  local script=$here/gpu_speed.py arguments=("$stage")
  [[ $stage = kernels ]] && script=$here/kernel_speed.py arguments=()
  [[ $tiny = yes ]] && arguments+=(--tiny --torch-device cpu)
  "$python" "$script" "${arguments[@]}" --bin "$bin" --state "$state/$stage" --out "$out" --seconds "$(left)" \
    --environment "$state/environment" >"$state/$stage/report" 2>&1
  local rc=$?
  cat "$state/$stage/report"
  ((rc == 3)) && unfinished=yes
  if ((rc != 0 && rc != 3)); then
    echo "FAIL (exit code $rc)|0|$(tail -n 1 "$state/$stage/report" | tr '|' '/' | cut -c1-200)" >"$state/$stage/speed.done"
  else
    rm -f "$state/$stage/speed.done"
  fi
}

# The checks of a stage as a dated result.
write_result() {
  local file name result took last
  file=$out/$(date -u +%F)-gpu-$stage.md
  compgen -G "$state/$stage/*.done" >/dev/null || return
  [[ $stage = correctness || $stage = sanitize || $stage = profile ]] || return
  {
    echo "# On a GPU: $stage" && echo && date -u +%F && echo && cat "$state/environment" "$state/notes" && echo
    echo "| check | result | seconds | last line |" && echo "|---|---|---|---|"
    for name in "$state/$stage"/*.done; do
      IFS='|' read -r result took last <"$name"
      name=${name##*/}
      echo "| ${name%.done} | $result | $took | $last |"
    done
    if [[ $unfinished = yes ]]; then echo && echo "Not all was done."; fi
  } >"$file"
  cat "$file"
}

describe_machine >"$state/environment" 2>&1
cat "$state/environment" "$state/notes"
code=0
for stage in "${stages[@]}"; do
  mkdir -p "$state/$stage"
  export sanitizer_logs=$state/$stage
  deadline=$((SECONDS + seconds)) unfinished=no
  case $stage in
    correctness) stage_correctness ;;
    sanitize) stage_sanitize ;;
    profile) stage_profile ;;
    overview | mlp | convnet | acgan | resnet50 | gpt2 | gpt_wide | speech | kernels) stage_speed ;;
    *) echo "no stage $stage" >&2 && exit 2 ;;
  esac
  write_result
  [[ $unfinished = no ]] || { echo "$stage: not all was done; call again" && code=$((code == 1 ? 1 : 3)); }
  ! grep -qs ^FAIL "$state/$stage"/*.done || code=1
  tar -C "$state" -czf "$out/results.tar.gz.new" --exclude=./results --exclude=./bin . && mv "$out/results.tar.gz.new" "$out/results.tar.gz"
done
exit $code
