#include "tests/support/small_networks.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

namespace ampd::testing {

std::vector<SmallNetwork> SmallNetworks() {
  return {
      {"mlp",
       R"pb(layers { dense { units: 7 activation: RELU } }
            layers { dropout { rate: 0.3 } }
            layers { dense { units: 3 } }
            loss { softmax_cross_entropy {} })pb",
       {.input_shape = {5}, .classes = 3}},
      {"regression",
       "layers { dense { units: 6 activation: RELU } } layers { dense { units: 2 } } loss { mean_squared_error {} }",
       {.input_shape = {4}, .target_features = 2}},
      {"convnet",
       R"pb(layers { conv2d { filters: 4 kernel: 3 stride: 2 padding: SAME } }
            layers { batch_norm {} }
            layers { relu {} }
            layers { max_pool { size: 2 } }
            layers { flatten {} }
            layers { dense { units: 3 } }
            loss { softmax_cross_entropy {} })pb",
       {.input_shape = {9, 8, 2}, .classes = 3}},
      {"residual",
       R"pb(layers {
              name: "a"
              conv2d { filters: 3 kernel: 3 padding: SAME activation: RELU }
            }
            layers {
              name: "b"
              conv2d { filters: 3 kernel: 3 padding: SAME }
            }
            layers {
              name: "bn"
              batch_norm {}
            }
            layers {
              name: "sum"
              add {}
              inputs: "a"
              inputs: "bn"
            }
            layers { avg_pool { size: 2 padding: SAME } }
            layers { global_avg_pool {} }
            layers { dense { units: 4 } }
            loss { softmax_cross_entropy {} })pb",
       {.input_shape = {5, 5, 1}, .classes = 4}},
      {"recurrent",
       R"pb(layers { gru { units: 3 dropout: 0.2 layers: 2 } }
            layers { lstm { units: 4 output: LAST_STEP } }
            layers { dense { units: 3 } }
            loss {
              softmax_cross_entropy {
                label_smoothing: 0.1
                class_weights: [ 1, 0.5, 2 ]
              }
            })pb",
       {.input_shape = {4, 2}, .classes = 3}},
  };
}

models::Model BuildSmallNetwork(const SmallNetwork& network, const std::string& precision, int64_t batch,
                                const passes::PaddingPolicy& padding) {
  v1::JobSpec spec;
  const std::string text =
      "data { train { glyphs {} } } precision { " + precision + " } model { " + network.model + " }";
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec)) << text;
  auto resolved = ResolveJobSpec(spec);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  auto model = models::BuildModel(*resolved, network.sample, batch, batch, padding);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

RefTensor RandomTensor(const Shape& shape, RngSequence* rng, double low, double high) {
  RefTensor t{shape, std::vector<double>(NumElements(shape))};
  for (double& x : t.data) x = static_cast<float>(low + (high - low) * rng->NextUniform());
  return t;
}

GraphInputs RandomInputs(const SmallNetwork& network, const ir::Graph& graph) {
  RngSequence rng(5, network.name);
  GraphInputs in;
  for (const ir::Persistent& p : graph.parameters) in.parameters.push_back(RandomTensor(p.type.shape, &rng, -0.7, 0.7));
  for (const ir::Persistent& s : graph.states) in.states.push_back(RandomTensor(s.type.shape, &rng, 0.5, 1));
  for (const ir::Value& value : graph.values) {
    if (value.kind != ir::ValueKind::kInput) continue;
    RefTensor t = RandomTensor(value.type.shape, &rng, -1, 1);
    if (value.name == "labels") {
      for (double& label : t.data) label = static_cast<double>(rng.NextBelow(network.sample.classes));
    }
    in.inputs[value.name] = t;
  }
  in.step.seed = 9;
  in.step.attempted_step = 3;
  return in;
}

}  // namespace ampd::testing
