// Several jobs in one plot.

import {fleetUrl, getJob, part} from './api.js';
import {Chart} from './chart.js';
import {ChartGroup} from './chart_group.js';
import {fill, h} from './dom.js';
import {EventStream} from './events_stream.js';
import {count, number, rate} from './format.js';
import {modeOf, nameOf} from './job_words.js';
import {choose, chosen} from './selection.js';
import {Series, smoothed} from './series.js';

const POINTS = 600;
// Milliseconds between two looks at a job that goes on.
const REST = 1500;

/** What can be compared: a name, and where it is in a Series as {x, y, low, high}. */
const FIGURES = [
  ['Training loss', ({phases}) => phases.map(({name, x, columns}) => ({name, x, y: columns.loss.mean}))],
  [
    'Loss scale',
    ({phases}) => phases.map(({name, x, columns}) => ({name, x, y: columns.loss_scale.last, stairs: true}))
  ],
  ['Learning rate', ({phases}) => phases.map(({name, x, columns}) => ({name, x, y: columns.learning_rate.last}))],
  ['Gradient norm', ({phases}) => phases.map(({name, x, columns}) => ({name, x, y: columns.gradient_norm.mean}))],
  [
    'Throughput (samples/s)',
    ({throughput: {x, columns}}) => (columns.samples_per_second ? [{x, y: columns.samples_per_second.mean}] : [])
  ],
];

function evaluationFigure(name) {
  return [`Evaluation ${name}`, ({evaluations: {x, metrics}}) => (metrics[name] ? [{x, y: metrics[name]}] : [])];
}

export class ComparePage {
  constructor(main, query) {
    document.title = 'Compare · ampd';
    const given = (query.get('jobs') || '').split(',').filter(Boolean);
    if (given.length > 0) choose(given);
    this.entries = chosen().map((id, i) => ({id, colour: `--series-${i + 1}`, shown: true}));
    this.group = new ChartGroup();
    this.group.addEventListener('view', () => this.onView());
    this.build(main, query.get('figure'));
    this.begin();
  }

  build(main, figure) {
    this.chart = new Chart(this.group, {title: 'Training loss'});
    this.chart.element.classList.add('large');
    this.figure = h('select', {id: 'figure', onchange: () => this.draw()});
    this.wanted = figure;
    this.logs = h('input', {type: 'checkbox', onchange: () => this.chart.setLog(this.logs.checked)});
    this.smooth = h('input', {
      type: 'range',
      id: 'compare-smooth',
      min: '0',
      max: '0.98',
      step: '0.02',
      value: '0',
      oninput: () => this.draw()
    });
    this.reset = h('button', {type: 'button', hidden: true, onclick: () => this.group.showAll()}, 'Show all steps');
    this.problem = h('p', {class: 'notice error', role: 'alert', hidden: true});
    this.rows = h('tbody');
    const heads =
        ['Shown', 'Job', 'State', 'Mode', 'Step', 'Loss', 'Evaluation loss', 'Accuracy', 'Skipped', 'Samples/s', ''];
    this.table =
        h('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Compared jobs'},
          h('table', {class: 'compare'}, h('caption', {class: 'hidden'}, 'Compared jobs'),
            h('thead', {},
              h('tr', {}, heads.map((name, i) => h('th', {scope: 'col', class: i > 3 && i < 10 ? 'n' : ''}, name)))),
            this.rows));
    const link = h('button', {type: 'button', onclick: () => this.share(link)}, 'Copy link');
    main.append(h('div', {class: 'heading'}, h('h1', {}, 'Compare')), this.problem);
    if (this.entries.length === 0) {
      main.append(
          h('p', {class: 'empty'}, 'Choose jobs by the boxes of the table of jobs (x on a row).'),
          h('p', {}, h('a', {href: '#/'}, 'All jobs')));
      return;
    }
    main.append(
        h('div', {class: 'toolbar'},
          h('label',
            {for: 'figure'
            },
            'Figure'),
          this.figure,
          h('label',
            {for: 'compare-smooth'
            },
            'Smoothing'),
          this.smooth, h('label', {class: 'tick'}, this.logs, 'Logarithmic'), this.reset, link),
        this.chart.element, this.table);
  }

  begin() {
    this.showFigures();
    for (const entry of this.entries) this.load(entry);
    if (this.entries.length === 0) return;
    this.stream = new EventStream({
      url: fleetUrl(),
      receive: (event, data) => this.receive(event, data),
      failed: (error) => this.fail(error),
    });
  }

  receive(event, data) {
    if (event !== 'job') return;
    const entry = this.entries.find(({id}) => id === data.id);
    if (!entry || entry.timer || entry.loading) return;
    entry.timer = setTimeout(() => {
      entry.timer = undefined;
      this.load(entry);
    }, REST);
  }

  async load(entry) {
    entry.loading = true;
    try {
      const [job, body] = await Promise.all([getJob(entry.id), part(entry.id, 'series', this.range())]);
      if (this.closed) return;
      entry.id = job.id;
      entry.job = job;
      entry.series = new Series(body);
      this.showFigures();
      this.showRows();
      this.draw();
    } catch (error) {
      if (!this.closed && error.status !== 0) this.fail(error);
    }
    entry.loading = false;
  }

  range() {
    const {view} = this.group;
    if (view === null) return {points: POINTS};
    const span = view.high - view.low;
    return {
      points: 2 * POINTS,
      from_step: Math.max(1, Math.floor(view.low - span / 2)),
      to_step: Math.max(1, Math.ceil(view.high + span / 2))
    };
  }

  onView() {
    this.reset.hidden = this.group.view === null;
    clearTimeout(this.settle);
    this.settle = setTimeout(() => this.entries.forEach((entry) => this.load(entry)), 150);
  }

  /** The figures that any of the jobs has. */
  showFigures() {
    const names = new Set(this.entries.flatMap(({series}) => (series ? Object.keys(series.evaluations.metrics) : [])));
    this.figures = [...FIGURES, ...[...names].sort().map(evaluationFigure)];
    if (this.figure.length === this.figures.length) return;
    const before = this.figure.value || this.wanted;
    fill(this.figure, this.figures.map(([name]) => h('option', {selected: name === before}, name)));
  }

  showRows() {
    fill(this.rows, this.entries.filter(({job}) => job).map((entry) => this.row(entry)));
  }

  row(entry) {
    const {job, colour} = entry;
    const summary = job.summary || {};
    const box = h('input', {
      type: 'checkbox',
      checked: entry.shown,
      'aria-label': `Show ${nameOf(job)} ${job.id}`,
      onchange: () => {
        entry.shown = box.checked;
        this.draw();
      }
    });
    const remove =
        h('button', {
          type: 'button',
          class: 'quiet',
          'aria-label': `Remove ${nameOf(job)} ${job.id}`,
          onclick: () => this.remove(entry)
        },
          '✕');
    const state = h('span', {class: 'state', data: {state: job.state}}, job.state);
    const figures = [
      count(summary.step), summary.loss === undefined ? '' : number(summary.loss),
      summary.eval_loss === undefined ? '' : number(summary.eval_loss),
      summary.accuracy === undefined ? '' : number(summary.accuracy, 3), count(summary.steps_skipped),
      rate(summary.samples_per_second)
    ];
    return h(
        'tr', {data: {job: job.id}},
        h('td', {}, h('label', {class: 'tick'}, box, h('i', {class: 'swatch', vars: {background: `var(${colour})`}}))),
        h('td', {}, h('a', {href: `#/jobs/${job.id}`, class: 'name'}, nameOf(job)), h('span', {class: 'id'}, job.id)),
        h('td', {}, state), h('td', {}, modeOf(job)), figures.map((text) => h('td', {class: 'n'}, text)),
        h('td', {}, remove));
  }

  remove(entry) {
    clearTimeout(entry.timer);
    this.entries = this.entries.filter((other) => other !== entry);
    choose(this.entries.map(({id}) => id));
    this.showRows();
    this.draw();
  }

  draw() {
    const [name, figure] = this.figures[Math.max(0, this.figure.selectedIndex)];
    const weight = Number(this.smooth.value);
    const there = this.entries.filter(({series, shown}) => series && shown);
    const lines = there.flatMap(
        ({job, series, colour}) =>
            figure(series).map((line, i) => ({
                                 ...line,
                                 colour,
                                 dash: i === 0 ? undefined : [2 + 3 * i, 3],
                                 y: smoothed(line.y, weight),
                                 dots: name.startsWith('Evaluation'),
                                 name: `${nameOf(job)}${series.phases.length > 1 && line.name ? ` ${line.name}` : ''}`,
                               })));
    if (this.group.view === null) this.group.setExtent(0, Math.max(1, ...there.map(({series}) => series.lastStep)));
    this.chart.options.title = name;
    fill(this.chart.element.querySelector('h3'), name);
    this.chart.setData(lines);
  }

  async share(button) {
    const address = new URL(location.href);
    address.hash =
        `#/compare?jobs=${this.entries.map(({id}) => id).join()}&figure=${encodeURIComponent(this.figure.value)}`;
    history.replaceState(null, '', address);
    try {
      await navigator.clipboard.writeText(address.href);
      fill(button, 'Copied');
    } catch (error) {
      fill(button, 'In the address bar');
    }
  }

  fail(error) {
    this.problem.hidden = false;
    fill(this.problem, error.message);
  }

  close() {
    this.closed = true;
    clearTimeout(this.settle);
    this.entries.forEach(({timer}) => clearTimeout(timer));
    if (this.stream) this.stream.close();
    this.chart.close();
  }
}
