#include "tests/support/spec_mutator.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <limits>

namespace ampd::testing {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

const std::vector<std::string>& SpecTexts() {
  static const std::string data = "data { train { glyphs { samples: 320 } } eval { glyphs { samples: 100 } } } ";
  static const std::string unevaluated = "data { train { glyphs { samples: 320 } } } ";
  static const auto& texts = *new std::vector<std::string>{
      data +
          "model { layers { name: 'conv1' conv2d { filters: 6 kernel: 3 stride: 2 padding: SAME activation: RELU } }"
          "  layers { name: 'bn1' batch_norm {} } layers { name: 'pool' max_pool { size: 2 } }"
          "  layers { name: 'gn' group_norm { groups: 3 } } layers { name: 'flat' flatten {} }"
          "  layers { name: 'drop' dropout { rate: 0.1 } } layers { name: 'head' dense { units: 10 } }"
          "  loss { softmax_cross_entropy { label_smoothing: 0.1 } } }"
          "precision { mode: FP16 rules { match: 'head' dtype: FP32 } loss_scale { init: 1024 on_floor: HOLD } }"
          "optimizer { sgd { momentum: 0.9 nesterov: true } schedule { cosine { warmup_steps: 5 } } clip_global_norm: "
          "1 }"
          "train { batch_size: 32 micro_batch_size: 16 epochs: 2 }",
      data +
          "model { layers { name: 'cut' slice { axis: 1 begin: 2 end: 24 } } layers { name: 'a' conv2d { filters: 4 "
          "kernel: 3"
          "  padding: SAME groups: 1 dilation: 2 } } layers { name: 'b' conv2d { filters: 4 kernel: [1, 3] pads: [0, "
          "1] }"
          "  inputs: 'cut' } layers { name: 'sum' add {} inputs: ['a', 'b'] } layers { name: 'both' concat {} inputs:"
          "  ['sum', 'a'] } layers { name: 'up' conv_transpose2d { filters: 3 kernel: 2 stride: 2 } }"
          "  layers { avg_pool { size: [3, 2] } } layers { instance_norm { affine: true } }"
          "  layers { gelu { tanh: true } } layers { global_avg_pool {} }"
          "  layers { name: 'head' dense { units: 10 bias: false } } loss { mean_squared_error {} } }"
          "precision { mode: FP8 rules { match: '*' dtype: BF16 } } seed: 3 "
          "optimizer { adamw { learning_rate: 0.01 } schedule { one_cycle {} } ema { decay: 0.9 evaluate: true }"
          "  groups { match: 'head.*' weight_decay: 0 learning_rate_scale: 0.5 } decay_norms_and_biases: false }",
      data +
          "model { layers { flatten {} } layers { name: 'seq' reshape { shape: [28, 28] } } layers { name: 'in' dense "
          "{ units: 12 } }"
          "  layers { positional_embedding { positions: 28 } } layers { name: 'ln' layer_norm {} }"
          "  layers { name: 'attn' multi_head_attention { heads: 3 causal: true } } layers { name: 'res' add {} inputs:"
          "  ['in', 'attn'] } layers { name: 'rms' rms_norm {} } layers { name: 'lstm' lstm { units: 5 layers: 2"
          "  dropout: 0.1 } } layers { name: 'gru' gru { units: 4 output: LAST_STEP } }"
          "  layers { name: 'head' dense { units: 10 activation: GELU } } loss { hinge { margin: 2 } } }"
          "precision { mode: BF16 } optimizer { lamb {} schedule { multi_step { milestones: [3, 9] } } }"
          "limits { max_skip_ratio: 0.5 } checkpoint { every_steps: 5 } labels { key: 'team' value: 'x' }",
      data +
          "model { layers { name: 'flat' flatten {} } layers { name: 'fc' dense { units: 16 activation: SILU } }"
          "  layers { name: 'gate' sigmoid {} } layers { name: 'times' mul {} inputs: ['gate', 'fc'] } layers { elu {} "
          "}"
          "  layers { softplus {} } layers { leaky_relu { negative_slope: 0.2 } } layers { tanh {} }"
          "  layers { name: 'head' dense { units: 12 } } loss { sigmoid_cross_entropy { } } }"
          "precision { mode: TF32 loss_scale { kind: STATIC init: 8 } }"
          "optimizer { rmsprop { centered: true } schedule { cosine_restarts { period_steps: 4 } } clip_value: 0.5 }"
          "report { every_steps: 1 diagnostics_every_steps: 3 } train { steps: 9 batch_size: 20 }",
      unevaluated +
          "model { networks { name: 'g' layers { name: 'fc' dense { units: 98 activation: RELU } }"
          "  layers { name: 'bn' batch_norm {} } layers { name: 'grid' reshape { shape: [7, 7, 2] } }"
          "  layers { name: 'up1' conv_transpose2d { filters: 4 kernel: 2 stride: 2 } } layers { leaky_relu {} }"
          "  layers { name: 'up2' conv_transpose2d { filters: 1 kernel: 2 stride: 2 } } layers { tanh {} } }"
          "  networks { name: 'trunk' layers { name: 'conv' conv2d { filters: 3 kernel: 4 stride: 4 } }"
          "  layers { name: 'gn' group_norm { groups: 1 } } layers { global_avg_pool {} } layers { dropout { rate: 0.2 "
          "} } }"
          "  networks { name: 'critic' inputs: ['a', 'b'] layers { name: 'in' concat {} inputs: ['a', 'b'] }"
          "  layers { name: 'out' dense { units: 1 } } }"
          "  networks { name: 'classes' layers { name: 'head' dense { units: 10 } } }"
          "  noise { name: 'z' shape: 6 } noise { name: 'u' shape: 4 distribution: UNIFORM } }"
          "phases { name: 'judge' trains: ['trunk', 'critic', 'classes.*'] every: 2"
          "  calls { name: 'fake' network: 'g' inputs: 'z' } calls { name: 'real' network: 'trunk' inputs: 'data' }"
          "  calls { name: 'made' network: 'trunk' inputs: 'fake' }"
          "  calls { name: 'on_real' network: 'critic' inputs: ['real', 'u'] }"
          "  calls { name: 'on_fake' network: 'critic' inputs: ['made', 'u'] }"
          "  calls { name: 'kind' network: 'classes' inputs: 'real' }"
          "  losses { input: 'on_real' loss { sigmoid_cross_entropy {} } target: 1 }"
          "  losses { input: 'on_fake' loss { hinge { margin: 1 } } target: -1 weight: 0.5 }"
          "  losses { input: 'kind' loss { softmax_cross_entropy { label_smoothing: 0.1 } } target_from: 'labels' }"
          "  optimizer { rmsprop {} schedule { cosine {} } clip_global_norm: 1 } }"
          "phases { name: 'maker' trains: 'g' calls { name: 'fake' network: 'g' inputs: 'z' }"
          "  calls { name: 'seen' network: 'trunk' inputs: 'fake' }"
          "  calls { name: 'kind' network: 'classes' inputs: 'seen' }"
          "  calls { name: 'true' network: 'trunk' inputs: 'data' }"
          "  losses { input: 'kind' loss { softmax_cross_entropy { ignore_index: 3 } } weight: 2 }"
          "  losses { input: 'seen' loss { smooth_l1 {} } target_from: 'true' } }"
          "precision { mode: FP16 rules { match: 'critic.*' dtype: FP32 } }"
          "optimizer { adam {} ema { decay: 0.9 } } train { batch_size: 8 micro_batch_size: 4 steps: 3 }",
  };
  return texts;
}

namespace {

v1::JobSpec Parsed(const std::string& text) {
  v1::JobSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec)) << text;
  return spec;
}

const v1::JobSpec& Original(int64_t i) {
  static const auto& specs = *new std::vector<v1::JobSpec>([] {
    std::vector<v1::JobSpec> parsed;
    for (const std::string& text : SpecTexts()) parsed.push_back(Parsed(text));
    return parsed;
  }());
  return specs[i];
}

// Every message of `type` in `message`.
void Collect(const Message& message, const google::protobuf::Descriptor* type, std::vector<const Message*>* found) {
  if (message.GetDescriptor() == type) found->push_back(&message);
  const Reflection* reflection = message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) continue;
    const int n = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
    for (int i = 0; i < n; ++i) {
      Collect(field->is_repeated() ? reflection->GetRepeatedMessage(message, field, i)
                                   : reflection->GetMessage(message, field),
              type, found);
    }
  }
}

}  // namespace

int64_t SpecMutator::Integer() {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  static constexpr int64_t kExtreme[] = {kMax,
                                         kMax - 1,
                                         -kMax - 1,
                                         -kMax,
                                         int64_t{1} << 62,
                                         int64_t{1} << 53,
                                         int64_t{1} << 40,
                                         int64_t{1} << 32,
                                         (int64_t{1} << 31) - 1,
                                         -(int64_t{1} << 31),
                                         1000003,
                                         65537,
                                         4096};
  if (OneIn(3)) return kExtreme[random_.Below(std::size(kExtreme))];
  return random_.Below(40) - 3;
}

double SpecMutator::Real() {
  static constexpr double kExtreme[] = {INFINITY, -INFINITY, NAN, 1e308, -1e308, 5e-324, 1e-320, -0.0, 0x1p127, 1e40};
  if (OneIn(3)) return kExtreme[random_.Below(std::size(kExtreme))];
  static constexpr double kOrdinary[] = {0, 1, 0.5, 1e-3, -1, 2, 1e-8, 0.999, 1e6};
  return kOrdinary[random_.Below(std::size(kOrdinary))];
}

std::string SpecMutator::Word() {
  static const auto& words = *new std::vector<std::string>{"",
                                                           "input",
                                                           "head",
                                                           "conv1",
                                                           "in",
                                                           "sum",
                                                           "fc",
                                                           "*",
                                                           "?*?*?*?*?*?*?*?*b",
                                                           "../../",
                                                           "a b",
                                                           "x.y",
                                                           ".",
                                                           "head.weight",
                                                           "\xc3\xa9",
                                                           "\xff\xfe",
                                                           std::string("a\0b", 3)};
  if (OneIn(12)) return std::string(random_.Below(OneIn(10) ? 100000 : 300), OneIn(2) ? 'a' : '*');
  return words[random_.Below(static_cast<int64_t>(words.size()))];
}

void SpecMutator::SetScalar(Message* message, const FieldDescriptor* field) {
  const Reflection* r = message->GetReflection();
  const bool add = field->is_repeated();
  const int64_t integer = Integer();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return add ? r->AddInt32(message, field, static_cast<int32_t>(integer))
                 : r->SetInt32(message, field, static_cast<int32_t>(integer));
    case FieldDescriptor::CPPTYPE_UINT32:
      return add ? r->AddUInt32(message, field, static_cast<uint32_t>(integer))
                 : r->SetUInt32(message, field, static_cast<uint32_t>(integer));
    case FieldDescriptor::CPPTYPE_INT64:
      return add ? r->AddInt64(message, field, integer) : r->SetInt64(message, field, integer);
    case FieldDescriptor::CPPTYPE_UINT64:
      return add ? r->AddUInt64(message, field, static_cast<uint64_t>(integer))
                 : r->SetUInt64(message, field, static_cast<uint64_t>(integer));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return add ? r->AddDouble(message, field, Real()) : r->SetDouble(message, field, Real());
    case FieldDescriptor::CPPTYPE_FLOAT:
      return add ? r->AddFloat(message, field, static_cast<float>(Real()))
                 : r->SetFloat(message, field, static_cast<float>(Real()));
    case FieldDescriptor::CPPTYPE_BOOL:
      return add ? r->AddBool(message, field, OneIn(2)) : r->SetBool(message, field, OneIn(2));
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int value = OneIn(8) ? static_cast<int>(integer) : static_cast<int>(random_.Below(12));
      return add ? r->AddEnumValue(message, field, value) : r->SetEnumValue(message, field, value);
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return add ? r->AddString(message, field, Word()) : r->SetString(message, field, Word());
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  Message* child = add ? r->AddMessage(message, field) : r->MutableMessage(message, field);
  std::vector<const Message*> alike;
  const v1::JobSpec& donor = Original(random_.Below(static_cast<int64_t>(SpecTexts().size())));
  Collect(donor, child->GetDescriptor(), &alike);
  if (!alike.empty() && !OneIn(3)) child->CopyFrom(*alike[random_.Below(static_cast<int64_t>(alike.size()))]);
  if (OneIn(2)) Change(child);
}

void SpecMutator::ChangeRepeated(Message* message, const FieldDescriptor* field) {
  const Reflection* r = message->GetReflection();
  const int n = r->FieldSize(*message, field);
  switch (random_.Below(6)) {
    case 0:
      return r->ClearField(message, field);
    case 1:
      if (n > 0) r->RemoveLast(message, field);
      return;
    case 2:
      if (n > 1)
        r->SwapElements(message, field, static_cast<int>(random_.Below(n)), static_cast<int>(random_.Below(n)));
      return;
    case 3:  // many
      for (int64_t i = random_.Below(OneIn(20) ? 2000 : 8); i > 0; --i) SetScalar(message, field);
      return;
    case 4:
      if (n > 0 && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_map()) {
        return Change(r->MutableRepeatedMessage(message, field, static_cast<int>(random_.Below(n))));
      }
      [[fallthrough]];
    default:
      SetScalar(message, field);
  }
}

void SpecMutator::ChangeField(Message* message, const FieldDescriptor* field) {
  if (field->is_repeated()) return ChangeRepeated(message, field);
  const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  if (is_message && !OneIn(6)) return Change(message->GetReflection()->MutableMessage(message, field));
  if (OneIn(8)) return message->GetReflection()->ClearField(message, field);
  SetScalar(message, field);
}

// Mostly of what is set, so that changes go deep; then what could be.
void SpecMutator::Change(Message* message) {
  const Reflection* r = message->GetReflection();
  if (OneIn(200)) r->MutableUnknownFields(message)->AddVarint(static_cast<int>(1000 + random_.Below(9)), 7);
  std::vector<const FieldDescriptor*> set;
  r->ListFields(*message, &set);
  const auto any = message->GetDescriptor()->field_count();
  if (!set.empty() && !OneIn(4)) {
    const FieldDescriptor* field = set[random_.Below(static_cast<int64_t>(set.size()))];
    if (field->is_repeated() && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_map() &&
        !OneIn(4)) {
      const int n = r->FieldSize(*message, field);
      return Change(r->MutableRepeatedMessage(message, field, static_cast<int>(random_.Below(n))));
    }
    return ChangeField(message, field);
  }
  if (any > 0) ChangeField(message, message->GetDescriptor()->field(static_cast<int>(random_.Below(any))));
}

v1::JobSpec SpecMutator::Spec() {
  v1::JobSpec spec = Original(random_.Below(static_cast<int64_t>(SpecTexts().size())));
  for (int64_t changes = 1 + random_.Below(OneIn(2) ? 1 : 4); changes > 0; --changes) {
    if (OneIn(2)) {
      Change(spec.mutable_model());
    } else if (spec.phases_size() > 0 && OneIn(2)) {
      Change(spec.mutable_phases(static_cast<int>(random_.Below(spec.phases_size()))));
    } else {
      Change(&spec);
    }
  }
  return spec;
}

std::string SpecMutator::Text(std::string text) {
  static const auto& pieces = *new std::vector<std::string>{"{",
                                                            "}",
                                                            "[",
                                                            "]",
                                                            ": ",
                                                            "- ",
                                                            ",",
                                                            "\n",
                                                            "\n  ",
                                                            "#",
                                                            "\"",
                                                            "'",
                                                            "&a ",
                                                            "*a",
                                                            "!!int ",
                                                            "|\n",
                                                            "~",
                                                            "null",
                                                            "1e999",
                                                            "-1",
                                                            "0x7fffffffffffffffff",
                                                            ".nan",
                                                            ".inf",
                                                            "9223372036854775808",
                                                            "---\n",
                                                            "\t",
                                                            "\xff",
                                                            "\xc3",
                                                            "%YAML 1.1\n",
                                                            "? ",
                                                            "<<: ",
                                                            "true",
                                                            std::string(1, '\0'),
                                                            std::string(70, '['),
                                                            "layers:",
                                                            "dense: {units: 3}"};
  for (int64_t changes = 1 + random_.Below(6); changes > 0; --changes) {
    const auto size = static_cast<int64_t>(text.size());
    const auto at = static_cast<size_t>(random_.Below(size + 1));
    const auto length = static_cast<size_t>(random_.Below(OneIn(3) ? 200 : 8));
    switch (random_.Below(5)) {
      case 0:
        text.erase(at, length);
        break;
      case 1:
        text.insert(at, text.substr(static_cast<size_t>(random_.Below(size + 1)), length));
        break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(random_.Below(256));
        break;
      case 3: {  // a number in the place of one
        const size_t digit = text.find_first_of("0123456789", at);
        if (digit != std::string::npos) text.replace(digit, 1, std::to_string(Integer()));
        break;
      }
      default:
        text.insert(at, pieces[random_.Below(static_cast<int64_t>(pieces.size()))]);
    }
  }
  return text;
}

}  // namespace ampd::testing
