#include "client/starter.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/names.h"

namespace ampd::client {
namespace {

struct Parts {
  Starter starter;
  // What to know first: comment lines.
  const char* notes;
  const char* model;
  const char* data;
  const char* training;
};

constexpr char kGlyphs[] = R"(data:
  # Ten classes of drawn characters, 28x28x1, made on the fly: needs no files. Your own images, beneath the daemon's data roots:
  #   train: {image_folder: {path: photos/train}}       # a folder a class, of JPEG and PNG files; needs image.size
  #   train: {npy: {inputs: train.npz}}                 # arrays x and y
  #   train: {idx: {images: train-images-idx3-ubyte.gz, labels: train-labels-idx1-ubyte.gz}}
  train: {glyphs: {samples: 20000}}
  eval: {glyphs: {samples: 2000}}
  #image: {random_crop_padding: 2}         # also size, normalize, random_flip
)";

constexpr char kArrays[] = R"(data:
  # Files beneath the daemon's data roots (--data-root), or dataset:NAME/PATH after `ampctl datasets upload NAME PATH`.
  train: {npy: {inputs: train.npz}}
  eval: {npy: {inputs: test.npz}}
)";

constexpr char kEpochs[] = R"(optimizer:
  adamw: {learning_rate: 0.001, weight_decay: 0.01}
  schedule: {cosine: {warmup_steps: 100}}
  #clip_global_norm: 1.0                   # of the unscaled gradients
  #ema: {decay: 0.999}                     # keeps a running average of the weights beside them

train:
  epochs: 10                              # or steps: 5000
  batch_size: 64                          # samples per update, over all devices
  #micro_batch_size: 32                    # a pass at a time of each device, where memory is short
  #eval_every_epochs: 2                    # or eval_every_steps: 500
  #early_stopping: {patience: 3}           # ends where so many evaluations in a row brought no lower loss
)";

constexpr char kRest[] = R"(
checkpoint:
  every_seconds: 300
  keep_last: 2
)";

// What every job may set, all at its default or harmless.
constexpr char kOptions[] = R"(
resources:
  gpus: 1                                 # devices, all at once; the job trains data parallel on them
  #priority: 0                             # -1000 to 1000; higher runs first
  #preemptible: true                       # may be stopped, after a checkpoint, for a job of higher priority
  #share: true                             # runs beside other such jobs on one device where memory allows
  #selector: {words: [H100]}               # also kind, min_memory_bytes, min_compute_capability

retry: {max_attempts: 3}
#limits: {max_run_seconds: 86400, max_skip_ratio: 0.5}     # the job fails rather than go past them
#labels: {team: vision}                    # `ampctl list --label team=vision` finds it again
#not_before: "2026-01-31T12:00:00Z"        # waits in the queue until then
)";

constexpr char kPrecision[] = R"(precision:
  mode: FP16                              # FP32, TF32, FP16, BF16, FP8, or AUTO: the fastest whose loss stays near FP32's
  #loss_scale: {kind: DYNAMIC, init: 65536, growth_interval: 2000}    # what FP16 does by itself
  #master_weights: true
)";

const std::vector<Parts>& AllParts() {
  static const auto& parts = *new std::vector<Parts>{
      {{"layers", "your own network, layer by layer, on generated characters"},
       "# A convolutional network on generated characters: runs as it is, and needs no files.\n",
       R"(model:
  # A sequence: each layer reads the one before. A layer with `inputs: [a, b]` reads those named instead.
  layers:
    - {name: conv1, conv2d: {filters: 16, kernel: [3, 3], padding: SAME, bias: false}}
    - {name: bn1, batch_norm: {}}
    - {name: relu1, relu: {}}
    - {name: pool1, max_pool: {size: [2, 2]}}
    - {name: conv2, conv2d: {filters: 32, kernel: [3, 3], padding: SAME, activation: RELU}}
    - {name: pool2, global_avg_pool: {}}
    - {name: head, dense: {units: 10}}      # one logit a class
  loss: {softmax_cross_entropy: {}}
)",
       kGlyphs,
       kEpochs},
      {{"mlp", "dense layers on arrays of numbers"},
       "# Dense layers on your own arrays, saved from Python: x floats [n, features]; y whole numbers from 0 for "
       "classes, else floats.\n"
       "#\n"
       "#   numpy.savez(\"DIR/train.npz\", x=x, y=y)      # and test.npz; start ampd with --data-root DIR\n",
       R"(model:
  preset:
    mlp:
      hidden: [16, 16]                    # features of the hidden layers
      outputs: 1                          # one: mean squared error; more: softmax cross-entropy over as many classes
)",
       kArrays,
       kEpochs},
      {{"convnet", "three large convolutions on images"},
       "# Three convolutions with batch norm on generated characters: runs as it is, and needs no files.\n",
       R"(model:
  preset:
    convnet:
      classes: 10
      filters: [32, 64, 128]
      kernels: [5, 7, 11]                 # sides; as many as filters
)",
       kGlyphs,
       kEpochs},
      {{"resnet", "a residual network on images"},
       "# A residual network on generated characters: runs as it is, and needs no files.\n",
       R"(model:
  preset:
    resnet:
      depth: 20                           # 20, 32, 44, 56, 110 for small images; 18, 34, 50, 101, 152 for large ones
      classes: 10
  #loss: {softmax_cross_entropy: {label_smoothing: 0.1}}
)",
       kGlyphs,
       R"(optimizer:
  sgd: {learning_rate: 0.1, momentum: 0.9, nesterov: true, weight_decay: 0.0005}
  schedule: {cosine: {warmup_steps: 100}}
  #decay_norms_and_biases: false

train:
  epochs: 20                              # or steps: 5000
  batch_size: 128                         # samples per update, over all devices
)"},
      {{"gpt2", "a language model on a text"},
       "# A small GPT-2 that learns to continue a text, byte by byte. Any text file does; the path is beneath the "
       "daemon's data roots\n"
       "# (--data-root), or dataset:NAME/PATH after `ampctl datasets upload NAME PATH`.\n",
       R"(model:
  preset:
    gpt2:
      layers: 4                           # the 124M model's: 12, as heads; features: 768; positions: 1024
      heads: 4
      features: 128
      positions: 128                      # the longest sequence
      vocabulary: 256                     # bytes
      dropout: 0.05
)",
       R"(data:
  train: {text: {path: input.txt, sequence_length: 128, stride: 64, end: 0.9}}       # the first 90%
  eval: {text: {path: input.txt, sequence_length: 128, begin: 0.9}}
)",
       R"(optimizer:
  adamw: {learning_rate: 0.0015, beta2: 0.99, weight_decay: 0.1}
  schedule: {cosine: {warmup_steps: 100}}
  clip_global_norm: 1.0

train:
  steps: 5000
  batch_size: 12                          # sequences per update

# What it would write by then, in text_sample events.
report: {samples: {every_steps: 250, text: {prompt: "\n", length: 300, temperature: 0.8}}}
)"},
      {{"unet", "a label for every pixel of an image"},
       "# A U-Net on your own arrays, saved from Python: images uint8 or floats [n, height, width] or [n, height, "
       "width, channels], sides\n"
       "# multiples of 2^depth, and labels whole numbers from 0, one a pixel.\n"
       "#\n"
       "#   numpy.savez(\"DIR/train.npz\", x=images, y=labels.reshape(n, -1))      # and test.npz; start ampd with "
       "--data-root DIR\n",
       R"(model:
  preset:
    unet:
      classes: 2
      depth: 3                            # levels below the first
      width: 16                           # filters of the first level
)",
       kArrays,
       kEpochs},
      {{"ssd", "boxes around the objects in an image"},
       "# A single-shot detector on your own arrays, saved from Python: x uint8 [n, size, size, 3]; y float32 [n, "
       "boxes, 5], for each box\n"
       "# its class from 0 (-1: no box) and x0, y0, x1, y1 in shares of the image's sides.\n"
       "#\n"
       "#   numpy.savez(\"DIR/train.npz\", x=x, y=y)      # and test.npz; start ampd with --data-root DIR\n",
       R"(model:
  preset:
    ssd:
      classes: 3                          # without the background
      size: 64                            # side of the images, a multiple of 32
      width: 16
)",
       kArrays,
       R"(optimizer:
  adamw: {learning_rate: 0.001}
  schedule: {cosine: {warmup_steps: 100}}
  clip_global_norm: 10

train:
  epochs: 30
  batch_size: 32
  eval_every_epochs: 5                    # reports the mean average precision
)"},
      {{"speech", "letters from recordings"},
       "# Spoken words to letters: a folder of wav files, beneath the daemon's data roots, whose names begin with what "
       "is said.\n",
       R"(model:
  preset:
    speech:                               # 29 outputs: the blank, space, ' and a to z
      filters: 16
      units: 64
      recurrent: LSTM                     # or GRU
      dropout: 0.4
)",
       R"(data:
  train:
    wav_folder:
      path: recordings
      exclude: ["*_0.wav"]
      transcript_by_prefix: {"yes": "yes", "no": "no"}
  eval:
    wav_folder:
      path: recordings
      include: ["*_0.wav"]
      transcript_by_prefix: {"yes": "yes", "no": "no"}
  #length_buckets: [32, 64, 128, 256]      # frames of 10 ms; the last holds the longest sound
)",
       R"(optimizer:
  adamw: {learning_rate: 0.004, weight_decay: 0.05}
  schedule: {cosine: {warmup_steps: 100}}
  clip_global_norm: 5

train:
  epochs: 30
  batch_size: 32
  eval_every_epochs: 2
)"},
      {{"acgan", "a generator of images by class"},
       "# A GAN that draws generated characters: runs as it is, and needs no files. `ampctl artifacts JOB` brings its "
       "pictures home.\n",
       R"(model:
  # Networks generator, trunk, source and class; phases discriminator and generator, each with an optimizer and a loss scale.
  preset:
    acgan:
      size: 28
      channels: 1
      classes: 10
      #noise: 100
)",
       R"(data:
  train: {glyphs: {samples: 10000}}       # or quickdraw, image_folder, npy, ...
)",
       R"(train:
  steps: 2000
  batch_size: 64

report: {samples: {every_steps: 250}}     # a picture, a row a class
)"},
  };
  return parts;
}

// The stem of the file's name where it makes a name for a job, else the starter's.
std::string JobName(const std::string& starter, const std::string& file) {
  const std::string stem = std::filesystem::path(file).stem().string();
  const bool fits = !stem.empty() && stem.size() <= 200 && IsMadeOf(stem, "_-. ") && stem != "-";
  return fits ? stem : starter;
}

}  // namespace

const std::vector<Starter>& Starters() {
  static const auto& starters = *new std::vector<Starter>([] {
    std::vector<Starter> all;
    for (const Parts& parts : AllParts()) all.push_back(parts.starter);
    return all;
  }());
  return starters;
}

absl::StatusOr<std::string> StarterText(const std::string& starter, const std::string& file) {
  std::vector<std::string> names;
  for (const Starter& one : Starters()) names.push_back(one.name);
  const auto found = std::find(names.begin(), names.end(), starter);
  if (found == names.end()) {
    return absl::InvalidArgumentError(absl::StrCat("no starter ", Quoted(starter), DidYouMean(starter, names),
                                                   " (one of ", absl::StrJoin(names, ", "), ")"));
  }
  const Parts& parts = AllParts()[static_cast<size_t>(found - names.begin())];
  const std::string shown = file.empty() ? "job.yaml" : file;
  return absl::StrCat(parts.notes, "#\n#   ampctl submit ", shown,
                      " --dry-run      # what it would be, layer by layer\n", "#   ampctl submit ", shown,
                      " --watch\n#\n",
                      "# Lines with # right before a name are further settings: take the # away to use them. Whatever "
                      "is not named has a default;\n"
                      "# --dry-run -o yaml shows them all, and `ampctl schema` tells an editor what there is.\n",
                      "name: \"", JobName(starter, file), "\"\n",
                      "seed: 1                                   # first weights, shuffling, dropout and augmentation "
                      "follow from it\n\n",
                      parts.model, "\n", parts.data, "\n", kPrecision, "\n", parts.training, kRest, kOptions);
}

}  // namespace ampd::client
