"""Trains client/examples/fashion-mnist-convnet.yaml in each mode with three seeds and records what it reached.

Writes tests/bench/results/DATE-fashion-mnist.md. Fails when a run is below 90% or the means of the modes differ by more
than half a point. Run by `tests/run.sh --full`; exits with 77 where the data is absent.
"""

import statistics
import sys

import mode_accuracy
from mode_accuracy import MODES, SEEDS

FLOOR = 0.90
SPREAD = 0.005


def main():
    runs, told = mode_accuracy.train("fashion_mnist", "fashion-mnist-convnet.yaml", ["resources.cpu_threads=1"])
    title = "# Fashion-MNIST, all 60,000 + 10,000 images, through the daemon"
    mode_accuracy.write_result("fashion-mnist", f"{title}\n\n{told}\n\n{mode_accuracy.table(runs)}")
    means = [statistics.mean(runs[mode, seed][0] for seed in SEEDS) for mode in MODES]
    low = [f"{mode} seed {seed}" for (mode, seed), run in runs.items() if run[0] < FLOOR]
    if low or max(means) - min(means) > SPREAD:
        sys.exit(f"below {FLOOR}: {low or 'none'}; means differ by {max(means) - min(means):.4f}, allowed {SPREAD}")


if __name__ == "__main__":
    main()
