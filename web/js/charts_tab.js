// The charts of a job. All share the range of steps; a closer look is fetched from the server, which down-samples.

import {part} from './api.js';
import {Chart} from './chart.js';
import {ChartGroup} from './chart_group.js';
import {h, setText} from './dom.js';
import {count} from './format.js';
import {HistogramPanel} from './histogram_panel.js';
import {Series, smoothed} from './series.js';
import {hasEnded} from './states.js';

const POINTS = 800;
// Points that came live before the whole is read anew.
const MOST_APPENDED = 400;
const RELOAD_REST = 5000;
const DRAW_REST = 80;
const SETTLE = 150;
const RETRY = 2000;
const COLOURS = 8;

function phaseLines(series, column, {kind = 'mean', band = false, stairs = false, smooth = 0}) {
  return series.phases.map(({name, x, columns}, i) => ({
                             name: series.phases.length > 1 ? name : '',
                             colour: `--series-${i % COLOURS + 1}`,
                             x,
                             y: smoothed(columns[column][kind], smooth),
                             low: band ? columns[column].min : undefined,
                             high: band ? columns[column].max : undefined,
                             stairs,
                           }));
}

export class ChartsTab {
  constructor(panel, job) {
    this.job = job;
    this.group = new ChartGroup();
    this.smooth = 0;
    this.build(panel);
    this.group.addEventListener('view', () => this.onView());
    this.load();
  }

  build(panel) {
    const {group} = this;
    this.charts = {
      loss: new Chart(group, {title: 'Loss'}),
      scale: new Chart(group, {title: 'Loss scale', log: true, base: 2}),
      rate: new Chart(group, {title: 'Learning rate', zero: true}),
      throughput: new Chart(group, {title: 'Throughput', unit: 'samples/s', zero: true}),
      norm: new Chart(group, {title: 'Gradient norm', log: true}),
    };
    this.reset = h('button', {type: 'button', hidden: true, onclick: () => this.showAll()}, 'Show all steps');
    this.note = h('span', {class: 'note', role: 'status'});
    const logs = h('input', {type: 'checkbox', id: 'log-loss', onchange: () => this.charts.loss.setLog(logs.checked)});
    const smooth = h('input', {
      type: 'range',
      id: 'smooth',
      min: '0',
      max: '0.98',
      step: '0.02',
      value: '0',
      oninput: () => this.setSmooth(Number(smooth.value))
    });
    this.grid = h('div', {class: 'charts'}, Object.values(this.charts).map((chart) => chart.element));
    panel.append(
        h('div', {class: 'toolbar'},
          h('label',
            {for: 'smooth'
            },
            'Smoothing'),
          smooth, h('label', {class: 'tick'}, logs, 'Logarithmic loss'), this.reset, this.note),
        this.grid,
        h('p', {class: 'hint'}, h('span', {class: 'skip-mark', 'aria-hidden': 'true'}, '▼'),
          ' a step without an update, because a gradient was Inf or NaN. ',
          'Drag to zoom, double-click to show all; + − ← → and 0 on a chart.'));
    this.histogram = new HistogramPanel(panel, this.job);
  }

  /** Reads the whole anew, and from there on events go on with it. */
  async load() {
    if (this.loading) return;
    this.loading = true;
    this.loadedAt = Date.now();
    clearTimeout(this.timer);
    this.pending = [];
    try {
      this.series = new Series(await part(this.job.id, 'series', {points: POINTS}));
      this.pending.forEach((event) => this.series.append(event));
      setText(this.note, '');
    } catch (error) {
      if (this.closed) return;
      if (error.status !== 0) setText(this.note, error.message);
      if (error.status === 0 || error.status >= 500) this.timer = setTimeout(() => this.load(), RETRY);
    }
    this.loading = false;
    if (!this.closed) this.draw();
  }

  receive(event) {
    this.histogram.receive(event);
    if (this.loading) this.pending.push(event);
    if (this.loading || !this.series) return;
    const many = this.series.appended > MOST_APPENDED && Date.now() - this.loadedAt > RELOAD_REST;
    if (!this.series.append(event) || many) {
      this.load();
    } else if (event.step || event.evaluation || event.overflow_skip) {
      this.scheduleDraw();
    }
  }

  scheduleDraw() {
    if (this.drawing) return;
    this.drawing = setTimeout(() => {
      this.drawing = undefined;
      this.draw();
    }, DRAW_REST);
  }

  update(job) {
    this.job = job;
  }

  setSmooth(weight) {
    this.smooth = weight;
    this.draw();
  }

  draw() {
    const {series} = this;
    if (!series) return;
    const planned = hasEnded(this.job) ? 0 : Math.min(series.totalSteps, 1.1 * series.lastStep);
    this.group.setExtent(Math.max(0, series.firstStep - 1), Math.max(series.lastStep, planned, 1));
    this.show(this.group.view && this.detail ? this.detail : series);
  }

  show(series) {
    const {charts, smooth} = this;
    const {x, metrics} = this.series.evaluations;
    const marks = series.skips.x;
    const lines = phaseLines(series, 'loss', {band: true, smooth});
    if (lines.length === 1 && metrics.loss) lines[0].name = 'training';
    if (metrics.loss) lines.push({name: 'evaluation', colour: '--series-3', x, y: metrics.loss, dots: true});
    charts.loss.setData(lines, marks);
    charts.scale.setData(phaseLines(series, 'loss_scale', {kind: 'last', stairs: true}), marks);
    // Of a job that scales nothing.
    charts.scale.element.hidden =
        marks.length === 0 && series.phases.every(({columns}) => columns.loss_scale.last.every((scale) => scale === 1));
    charts.rate.setData(phaseLines(series, 'learning_rate', {kind: 'last'}));
    charts.norm.setData(phaseLines(series, 'gradient_norm', {band: true, smooth}), marks);
    const {throughput} = series;
    const rates = throughput.columns.samples_per_second;
    charts.throughput.setData(
        rates ? [{name: '', colour: '--series-2', x: throughput.x, y: smoothed(rates.mean, smooth)}] : []);
    this.showMetrics(x, metrics);
    const skipped = this.series.skips.counts.reduce((sum, n) => sum + n, 0);
    charts.scale.canvas.dataset.skipped = skipped;
    charts.scale.setNote(skipped > 0 ? `${count(skipped)} skipped` : '');
  }

  /** Shares, as accuracies are, in one chart; any other metric in one of its own. */
  showMetrics(x, metrics) {
    const names = Object.keys(metrics).filter((name) => name !== 'loss').sort();
    const isShare = (name) => metrics[name].every((value) => !(value < 0 || value > 1));
    this.showMetric('Evaluation', x, names.filter(isShare), metrics);
    for (const name of names.filter((other) => !isShare(other)))
      this.showMetric(`Evaluation: ${name}`, x, [name], metrics);
  }

  showMetric(title, x, names, metrics) {
    if (names.length === 0 && !this.charts[title]) return;
    if (!this.charts[title]) {
      this.charts[title] = new Chart(this.group, {title});
      this.grid.append(this.charts[title].element);
    }
    this.charts[title].element.hidden = names.length === 0;
    this.charts[title].setData(
        names.map((name, i) => ({name, colour: `--series-${i % COLOURS + 1}`, x, y: metrics[name], dots: true})));
  }

  onView() {
    this.reset.hidden = this.group.view === null;
    clearTimeout(this.settle);
    if (this.group.view === null) {
      this.detail = undefined;
      this.draw();
      return;
    }
    this.settle = setTimeout(() => this.fetchDetail(), SETTLE);
  }

  /** The range that is shown and half of it on both sides, so that moving has something to show. */
  async fetchDetail() {
    const {view} = this.group;
    if (view === null || !this.series) return;
    const span = view.high - view.low;
    const from = Math.max(1, Math.floor(view.low - span / 2));
    const to = Math.max(from, Math.min(this.series.lastStep, Math.ceil(view.high + span / 2)));
    if (this.abort) this.abort.abort();
    this.abort = new AbortController();
    try {
      const body = await part(
          this.job.id, 'series', {points: 2 * POINTS, from_step: from, to_step: to}, {signal: this.abort.signal});
      if (this.closed || this.group.view !== view) return;
      this.detail = new Series(body);
      this.show(this.detail);
    } catch (error) {
      if (error.name !== 'AbortError' && error.status !== 0) setText(this.note, error.message);
    }
  }

  /** False where all is shown already. */
  showAll() {
    return this.group.showAll();
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    clearTimeout(this.settle);
    clearTimeout(this.drawing);
    if (this.abort) this.abort.abort();
    Object.values(this.charts).forEach((chart) => chart.close());
    this.histogram.close();
  }
}
