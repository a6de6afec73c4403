// What a planner, or an exporter, does that a hostile model took over: loaded into ampd-worker by LD_PRELOAD, it comes
// to life when the answer is on its way, and tries what it must not be able to do. It says on stderr what it could, and
// what the kernel tells of its confinement, and ends with exit code 9.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void Say(const char* what, int succeeded) {
  if (succeeded) dprintf(2, "could %s\n", what);
}

static int Opens(const char* folder, const char* name, int flags) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s", folder, name);
  const int fd = open(path, flags, 0600);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

static void TellStatus(void) {
  char line[256];
  FILE* status = fopen("/proc/self/status", "r");
  while (status != NULL && fgets(line, sizeof(line), status) != NULL) {
    if (!strncmp(line, "NoNewPrivs", 10) || !strncmp(line, "Seccomp:", 8) || !strncmp(line, "Uid", 3) ||
        !strncmp(line, "CapEff", 6)) {
      dprintf(2, "%s", line);
    }
  }
}

// HOSTILE_STATE: the daemon's state directory, HOSTILE_DATA: a data root, HOSTILE_ELSEWHERE: a folder with "secret".
static void Try(void) {
  const char* const state = getenv("HOSTILE_STATE");
  const char* const data = getenv("HOSTILE_DATA");
  const char* const elsewhere = getenv("HOSTILE_ELSEWHERE");
  char path[4096];
  TellStatus();
  Say("read a secret", Opens(elsewhere, "secret", O_RDONLY));
  Say("read the database", Opens(state, "ampd.db", O_RDONLY));
  Say("write the database", Opens(state, "ampd.db", O_WRONLY));
  Say("write data", Opens(data, "data.csv", O_WRONLY));
  Say("make a file", Opens(elsewhere, "made", O_WRONLY | O_CREAT));
  Say("make a file in /tmp", Opens("/tmp", "made_by_hostile_worker", O_WRONLY | O_CREAT));
  snprintf(path, sizeof(path), "%s/folder", elsewhere);
  Say("make a folder", mkdir(path, 0700) == 0);
  snprintf(path, sizeof(path), "%s/gone", elsewhere);
  Say("remove a file", unlink(path) == 0);
  Say("make a socket", socket(AF_INET, SOCK_STREAM, 0) >= 0);
  Say("make a unix socket", socket(AF_UNIX, SOCK_STREAM, 0) >= 0);
  Say("signal the daemon", kill(getppid(), 0) == 0);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  if (child > 0) waitpid(child, NULL, 0);
  Say("start a process", child > 0);
  char* const program[] = {(char*)"/bin/sh", (char*)"-c", (char*)"echo could run a program >&2; exit 9", NULL};
  execv(program[0], program);
  _exit(9);
}

__attribute__((constructor)) static void Wait(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    if (!strcmp(arguments[i], getenv("HOSTILE_MODE"))) atexit(Try);
  }
}
