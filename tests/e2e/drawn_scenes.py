#!/usr/bin/env python3
"""Draws small scenes for detectors: coloured shapes on noise, and their boxes.

usage: drawn_scenes.py FILE.npz [--samples N] [--size PIXELS] [--boxes MOST] [--seed SEED] [--counts BITS]

Writes x, uint8 [samples, size, size, 3], and y, float32 [samples, boxes, 5]: class (0 square, 1 disc, 2 triangle; -1: no
box) and x0, y0, x1, y1 in shares of the image's sides. A scene has one to `boxes` shapes that overlap by at most a
quarter of the smaller one's box. Equal arguments give equal files. --counts: x is float32, the counts of a sensor of so many
bits less half of their range.
"""

import argparse

import numpy as np

CLASSES = ("square", "disc", "triangle")


def shape_mask(kind, side):
    """bool [side, side]: the pixels of a shape that fills its box."""
    rows, columns = np.mgrid[:side, :side] + 0.5
    if kind == 0:
        return np.ones((side, side), bool)
    if kind == 1:
        return (rows - side / 2)**2 + (columns - side / 2)**2 <= (side / 2)**2
    return np.abs(columns - side / 2) <= rows / 2


def overlaps(box, others):
    """Whether more than a quarter of the smaller of two boxes is the other's, too."""
    for other in others:
        width = min(box[2], other[2]) - max(box[0], other[0])
        height = min(box[3], other[3]) - max(box[1], other[1])
        smaller = min((b[2] - b[0])**2 for b in (box, other))
        if width > 0 and height > 0 and width * height > smaller / 4:
            return True
    return False


def draw_scene(rng, size, most):
    """An image, float [size, size, 3] from 0 to 255, and [most, 5] for its boxes."""
    image = rng.normal(128, 25, (size, size, 3))
    targets = np.full((most, 5), -1, np.float32)
    boxes = []
    for _ in range(rng.integers(1, most + 1)):
        kind, side = int(rng.integers(0, len(CLASSES))), int(rng.integers(size // 5, size // 2 + 1))
        x, y = (int(v) for v in rng.integers(0, size - side + 1, 2))
        box = (x, y, x + side, y + side)
        if overlaps(box, boxes):
            continue
        color = rng.uniform(0, 255, 3)
        # One that stands out from the gray.
        color[rng.integers(0, 3)] = rng.choice([0, 255])
        mask = shape_mask(kind, side)
        image[y:y + side, x:x + side][mask] = color + rng.normal(0, 10, (int(mask.sum()), 3))
        targets[len(boxes)] = (kind, *(v / size for v in box))
        boxes.append(box)
    return np.clip(image, 0, 255), targets


def draw(samples, size=64, most=3, seed=0):
    """x, uint8 [samples, size, size, 3], and y, float32 [samples, most, 5]."""
    rng = np.random.default_rng(seed)
    scenes = [draw_scene(rng, size, most) for _ in range(samples)]
    return np.stack([image for image, _ in scenes]).astype(np.uint8), np.stack([targets for _, targets in scenes])


def save(path, samples, size=64, most=3, seed=0, counts=0):
    x, y = draw(samples, size, most, seed)
    np.savez(path, x=(x.astype(np.float32) - 128) * 2**(counts - 8) if counts else x, y=y)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--boxes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--counts", type=int, default=0)
    args = parser.parse_args()
    save(args.file, args.samples, args.size, args.boxes, args.seed, args.counts)


if __name__ == "__main__":
    main()
