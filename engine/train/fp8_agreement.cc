#include "engine/train/fp8_agreement.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "engine/passes/fp8_scales.h"

namespace ampd::train {
namespace {

// Where the states behind one operand's scale lie, in bytes of the pending state.
struct Operand {
  int64_t history = -1;
  int64_t count = -1;
  int64_t scale = -1;
};

// In the order of the operands' names.
std::vector<Operand> OperandsOf(const runtime::ModelLayout& layout) {
  const std::string history = passes::Fp8HistoryName("", ""), count = passes::Fp8CountName("", ""),
                    scale = passes::Fp8ScaleName("", "");
  std::map<std::string, Operand> operands;
  for (size_t i = 0; i < layout.states().size(); ++i) {
    if (layout.states()[i].in_model_file) continue;
    absl::string_view name = layout.states()[i].name;
    const int64_t offset = layout.state_offsets()[i];
    // The names end in ".<operand>.amax_history" and so on; made of empty parts the first dot is doubled.
    if (absl::ConsumeSuffix(&name, absl::string_view(history).substr(1))) {
      operands[std::string(name)].history = offset;
    } else if (absl::ConsumeSuffix(&name, absl::string_view(count).substr(1))) {
      operands[std::string(name)].count = offset;
    } else if (absl::ConsumeSuffix(&name, absl::string_view(scale).substr(1))) {
      operands[std::string(name)].scale = offset;
    }
  }
  std::vector<Operand> list;
  for (const auto& [name, operand] : operands) {
    if (operand.history >= 0 && operand.count >= 0 && operand.scale >= 0) list.push_back(operand);
  }
  return list;
}

// What amax_update keeps of one operand.
struct Record {
  float history[passes::kAmaxHistory];
  int64_t count;
  float scale;

  float largest() const { return *std::max_element(history, history + passes::kAmaxHistory); }
};

absl::Status Read(runtime::ModelMemory* memory, const Operand& operand, Record* record) {
  const char* state = memory->pending_state();
  runtime::Memory* device = memory->memory();
  AMPD_RETURN_IF_ERROR(device->Download(state + operand.history, sizeof(record->history), record->history));
  AMPD_RETURN_IF_ERROR(device->Download(state + operand.count, sizeof(record->count), &record->count));
  return device->Download(state + operand.scale, sizeof(record->scale), &record->scale);
}

absl::Status Write(const Record& record, const Operand& operand, runtime::ModelMemory* memory) {
  char* state = memory->pending_state();
  runtime::Memory* device = memory->memory();
  AMPD_RETURN_IF_ERROR(device->Upload(record.history, sizeof(record.history), state + operand.history));
  AMPD_RETURN_IF_ERROR(device->Upload(&record.count, sizeof(record.count), state + operand.count));
  return device->Upload(&record.scale, sizeof(record.scale), state + operand.scale);
}

Record Together(const std::vector<const Record*>& replicas) {
  // A scale falls as the largest amax grows: that of the largest is the one of all.
  Record all = **std::max_element(replicas.begin(), replicas.end(),
                                  [](const Record* a, const Record* b) { return a->largest() < b->largest(); });
  for (const Record* of : replicas) {
    all.count = std::max(all.count, of->count);
    for (int i = 0; i < passes::kAmaxHistory; ++i) all.history[i] = std::max(all.history[i], of->history[i]);
  }
  return all;
}

}  // namespace

absl::Status AgreeOnFp8Scales(runtime::Collective* collective, runtime::ModelMemory* memory) {
  const std::vector<Operand> operands = OperandsOf(memory->layout());
  if (operands.empty()) return absl::OkStatus();
  std::vector<Record> own(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) AMPD_RETURN_IF_ERROR(Read(memory, operands[i], &own[i]));
  std::vector<std::vector<Record>> all;
  AMPD_RETURN_IF_ERROR(collective->group()->AllGather(collective->rank(), own, &all));
  for (size_t i = 0; i < operands.size(); ++i) {
    std::vector<const Record*> replicas;
    for (const std::vector<Record>& of : all) replicas.push_back(&of[i]);
    AMPD_RETURN_IF_ERROR(Write(Together(replicas), operands[i], memory));
  }
  return absl::OkStatus();
}

}  // namespace ampd::train
