// Fetches the losses of rows that come into sight, few at a time.

import {part} from './api.js';
import {toNumber} from './format.js';
import {SPARK_POINTS} from './job_row.js';

const AT_ONCE = 2;

export class SparkLoader {
  constructor() {
    this.rows = new WeakMap();
    this.waiting = [];
    this.running = 0;
    this.observer = new IntersectionObserver((entries) => this.see(entries));
  }

  close() {
    this.observer.disconnect();
    this.waiting = [];
  }

  watch(row) {
    this.rows.set(row.element, row);
    this.observer.observe(row.element);
  }

  see(entries) {
    for (const {target, isIntersecting} of entries) {
      if (!isIntersecting) continue;
      this.observer.unobserve(target);
      this.waiting.push(this.rows.get(target));
    }
    this.next();
  }

  async next() {
    if (this.running >= AT_ONCE || this.waiting.length === 0) return;
    ++this.running;
    const row = this.waiting.shift();
    try {
      const {phases} = await part(row.id, 'series', {points: SPARK_POINTS});
      const losses = phases.length > 0 ? phases[0].columns.loss.mean : [];
      row.setLosses(losses.map((value) => (value === null ? NaN : toNumber(value))));
    } catch (error) {
      // A row without its line is still a row.
    }
    --this.running;
    this.next();
  }
}
