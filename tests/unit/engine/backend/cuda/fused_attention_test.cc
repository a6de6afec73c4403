// What a log is told of how attention runs.
#include "engine/backend/cuda/fused_attention.h"

#include <gtest/gtest.h>

namespace ampd::cuda {
namespace {

class Engine : public FusedAttention {
 public:
  int64_t workspace_bytes() const override { return 0; }
  std::string algorithm() const override { return "engine 7"; }
  absl::Status Run(const FusedAttentionArgs&) override { return absl::OkStatus(); }
};

TEST(AttentionNotes, NameEachWayOnceWithItsReason) {
  Context context{DeviceProperties()};
  EXPECT_TRUE(AttentionNotes(&context).empty());
  NoteFusedAttention(&context, "b", Engine());
  NoteFusedAttention(&context, "a", Engine());
  // Prepared again, as for another batch size.
  NoteFusedAttention(&context, "a", Engine());
  NoteOwnAttention(&context, "c", "a mask");
  NoteOwnAttention(&context, "d", "[attention] softcap");
  NoteOwnAttention(&context, "e", "[attention]: no engine builds");
  const std::string own = "attention runs on the backend's own kernels, not cuDNN, in fp32 without matrix units ";
  EXPECT_EQ(AttentionNotes(&context),
            (std::vector<std::string>{"attention runs on cuDNN, engine 7: a and 1 more", own + "(a mask): c",
                                      own + "(no engine builds): e", own + "(softcap): d"}));
}

// A library that fails is no reason for a job to fail; a device that did is, and memory that is short.
TEST(ChooseAttention, LeavesWhatTheLibraryFailsAtToTheOwnKernels) {
  Context context{DeviceProperties()};
  const auto choose = [&](const absl::Status& status) {
    return ChooseAttention(
        &context, "node", FusedAttentionDesc(), false,
        [&](const FusedAttentionDesc&, Context*) -> absl::StatusOr<std::shared_ptr<FusedAttention>> { return status; });
  };
  for (const absl::Status& status : {absl::UnavailableError("gone"), absl::ResourceExhaustedError("none")}) {
    EXPECT_EQ(choose(status).status().code(), status.code());
  }
  EXPECT_TRUE(AttentionNotes(&context).empty());
  for (const absl::Status& status : {absl::UnimplementedError("softcap"), absl::InternalError("an engine broke"),
                                     absl::InvalidArgumentError("a bad parameter")}) {
    const auto chosen = choose(status);
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    EXPECT_EQ(*chosen, nullptr);
  }
  EXPECT_EQ(AttentionNotes(&context).size(), 3u);
}

}  // namespace
}  // namespace ampd::cuda
