// Small networks that together use every layer, with random parameters and batches.
#ifndef AMPD_TESTS_SUPPORT_SMALL_NETWORKS_H_
#define AMPD_TESTS_SUPPORT_SMALL_NETWORKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/rng.h"
#include "engine/models/model.h"
#include "tests/support/graph_reference.h"

namespace ampd::testing {

struct SmallNetwork {
  std::string name;
  std::string model;  // text format of ModelSpec
  models::SampleInfo sample;
};

// An MLP with dropout, a regression, a convnet with batch norm and flatten, a residual DAG, and a recurrent classifier.
std::vector<SmallNetwork> SmallNetworks();

// The network's graphs; `precision` is PrecisionSpec in text format. A gtest failure when it cannot be built.
models::Model BuildSmallNetwork(const SmallNetwork& network, const std::string& precision, int64_t batch,
                                const passes::PaddingPolicy& padding = {});

// Uniform in [low, high).
RefTensor RandomTensor(const Shape& shape, RngSequence* rng, double low, double high);

// Parameters, states and a batch for `graph`, each number exact in f32.
GraphInputs RandomInputs(const SmallNetwork& network, const ir::Graph& graph);

}  // namespace ampd::testing

#endif  // AMPD_TESTS_SUPPORT_SMALL_NETWORKS_H_
