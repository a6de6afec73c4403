// Turns job specs into others that are mostly invalid: what a careless or hostile user may send.
#ifndef AMPD_TESTS_SUPPORT_SPEC_MUTATOR_H_
#define AMPD_TESTS_SUPPORT_SPEC_MUTATOR_H_

#include <string>
#include <vector>

#include "ampd/v1/job.pb.h"
#include "tests/support/ref_tensor.h"

namespace ampd::testing {

// Valid specs in the text format that between them use most kinds of layers, losses, optimizers and schedules. Their
// data are drawn glyphs, 28x28x1 in ten classes.
const std::vector<std::string>& SpecTexts();

// Deterministic for a seed.
class SpecMutator {
 public:
  explicit SpecMutator(uint64_t seed) : random_(seed) {}

  // One of SpecTexts() after one to four changes of fields anywhere in it: extreme and ordinary numbers, enum values
  // without a name, empty and long strings, names of other layers, repeated and swapped and missing elements, other
  // members of oneofs, parts of other specs, unknown fields.
  v1::JobSpec Spec();

  // `text` after one to six changes of bytes, words and lines. May be no UTF-8.
  std::string Text(std::string text);

  Random& random() { return random_; }

 private:
  void Change(google::protobuf::Message* message);
  void ChangeField(google::protobuf::Message* message, const google::protobuf::FieldDescriptor* field);
  void ChangeRepeated(google::protobuf::Message* message, const google::protobuf::FieldDescriptor* field);
  void SetScalar(google::protobuf::Message* message, const google::protobuf::FieldDescriptor* field);
  bool OneIn(int64_t n) { return random_.Below(n) == 0; }
  int64_t Integer();
  double Real();
  std::string Word();

  Random random_;
};

}  // namespace ampd::testing

#endif  // AMPD_TESTS_SUPPORT_SPEC_MUTATOR_H_
