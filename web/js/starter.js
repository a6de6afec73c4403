// The job file that a new job begins with: runs as it is, and needs no files.

export const STARTER = `# A convolutional network on generated characters: runs as it is, and needs no files.
# "ampctl init" writes other starters; docs/job_file.md has every field.
name: my-job

model:
  # A sequence: each layer reads the one before.
  layers:
    - {name: conv1, conv2d: {filters: 16, kernel: [3, 3], padding: SAME, activation: RELU}}
    - {name: pool1, max_pool: {size: [2, 2]}}
    - {name: conv2, conv2d: {filters: 32, kernel: [3, 3], padding: SAME, activation: RELU}}
    - {name: pool2, global_avg_pool: {}}
    - {name: head, dense: {units: 10}}    # one logit a class
  loss: {softmax_cross_entropy: {}}

data:
  # Your own: image_folder, npy, csv, ... beneath the server's data roots, or
  # dataset:NAME/PATH after "ampctl datasets upload NAME PATH".
  train: {glyphs: {samples: 20000}}
  eval: {glyphs: {samples: 2000}}

precision:
  mode: FP16                 # FP32, TF32, FP16, BF16, FP8, or AUTO: the fastest

optimizer:
  adamw: {learning_rate: 0.001, weight_decay: 0.01}
  schedule: {cosine: {warmup_steps: 100}}

train:
  epochs: 2                  # or steps: 5000
  batch_size: 64

resources:
  gpus: 1                    # devices, all at once
  #priority: 0               # -1000 to 1000; higher runs first

# Many jobs of one file, one for each combination:
#sweep: {grid: {optimizer.adamw.learning_rate: [0.01, 0.001], seed: [1, 2]}}
`;
