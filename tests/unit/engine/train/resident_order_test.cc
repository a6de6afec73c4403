// Whatever order a block's threads run in between two barriers, a resident step has the same bits: on the emulated
// device, which alone can be told the order.
#include <gtest/gtest.h>

#include "engine/backend/cuda_backend.h"
#include "tests/support/cuda_on_host/cuda_on_host.h"
#include "tests/unit/engine/train/device_jobs.h"

namespace ampd::train {
namespace {

// `between`: layers between two dense ones.
void ExpectNoChange(const std::string& between) {
  const ResolvedJobSpec spec =
      Spec({"model { layers { flatten {} } layers { dense { units: 12 activation: GELU } } " + between +
            "        layers { dense { units: 10 } } loss { softmax_cross_entropy { label_smoothing: 0.1 } } }"
            "precision { mode: FP16 loss_scale { init: 3e7 growth_interval: 2 } }"
            "optimizer { adamw {} ema { decay: 0.5 } clip_global_norm: 1 }"
            "data { train { glyphs { samples: 96 } } image { size: 12 } }"
            "train { batch_size: 16 epochs: 2 } report { every_steps: 1 } seed: 5"});
  std::vector<std::string> first_told;
  std::string first;
  for (unsigned order : {0, 1, 2, 3}) {
    cuda_on_host::SetFiberOrder(order);
    const ScratchFolder folder;
    TrainerOptions options = Options(folder.path());
    options.steps = StepMode::kResident;
    options.make_backend = [] { return MakeCudaBackend("", AutotuneFolder()); };
    Recorder recorder;
    const auto outcome = Train(spec, options, &recorder);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    const std::string manifest = ManifestOf(folder);
    ASSERT_NE(manifest, "none");
    if (order == 0) {
      first = manifest;
      first_told = Told(recorder);
    }
    EXPECT_EQ(manifest, first) << "order " << order;
    EXPECT_EQ(Told(recorder), first_told) << "order " << order;
  }
  cuda_on_host::SetFiberOrder(0);
}

TEST(ResidentOrder, ChangesNothing) { ExpectNoChange("layers { dropout { rate: 0.2 } }"); }

TEST(ResidentOrder, ChangesNothingOfDenseLayersTakenTogether) {
  ExpectNoChange("layers { dense { units: 33 activation: TANH } }");
}

}  // namespace
}  // namespace ampd::train
