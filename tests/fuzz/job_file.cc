// A job file, in YAML or JSON; its first line as an assignment of `--set`, too.
#include "ampd/v1/job.pb.h"
#include "proto/spec/yaml.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/job_spec.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ampd;
  const std::string text(reinterpret_cast<const char*>(data), size);
  v1::JobSpec set;
  fuzz::CheckError(ApplySet(&set, text.substr(0, text.find('\n'))));
  v1::JobSpec spec;
  FieldLines lines;
  const absl::Status status = ParseYaml(text, "job.yaml", &spec, &lines);
  fuzz::Check(status.ok() || absl::IsInvalidArgument(status), status.ToString());
  fuzz::CheckError(status);
  if (!status.ok()) return 0;
  lines.LineOf("model.layers[0].dense.units");
  fuzz::Submit(spec);
  return 0;
}
