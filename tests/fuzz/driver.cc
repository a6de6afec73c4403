// Runs fuzz targets without a fuzzer: every input of a corpus, then mutations of them that follow from a seed, so that
// every build and every machine runs the same.
//
//   ampd_fuzz TARGET CORPUS... [--mutations N] [--seed S] [--seconds N]
//
// A corpus is a file or a folder of files. Runs N mutations (default 2000), fewer when the seconds (default 60) are
// over. On a crash, or an input that takes more than 60 s, the input is left in the working directory as
// crash-TARGET-SEED-NUMBER, and its number is told.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#define AMPD_FUZZ_TARGET(name) extern "C" int AmpdFuzz_##name(const uint8_t* data, size_t size);
#include "tests/fuzz/targets.def"
#undef AMPD_FUZZ_TARGET

namespace {

using Target = int (*)(const uint8_t*, size_t);

const std::map<std::string, Target>& Targets() {
  static const std::map<std::string, Target> targets = {
#define AMPD_FUZZ_TARGET(name) {#name, &AmpdFuzz_##name},
#include "tests/fuzz/targets.def"
#undef AMPD_FUZZ_TARGET
  };
  return targets;
}

constexpr unsigned kSecondsPerInput = 60;
constexpr size_t kMaxBytes = size_t{1} << 16;
constexpr rlim_t kMaxMemory = rlim_t{4} << 30;

// What a signal handler can tell.
const std::string* running = nullptr;
char crash_path[512];
char crash_text[640];

void Leave(int signal) {
  const int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd >= 0 && running != nullptr) (void)!write(fd, running->data(), running->size());
  (void)!write(2, crash_text, std::strlen(crash_text));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// SplitMix64 (Steele, Lea and Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  // 0 <= value < n; n >= 1.
  size_t Below(size_t n) { return static_cast<size_t>(Next() % n); }

 private:
  uint64_t state_;
};

// Writes a number that is on the edge of something, 1 to 8 bytes, of either byte order.
void WriteNumber(std::string& bytes, Random& random) {
  static constexpr uint64_t kNumbers[] = {0,
                                          1,
                                          2,
                                          3,
                                          0x7f,
                                          0x80,
                                          0xff,
                                          0x100,
                                          0x7fff,
                                          0x8000,
                                          0xffff,
                                          0x10000,
                                          0x7fffffff,
                                          0x80000000,
                                          0xfffffff0,
                                          0xffffffff,
                                          0x100000000,
                                          uint64_t{1} << 62,
                                          ~uint64_t{0} >> 1,
                                          ~uint64_t{0}};
  const size_t width = size_t{1} << random.Below(4);
  if (bytes.size() < width) return;
  const size_t at = random.Below(bytes.size() - width + 1);
  const uint64_t number = kNumbers[random.Below(std::size(kNumbers))];
  const bool big_endian = random.Below(2) == 0;
  for (size_t i = 0; i < width; ++i) {
    bytes[at + (big_endian ? width - 1 - i : i)] = static_cast<char>(number >> (8 * i));
  }
}

// Exchanges a stretch of digits for another number.
void WriteDigits(std::string& bytes, Random& random) {
  static constexpr const char* kTexts[] = {"0",
                                           "-1",
                                           "1e308",
                                           "9223372036854775807",
                                           "-9223372036854775808",
                                           "18446744073709551616",
                                           "65",
                                           "2",
                                           ".5",
                                           "4294967296",
                                           "1e-400",
                                           "nan"};
  const size_t digit = bytes.find_first_of("0123456789", bytes.empty() ? 0 : random.Below(bytes.size()));
  if (digit == std::string::npos) return;
  const size_t end = std::min(bytes.find_first_not_of("0123456789", digit), bytes.size());
  bytes.replace(digit, end - digit, kTexts[random.Below(std::size(kTexts))]);
}

void MutateOnce(std::string& bytes, const std::string& other, Random& random) {
  const size_t at = bytes.empty() ? 0 : random.Below(bytes.size());
  const size_t length = bytes.empty() ? 0 : 1 + random.Below(std::min<size_t>(bytes.size() - at, 64));
  switch (random.Below(8)) {
    case 0:
      if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ 1 << random.Below(8));
      break;
    case 1:
      if (!bytes.empty()) bytes[at] = static_cast<char>(random.Next());
      break;
    case 2:
      return WriteNumber(bytes, random);
    case 3:
      return WriteDigits(bytes, random);
    case 4:
      bytes.erase(at, length);
      break;
    case 5:
      bytes.insert(random.Below(bytes.size() + 1), bytes.substr(at, length));
      break;
    case 6:
      if (!other.empty()) {
        const size_t from = random.Below(other.size());
        const size_t taken = 1 + random.Below(std::min<size_t>(other.size() - from, 256));
        bytes.replace(at, std::min(taken, bytes.size() - at), other, from, taken);
      }
      break;
    default:
      bytes.resize(at);
  }
}

std::string Mutated(const std::vector<std::string>& corpus, Random& random) {
  std::string bytes = corpus[random.Below(corpus.size())];
  for (size_t changes = 1 + random.Below(4); changes > 0; --changes) {
    MutateOnce(bytes, corpus[random.Below(corpus.size())], random);
  }
  if (bytes.size() > kMaxBytes) bytes.resize(kMaxBytes);
  return bytes;
}

struct Arguments {
  std::string target;
  std::vector<std::string> corpora;
  uint64_t mutations = 2000;
  uint64_t seed = 1;
  uint64_t seconds = 60;
};

bool ReadArguments(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    uint64_t* number = text == "--mutations" ? &arguments.mutations : text == "--seed" ? &arguments.seed : nullptr;
    if (text == "--seconds") number = &arguments.seconds;
    if (number != nullptr) {
      if (++i == argc) return false;
      *number = std::strtoull(argv[i], nullptr, 10);
    } else if (arguments.target.empty()) {
      arguments.target = text;
    } else {
      arguments.corpora.push_back(text);
    }
  }
  return Targets().count(arguments.target) > 0 && !arguments.corpora.empty();
}

// In the order of their names.
std::vector<std::string> ReadCorpora(const std::vector<std::string>& corpora) {
  std::vector<std::string> paths;
  for (const std::string& corpus : corpora) {
    if (std::filesystem::is_regular_file(corpus)) paths.push_back(corpus);
    if (!std::filesystem::is_directory(corpus)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
      if (entry.is_regular_file()) paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> inputs;
  for (const std::string& path : paths) {
    std::ifstream in(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return inputs;
}

void Run(const Arguments& arguments, Target target, const std::string& input, uint64_t number) {
  std::snprintf(crash_path, sizeof crash_path, "crash-%s-%llu-%llu", arguments.target.c_str(),
                static_cast<unsigned long long>(arguments.seed), static_cast<unsigned long long>(number));
  std::snprintf(crash_text, sizeof crash_text, "input %llu of seed %llu, left in %s\n",
                static_cast<unsigned long long>(number), static_cast<unsigned long long>(arguments.seed), crash_path);
  running = &input;
  alarm(kSecondsPerInput);
  // A copy of the input's very size, so that what reads past its end is seen.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  target(bytes.data(), bytes.size());
  alarm(0);
}

// A size that was believed shows as memory that is not there. Sanitizers reserve more address space than this.
void LimitMemory() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const rlimit limit = {kMaxMemory, kMaxMemory};
  setrlimit(RLIMIT_AS, &limit);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!ReadArguments(argc, argv, arguments)) {
    std::fprintf(stderr, "usage: %s TARGET CORPUS... [--mutations N] [--seed S] [--seconds N]\ntargets:", argv[0]);
    for (const auto& [name, target] : Targets()) std::fprintf(stderr, " %s", name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  const std::vector<std::string> corpus = ReadCorpora(arguments.corpora);
  if (corpus.empty()) {
    std::fprintf(stderr, "no inputs in %s\n", arguments.corpora[0].c_str());
    return 2;
  }
  LimitMemory();
  for (int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL, SIGALRM}) std::signal(signal, Leave);
  const Target target = Targets().at(arguments.target);
  uint64_t number = 0;
  for (const std::string& input : corpus) Run(arguments, target, input, number++);
  Random random(arguments.seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(arguments.seconds);
  uint64_t mutations = 0;
  for (; mutations < arguments.mutations && std::chrono::steady_clock::now() < end; ++mutations) {
    Run(arguments, target, Mutated(corpus, random), number++);
  }
  std::printf("%s: %zu inputs and %llu mutations\n", arguments.target.c_str(), corpus.size(),
              static_cast<unsigned long long>(mutations));
  return 0;
}
