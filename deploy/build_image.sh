#!/usr/bin/env bash
# Builds the image ampd:cpu from the Dockerfile and trains a job in it: with Docker where its engine answers, else with
# buildah and podman over a base made by debootstrap. Exits with 77, saying why, where neither can work.
set -euo pipefail
source_dir="$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")"
source "$source_dir/deploy/packages.sh"
cd "$source_dir"
image=ampd:cpu
base=localhost/ampd-debian12
mirror="${AMPD_DEBIAN_MIRROR:-}"
scratch="$(mktemp -d)"
container=
stop() { :; }
trap 'stop; rm -rf "$scratch"' EXIT

skip() {
  echo "SKIPPED the image: $*"
  exit 77
}

run_docker() { docker run -d --rm "$image"; }
exec_docker() { docker exec "$container" "$@"; }
stop_docker() { [[ -z "$container" ]] || docker stop -t 60 "$container" >/dev/null; }

podman_flags=(--storage-driver vfs --runtime runc --cgroup-manager cgroupfs)
run_podman() {
  podman "${podman_flags[@]}" run -d --network host --ulimit nofile=1024:1024 --ulimit nproc=4096:4096 "localhost/$image" \
    --listen 127.0.0.1:7070 --http 127.0.0.1:7071
}
exec_podman() { podman "${podman_flags[@]}" exec "$container" "$@"; }
stop_podman() {
  [[ -z "$container" ]] || podman "${podman_flags[@]}" rm -f -t 60 "$container" >/dev/null
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
  tar -C "$root" -c . | podman --storage-driver vfs import - "$base" >/dev/null
}

build_with_buildah() {
  [[ "$(id -u)" == 0 ]] || skip "no Docker engine, and buildah with debootstrap needs root"
  ampd_install_packages debootstrap buildah podman runc || skip "debootstrap, buildah, podman cannot be installed"
  make_base
  buildah bud --format docker --isolation chroot --storage-driver vfs --pull-never --network host --build-arg "BASE=$base" \
    --target cpu -t "localhost/$image" .
}

if docker info >/dev/null 2>&1; then
  docker build --target cpu -t "$image" .
  kind=docker
else
  build_with_buildah
  kind=podman
fi
stop() { "stop_$kind"; }

container="$("run_$kind")"
echo "container $container"
for _ in $(seq 100); do
  "exec_$kind" ampctl devices 2>/dev/null && break
  sleep 0.2
done
"exec_$kind" sh -c 'test "$(id -u)" != 0'
"exec_$kind" ampctl submit /usr/share/ampd/examples/glyphs-convnet.yaml --set train.epochs=1 --watch
echo "the image $image works"
