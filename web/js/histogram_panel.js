// The histogram of gradients by exponent, and what fp16 makes of them, without and with the loss scale.

import {part} from './api.js';
import {fill, h, svg} from './dom.js';
import {count, number, percent} from './format.js';

const WIDTH = 640;
const HEIGHT = 190;
const LEFT = 44;
const BOTTOM = 26;
const TOP = 8;
// fp16: 0 below 2^-25, subnormal below 2^-14, infinite from 2^16 on.
const RANGES = [['flushed', -Infinity, -25], ['subnormal', -25, -14], ['normal', -14, 16], ['infinite', 16, Infinity]];

/** What fp16 makes of 2^e <= |v| < 2^(e+1). */
function rangeOf(exponent) {
  return RANGES.find(([, low, high]) => exponent >= low && exponent < high)[0];
}

function countsOf(tensors) {
  const counts = new Map();
  for (const {first_exponent: first, exponent_counts: each} of tensors) {
    each.forEach((n, i) => counts.set(first + i, (counts.get(first + i) || 0) + Number(n)));
  }
  return counts;
}

function bars(counts, shift, low, high, most) {
  const step = (WIDTH - LEFT - 6) / (high - low + 1);
  const parts = [];
  for (let e = low; e <= high; ++e) {
    const n = counts.get(e - shift) || 0;
    const x = LEFT + (e - low) * step;
    if (n > 0) {
      const height = Math.max(1, n / most * (HEIGHT - TOP - BOTTOM));
      const bar = svg(
          'rect',
          {class: `bar ${rangeOf(e)}`, x: x + 0.5, y: HEIGHT - BOTTOM - height, width: Math.max(1, step - 1), height});
      bar.append(svg('title', {}, `2^${e}: ${count(n)} values, ${rangeOf(e)} in fp16`));
      parts.push(bar);
    }
    if (e % 10 === 0)
      parts.push(svg('text', {class: 'tick', x: x + step / 2, y: HEIGHT - 8, 'text-anchor': 'middle'}, `2^${e}`));
  }
  return parts;
}

function picture(title, counts, shift, low, high) {
  const most = Math.max(...counts.values(), 1);
  const total = [...counts.values()].reduce((sum, n) => sum + n, 0);
  return h(
      'figure', {class: 'histogram'}, h('figcaption', {}, title),
      svg('svg', {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        role: 'img',
        'aria-label': `${title}: ${count(total)} values by exponent`
      },
          svg('line', {class: 'axis', x1: LEFT, x2: WIDTH - 6, y1: HEIGHT - BOTTOM + 0.5, y2: HEIGHT - BOTTOM + 0.5}),
          svg('text', {class: 'tick', x: LEFT - 6, y: TOP + 8, 'text-anchor': 'end'},
              percent(most / Math.max(1, total))),
          bars(counts, shift, low, high, most)));
}

export class HistogramPanel {
  constructor(panel, job) {
    this.job = job;
    this.which = h('select', {id: 'histogram-step', onchange: () => this.load(this.which.value)});
    this.tensor = h('select', {id: 'histogram-tensor', onchange: () => this.draw()});
    this.summary = h('p', {class: 'note'});
    this.pictures = h('div', {class: 'histograms'});
    this.body =
        h('div', {hidden: true},
          h('div', {class: 'toolbar'},
            h('label',
              {for: 'histogram-step'
              },
              'Step'),
            this.which,
            h('label',
              {for: 'histogram-tensor'
              },
              'Tensor'),
            this.tensor),
          this.summary, this.pictures,
          h('p', {class: 'legend'}, RANGES.map(([name]) => h('span', {}, h('i', {class: name}), ` ${name} in fp16`))));
    this.none =
        h('p', {class: 'hint'},
          'No histograms: the job has no report.diagnostics_every_steps, or has not come that far.');
    panel.append(
        h('section', {class: 'gradient-histogram', 'aria-labelledby': 'histogram-title'},
          h('h3', {id: 'histogram-title'}, 'Gradient histogram'), this.none, this.body));
    this.load();
  }

  receive(event) {
    if (!event.gradient_diagnostics) return;
    // Whoever looks at an older one goes on with it.
    const newest = this.which.selectedIndex <= 0;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(newest ? undefined : this.which.value), 300);
  }

  async load(sequence) {
    try {
      const body = await part(this.job.id, 'histograms', {sequence});
      if (this.closed) return;
      this.showChoices(body);
    } catch (error) {
      if (!this.closed && error.status !== 0) fill(this.none, error.message);
    }
  }

  showChoices({available, sequence, diagnostics}) {
    this.none.hidden = available.length > 0;
    this.body.hidden = available.length === 0;
    if (!diagnostics) return;
    const several = new Set(available.map(({phase}) => phase)).size > 1;
    fill(
        this.which,
        [...available].reverse().map(
            (one) =>
                h('option', {value: one.sequence, selected: String(one.sequence) === String(sequence)},
                  `${count(one.step)}${several ? ` ${one.phase}` : ''}`)));
    const chosen = this.tensor.value;
    const names = diagnostics.tensors.map(({tensor}) => tensor);
    fill(
        this.tensor, h('option', {value: ''}, `all ${names.length}`),
        names.map((name) => h('option', {value: name, selected: name === chosen}, name)));
    this.diagnostics = diagnostics;
    this.draw();
  }

  draw() {
    const {scale, tensors} = this.diagnostics;
    const name = this.tensor.value;
    const chosen = name === '' ? tensors : tensors.filter(({tensor}) => tensor === name);
    const counts = countsOf(chosen);
    const shift = Math.round(Math.log2(Number(scale)));
    const exponents = [...counts.keys(), -26, 17];
    const low = Math.min(...exponents, ...exponents.map((e) => e + shift).filter((e) => e < 17));
    const high = Math.max(...counts.keys(), ...[...counts.keys()].map((e) => e + shift), 17);
    this.showSummary(chosen, Number(scale));
    fill(
        this.pictures, picture('As they are', counts, 0, low, high),
        picture(`With the loss scale ${number(scale)}`, counts, shift, low, high));
  }

  showSummary(chosen, scale) {
    const total = chosen.reduce((sum, {nonzero}) => sum + Number(nonzero), 0);
    const share = (field) =>
        chosen.reduce((sum, one) => sum + Number(one.nonzero) * Number(one[field]), 0) / Math.max(1, total);
    const safe = Math.min(...chosen.map(({largest_safe_scale: value}) => Number(value)));
    fill(
        this.summary,
        `${percent(share('flushed_unscaled'), 2)} of ${count(total)} values are flushed to zero in fp16 as they are, `,
        `${percent(share('flushed_scaled'), 2)} with the scale; ${
            percent(share('overflowed_scaled'), 2)} overflow with it. `,
        `Largest scale at which none does: ${number(safe)}${safe < scale ? ', less than the scale' : ''}.`);
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }
}
