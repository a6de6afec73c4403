// Phases, networks and noise of a job.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "proto/spec/resolve.h"
#include "proto/spec/yaml.h"
#include "tests/unit/proto/spec/resolve_test_util.h"

namespace ampd {
namespace {

using google::protobuf::util::MessageDifferencer;

constexpr char kPair[] = R"(
model:
  networks:
    - {name: g, layers: [{dense: {units: 2}}]}
    - {name: d, layers: [{name: fc, dense: {units: 1}}]}
  noise: [{name: z, shape: [3]}]
data: {train: {glyphs: {}}}
phases:
  - name: critic
    trains: [d]
    calls: [{name: fake, network: g, inputs: [z]}, {network: d, inputs: [fake]}]
    losses: [{input: d, loss: {sigmoid_cross_entropy: {}}, target: 0}]
  - name: artist
    trains: [g.*]
    calls: [{network: g, inputs: [z]}, {network: d, inputs: [g]}]
    losses: [{input: d, loss: {sigmoid_cross_entropy: {}}, target: 1}]
)";

v1::JobSpec Phased(const std::vector<std::string>& sets = {}) {
  v1::JobSpec spec;
  EXPECT_EQ(ParseYaml(kPair, "f", &spec), absl::OkStatus());
  for (const std::string& set : sets) EXPECT_EQ(ApplySet(&spec, set), absl::OkStatus()) << set;
  return spec;
}

TEST(ResolvePhasesTest, FillsDefaults) {
  const absl::StatusOr<ResolvedJobSpec> resolved =
      ResolveJobSpec(Phased({"phases[1].optimizer={sgd: {}}", "precision={mode: FP16, rules: [{match: d.fc}]}"}));
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  const v1::JobSpec& spec = resolved->proto();
  EXPECT_FALSE(spec.model().has_loss());
  EXPECT_EQ(spec.model().networks(0).inputs(0), "input");
  EXPECT_EQ(spec.model().networks(0).layers(0).name(), "dense_0");
  EXPECT_EQ(spec.model().noise(0).distribution(), v1::NoiseSource::NORMAL);
  EXPECT_EQ(spec.phases(0).every(), 1);
  EXPECT_EQ(spec.phases(0).calls(1).name(), "d");
  EXPECT_EQ(spec.phases(0).losses(0).weight(), 1);
  EXPECT_FALSE(spec.phases(0).has_optimizer()) << "the job's holds, whatever it becomes";
  EXPECT_EQ(spec.phases(1).optimizer().sgd().learning_rate(), 0.01);
  const absl::StatusOr<ResolvedJobSpec> again = ResolveJobSpec(spec);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(MessageDifferencer::Equals(again->proto(), spec));
}

TEST(ResolvePhasesTest, RefusesByName) {
  const std::vector<Case> cases = {
      {"phases[0].calls[1].network=gg",
       "phases[0].calls[1].network: no network is named 'gg'; did you mean g?\n"
       "phases[0].losses[0].input: no source and no earlier call is named 'd'\n"
       "phases[0].trains[0]: no call of the phase applies network 'd'"},
      {"phases[0].calls[0].inputs=[zz]",
       "phases[0].calls[0].inputs[0]: no source and no earlier call is named 'zz'; did you mean z?"},
      // A cycle would need a call that reads a later one.
      {"phases[0].calls[0].inputs=[d]", "phases[0].calls[0].inputs[0]: no source and no earlier call is named 'd'"},
      {"phases[0].calls[0].inputs=[z, z]", "phases[0].calls[0].inputs: network g reads 1, has 2"},
      {"phases[0].calls[1].name=fake",
       "phases[0].calls[1].name: another call or source is named 'fake' already\n"
       "phases[0].losses[0].input: no source and no earlier call is named 'd'"},
      {"phases[0].calls[0].name=data",
       "phases[0].calls[0].name: another call or source is named 'data' already\n"
       "phases[0].calls[1].inputs[0]: no source and no earlier call is named 'fake'"},
      {"phases[0].trains=[]",
       "phases[0].trains: required: the networks, or globs of parameters, that this phase updates"},
      {"phases[0].trains=[x]", "phases[0].trains[0]: no network is named 'x'"},
      {"phases[0].losses=[]", "phases[0].losses: required, at least one loss"},
      {"phases[0].losses[0].input=e", "phases[0].losses[0].input: no source and no earlier call is named 'e'"},
      {"phases[0].losses[0].target=.inf", "phases[0].losses[0].target: must be a finite number, is inf"},
      {"phases[0].losses[0].target_from=labels",
       "phases[0].losses[0].target_from: class labels are for softmax_cross_entropy alone"},
      {"phases[0].losses[0].weight=1e7", "phases[0].losses[0].weight: must be in [-1e+06, 1e+06], is 1e+07"},
      {"phases[0].losses[0].loss={hinge: {margin: -1}}",
       "phases[0].losses[0].loss.hinge.margin: must be in [0, 1e+06], is -1"},
      {"phases[1].name=critic", "phases[1].name: duplicate name 'critic'"},
      {"phases[1].name=a.b", "phases[1].name: may hold letters, digits, '_' and '-' only, is 'a.b'"},
      {"phases[1].optimizer={adam: {beta1: 2}}", "phases[1].optimizer.adam.beta1: must be in [0, 1), is 2"},
      {"phases[1].optimizer={ema: {}}",
       "phases[1].optimizer.ema: the running average is the job's: give it in optimizer.ema"},
      {"model.loss={l1: {}}", "model.loss: goes with layers; the losses of networks are the phases'"},
      {"model.networks[0].layers=[]", "model.networks[0].layers: required, at least one layer"},
      {"model.networks[0].name=d",
       "model.networks[1].name: duplicate name 'd'\n"
       "phases[0].calls[0].network: no network is named 'g'\n"
       "phases[1].calls[0].network: no network is named 'g'"},
      {"model.noise[0].shape=[]", "model.noise[0].shape: must be one to three numbers, are 0"},
      {"model.noise[0].name=labels",
       "model.noise[0].name: another source is named 'labels' already\n"
       "phases[0].calls[0].inputs[0]: no source and no earlier call is named 'z'\n"
       "phases[1].calls[0].inputs[0]: no source and no earlier call is named 'z'"},
      {"data.eval={glyphs: {}}", "data.eval: jobs with model.networks are not evaluated yet: leave it out"},
      {"precision={mode: FP16, rules: [{match: fc}]}", "precision.rules[0].match: no layer matches 'fc'"},
      {"phases=[]",
       "phases[0].calls: required, at least one call of a network\n"
       "phases[0].losses: required, at least one loss\n"
       "phases[0].trains: required: the networks, or globs of parameters, that this phase updates\n"
       "model.networks[0]: no phase calls 'g'\nmodel.networks[1]: no phase calls 'd'"},
  };
  for (const Case& c : cases) EXPECT_EQ(Violated(Phased({c.set})), c.violation) << c.set;
  EXPECT_EQ(Violated(Phased({"phases[0].every=2", "phases[1].every=3"})),
            "phases[0].every: one phase at least must run in every step");
}

// What the bounds are for: nothing here takes long, or much memory.
TEST(ResolvePhasesTest, HostileCountsAreRefused) {
  v1::JobSpec calls = Phased();
  for (int i = 0; i < 100000; ++i) calls.mutable_phases(0)->add_calls()->set_network("g");
  EXPECT_EQ(Violated(calls), "phases[0].calls: must be at most 256, are 100002");
  v1::JobSpec phases = Phased();
  for (int i = 0; i < 100000; ++i) phases.add_phases();
  EXPECT_EQ(Violated(phases), "phases: must be at most 16, are 100002");
  v1::JobSpec networks = Phased();
  for (int i = 0; i < 100000; ++i) networks.mutable_model()->add_networks();
  EXPECT_THAT(Violated(networks), testing::HasSubstr("model: at most 64 networks"));
  v1::JobSpec layers = Phased();
  for (int i = 0; i < 9000; ++i) layers.mutable_model()->mutable_networks(0)->add_layers()->mutable_relu();
  for (int i = 0; i < 3; ++i) *layers.mutable_phases(0)->add_calls() = Phased().phases(0).calls(0);
  for (int i = 2; i < 5; ++i) layers.mutable_phases(0)->mutable_calls(i)->set_name(absl::StrCat("c", i));
  EXPECT_THAT(Violated(layers), testing::HasSubstr("layers in all, at most 20000"));
}

TEST(ResolvePhasesTest, PlainJobsHaveOnePhase) {
  const auto violated = [](const std::string& phases) {
    v1::JobSpec spec;
    EXPECT_EQ(ParseYaml("{model: {layers: [{flatten: {}}], loss: {l1: {}}}, data: {train: {glyphs: {}}}, phases: " +
                            phases + "}",
                        "f", &spec),
              absl::OkStatus());
    return Violated(spec);
  };
  EXPECT_EQ(violated("[{name: only}]"), "");
  EXPECT_EQ(violated("[{trains: [x]}]"), "phases[0].trains: needs model.networks");
  EXPECT_EQ(violated("[{name: a}, {name: b}]"), "phases: more than one needs model.networks, are 2");
}

}  // namespace
}  // namespace ampd
