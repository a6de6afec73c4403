// Ticks, and the mapping of values to pixels. Pure.

import {number} from './format.js';

function niceStep(span, ticks) {
  const rough = span / Math.max(1, ticks);
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const digit = rough / power;
  return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

/** Round values within [low, high], about `ticks` of them. */
export function linearTicks(low, high, ticks) {
  if (!(high > low)) return [low];
  const step = niceStep(high - low, ticks);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) found.push(i * step);
  return found;
}

/** Powers of `base`, at most about `ticks` of them; linear ticks where no two powers are within, but of 2 the one that is. */
export function logTicks(low, high, ticks, base = 10) {
  const first = Math.ceil(Math.log(low) / Math.log(base) - 1e-9);
  const last = Math.floor(Math.log(high) / Math.log(base) + 1e-9);
  if (base === 2 && last === first) return [Math.pow(2, first)];
  if (last - first < 1) return linearTicks(low, high, ticks).filter((value) => value > 0);
  const stride = Math.max(1, Math.ceil((last - first + 1) / Math.max(2, ticks)));
  const found = [];
  for (let power = first; power <= last; power += stride) found.push(Math.pow(base, power));
  return found;
}

/** An axis from `low` to `high` on the pixels from `from` to `to`. */
export class Axis {
  constructor({low, high, from, to, log = false, base = 10}) {
    this.log = log;
    this.base = base;
    this.low = low;
    this.high = high;
    this.from = from;
    this.shift = log ? Math.log(low) : low;
    const span = (log ? Math.log(high) : high) - this.shift;
    this.factor = (to - from) / (span || 1);
  }

  pixel(value) {
    return this.from + ((this.log ? Math.log(value) : value) - this.shift) * this.factor;
  }

  value(pixel) {
    const v = (pixel - this.from) / this.factor + this.shift;
    return this.log ? Math.exp(v) : v;
  }

  ticks(wanted) {
    return this.log ? logTicks(this.low, this.high, wanted, this.base) : linearTicks(this.low, this.high, wanted);
  }
}

/** A tick's label: short, also for large steps and for powers of two. */
export function tickLabel(value, base = 10) {
  if (base === 2 && value >= 1024 && Number.isInteger(Math.log2(value))) return `2^${Math.log2(value)}`;
  const size = Math.abs(value);
  if (size >= 1e6) return number(value / 1e6, 4) + 'M';
  if (size >= 1e4) return number(value / 1e3, 4) + 'k';
  return number(value, 4);
}

/**
 * [low, high] with room around the values, so that no line is drawn on the frame; on a logarithmic axis a power of
 * `base` at least.
 */
export function padded(low, high, log, base = 10) {
  if (!(low <= high)) return log ? [0.1, 1] : [0, 1];
  if (log) {
    const room =
        Math.max(Math.pow(high / low, 0.06), high > low ? 1.1 : 1, Math.min(base, Math.sqrt(base / (high / low))));
    return [low / room, high * room];
  }
  const room = high > low ? (high - low) * 0.06 : Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}
