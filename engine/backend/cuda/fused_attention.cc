#include "engine/backend/cuda/fused_attention.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/backend/cuda/device_failure.h"
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
                                                                const FusedAttentionDesc& desc, bool has_mask,
                                                                const MakeAttention& make) {
  const absl::StatusOr<std::shared_ptr<FusedAttention>> made =
      has_mask ? absl::UnimplementedError("a mask") : make(desc, context);
  if (made.ok()) {
    NoteFusedAttention(context, node, **made);
    return *made;
  }
  if (!OwnKernelsServe(made.status())) return Annotate(made.status(), node);
  NoteOwnAttention(context, node, made.status().message());
  return nullptr;
}

void NoteOwnConv(Context* context, const std::string& node, absl::string_view why) {
  AttentionUsesOf(context).convs[std::string(why)].insert(node);
}

std::vector<std::string> AttentionNotes(Context* context) {
  const auto named = [](const std::set<std::string>& nodes) {
    return absl::StrCat(*nodes.begin(), nodes.size() > 1 ? absl::StrCat(" and ", nodes.size() - 1, " more") : "");
  };
  std::vector<std::string> notes;
  for (const auto& [by, nodes] : AttentionUsesOf(context).nodes) {
    notes.push_back(absl::StrCat("attention runs on ", by, ": ", named(nodes)));
  }
  for (const auto& [why, nodes] : AttentionUsesOf(context).convs) {
    notes.push_back(
        absl::StrCat("a convolution runs on the backend's own kernel, since cuDNN failed (", why, "): ", named(nodes)));
  }
  return notes;
}

}  // namespace ampd::cuda
