#include "engine/backend/cuda/fused_attention.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"

namespace ampd::cuda {

AttentionUses& AttentionUsesOf(Context* context) {
  std::shared_ptr<void>& library = context->library(Library::kAttention);
  if (library == nullptr) library = std::make_shared<AttentionUses>();
  return *static_cast<AttentionUses*>(library.get());
}

void NoteFusedAttention(Context* context, const std::string& node, const FusedAttention& by) {
  AttentionUsesOf(context).nodes[absl::StrCat("cuDNN, ", by.algorithm())].insert(node);
}

void NoteOwnAttention(Context* context, const std::string& node, absl::string_view why) {
  // The origin, which the sentence names.
  const absl::string_view reason =
      absl::StripLeadingAsciiWhitespace(absl::StripPrefix(absl::StripPrefix(why, "[attention]"), ":"));
  AttentionUsesOf(context)
      .nodes[absl::StrCat("the backend's own kernels, not cuDNN, in fp32 without matrix units (", reason, ")")]
      .insert(node);
}

absl::StatusOr<std::shared_ptr<FusedAttention>> ChooseAttention(Context* context, const std::string& node,
                                                                const FusedAttentionDesc& desc, bool has_mask) {
  const absl::StatusOr<std::shared_ptr<FusedAttention>> made =
      has_mask ? absl::UnimplementedError("a mask") : FusedAttention::Create(desc, context);
  if (made.ok()) {
    NoteFusedAttention(context, node, **made);
    return *made;
  }
  if (!absl::IsUnimplemented(made.status())) return Annotate(made.status(), node);
  NoteOwnAttention(context, node, made.status().message());
  return nullptr;
}

std::vector<std::string> AttentionNotes(Context* context) {
  std::vector<std::string> notes;
  for (const auto& [by, nodes] : AttentionUsesOf(context).nodes) {
    const std::string others = nodes.size() > 1 ? absl::StrCat(" and ", nodes.size() - 1, " more") : "";
    notes.push_back(absl::StrCat("attention runs on ", by, ": ", *nodes.begin(), others));
  }
  return notes;
}

}  // namespace ampd::cuda
