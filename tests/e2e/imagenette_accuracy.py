"""Trains client/examples/convnet.yaml at 64x64 in each mode with three seeds and records what it reached.

    imagenette_accuracy.py [--size 256] [--seeds 1,2,3] [--modes FP32,BF16] [--jobs 2]

Writes tests/bench/results/DATE-imagenette.md (-SIZE where it is not 64). Fails when a run is below 35% (guessing gives 10%) or the
means of two modes are more than two standard errors of their difference apart, by the deviation between seeds within a mode. As the
furthest of three means of three seeds are so by chance now and then, eight seeds more decide where they are. Run by
`tests/run.sh --full`; exits with 77 where the data is absent.
"""

import argparse
import math
import statistics
import sys

import mode_accuracy
from mode_accuracy import MODES, SEEDS

FLOOR = 0.35
MORE_SEEDS = range(11, 19)


def judge(runs, modes, seeds):
    """How far the two furthest means are apart, and the standard error of their difference."""
    by_mode = {mode: [runs[mode, seed][0] for seed in seeds] for mode in modes}
    means = [statistics.mean(accuracies) for accuracies in by_mode.values()]
    deviation = math.sqrt(statistics.mean(statistics.variance(accuracies) for accuracies in by_mode.values()))
    error = deviation * math.sqrt(2 / len(seeds))
    apart = max(means) - min(means)
    verdict = (f"Between seeds of a mode the accuracy has a standard deviation of {deviation:.4f}, so the difference of two means a "
               f"standard error of {error:.4f};\nthe two that are furthest apart differ by {apart:.4f}.\n")
    return apart, error, verdict


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--size", type=int, default=64, help="of the images")
    parser.add_argument("--seeds", default=",".join(str(seed) for seed in SEEDS), help="two at least")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--jobs", type=int, default=1, help="at a time, one thread each")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    modes = arguments.modes.split(",")
    size = arguments.size
    sets = (f"data.image.size={size}", "data.cache.kind=MEMORY", "resources.cpu_threads=1")
    runs, told = mode_accuracy.train("imagenette224", "convnet.yaml", sets, arguments.jobs, modes, seeds)
    apart, error, verdict = judge(runs, modes, seeds)
    if apart > 2 * error:
        more = [seed for seed in MORE_SEEDS if seed not in seeds]
        runs.update(mode_accuracy.train("imagenette224", "convnet.yaml", sets, arguments.jobs, modes, more)[0])
        first, seeds = verdict, seeds + more
        apart, error, verdict = judge(runs, modes, seeds)
        verdict = f"Of all but the last {len(more)} seeds: {first}\nOf all: {verdict}"
    title = f"# The convnet preset on imagenette (1,200 + 400 photographs) at {size}x{size}, through the daemon"
    name = "imagenette" if size == 64 else f"imagenette-{size}"
    mode_accuracy.write_result(name, f"{title}\n\n{told}\n\n{mode_accuracy.table(runs, modes, seeds)}\n{verdict}")
    low = [f"{mode} seed {seed}" for (mode, seed), run in runs.items() if run[0] < FLOOR]
    if low or apart > 2 * error:
        sys.exit(f"below {FLOOR}: {low or 'none'}; means are {apart:.4f} apart, allowed {2 * error:.4f}")


if __name__ == "__main__":
    main()
