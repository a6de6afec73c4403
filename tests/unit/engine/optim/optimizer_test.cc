#include "engine/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "engine/optim/update_scalars.h"
#include "gtest/gtest.h"

namespace ampd::optim {
namespace {

// One scalar parameter in float64, straight from the papers' algorithms (and torch.optim's pages where they differ).
struct Reference {
  OptimizerConfig c;
  double w, m = 0, v = 0, mean = 0;
  int t = 0;

  void Sgd(double g, double lr) {
    g += c.weight_decay * w;
    if (c.momentum != 0) {
      m = t == 1 ? g : c.momentum * m + (1.0 - c.dampening) * g;
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
  // m is the momentum buffer, v the mean square.
  void RmsProp(double g, double lr) {
    g += c.weight_decay * w;
    v = c.smoothing * v + (1.0 - c.smoothing) * g * g;
    mean = c.smoothing * mean + (1.0 - c.smoothing) * g;
    const double spread = c.centered ? v - mean * mean : v;
    m = c.momentum * m + g / (std::sqrt(spread) + c.epsilon);
    w -= lr * m;
  }
  void Adagrad(double g, double lr) {
    if (t == 1) v = c.initial_accumulator;
    g += c.weight_decay * w;
    v += g * g;
    w -= lr / (1 + (t - 1) * c.rate_decay) * g / (std::sqrt(v) + c.epsilon);
  }
  void Step(double g, double lr) {
    ++t;
    g = std::min<double>(std::max<double>(g, -c.clip_value), c.clip_value);
    switch (c.kind) {
      case OptimizerKind::kSgd:
        return Sgd(g, lr);
      case OptimizerKind::kRmsProp:
        return RmsProp(g, lr);
      case OptimizerKind::kAdagrad:
        return Adagrad(g, lr);
      default:
        return Adam(g, lr);
    }
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

OptimizerConfig Dampened(float momentum, float dampening) {
  OptimizerConfig c = Sgd(momentum, false, 0.01f);
  c.dampening = dampening;
  return c;
}

OptimizerConfig RmsProp(float momentum, bool centered) {
  OptimizerConfig c;
  c.kind = OptimizerKind::kRmsProp;
  c.smoothing = 0.9f;
  c.momentum = momentum;
  c.centered = centered;
  c.weight_decay = 0.01f;
  return c;
}

OptimizerConfig Adagrad(double rate_decay, float initial) {
  OptimizerConfig c;
  c.kind = OptimizerKind::kAdagrad;
  c.rate_decay = rate_decay;
  c.initial_accumulator = initial;
  c.epsilon = 1e-10f;
  c.weight_decay = 0.01f;
  return c;
}

OptimizerConfig Clipped(OptimizerConfig c) {
  c.clip_value = 0.25f;
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
    float w = static_cast<float>(normal(random));
    float m1 = config.initial_moment(), m2 = m1, m3 = m1;
    Reference reference{config, w};
    for (int step = 0; step < 100; ++step) {
      const float scaled = static_cast<float>(scale * normal(random));
      const double lr = 0.01 / (1 + step * 0.05);
      w = UpdateElement(config, ComputeUpdateScalars(config, lr, step, clip, scale), w, scaled, m1, m2, m3);
      reference.Step(static_cast<double>(scaled) * clip / scale, lr);
    }
    EXPECT_NEAR(w, reference.w, 1e-5 * std::max(1.0, std::abs(reference.w)));
    if (config.kind == OptimizerKind::kRmsProp || config.kind == OptimizerKind::kAdagrad) {
      EXPECT_NEAR(m1, reference.v, 1e-5 * std::max(1.0, reference.v));
    } else {
      EXPECT_NEAR(m1, reference.m, 1e-5);
      EXPECT_NEAR(m2, reference.v, 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rules, OptimizerSteps,
    testing::Values(Case{"sgd", Sgd(0, false, 0)}, Case{"momentum", Sgd(0.9f, false, 1e-3f)},
                    Case{"nesterov", Sgd(0.9f, true, 1e-3f)}, Case{"adam", Adam(OptimizerKind::kAdam, 0.01f)},
                    Case{"adamw", Adam(OptimizerKind::kAdamW, 0.01f)},
                    Case{"adam_without_first_moment", Adam(OptimizerKind::kAdam, 0, 0)},
                    Case{"dampening", Dampened(0.9f, 0.5f)}, Case{"all_dampened", Dampened(0.9f, 1)},
                    Case{"rmsprop", RmsProp(0, false)}, Case{"rmsprop_momentum", RmsProp(0.9f, false)},
                    Case{"rmsprop_centered", RmsProp(0, true)}, Case{"rmsprop_centered_momentum", RmsProp(0.9f, true)},
                    Case{"adagrad", Adagrad(0, 0)}, Case{"adagrad_decaying", Adagrad(0.05, 0.1f)},
                    Case{"clipped_sgd", Clipped(Sgd(0.9f, true, 1e-3f))},
                    Case{"clipped_adamw", Clipped(Adam(OptimizerKind::kAdamW, 0.01f))}),
    [](const auto& info) { return info.param.name; });

TEST(Optimizer, KeepsTheMomentsItNeeds) {
  EXPECT_EQ(Sgd(0, false, 0).moments(), 0);
  EXPECT_EQ(Sgd(0.9f, false, 0).moments(), 1);
  EXPECT_EQ(Adam(OptimizerKind::kAdam, 0).moments(), 2);
  EXPECT_EQ(Adam(OptimizerKind::kLamb, 0).moments(), 2);
  EXPECT_EQ(RmsProp(0, false).moments(), 1);
  EXPECT_EQ(RmsProp(0.5f, false).moments(), 2);
  EXPECT_EQ(RmsProp(0, true).moments(), 2);
  EXPECT_EQ(RmsProp(0.5f, true).moments(), 3);
  EXPECT_EQ(Adagrad(0, 0.5f).moments(), 1);
  EXPECT_EQ(Adagrad(0, 0.5f).initial_moment(), 0.5f);
}

TEST(Optimizer, AdamsFirstStepIsTheLearningRate) {
  const OptimizerConfig config = Adam(OptimizerKind::kAdam, 0);
  float m1 = 0, m2 = 0, m3 = 0;
  const float w = UpdateElement(config, ComputeUpdateScalars(config, 0.125, 0, 1, 1), 1.0f, 3.0f, m1, m2, m3);
  EXPECT_NEAR(w, 0.875f, 1e-6);
}

// Rounding makes mean square less squared mean negative here sooner or later; the root of that would be NaN.
TEST(Optimizer, CenteredRmsPropStaysFiniteOnConstantGradients) {
  const OptimizerConfig config = RmsProp(0, true);
  bool any_negative = false;
  for (int i = 1; i <= 100; ++i) {
    const float g = 0.013f * static_cast<float>(i);
    float w = 1, m1 = 0, m2 = 0, m3 = 0;
    bool negative = false;
    for (int step = 0; step < 1000; ++step) {
      w = UpdateElement(config, ComputeUpdateScalars(config, 1e-12, step, 1, 1), w, g, m1, m2, m3);
      negative = negative || m1 - m2 * m2 < 0;
      ASSERT_TRUE(std::isfinite(w)) << step;
    }
    any_negative = any_negative || negative;
  }
  EXPECT_TRUE(any_negative) << "no case is the one that is meant";
}

// The paper's algorithm 2 over whole tensors, in float64.
struct LambReference {
  OptimizerConfig c;
  std::vector<double> x, m, v;
  int t = 0;

  static double Norm(const std::vector<double>& values) {
    double sum = 0;
    for (double value : values) sum += value * value;
    return std::sqrt(sum);
  }
  void Step(const std::vector<double>& g, double lr) {
    ++t;
    std::vector<double> update(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      m[i] = c.beta1 * m[i] + (1.0 - c.beta1) * g[i];
      v[i] = c.beta2 * v[i] + (1.0 - c.beta2) * g[i] * g[i];
      const double r = m[i] / (1 - std::pow(c.beta1, t)) / (std::sqrt(v[i] / (1 - std::pow(c.beta2, t))) + c.epsilon);
      update[i] = r + c.weight_decay * x[i];
    }
    const double length = Norm(x), step = Norm(update);
    const double ratio = length == 0 || step == 0 ? 1 : length / step;
    for (size_t i = 0; i < x.size(); ++i) x[i] -= lr * ratio * update[i];
  }
};

TEST(Lamb, AgreesWithFloat64) {
  constexpr size_t kSize = 37;
  OptimizerConfig config = Adam(OptimizerKind::kLamb, 0.01f);
  config.epsilon = 1e-6f;
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  for (double start : {0.0, 1.0, 100.0}) {
    LambReference reference{config, std::vector<double>(kSize), std::vector<double>(kSize), std::vector<double>(kSize)};
    for (double& x : reference.x) x = static_cast<float>(start * normal(random));
    std::vector<float> w(reference.x.begin(), reference.x.end()), m(kSize), v(kSize), r(kSize);
    for (int step = 0; step < 120; ++step) {
      std::vector<double> g(kSize);
      for (double& value : g) value = static_cast<float>(normal(random));
      const UpdateScalars s = ComputeUpdateScalars(config, 0.01, step, 1, 1);
      double weights = 0, directions = 0;
      for (size_t i = 0; i < kSize; ++i) {
        AdamMoments(config, ReadyGradient(config, s, static_cast<float>(g[i])), m[i], v[i]);
        r[i] = LambDirection(config, s, w[i], m[i], v[i]);
        weights += std::pow(w[i], 2);
        directions += std::pow(r[i], 2);
      }
      const double trust = LambTrustRatio(std::sqrt(weights), std::sqrt(directions));
      for (size_t i = 0; i < kSize; ++i) w[i] -= static_cast<float>(s.learning_rate * trust) * r[i];
      reference.Step(g, 0.01);
    }
    for (size_t i = 0; i < kSize; ++i) EXPECT_NEAR(w[i], reference.x[i], 2e-5 * std::max(1.0, start)) << start;
  }
}

TEST(Lamb, TheTrustRatioIsOneWhereALengthIsZero) {
  EXPECT_EQ(LambTrustRatio(0, 3), 1);
  EXPECT_EQ(LambTrustRatio(3, 0), 1);
  EXPECT_EQ(LambTrustRatio(3, 2), 1.5);
}

TEST(Average, IsTheWeightedSumOfItsPast) {
  const double decay = 0.9;
  float average = 2;
  double expected = 2;
  for (int step = 0; step < 200; ++step) {
    const float w = static_cast<float>(std::sin(step));
    average = AverageElement(average, w, static_cast<float>(1 - decay));
    expected = decay * expected + (1 - decay) * w;
    ASSERT_NEAR(average, expected, 1e-6) << step;
  }
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
