// A chart on a canvas: lines over steps, a band from least to most where points stand for many, marks, and a line that
// tells values.

import {drawBand, drawDots, drawLine, drawMarks, nearest, valuesWithin} from './chart_draw.js';
import {attachInput} from './chart_input.js';
import {fill, h, setText} from './dom.js';
import {count, number} from './format.js';
import {Axis, padded, tickLabel} from './scale.js';
import {colour} from './theme.js';

const LEFT = 52;
const RIGHT = 10;
const TOP = 14;
const BOTTOM = 20;

/**
 * `group`: the ChartGroup it is part of. Options: title, unit (of the values, for the line of values), log (values on a
 * logarithmic axis), base (its base, default 10), zero (the axis begins at 0).
 *
 * setData(series, marks): series are {name, colour: a CSS custom property, x, y, low, high, stairs, dots, dash}, x
 * ascending; `low` and `high` are optional and as long as y. Values that are not finite are gaps. marks: ascending
 * steps.
 */
export class Chart {
  constructor(group, options) {
    Object.assign(this, {group, options, log: options.log || false, series: [], marks: []});
    this.build();
    this.listeners = new AbortController();
    const {signal} = this.listeners;
    for (const kind of ['view', 'extent']) group.addEventListener(kind, () => this.invalidate(), {signal});
    group.addEventListener('hover', () => this.showHover(), {signal});
    document.addEventListener('themechange', () => this.invalidate(), {signal});
    this.resize = new ResizeObserver(() => this.invalidate());
    this.resize.observe(this.stage);
    attachInput(this);
  }

  build() {
    const {title} = this.options;
    this.canvas = h('canvas', {role: 'img', tabindex: '0', 'aria-label': title, data: {chart: title}});
    this.cursor = h('div', {class: 'cursor', hidden: true});
    this.selection = h('div', {class: 'selection', hidden: true});
    this.empty = h('p', {class: 'empty'}, 'Nothing yet');
    this.stage = h('div', {class: 'stage'}, this.canvas, this.cursor, this.selection, this.empty);
    this.values = h('span', {class: 'values'});
    this.tools = h('span', {class: 'tools'});
    const caption = h('figcaption', {}, h('h3', {}, title), this.values, this.tools);
    this.element = h('figure', {class: 'chart'}, caption, this.stage);
  }

  /** Ends it; the element is the caller's to remove. */
  close() {
    this.listeners.abort();
    this.resize.disconnect();
    cancelAnimationFrame(this.frame);
  }

  setData(series, marks = []) {
    this.series = series;
    this.marks = marks;
    this.invalidate();
  }

  setLog(log) {
    this.log = log;
    this.invalidate();
  }

  invalidate() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = undefined;
      this.draw();
    });
  }

  draw() {
    const {clientWidth: width, clientHeight: height} = this.stage;
    if (width === 0 || height === 0) return;
    const ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    const context = this.canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    this.layOut(width, height);
    this.drawFrame(context, width, height);
    this.drawSeries(context);
    this.showHover();
    this.describe();
  }

  layOut(width, height) {
    const {low, high} = this.group.range();
    this.x = new Axis({low, high, from: LEFT, to: width - RIGHT});
    let {least, most} = valuesWithin(this.series, low, high, this.log);
    if (this.options.zero && least > 0 && !this.log) least = 0;
    [least, most] = padded(least, most, this.log, this.options.base);
    if (this.options.zero && !this.log) least = Math.max(0, least);
    this.y = new Axis(
        {low: least, high: most, from: height - BOTTOM, to: TOP, log: this.log, base: this.options.base || 10});
  }

  drawFrame(context, width, height) {
    context.font = '11px system-ui, sans-serif';
    context.lineWidth = 1;
    context.fillStyle = colour('--muted');
    context.strokeStyle = colour('--grid');
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    const values = this.y.ticks(Math.max(2, Math.floor(height / 45)));
    const labels = values.map((value) => tickLabel(value, this.y.base));
    this.canvas.dataset.labels = labels.join(' ');
    for (const [i, value] of values.entries()) {
      const y = Math.round(this.y.pixel(value)) + 0.5;
      context.beginPath();
      context.moveTo(LEFT, y);
      context.lineTo(width - RIGHT, y);
      context.stroke();
      context.fillText(labels[i], LEFT - 6, y);
    }
    context.textBaseline = 'alphabetic';
    context.textAlign = 'center';
    for (const value of this.x.ticks(Math.max(2, Math.floor(width / 110)))) {
      if (value < this.x.low || value !== Math.round(value)) continue;
      context.fillText(tickLabel(value), Math.min(this.x.pixel(value), width - RIGHT - 12), height - 5);
    }
  }

  drawSeries(context) {
    let points = 0;
    for (const series of this.series) {
      const ink = colour(series.colour);
      if (series.low) drawBand(context, series, this.x, this.y, ink);
      points += drawLine(context, series, this.x, this.y, ink);
      if (series.dots) drawDots(context, series, this.x, this.y, ink);
    }
    const marks = drawMarks(context, this.marks, this.x, TOP, this.canvas.height, colour('--bad'));
    this.empty.hidden = points > 0 || marks > 0;
    // What is drawn now: for tests, and for whoever looks at the page from a script.
    Object.assign(this.canvas.dataset, {points, marks, series: this.series.length});
  }

  /** The line of values: at the step that is pointed at, else the newest. */
  showHover() {
    if (!this.x) return;
    const step = this.group.hover;
    const shown = step !== null && step >= this.x.low && step <= this.x.high;
    this.cursor.hidden = !shown;
    if (shown) this.cursor.style.setProperty('transform', `translateX(${this.x.pixel(step)}px)`);
    const parts = this.series.filter((series) => series.x.length > 0).map((series) => {
      const i = shown ? nearest(series.x, step) : series.x.length - 1;
      const swatch = h('i', {vars: {'background': `var(${series.colour})`}});
      const value = `${number(series.y[i])}${this.options.unit ? ' ' + this.options.unit : ''}`;
      return h(
          'span', {class: 'value'}, swatch, series.name ? h('span', {class: 'name'}, series.name) : null, ' ',
          h('b', {}, value));
    });
    fill(this.values, shown ? h('span', {class: 'step'}, `step ${count(Math.round(step))}`) : null, parts);
  }

  describe() {
    const parts = this.series.filter((series) => series.x.length > 0).map((series) => {
      const last = series.x.length - 1;
      return `${series.name || 'value'} ${number(series.y[last])} at step ${count(series.x[last])}`;
    });
    const marks = this.marks.length > 0 ? `; ${this.marks.length} steps skipped` : '';
    this.canvas.setAttribute('aria-label', `${this.options.title}: ${parts.join(', ') || 'nothing yet'}${marks}`);
  }

  /** A few words beside the title. */
  setNote(text) {
    setText(this.tools, text);
  }
}
