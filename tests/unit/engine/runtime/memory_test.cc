// The host's memory, and an executor upon memory that is not the host's.
#include "engine/runtime/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/ops/op_def.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/plan.h"
#include "tests/support/emit.h"
#include "tests/support/far_memory.h"

namespace ampd::runtime {
namespace {

using ampd::testing::Emit;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HostMemory, IsZeroedAlignedAndCopied) {
  Memory* memory = HostMemory();
  EXPECT_TRUE(memory->on_host());
  EXPECT_GT(memory->total_bytes(), memory->free_bytes());
  for (int64_t bytes : {0, 1, 63, 64, 1000}) {
    auto buffer = Buffer::Allocate(memory, bytes, "test");
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % kTensorAlignment, 0u);
    EXPECT_THAT(std::vector<char>(buffer->data(), buffer->data() + bytes), Each(0));
    const std::string ones(static_cast<size_t>(bytes), 1);
    std::string back(static_cast<size_t>(bytes), 2);
    ASSERT_TRUE(memory->Upload(ones.data(), bytes, buffer->data()).ok());
    ASSERT_TRUE(memory->Download(buffer->data(), bytes, back.data()).ok());
    EXPECT_EQ(back, ones);
    ASSERT_TRUE(memory->Zero(buffer->data(), bytes).ok());
    EXPECT_THAT(std::vector<char>(buffer->data(), buffer->data() + bytes), Each(0));
  }
}

TEST(HostMemory, SaysWhatWasAskedWhereThereIsNotSoMuch) {
#if defined(AMPD_SANITIZED)
  GTEST_SKIP() << "the sanitizer's allocator ends the program instead";
#endif
  const auto buffer = Buffer::Allocate(HostMemory(), int64_t{1} << 60, "gradients");
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(buffer.status().message()), HasSubstr("gradients: asked for 1152921504606846976 bytes"));
}

TEST(Buffer, MovesWhatItOwns) {
  const auto backend = testing::MakeFarMemoryBackend(1, {.total_bytes = 4096});
  Memory* memory = backend->memory();
  {
    Buffer a = Buffer::Allocate(memory, 1000, "a").value();
    char* data = a.data();
    Buffer b = std::move(a);
    EXPECT_EQ(b.data(), data);
    EXPECT_EQ(memory->free_bytes(), 3096);
    b = Buffer::Allocate(memory, 96, "b").value();
    EXPECT_EQ(memory->free_bytes(), 4000);
  }
  EXPECT_EQ(memory->free_bytes(), 4096);
}

TEST(StagedAccess, ReadsWritesAndEditsOnTheHost) {
  const auto backend = testing::MakeFarMemoryBackend(1);
  for (Memory* memory : {HostMemory(), backend->memory()}) {
    const Buffer buffer = Buffer::Allocate(memory, 4 * sizeof(float), "test").value();
    const TensorView view{buffer.data(), DType::kF32, {4}};
    ASSERT_TRUE(WriteFromHost(memory, view.data, view.bytes(), [](void* to) {
                  std::iota(static_cast<float*>(to), static_cast<float*>(to) + 4, 1.0f);
                }).ok());
    ASSERT_TRUE(EditOnHost(memory, view.data, view.bytes(), [](void* p) { static_cast<float*>(p)[2] *= -1; }).ok());
    AlignedBuffer staging;
    const auto seen = OnHost(memory, view, &staging);
    ASSERT_TRUE(seen.ok()) << seen.status();
    EXPECT_THAT(std::vector<float>(seen->as<float>(), seen->as<float>() + 4), ElementsAre(1, 2, -3, 4));
    EXPECT_EQ(seen->data == view.data, memory->on_host());
  }
}

// y = x + c, and the loss seed's own value among the results.
class FarExecutor : public ::testing::Test {
 protected:
  FarExecutor() : backend_(testing::MakeFarMemoryBackend(1)) {
    ir::Graph g;
    const ir::ValueId x = g.AddInput("x", {DType::kF32, {4}});
    auto data = std::make_shared<Tensor>(DType::kF32, Shape{4});
    std::iota(data->as<float>().begin(), data->as<float>().end(), 10.0f);
    const ir::ValueId c = g.AddConstant("c", data);
    g.outputs = {{"y", Emit(&g, ir::OpKind::kAdd, "sum", {x, c})}, {"x", x}, {"c", c}, {"seed", g.AddLossSeed()}};
    layout_ = std::make_unique<ModelLayout>(g);
    plan_ = std::make_unique<Plan>(MakePlan(g, *backend_, 1, layout_.get()).value());
    model_ = std::make_unique<ModelMemory>(ModelMemory::Create(layout_.get(), backend_->memory()).value());
    arena_ = Buffer::Allocate(backend_->memory(), plan_->arena_bytes, "arena").value();
    executor_ = Executor::Create(plan_.get(), model_.get(), &arena_).value();
  }

  std::vector<float> Read(absl::string_view output) {
    const TensorView view = executor_->Output(output).value();
    std::vector<float> values(static_cast<size_t>(view.size()));
    EXPECT_TRUE(backend_->memory()->Download(view.data, view.bytes(), values.data()).ok());
    return values;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ModelLayout> layout_;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<ModelMemory> model_;
  Buffer arena_;
  std::unique_ptr<Executor> executor_;
};

TEST_F(FarExecutor, CopiesWhatIsBound) {
  EXPECT_EQ(executor_->Run({}).code(), absl::StatusCode::kFailedPrecondition);
  std::vector<float> x = {1, 2, 3, 4};
  ASSERT_TRUE(executor_->BindInput("x", x.data()).ok());
  x.assign(4, 0);
  ASSERT_TRUE(executor_->Run({.loss_seed = 32}).ok());
  EXPECT_THAT(Read("y"), ElementsAre(11, 13, 15, 17));
  EXPECT_THAT(Read("x"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Read("c"), ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(Read("seed"), ElementsAre(32));
  ASSERT_TRUE(executor_->BindInput("x", nullptr).ok());
  EXPECT_EQ(executor_->Run({}).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(FarExecutor, LaunchesUponWhatLiesInItsBuffers) {
  const auto x = executor_->InputBuffer("x");
  ASSERT_TRUE(x.ok()) << x.status();
  const std::vector<float> values = {5, 6, 7, 8};
  ASSERT_TRUE(backend_->memory()->Upload(values.data(), 16, *x).ok());
  const StepState step{.loss_seed = 8};
  ASSERT_TRUE(backend_->memory()->Upload(&step, sizeof(step), executor_->step_state()).ok());
  ASSERT_TRUE(executor_->Launch().ok());
  EXPECT_THAT(Read("y"), ElementsAre(15, 17, 19, 21));
  EXPECT_THAT(Read("seed"), ElementsAre(8));
  EXPECT_EQ(executor_->InputBuffer("nothing").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ampd::runtime
