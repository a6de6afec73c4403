"""Scenes for a detector: Quick, Draw! drawings of random sizes at random places, with a box around each.

usage: drawn_scenes.py QUICKDRAW_FOLDER OUT.npz SCENES [SEED]

Writes x, uint8 [scenes, SIDE, SIDE], and y, float32 [scenes, BOXES * 5]: of each drawing its class and the corners of
its ink in shares of the side, as the multibox loss reads them; class -1 where a scene has fewer. Scenes of one seed are
always the same. `hold_out` leaves the last quarter of each class's drawings to evaluation.
"""
import os
import sys

import numpy as np

SIDE, BOXES = 64, 3
CLASSES = ("apple", "clock", "diamond", "fish", "house")
SMALLEST, LARGEST = 16, 40


def enlarged(drawing, side):
    """The 28x28 drawing at another size, by nearest pixels, cut to its ink."""
    places = np.arange(side) * 28 // side
    ink = drawing.reshape(28, 28)[np.ix_(places, places)]
    rows, columns = np.flatnonzero(ink.max(1) > 64), np.flatnonzero(ink.max(0) > 64)
    if len(rows) < 4 or len(columns) < 4:
        return None
    return ink[rows[0]:rows[-1] + 1, columns[0]:columns[-1] + 1]


def overlaps(box, others):
    return any(box[0] < o[2] and o[0] < box[2] and box[1] < o[3] and o[1] < box[3] for o in others)


def scene(rng, drawings):
    image, target, boxes = np.zeros((SIDE, SIDE), np.uint8), np.full((BOXES, 5), -1, np.float32), []
    wanted = rng.integers(1, BOXES + 1)
    for _ in range(20):
        if len(boxes) == wanted:
            break
        kind = rng.integers(len(CLASSES))
        ink = enlarged(drawings[kind][rng.integers(len(drawings[kind]))], rng.integers(SMALLEST, LARGEST + 1))
        if ink is None:
            continue
        height, width = ink.shape
        top, left = rng.integers(SIDE - height + 1), rng.integers(SIDE - width + 1)
        box = (left, top, left + width, top + height)
        if overlaps(box, boxes):
            continue
        image[top:top + height, left:left + width] = ink
        target[len(boxes)] = (kind, *(edge / SIDE for edge in box))
        boxes.append(box)
    return image, target.reshape(-1)


def scenes(folder, count, seed=0, hold_out=False):
    drawings = []
    for name in CLASSES:
        array = np.load(os.path.join(folder, name + ".npy"))
        cut = len(array) * 3 // 4
        drawings.append(array[cut:] if hold_out else array[:cut])
    rng = np.random.default_rng([seed, hold_out])
    pairs = [scene(rng, drawings) for _ in range(count)]
    return np.stack([x for x, _ in pairs]), np.stack([y for _, y in pairs])


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    x, y = scenes(sys.argv[1], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) == 5 else 0)
    np.savez(sys.argv[2], x=x, y=y)


if __name__ == "__main__":
    main()
