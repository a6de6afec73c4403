#!/usr/bin/env python3
"""systemctl and journalctl for tests of documents: one service, run by its own unit beneath the folder $STAND_IN_ROOT, where the
paths of the system lie. Knows the verbs that documents use, and refuses others."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time

ROOT = os.environ["STAND_IN_ROOT"]
MOVED = ("/usr/local", "/etc/ampd", "/var/lib/ampd", "/srv/ampd")
PID, LOG = os.path.join(ROOT, "ampd.pid"), os.path.join(ROOT, "journal")
DEADLINE = 120


def moved(text):
    """Paths of the system as they lie beneath the root."""
    return re.sub("(?<![\\w.])(" + "|".join(MOVED) + ")", lambda match: ROOT + match[1], text)


def running():
    try:
        with open(PID) as file:
            pid = int(file.read())
        with open(f"/proc/{pid}/stat") as file:
            return None if file.read().rsplit(")", 1)[1].split()[0] == "Z" else pid
    except OSError:
        return None


def start():
    if running():
        return 0
    with open(os.path.join(ROOT, "etc/systemd/system/ampd.service")) as file:
        command = re.search("^ExecStart=(.*)$", file.read(), re.M)[1]
    words = shlex.split(moved(command))
    with open(words[words.index("--config") + 1]) as file:
        config = moved(file.read())
    words[words.index("--config") + 1] = os.path.join(ROOT, "moved.yaml")
    with open(os.path.join(ROOT, "moved.yaml"), "w") as file:
        file.write(config)
    os.makedirs(os.path.join(ROOT, "var/lib/ampd"), mode=0o700, exist_ok=True)
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    address = os.path.join(ROOT, f"notify-{os.getpid()}")
    notices.bind(address)
    notices.settimeout(DEADLINE)
    with open(LOG, "a") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                   cwd=os.path.join(ROOT, "var/lib/ampd"), env=dict(os.environ, NOTIFY_SOCKET=address))
    with open(PID, "w") as file:
        file.write(str(process.pid))
    # The daemon is no child of what comes next: whether it ends before it is ready shows in the journal.
    assert b"READY=1" in notices.recv(4096)
    return 0


def stop():
    pid = running()
    if pid is None:
        return 0
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + DEADLINE
    while running():
        if time.monotonic() > deadline:
            sys.exit("ampd did not stop")
        time.sleep(0.02)
    return 0


def journal(arguments):
    assert arguments[:2] == ["-u", "ampd"], arguments
    with open(LOG) as file:
        print(file.read(), end="")
    return 0


def status():
    print("Active: active (running)" if running() else "Active: inactive (dead)")
    return 0 if running() else 3


def main(name, arguments):
    if name == "journalctl":
        return journal(arguments)
    known = {"start ampd": start, "stop ampd": stop, "status ampd": status, "daemon-reload": lambda: 0, "enable --now ampd": start}
    verb = known.get(" ".join(arguments))
    if verb is None:
        sys.exit(f"{name}: no such verb here: {arguments}")
    return verb()


if __name__ == "__main__":
    sys.exit(main(os.path.basename(sys.argv[0]), sys.argv[1:]))
