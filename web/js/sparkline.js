// A line of a few points, as large as text.

import {svg} from './dom.js';

const WIDTH = 90;
const HEIGHT = 22;

function points(values, range) {
  const finite = values.filter(Number.isFinite);
  const [least, most] = range || [Math.min(...finite), Math.max(...finite)];
  const span = most - least || 1;
  return values
      .map(
          (value, i) =>
              [i * (WIDTH - 4) / Math.max(1, values.length - 1) + 2,
               HEIGHT - 3 - (value - least) / span * (HEIGHT - 6)])
      .filter(([, y]) => Number.isFinite(y))
      .map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`)
      .join(' ');
}

export class Sparkline {
  /** `range`: [least, most] of the values that may come; by default those that are there. */
  constructor(label, range) {
    this.range = range;
    this.line = svg('polyline', {class: 'line'});
    this.element =
        svg('svg', {class: 'spark', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': label}, this.line);
  }

  /** Values that are not finite are left out. */
  set(values) {
    const text = points(values, this.range);
    if (text === this.text) return;
    this.text = text;
    this.line.setAttribute('points', text);
  }
}
