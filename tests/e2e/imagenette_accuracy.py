"""Trains client/examples/convnet.yaml at 64x64 in each mode with three seeds and records what it reached.

Writes tests/bench/results/DATE-imagenette.md. Fails when a run is below 35% (guessing gives 10%) or the means of two modes are more than
two standard errors of their difference apart, by the deviation between seeds within a mode. Run by `tests/run.sh --full`; exits
with 77 where the data is absent.
"""

import math
import statistics
import sys

import mode_accuracy
from mode_accuracy import MODES, SEEDS

FLOOR = 0.35
SETS = ("data.image.size=64", "data.cache.kind=MEMORY", "resources.cpu_threads=1")


def main():
    runs, told = mode_accuracy.train("imagenette224", "convnet.yaml", SETS, devices=1)
    by_mode = {mode: [runs[mode, seed][0] for seed in SEEDS] for mode in MODES}
    means = [statistics.mean(accuracies) for accuracies in by_mode.values()]
    deviation = math.sqrt(statistics.mean(statistics.variance(accuracies) for accuracies in by_mode.values()))
    error = deviation * math.sqrt(2 / len(SEEDS))
    apart = max(means) - min(means)
    verdict = (f"Between seeds of a mode the accuracy has a standard deviation of {deviation:.4f}, so the difference of two means a "
               f"standard error of {error:.4f};\nthe two that are furthest apart differ by {apart:.4f}.\n")
    title = "# The convnet preset on imagenette (1,200 + 400 photographs) at 64x64, through the daemon"
    mode_accuracy.write_result("imagenette", f"{title}\n\n{told}\n\n{mode_accuracy.table(runs)}\n{verdict}")
    low = [f"{mode} seed {seed}" for (mode, seed), run in runs.items() if run[0] < FLOOR]
    if low or apart > 2 * error:
        sys.exit(f"below {FLOOR}: {low or 'none'}; means are {apart:.4f} apart, allowed {2 * error:.4f}")


if __name__ == "__main__":
    main()
