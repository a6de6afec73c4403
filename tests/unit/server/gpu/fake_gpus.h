// The script of the fake library of tests/support/fake_nvml.
#ifndef AMPD_TESTS_UNIT_SERVER_GPU_FAKE_GPUS_H_
#define AMPD_TESTS_UNIT_SERVER_GPU_FAKE_GPUS_H_

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace ampd {

// An H200 that tells everything, and a T4 that tells little.
inline constexpr char kTwoGpus[] = R"(driver 580.95.05
cuda 13000
gpu GPU-aaaa
name NVIDIA H200
pci 00000000:4B:00.0
capability 9 0
mig 0
memory 1000 600 400
utilization 75 30
power 350500
power_limit 700000
energy 123456
temperature 54
clock 1980 3201
throttle 5
ecc 3 1
tensor 42.5
process 4242 1048576
process 77
gpu GPU-bbbb
name Tesla T4
capability 7 5
memory 500 500 0
)";

// Both libraries lie beside the test.
inline std::string FakeLibrary(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / absl::StrCat("lib", name, ".so")).string();
}

class FakeGpus {
 public:
  FakeGpus() : path_(absl::StrCat(testing::TempDir(), "/fake_nvml_", getpid())) {
    setenv("FAKE_NVML_SCRIPT", path_.c_str(), 1);
  }
  ~FakeGpus() { std::remove(path_.c_str()); }

  // In one move: a reader finds the old script or the new one.
  void Set(const std::string& script) {
    std::ofstream(path_ + ".new") << script;
    std::filesystem::rename(path_ + ".new", path_);
  }

 private:
  const std::string path_;
};

}  // namespace ampd

#endif  // AMPD_TESTS_UNIT_SERVER_GPU_FAKE_GPUS_H_
