// A sweep: what each of its jobs sets, and how far it is.

import {getSweep} from './api.js';
import {fill, h, setText} from './dom.js';
import {FleetLook} from './fleet_look.js';
import {count, number} from './format.js';

/** Swept paths and their headings: the last name alone where no other path has it. */
function headings(jobs) {
  const paths = [...new Set(jobs.flatMap(({sweep}) => Object.keys(sweep.values || {})))].sort();
  const last = (path) => path.slice(path.lastIndexOf('.') + 1);
  const alone = (path) => paths.filter((other) => last(other) === last(path)).length === 1;
  return paths.map((path) => [path, alone(path) ? last(path) : path]);
}

function valueText(value) {
  if (value === undefined) return '';
  return typeof value === 'string' ? value : JSON.stringify(value);
}

function countsText({count: points, jobs}) {
  const states = new Map();
  for (const {state} of jobs) states.set(state, (states.get(state) || 0) + 1);
  const counts = [...states].sort().map(([state, jobs]) => `${jobs} ${state}`);
  return [`${points} ${points === 1 ? 'job' : 'jobs'}`, ...counts].join(' · ');
}

export class SweepPage {
  constructor(main, id) {
    document.title = 'Sweep · ampd';
    this.id = id;
    this.counts = h('p', {class: 'note', id: 'sweep-counts', role: 'status'});
    const problem = h('p', {class: 'notice error', role: 'alert', hidden: true});
    this.head = h('tr');
    this.rows = h('tbody');
    this.title = h('code', {class: 'id'}, id);
    main.append(
        h('div', {class: 'heading'}, h('h1', {}, 'Sweep'), this.title, this.counts), problem,
        h('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Jobs of the sweep'},
          h('table', {class: 'sweep'}, h('caption', {class: 'hidden'}, 'Jobs of the sweep'), h('thead', {}, this.head),
            this.rows)));
    this.look = new FleetLook({
      load: () => this.load(),
      matters: ({sweep}) => sweep && sweep.sweep_id === this.id,
      problem,
    });
  }

  async load() {
    const sweep = await getSweep(this.id);
    if (!this.look.closed) this.show(sweep);
  }

  show(sweep) {
    // It may have been a prefix.
    this.id = sweep.id;
    setText(this.title, sweep.id);
    setText(this.counts, countsText(sweep));
    const swept = headings(sweep.jobs);
    const figures = ['Step', 'Loss', 'Evaluation loss', 'Accuracy'];
    fill(
        this.head, ['#', ...swept.map(([, name]) => name), 'State'].map((name) => h('th', {scope: 'col'}, name)),
        figures.map((name) => h('th', {scope: 'col', class: 'n'}, name)), h('th', {scope: 'col'}, 'Job'));
    const focused = document.activeElement && document.activeElement.dataset.job;
    fill(this.rows, sweep.jobs.map((job) => this.row(job, swept)));
    if (focused) [...this.rows.querySelectorAll('a')].find(({dataset}) => dataset.job === focused).focus();
  }

  row(job, swept) {
    const {summary = {}} = job;
    const step = Number(summary.total_steps) > 0 ? `${count(summary.step)} / ${count(summary.total_steps)}` : '';
    const figures = [
      step, summary.loss === undefined ? '' : number(summary.loss),
      summary.eval_loss === undefined ? '' : number(summary.eval_loss),
      summary.accuracy === undefined ? '' : number(summary.accuracy, 3)
    ];
    const link =
        h('a', {href: `#/jobs/${job.id}`, class: 'name', 'aria-label': `Job ${job.sweep.index}`, data: {job: job.id}},
          job.sweep.index);
    return h(
        'tr', {data: {job: job.id}}, h('td', {}, link),
        swept.map(([path]) => h('td', {class: 'value'}, valueText((job.sweep.values || {})[path]))),
        h('td', {}, h('span', {class: 'state', data: {state: job.state}}, job.state)),
        figures.map((text) => h('td', {class: 'n'}, text)), h('td', {}, h('span', {class: 'id'}, job.id)));
  }

  close() {
    this.look.close();
  }
}
