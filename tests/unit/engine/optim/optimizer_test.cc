#include "engine/optim/optimizer.h"

#include <cmath>
#include <random>
#include <string>

#include "engine/optim/update_scalars.h"
#include "gtest/gtest.h"

namespace ampd::optim {
namespace {

// One scalar parameter in float64, straight from the papers' algorithms (and torch.optim's pages where they differ).
struct Reference {
  OptimizerConfig c;
  double w, m = 0, v = 0;
  int t = 0;

  void Sgd(double g, double lr) {
    g += c.weight_decay * w;
    if (c.momentum != 0) {
      m = t == 1 ? g : c.momentum * m + g;
      g = c.nesterov ? g + c.momentum * m : m;
    }
    w -= lr * g;
  }
  void Adam(double g, double lr) {
    if (c.kind == OptimizerKind::kAdamW) w *= 1 - lr * c.weight_decay;
    if (c.kind == OptimizerKind::kAdam) g += c.weight_decay * w;
    m = c.beta1 * m + (1.0 - c.beta1) * g;
    v = c.beta2 * v + (1.0 - c.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(c.beta1, t)), v_hat = v / (1 - std::pow(c.beta2, t));
    w -= lr * m_hat / (std::sqrt(v_hat) + c.epsilon);
  }
  void Step(double g, double lr) {
    ++t;
    c.kind == OptimizerKind::kSgd ? Sgd(g, lr) : Adam(g, lr);
  }
};

struct Case {
  std::string name;
  OptimizerConfig config;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

OptimizerConfig Sgd(float momentum, bool nesterov, float decay) {
  OptimizerConfig c;
  c.kind = OptimizerKind::kSgd;
  c.momentum = momentum;
  c.nesterov = nesterov;
  c.weight_decay = decay;
  return c;
}

OptimizerConfig Adam(OptimizerKind kind, float decay, float beta1 = 0.9f) {
  OptimizerConfig c;
  c.kind = kind;
  c.weight_decay = decay;
  c.beta1 = beta1;
  return c;
}

class OptimizerSteps : public testing::TestWithParam<Case> {};

// A hundred steps on scaled gradients with a falling rate, against float64. Each step rounds a handful of times, by
// 2^-24 of values no larger than about 2, so that 100 steps stay within 1e-4 of the distance travelled.
TEST_P(OptimizerSteps, AgreeWithFloat64) {
  const OptimizerConfig& config = GetParam().config;
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  for (int element = 0; element < 20; ++element) {
    const double scale = 1024, clip = 0.5;
    float w = static_cast<float>(normal(random)), m1 = 0, m2 = 0;
    Reference reference{config, w};
    for (int step = 0; step < 100; ++step) {
      const float scaled = static_cast<float>(scale * normal(random));
      const double lr = 0.01 / (1 + step * 0.05);
      w = UpdateElement(config, ComputeUpdateScalars(config, lr, step, clip, scale), w, scaled, m1, m2);
      reference.Step(static_cast<double>(scaled) * clip / scale, lr);
    }
    EXPECT_NEAR(w, reference.w, 1e-5);
    EXPECT_NEAR(m1, reference.m, 1e-5);
    EXPECT_NEAR(m2, reference.v, 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, OptimizerSteps,
                         testing::Values(Case{"sgd", Sgd(0, false, 0)}, Case{"momentum", Sgd(0.9f, false, 1e-3f)},
                                         Case{"nesterov", Sgd(0.9f, true, 1e-3f)},
                                         Case{"adam", Adam(OptimizerKind::kAdam, 0.01f)},
                                         Case{"adamw", Adam(OptimizerKind::kAdamW, 0.01f)},
                                         Case{"adam_without_first_moment", Adam(OptimizerKind::kAdam, 0, 0)}),
                         [](const auto& info) { return info.param.name; });

TEST(Optimizer, KeepsTheMomentsItNeeds) {
  EXPECT_EQ(Sgd(0, false, 0).moments(), 0);
  EXPECT_EQ(Sgd(0.9f, false, 0).moments(), 1);
  EXPECT_EQ(Adam(OptimizerKind::kAdam, 0).moments(), 2);
}

TEST(Optimizer, AdamsFirstStepIsTheLearningRate) {
  const OptimizerConfig config = Adam(OptimizerKind::kAdam, 0);
  float m1 = 0, m2 = 0;
  const float w = UpdateElement(config, ComputeUpdateScalars(config, 0.125, 0, 1, 1), 1.0f, 3.0f, m1, m2);
  EXPECT_NEAR(w, 0.875f, 1e-6);
}

TEST(UpdateScalars, UnscaleAndClipAreOneFactor) {
  const UpdateScalars s = ComputeUpdateScalars(Sgd(0, false, 0), 0.1, 3, 0.25, 1024);
  EXPECT_EQ(s.gradient_factor, 0.25f / 1024);
  EXPECT_FALSE(s.first);
  EXPECT_TRUE(ComputeUpdateScalars(Sgd(0, false, 0), 0.1, 0, 1, 1).first);
}

TEST(ClipFactor, ScalesDownOnlyWhatIsTooLong) {
  EXPECT_EQ(ClipFactor(0, 1), 1);
  EXPECT_EQ(ClipFactor(0.5, 1), 1);
  EXPECT_NEAR(ClipFactor(4, 1), 0.25, 1e-6);
  EXPECT_EQ(ClipFactor(4, 2), 2 / (4 + 1e-6));
}

}  // namespace
}  // namespace ampd::optim
