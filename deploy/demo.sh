#!/usr/bin/env bash
# Trains a network in mixed precision on this machine, from nothing: installs what is missing, builds, starts ampd,
# submits client/examples/glyphs-convnet.yaml, watches it, shows what can be seen, and stops the daemon.
# Exits with 0 when the job succeeded. Keeps nothing but the build.
set -euo pipefail
source_dir="$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")"
source "$source_dir/deploy/packages.sh"

daemon_pid=
demo_dir=

bold= plain=
if [[ -t 1 ]]; then
  bold=$'\033[1m' plain=$'\033[0m'
fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }

cleanup() {
  if [[ -n "$daemon_pid" ]] && kill -0 "$daemon_pid" 2>/dev/null; then
    kill -TERM "$daemon_pid"
    wait "$daemon_pid" || true
  fi
  [[ -z "$demo_dir" ]] || rm -rf "$demo_dir"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

build() {
  say "Installing what is missing, and building"
  ampd_install_packages "${AMPD_BUILD_PACKAGES[@]}"
  cd "$source_dir"
  local started=$SECONDS
  cmake --preset release >/dev/null
  cmake --build --preset release --target ampd ampd-worker ampctl
  echo "built in $((SECONDS - started)) s"
}

# Sets daemon_pid, AMPD_SERVER and http.
start_daemon() {
  say "\$ ampd --listen 127.0.0.1:0 --http 127.0.0.1:0 --state-dir $demo_dir/state"
  mkfifo "$demo_dir/ready"
  ampd --listen 127.0.0.1:0 --http 127.0.0.1:0 --state-dir "$demo_dir/state" \
    >"$demo_dir/ready" 2>"$demo_dir/ampd.log" &
  daemon_pid=$!
  local line=
  if ! read -r -t 60 line <"$demo_dir/ready" || [[ "$line" != "ampd ready "* ]]; then
    echo "the daemon did not start:" >&2
    cat "$demo_dir/ampd.log" >&2
    exit 1
  fi
  echo "$line"
  AMPD_SERVER="${line#*grpc=}"
  export AMPD_SERVER="${AMPD_SERVER%% *}"
  http="${line#*http=}"
}

# An HTTP GET with bash alone: a bare Debian has no curl.
get() {
  exec 3<>"/dev/tcp/${http%:*}/${http##*:}"
  printf 'GET %s HTTP/1.0\r\n\r\n' "$1" >&3
  sed '1,/^\r$/d' <&3
  exec 3>&-
}

show() {
  say "\$ $*"
  "$@"
}

build
PATH="$source_dir/build/release/bin:$PATH"
demo_dir="$(mktemp -d)"
start_daemon
show ampctl devices

say "\$ ampctl submit client/examples/glyphs-convnet.yaml --watch"
started=$SECONDS
outcome=0
ampctl submit "$source_dir/client/examples/glyphs-convnet.yaml" --watch | tee "$demo_dir/watch" || outcome=$?
echo "trained in $((SECONDS - started)) s"
job="$(sed -n 's/^submitted \([0-9a-z]*\) .*/\1/p;q' "$demo_dir/watch")"

show ampctl list
[[ -z "$job" ]] || show ampctl get "$job"
say "\$ curl http://$http/metrics | grep ..."
get /metrics | grep -E '^ampd_(job_(loss|loss_scale|steps|samples_total|evaluation_acc)|jobs[{]state="succ|queue_depth|device_util|input_wait)'
if [[ $outcome == 0 ]]; then
  show ampctl download "$job" "$demo_dir/checkpoint"
  ls -l "$demo_dir/checkpoint"
fi

say "\$ kill -TERM $daemon_pid   # the daemon would checkpoint and requeue what still runs"
kill -TERM "$daemon_pid"
wait "$daemon_pid" || outcome=$?
daemon_pid=

if [[ $outcome != 0 ]]; then
  echo "the demo failed (exit code $outcome); the daemon's log:" >&2
  cat "$demo_dir/ampd.log" >&2
  exit "$outcome"
fi
say "Next"
cat <<END
  export PATH=$source_dir/build/release/bin:\$PATH
  ampd --data-root DIR &                                  # a daemon that stays; job files name data beneath DIR
  ampctl submit client/examples/glyphs-convnet.yaml --set precision.mode=BF16 --watch
  client/examples/ has more job files, README.md tells how to write your own, and tests/run.sh runs the tests.
END
