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

}  // namespace
}  // namespace ampd::cuda
