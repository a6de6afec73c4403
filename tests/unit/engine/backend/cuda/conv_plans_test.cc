// Whether cuDNN has plans for the convolutions of the workloads on every generation of GPU, asked without a GPU, and
// what fuses where. The whole table is docs/cudnn_plans.md: AMPD_CONV_PLANS=docs/cudnn_plans.md writes it anew.
#include <cudnn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/backend/cuda/conv2d.h"
#include "engine/backend/cuda/cudnn/graph.h"
#include "tests/support/gpus.h"
#include "tests/unit/engine/backend/cuda/conv_workloads.h"

namespace ampd::testing {
namespace {

using cuda::Conv;
using cuda::ConvDesc;
using cuda::ConvFusion;
using cuda::ConvKind;

constexpr char kTable[] = "docs/cudnn_plans.md";
// Of the table's lines, those that every run of the test makes anew.
constexpr size_t kEvery = 24;

struct Mode {
  const char* name;
  DType dtype;
  bool tf32;
};
constexpr Mode kModes[] = {{"fp16", DType::kF16, false},
                           {"bf16", DType::kBF16, false},
                           {"tf32", DType::kF32, true},
                           {"fp32", DType::kF32, false}};

struct Fusion {
  char letter;
  ConvKind kind;
  ConvFusion fusion;
};
constexpr Fusion kFusions[] = {{'B', ConvKind::kForward, ConvFusion::kBias},
                               {'R', ConvKind::kForward, ConvFusion::kBiasRelu},
                               {'S', ConvKind::kForward, ConvFusion::kStatistics},
                               {'N', ConvKind::kGradInput, ConvFusion::kReluBatchNormGrad},
                               {'W', ConvKind::kGradFilter, ConvFusion::kScaleBiasRelu}};

std::string CuDnnVersion() { return absl::StrCat(CUDNN_MAJOR, ".", CUDNN_MINOR, ".", CUDNN_PATCHLEVEL); }

ConvDesc With(ConvDesc desc, const Mode& mode, const cuda::DeviceProperties& gpu) {
  desc.operands = desc.result = mode.dtype;
  desc.tf32 = mode.tf32 && gpu.has_bf16();
  return desc;
}

// bf16 and TF32 are refused where the matrix units lack them.
bool Offered(const Mode& mode, const cuda::DeviceProperties& gpu) {
  return gpu.has_bf16() || (mode.dtype != DType::kBF16 && !mode.tf32);
}

// Workspace in MiB, rounded up, and "*" where the first choice uses no matrix units; "own" for the backend's kernel.
std::string Cell(const ConvDesc& desc, const cuda::DeviceProperties& gpu) {
  cuda::Context context(gpu);
  const absl::StatusOr<std::unique_ptr<Conv>> conv = cuda::MakeBestConv("conv", desc, &context);
  EXPECT_TRUE(conv.ok()) << gpu.name << ": " << conv.status();
  if (!conv.ok()) return "none";
  if ((*conv)->algorithm() == "direct") return "own";
  EXPECT_LE((*conv)->workspace_bytes(), cuda::kMaxConvWorkspace);
  const int64_t mebibytes = ((*conv)->workspace_bytes() + (1 << 20) - 1) >> 20;
  return absl::StrCat(mebibytes, absl::StrContains((*conv)->algorithm(), "matrix units") ? "" : "*");
}

std::string PlanLine(const ConvWorkload& workload, const Mode& mode) {
  const auto& image = workload.conv.image;
  std::vector<std::string> cells = {workload.name, absl::StrJoin(image, "x"), absl::StrJoin(workload.conv.filter, "x"),
                                    mode.name};
  for (const cuda::DeviceProperties& gpu : Gpus()) {
    if (!Offered(mode, gpu)) {
      cells.push_back("-");
      continue;
    }
    std::vector<std::string> kinds;
    ConvDesc desc = With(workload.conv, mode, gpu);
    for (ConvKind kind : {ConvKind::kForward, ConvKind::kGradInput, ConvKind::kGradFilter}) {
      desc.kind = kind;
      kinds.push_back(Cell(desc, gpu));
    }
    cells.push_back(absl::StrJoin(kinds, " "));
  }
  return absl::StrCat("| ", absl::StrJoin(cells, " | "), " |");
}

std::string FusionLine(const ConvWorkload& workload, const Mode& mode) {
  std::vector<std::string> cells = {workload.name, absl::StrJoin(workload.conv.image, "x"),
                                    absl::StrJoin(workload.conv.filter, "x"), mode.name};
  for (const cuda::DeviceProperties& gpu : Gpus()) {
    cuda::Context context(gpu);
    std::string letters;
    for (const Fusion& fusion : kFusions) {
      if (!Offered(mode, gpu)) continue;
      ConvDesc desc = With(workload.conv, mode, gpu);
      desc.kind = fusion.kind;
      desc.fusion = fusion.fusion;
      const auto conv = Conv::Create("conv", desc, &context);
      EXPECT_TRUE(conv.ok() || absl::IsUnimplemented(conv.status())) << gpu.name << ": " << conv.status();
      letters += conv.ok() ? fusion.letter : '.';
    }
    cells.push_back(letters.empty() ? "-" : letters);
  }
  return absl::StrCat("| ", absl::StrJoin(cells, " | "), " |");
}

struct Line {
  const ConvWorkload* workload;
  const Mode* mode;
  bool fusion;

  std::string Text() const { return fusion ? FusionLine(*workload, *mode) : PlanLine(*workload, *mode); }
};

// In the table's order. Fusions are fp16's: bf16 has but those with the bias.
std::vector<Line> Lines() {
  static const std::vector<ConvWorkload>& workloads = *new std::vector<ConvWorkload>(ConvWorkloads());
  std::vector<Line> lines;
  for (const ConvWorkload& workload : workloads) {
    for (const Mode& mode : kModes) lines.push_back({&workload, &mode, false});
  }
  for (const ConvWorkload& workload : workloads) lines.push_back({&workload, &kModes[0], true});
  return lines;
}

std::string Header() {
  std::string columns = "| convolution | image | filter | mode |", rule = "|---|---|---|---|";
  for (const cuda::DeviceProperties& gpu : Gpus()) {
    absl::StrAppend(&columns, " ", gpu.name, " (", gpu.major, ".", gpu.minor, ") |");
    rule += "---|";
  }
  return absl::StrCat(columns, "\n", rule, "\n");
}

constexpr char kIntroduction[] =
    R"(Engines that sum in less than f32, round operands to 16 bits, use Winograd's or Fourier's transforms or give other bits every
time are left out, as are plans of more than 256 MiB of workspace. A transposed convolution is shown as the one it is the
gradient of.

## Plans

Forward, gradient by the input, gradient by the filter: MiB of workspace (the most of the candidates that are measured on the
device), * where cuDNN's first choice names no matrix units, "own" where the backend's kernel runs it, - where the device lacks
the mode.

)";
constexpr char kAboutFusions[] = R"(
## Fusions

In fp16. B: convolution + bias; R: + bias + relu; S: + statistics of each channel; N: gradient by the input + relu's gradient +
batch norm's; W: gradient by the filter of relu(scale * x + bias). A point: no plan, the parts run one after the other. bf16 has
the first two, but on the T4.

)";

void WriteTable(const std::string& path) {
  std::ofstream out(path);
  out << "# What cuDNN has plans for\n\nMade by tests/unit/engine/backend/cuda/conv_plans_test.cc without a GPU, from "
         "the "
         "properties of each; cuDNN "
      << CuDnnVersion() << ".\n"
      << kIntroduction << Header();
  bool fusions = false;
  for (const Line& line : Lines()) {
    if (line.fusion && !fusions) out << kAboutFusions << Header();
    fusions = line.fusion;
    out << line.Text() << "\n" << std::flush;
  }
}

TEST(ConvPlans, TableIsCurrent) {
  if (const char* path = std::getenv("AMPD_CONV_PLANS")) {
    WriteTable(path);
    return;
  }
  std::ifstream in(kTable);
  std::stringstream text;
  text << in.rdbuf();
  const bool comparable = absl::StrContains(text.str(), absl::StrCat("cuDNN ", CuDnnVersion(), "."));
  const std::vector<Line> lines = Lines();
  for (size_t i = 0; i < lines.size(); i += kEvery) {
    const std::string line = lines[i].Text();
    EXPECT_TRUE(!comparable || absl::StrContains(text.str(), line + "\n")) << kTable << " lacks\n" << line;
  }
  if (!comparable) GTEST_SKIP() << kTable << " is of another cuDNN than " << CuDnnVersion();
}

// What the padding for matrix units is for.
TEST(ConvPlans, PaddedStemsRunOnMatrixUnits) {
  for (const ConvWorkload& workload : ConvWorkloads()) {
    if (!absl::StrContains(workload.name, "stem padded")) continue;
    for (const cuda::DeviceProperties& gpu : Gpus()) {
      ConvDesc desc = With(workload.conv, kModes[0], gpu);
      for (ConvKind kind : {ConvKind::kForward, ConvKind::kGradFilter}) {
        desc.kind = kind;
        const std::string cell = Cell(desc, gpu);
        EXPECT_FALSE(absl::StrContains(cell, "*") || cell == "own")
            << workload.name << " on " << gpu.name << ": " << cell;
      }
    }
  }
}

TEST(ConvPlans, Bf16FusesOnlyTheBias) {
  const ConvWorkload workload = SameConv("3x3", {32, 56, 56, 64}, 64, {3, 3}, {1, 1});
  const std::string line = FusionLine(workload, kModes[1]);
  EXPECT_TRUE(absl::StrContains(line, "| - | BR... | BR... | BR... | BR... |")) << line;
}

// Decision 18 rests on this: were there one, a filter's gradient need not be rounded to 16 bits.
TEST(ConvPlans, SixteenBitOperandsHaveNoF32Result) {
  const ConvWorkload workload = SameConv("3x3", {32, 56, 56, 64}, 64, {3, 3}, {1, 1});
  for (const cuda::DeviceProperties& gpu : Gpus()) {
    cuda::Context context(gpu);
    for (size_t mode = 0; mode < 2; ++mode) {
      for (ConvKind kind : {ConvKind::kForward, ConvKind::kGradInput, ConvKind::kGradFilter}) {
        ConvDesc desc = With(workload.conv, kModes[mode], gpu);
        desc.kind = kind;
        desc.result = DType::kF32;
        EXPECT_TRUE(absl::IsUnimplemented(Conv::Create("conv", desc, &context).status())) << gpu.name;
      }
    }
  }
}

// Asked for it, cuDNN 9.19 ends the process.
TEST(ConvPlans, LargeFiltersAreNotFusedWithBatchNormsGradient) {
  cuda::Context context(Gpus()[1]);
  ConvDesc desc = With(CentredConv("9x9", {32, 64, 64, 32}, 32, 9, 1).conv, kModes[0], Gpus()[1]);
  desc.kind = ConvKind::kGradInput;
  desc.fusion = ConvFusion::kReluBatchNormGrad;
  EXPECT_TRUE(absl::IsUnimplemented(Conv::Create("conv", desc, &context).status()));
}

// An engine for them gave NaN on an H200.
TEST(ConvPlans, WindowsInThePaddingAreTheBackendsOwn) {
  cuda::Context context(Gpus()[3]);
  ConvDesc ordinary = {
      .image = {1, 6, 5, 8}, .filter = {8, 2, 3, 8}, .dilations = {2, 1}, .before = {2, 2}, .after = {2, 2}};
  ordinary.output = {1, 8, 7, 8};
  for (const ConvKind kind : {ConvKind::kForward, ConvKind::kGradInput, ConvKind::kGradFilter}) {
    ordinary.kind = kind;
    EXPECT_TRUE(Conv::Create("layer", With(ordinary, kModes[0], Gpus()[3]), &context).ok());
    for (const size_t axis : {0, 1}) {
      for (const bool in_front : {true, false}) {
        ConvDesc wide = With(ordinary, kModes[0], Gpus()[3]);
        (in_front ? wide.before : wide.after)[axis] = 3;
        ++wide.output[axis + 1];
        EXPECT_TRUE(absl::IsUnimplemented(Conv::Create("layer", wide, &context).status())) << ConvKey(wide);
        const auto best = cuda::MakeBestConv("layer", wide, &context);
        ASSERT_TRUE(best.ok()) << best.status();
        EXPECT_EQ((*best)->algorithm(), "direct") << ConvKey(wide);
      }
    }
  }
}

// Taps that lie apart may step over the image, though the window reaches across it.
TEST(ConvPlans, WindowsThatStepOverTheImageAreTheBackendsOwn) {
  cuda::Context context(Gpus()[3]);
  for (const size_t axis : {0, 1}) {
    ConvDesc desc = {.image = {1, 8, 8, 8}, .filter = {8, 1, 1, 8}, .output = {1, 8, 8, 8}};
    const auto set = [axis](auto& of, int64_t value) { of[of.size() == 4 ? axis + 1 : axis] = value; };
    set(desc.image, 3), set(desc.filter, 2), set(desc.dilations, 4);
    set(desc.before, 1), set(desc.after, 1), set(desc.output, 1);
    for (const ConvKind kind : {ConvKind::kForward, ConvKind::kGradInput, ConvKind::kGradFilter}) {
      desc.kind = kind;
      const ConvDesc blind = With(desc, kModes[0], Gpus()[3]);
      EXPECT_TRUE(absl::IsUnimplemented(Conv::Create("layer", blind, &context).status())) << ConvKey(blind);
      // The second tap sees the last of the image.
      ConvDesc seeing = blind;
      set(seeing.image, 4), set(seeing.after, 0);
      EXPECT_TRUE(Conv::Create("layer", seeing, &context).ok()) << ConvKey(seeing);
    }
  }
}

TEST(ConvPlans, MemoryThatIsShortSaysNothingOfAGraph) {
  const auto host = cuda::cudnn::ToStatus(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "a plan");
  const auto device = cuda::cudnn::ToStatus(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "a plan");
  const auto other = cuda::cudnn::ToStatus(CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED, "a plan");
  EXPECT_TRUE(absl::IsResourceExhausted(host)) << host;
  EXPECT_TRUE(absl::IsResourceExhausted(device)) << device;
  EXPECT_TRUE(absl::IsInternal(other)) << other;
  EXPECT_EQ(cuda::cudnn::NoneBuilds(device), device);
  EXPECT_TRUE(absl::IsUnimplemented(cuda::cudnn::NoneBuilds(other)));
  EXPECT_TRUE(absl::IsUnimplemented(cuda::cudnn::NoneBuilds(absl::OkStatus())));
}

TEST(ConvPlans, EqualOnesAreAskedForOnce) {
  cuda::Context context(Gpus()[3]);
  ConvDesc desc = With(SameConv("3x3", {1, 8, 8, 8}, 8, {3, 3}, {1, 1}).conv, kModes[0], Gpus()[3]);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(Conv::Create("conv", desc, &context).ok());
  absl::Status status;
  int different = 1;
  while (status.ok() && different < 1000) {
    desc.image[0] = desc.output[0] = ++different;
    status = Conv::Create("conv", desc, &context).status();
  }
  EXPECT_EQ(different, 121);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  // Known ones are still there.
  desc.image[0] = desc.output[0] = 7;
  EXPECT_TRUE(Conv::Create("conv", desc, &context).ok());
}

TEST(ConvPlans, NamesWhyThereIsNone) {
  cuda::Context context(Gpus()[0]);
  ConvDesc desc = ConvWorkloads()[2].conv;
  desc.operands = DType::kBF16;
  desc.result = DType::kBF16;
  const auto conv = Conv::Create("layer", desc, &context);
  ASSERT_TRUE(absl::IsUnimplemented(conv.status())) << conv.status();
  EXPECT_TRUE(absl::StrContains(conv.status().message(), "layer") && absl::StrContains(conv.status().message(), "bf16"))
      << conv.status();
  EXPECT_EQ((*cuda::MakeBestConv("layer", desc, &context))->algorithm(), "direct");
}

}  // namespace
}  // namespace ampd::testing
