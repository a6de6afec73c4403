#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test. With --full also: the formatting and clang-tidy,
# the tests under the address, undefined-behaviour and thread sanitizers, the recorded accuracy runs, and the image.
# Works from any folder, as root or with sudo.
set -euo pipefail
source_dir="$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")"
source "$source_dir/deploy/packages.sh"
cd "$source_dir"

full=false
case "${1:-}" in
  "") ;;
  --full) full=true ;;
  *)
    echo "usage: $0 [--full]" >&2
    exit 2
    ;;
esac

# Room too: on a full disk jobs wait, and tests run into their deadlines.
say() { printf '\n== %s (%d s so far; %s of room)\n' "$*" "$SECONDS" "$(df -h --output=avail . | tail -1 | tr -d ' ')"; }

# build_and_test PRESET CTEST_ARGUMENT...; chained, because bash ignores `set -e` where a caller looks at the outcome.
build_and_test() {
  local preset=$1
  shift
  say "building, preset $preset" &&
    cmake --preset "$preset" &&
    nice -n 5 cmake --build --preset "$preset" &&
    say "testing, preset $preset" &&
    ctest --preset "$preset" -j2 "$@"
}

# A part that fails is told at the end, and the others still run.
failed=()
part() {
  say "$1"
  local name=$1
  shift
  "$@" || failed+=("$name")
}

check_format() {
  git ls-files -z '*.h' '*.cc' '*.cu' | xargs -0 clang-format --dry-run --Werror
}

check_tidy() {
  git ls-files -z 'engine/*.cc' 'server/*.cc' 'client/*.cc' 'proto/spec/*.cc' | grep -zv '^engine/backend/cuda/' |
    xargs -0 -P2 -n4 clang-tidy -p build/dev --quiet --extra-arg=-Wno-unknown-warning-option 2>/dev/null
}

sanitizers() {
  part "address and undefined-behaviour sanitizers" build_and_test asan -LE e2e
  part "thread sanitizer" build_and_test tsan -LE e2e
}

accuracy() {
  local stubs=$source_dir/build/dev/tests/e2e/gen code=0
  AMPD_BIN_DIR=$source_dir/build/dev/bin PYTHONPATH=$stubs PYTHONDONTWRITEBYTECODE=1 \
    /usr/bin/python3 -u "tests/e2e/$1_accuracy.py" || code=$?
  [[ $code == 0 || $code == 77 ]]
}

image() {
  local code=0
  deploy/build_image.sh || code=$?
  [[ $code == 0 || $code == 77 ]]
}

ampd_install_packages "${AMPD_BUILD_PACKAGES[@]}" "${AMPD_TEST_PACKAGES[@]}"
if $full; then
  ampd_install_packages "${AMPD_LINT_PACKAGES[@]}"
  part "formatting" check_format
fi
if ! $full; then
  build_and_test dev
  exit
fi

part "the tests" build_and_test dev
part "clang-tidy" check_tidy
sanitizers
part "accuracy of the modes, three seeds each" accuracy fashion_mnist
part "accuracy on photographs, three seeds each" accuracy imagenette
part "spelling of spoken digits" accuracy speech
part "the image" image
if [[ ${#failed[@]} -gt 0 ]]; then
  say "FAILED: ${failed[*]}"
  exit 1
fi
say "all passed"
