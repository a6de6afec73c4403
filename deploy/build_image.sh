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

# The machine's own apt mirror, so that what apt can reach here can be reached in the build.
own_mirror() {
  awk '/^deb http/ && / bookworm / { print $2; exit }' /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null
  awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/*.sources 2>/dev/null
}

make_base() {
  ! podman --storage-driver vfs image exists "$base" || return 0
  mirror="${mirror:-$(own_mirror | head -n 1)}"
  [[ -n "$mirror" ]] || skip "no Debian mirror is configured; set AMPD_DEBIAN_MIRROR"
  debootstrap --variant=minbase bookworm "$scratch/root" "$mirror" >"$scratch/debootstrap.log" 2>&1 ||
    { tail -n 20 "$scratch/debootstrap.log"; skip "debootstrap from $mirror failed"; }
  cp -r /etc/apt/apt.conf.d/. "$scratch/root/etc/apt/apt.conf.d/"
  rm -f "$scratch/root/etc/apt/sources.list"
  cp -r /etc/apt/sources.list* "$scratch/root/etc/apt/"
  tar -C "$scratch/root" -c . | podman --storage-driver vfs import - "$base" >/dev/null
}

build_with_buildah() {
  [[ "$(id -u)" == 0 ]] || skip "no Docker engine, and buildah with debootstrap needs root"
  ampd_install_packages debootstrap buildah podman runc || skip "debootstrap, buildah, podman cannot be installed"
  make_base
  buildah bud --isolation chroot --storage-driver vfs --pull-never --network host --build-arg "BASE=$base" \
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
