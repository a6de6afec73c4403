# Sourced by the scripts: which Debian packages ampd needs, and a function that installs the missing ones.
# shellcheck shell=bash

AMPD_BUILD_PACKAGES=(
  g++ cmake ninja-build ccache pkg-config git ca-certificates
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev
  prometheus-cpp-dev libsqlite3-dev libcli11-dev libyaml-cpp-dev libssl-dev zlib1g-dev
  libjpeg62-turbo-dev libpng-dev
  libdnnl-dev ocl-icd-opencl-dev libonnx-dev
)
# clang analyses the locks, and compiles nothing that runs.
# grpc_python_plugin comes with protobuf-compiler-grpc, promtool with prometheus. ampctl's completion is tried in its shells, its
# screen in tmux, its manual in mandoc and groff.
AMPD_TEST_PACKAGES=(
  libgtest-dev libgmock-dev prometheus clang openssl
  python3 python3-grpcio python3-protobuf python3-numpy python3-yaml python3-jsonschema python3-pip sqlite3 curl
  zsh fish tmux mandoc groff-base
)
# mypy and matplotlib: types and plots of client/python; strace: what deploy/systemd lets the daemon do; chromium (some hundred MB) with
# selenium: the web page as it is drawn. Tests skip without them.
AMPD_LINT_PACKAGES=(clang-format clang-tidy mypy python3-matplotlib strace chromium chromium-driver python3-selenium)

ampd_is_installed() {
  [[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
}

# ampd_as_root COMMAND...: as root, or with sudo.
ampd_as_root() {
  if [[ "$(id -u)" == 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    echo "error: '$*' needs root: run it as root, or install sudo" >&2
    return 1
  fi
}

# ampd_install_packages PACKAGE...: those that are not installed yet; touches nothing when all are.
ampd_install_packages() {
  local package missing=()
  if ! command -v dpkg-query >/dev/null; then
    echo "error: this needs Debian 12; dpkg is not here. Packages needed: $*" >&2
    return 1
  fi
  for package in "$@"; do
    ampd_is_installed "$package" || missing+=("$package")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  echo "Installing ${#missing[@]} Debian packages: ${missing[*]}"
  # Services that a package brings are not to start: promtool is wanted, not a running Prometheus.
  ampd_as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq &&
    ampd_as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
      apt-get install -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 "${missing[@]}" >/dev/null
}
