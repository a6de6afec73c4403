// ampctl: submits jobs to ampd, watches them and fetches what they learned.
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "client/program.h"

int main(int argc, char** argv) {
  // What gRPC logs of a connection, ampctl says itself.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  return ampd::client::RunProgram(argc, argv, &std::cout, &std::cerr, isatty(STDOUT_FILENO) == 1);
}
