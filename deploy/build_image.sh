#!/usr/bin/env bash
# Builds the image ampd:cpu from the Dockerfile and tries it: its size, labels, bill of materials, user, health check, signals, a
# job, and what is left of one when the container is killed. With Docker where its engine answers, else with buildah and podman
# over a base made by debootstrap. Exits with 77, saying why, where neither can work.
#
# AMPD_BUILD_FLAGS holds further arguments of the build, such as --volume $HOME/.cache/ccache:/root/.cache/ccache for buildah.
set -euo pipefail
source_dir="$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")"
source "$source_dir/deploy/packages.sh"
cd "$source_dir"
image=ampd:cpu
base=debian:12-slim
# What the image may be larger than its base, in bytes on the file system.
most_bytes=80000000
volume=ampd-image-test-$$
mirror="${AMPD_DEBIAN_MIRROR:-}"
read -r -a build_flags <<<"${AMPD_BUILD_FLAGS:-}"
scratch="$(mktemp -d)"
container=
engine=
cleanup() {
  if [[ -n "$engine" ]]; then
    [[ -z "$container" ]] || engine rm -f "$container" >/dev/null 2>&1 || true
    engine volume rm -f "$volume" >/dev/null 2>&1 || true
  fi
  rm -rf "$scratch"
}
trap cleanup EXIT

skip() {
  echo "SKIPPED the image: $*"
  exit 77
}

fail() {
  echo "FAILED: $*" >&2
  [[ -z "$container" ]] || engine logs "$container" >&2 || true
  exit 1
}

# engine ARGUMENT...: Docker, or podman as it works without systemd and without limits of its own to raise.
engine() {
  if [[ "$engine" == docker ]]; then
    docker "$@"
  else
    podman --storage-driver vfs --runtime runc --cgroup-manager cgroupfs "$@"
  fi
}

# What starting takes beyond Docker's defaults.
run_flags() {
  [[ "$engine" == docker ]] || printf '%s\n' --network host --ulimit nofile=1024:1024 --ulimit nproc=4096:4096
}

# The mirror of Debian itself that this machine's apt uses.
own_mirror() {
  cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
    sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\?\(http[^ ]*\) .*/\2/p' | grep -m 1 '/debian/*$' || true
}

# A minimal Debian 12 that reaches packages as this machine does: its proxy, and how old a mirror may be.
make_base() {
  ! podman --storage-driver vfs image exists "$base" || return 0
  mirror="${mirror:-$(own_mirror)}"
  [[ -n "$mirror" ]] || skip "no Debian mirror is configured; set AMPD_DEBIAN_MIRROR"
  local root=$scratch/root
  if ! debootstrap --variant=minbase bookworm "$root" "$mirror" >"$scratch/debootstrap.log" 2>&1; then
    tail -n 5 "$scratch/debootstrap.log"
    skip "debootstrap from $mirror failed"
  fi
  printf 'deb %s %s main\n' "$mirror" bookworm "$mirror" bookworm-updates >"$root/etc/apt/sources.list"
  apt-config dump | grep -E '^Acquire::(https?::Proxy|Check-)' >"$root/etc/apt/apt.conf.d/90proxy" || true
  # As small as Debian's own, so that sizes above it can be compared.
  rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb
  tar -C "$root" -c . | podman --storage-driver vfs import - "$base" >/dev/null
}

build() {
  local revision
  revision="$(git rev-parse HEAD 2>/dev/null || echo unknown)"
  if docker info >/dev/null 2>&1; then
    docker build --target cpu --build-arg "REVISION=$revision" "${build_flags[@]}" -t "$image" .
    engine=docker
    return
  fi
  [[ "$(id -u)" == 0 ]] || skip "no Docker engine, and buildah with debootstrap needs root"
  ampd_install_packages debootstrap buildah podman runc || skip "debootstrap, buildah, podman cannot be installed"
  base=localhost/ampd-debian12
  image=localhost/$image
  make_base
  buildah bud --format docker --isolation chroot --storage-driver vfs --pull-never --network host --build-arg "BASE=$base" \
    --build-arg "REVISION=$revision" "${build_flags[@]}" --target cpu -t "$image" .
  engine=podman
}

# run_once IMAGE COMMAND...: as root, in a container of its own.
run_once() {
  local of=$1 command=$2 flags
  shift 2
  mapfile -t flags < <(run_flags)
  engine run --rm "${flags[@]}" --no-healthcheck --user 0 --entrypoint "$command" "$of" "$@"
}

bytes_of() { run_once "$1" du -sx --apparent-size -B1 / | cut -f 1; }

check_size() {
  local whole below
  whole="$(bytes_of "$image")"
  below="$(bytes_of "$base")"
  echo "size: $(((whole - below) / 1000000)) MB over the base's $((below / 1000000)) MB"
  ((whole - below <= most_bytes)) || fail "$image is $((whole - below)) bytes larger than $base; $most_bytes are allowed"
}

check_libraries() {
  local missing
  missing="$(run_once "$image" ldd /usr/local/bin/ampd /usr/local/bin/ampd-worker /usr/local/bin/ampctl | grep 'not found' | sort -u || true)"
  [[ -z "$missing" ]] || fail "libraries are missing: $missing"
}

check_labels() {
  local label value
  for label in title description version licenses revision base.name; do
    value="$(engine image inspect --format "{{index .Config.Labels \"org.opencontainers.image.$label\"}}" "$image")"
    [[ -n "$value" && "$value" != "<no value>" ]] || fail "no label org.opencontainers.image.$label"
    echo "label $label: $value"
  done
}

# The bill of materials has every package that dpkg knows of in the image.
check_sbom() {
  local packages package
  engine_cat /usr/share/ampd/sbom.spdx.json >"$scratch/sbom"
  # shellcheck disable=SC2016 # dpkg-query's, not the shell's
  mapfile -t packages < <(run_once "$image" dpkg-query -W -f '"name": "${Package}", "versionInfo": "${Version}"\n')
  [[ ${#packages[@]} -gt 50 ]] || fail "dpkg-query names ${#packages[@]} packages only"
  for package in "${packages[@]}"; do
    grep -qF "$package" "$scratch/sbom" || fail "the bill of materials lacks $package"
  done
  echo "bill of materials: $(grep -c '"versionInfo"' "$scratch/sbom") packages, $(grep -c '"fileName"' "$scratch/sbom") programs"
}
engine_cat() { run_once "$image" cat "$1"; }

inside() { engine exec "$container" "$@"; }

# Starts a container on the volume with nothing else that can be written to, and waits until it serves.
start() {
  local flags
  mapfile -t flags < <(run_flags)
  container="$(engine run -d "${flags[@]}" --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
    -v "$volume:/var/lib/ampd" "$image" "$@")"
  for _ in $(seq 300); do
    ! inside ampctl devices >/dev/null 2>&1 || return 0
    [[ "$(engine inspect --format '{{.State.Running}}' "$container")" == true ]] || fail "the daemon ended"
    sleep 0.2
  done
  fail "the daemon does not answer"
}

# end SIGNAL: prints the exit code of the container, which is removed.
end() {
  engine kill --signal "$1" "$container" >/dev/null
  engine wait "$container"
  engine rm "$container" >/dev/null
}

state_of() { inside ampctl get "$1" | sed -n 's/^state: *//p'; }

# wait_until WHAT COMMAND...
wait_until() {
  local what=$1
  shift
  for _ in $(seq 600); do
    ! "$@" || return 0
    sleep 0.2
  done
  fail "not seen: $what"
}
has_checkpoint() { inside ampctl checkpoints "$1" | grep -q whole; }
is_running() { [[ "$(state_of "$1")" == RUNNING ]]; }

check_confinement() {
  [[ "$(inside id -u)" == 7070 ]] || fail "it runs as user $(inside id -u)"
  ! inside touch /usr/local/bin/other 2>/dev/null || fail "its file system can be written to"
  if [[ "$engine" == podman ]]; then
    engine healthcheck run "$container" || fail "it is not healthy"
  else
    wait_until "health" docker_is_healthy
  fi
  echo "user 7070, read-only, healthy"
}
docker_is_healthy() { [[ "$(docker inspect --format '{{.State.Health.Status}}' "$container")" == healthy ]]; }

# A job is taken up again after a drain, which ends with 0, and after the container was killed.
check_ends() {
  local job code
  job="$(inside ampctl submit /usr/share/ampd/examples/glyphs-convnet.yaml --set train.epochs=10000 --set checkpoint.every_seconds=1 -q)"
  wait_until "the job runs" is_running "$job"
  code="$(end TERM)"
  [[ "$code" == 0 ]] || fail "SIGTERM ended it with $code"
  start "$@"
  wait_until "a checkpoint of the drain" has_checkpoint "$job"
  wait_until "the job runs again" is_running "$job"
  code="$(end KILL)"
  start "$@"
  wait_until "the job runs after the kill" is_running "$job"
  inside ampctl logs "$job" >"$scratch/logs"
  grep "resumed from checkpoint" "$scratch/logs" || fail "it was not resumed: $(cat "$scratch/logs")"
  inside ampctl cancel "$job" --now
  code="$(end TERM)"
  [[ "$code" == 0 ]] || fail "SIGTERM ended it with $code"
  container=
}

build
check_libraries
check_size
check_labels
check_sbom
arguments=()
# With the host's network the ports are the host's: of loopback alone.
[[ "$engine" == docker ]] || arguments=(--listen 127.0.0.1:7070 --http 127.0.0.1:7071)
start "${arguments[@]}"
check_confinement
inside ampctl submit /usr/share/ampd/examples/glyphs-convnet.yaml --set train.epochs=1 --watch
check_ends "${arguments[@]}"
echo "the image $image works"
