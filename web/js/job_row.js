// A row of the table of jobs. Cells are changed in place, so that what has the focus keeps it.

import {h, setText} from './dom.js';
import {count, day, duration, number, rate, relative, time} from './format.js';
import {failureText, lossOf, modeOf, nameOf, progressOf, scaleOf, secondsLeft, waitingText} from './job_words.js';
import {Sparkline} from './sparkline.js';

export const SPARK_POINTS = 60;

export const COLUMNS = [
  {name: 'Compare', class: 'choose', hide: true},
  {name: 'Name'},
  {name: 'State', class: 'state-column'},
  {name: 'Progress', class: 'progress'},
  {name: 'Loss', class: 'loss'},
  {name: 'Accuracy', class: 'n wide'},
  {name: 'Mode', class: 'wide'},
  {name: 'Loss scale', class: 'n wide wider'},
  {name: 'Skipped', class: 'n wide'},
  {name: 'Samples/s', class: 'n wide'},
  {name: 'User', class: 'wide wider user'},
  {name: 'Created', class: 'wide created'},
];

export class JobRow {
  /** `onchoose(checked)` gives whether it may be. */
  constructor(id, onchoose) {
    this.id = id;
    this.check = h('input', {type: 'checkbox', tabindex: '-1', onchange: () => onchoose(this.check.checked)});
    this.link = h('a', {href: `#/jobs/${id}`, class: 'name', data: {job: id}});
    this.idText = h('span', {class: 'id'}, id);
    this.state = h('span', {class: 'state'});
    // In place of the column where there is no room for it.
    this.narrowState = h('span', {class: 'state narrow'});
    this.bar = h('progress', {max: '1'});
    this.progressText = h('span', {class: 'note'});
    this.lossText = h('span', {class: 'figure'});
    this.spark = new Sparkline('Loss');
    this.cells = {};
    this.element = h('tr', {data: {job: id}}, COLUMNS.map((column) => {
      const cell = h('td', {class: column.class}, this.content(column.name));
      this.cells[column.name] = cell;
      return cell;
    }));
  }

  content(column) {
    switch (column) {
      case 'Compare':
        return h('label', {class: 'tick'}, this.check);
      case 'Name':
        return [this.link, this.idText, this.narrowState];
      case 'State':
        return this.state;
      case 'Progress':
        return [this.bar, this.progressText];
      case 'Loss':
        return h('span', {class: 'both'}, this.lossText, this.spark.element);
      default:
        return null;
    }
  }

  update(job) {
    this.job = job;
    setText(this.link, nameOf(job));
    this.check.setAttribute('aria-label', `Compare ${nameOf(job)} ${job.id}`);
    for (const state of [this.state, this.narrowState]) {
      setText(state, job.state);
      state.dataset.state = job.state;
    }
    this.showProgress(job);
    setText(this.lossText, lossOf(job));
    this.follow(job);
    const {summary = {}} = job;
    setText(this.cells['Accuracy'], summary.accuracy === undefined ? '' : number(summary.accuracy, 3));
    setText(this.cells['Mode'], modeOf(job));
    setText(this.cells['Loss scale'], scaleOf(job));
    setText(this.cells['Skipped'], summary.steps_skipped > 0 ? count(summary.steps_skipped) : '');
    setText(this.cells['Samples/s'], job.state === 'RUNNING' ? rate(summary.samples_per_second) : '');
    setText(this.cells['User'], job.user);
    setText(this.cells['Created'], day(job.create_time));
    this.cells['Created'].title = time(job.create_time);
  }

  showProgress(job) {
    const share = progressOf(job);
    const waiting = waitingText(job);
    this.bar.hidden = share === undefined || waiting !== '' || job.state === 'FAILED' || job.state === 'SUCCEEDED';
    if (share !== undefined) this.bar.value = share;
    setText(this.progressText, waiting || failureText(job.failure) || this.pace(job));
    this.progressText.title = this.progressText.textContent;
  }

  pace(job) {
    const {step, total_steps: total} = job.summary || {};
    if (!(Number(total) > 0)) return '';
    const left = secondsLeft(job);
    return `${count(step)} / ${count(total)}${left === undefined ? '' : ` · ${duration(left)} left`}`;
  }

  /** Losses over the whole job so far, for the small line. */
  setLosses(values) {
    this.losses = values;
    this.spark.set(values);
  }

  follow(job) {
    const {step, loss} = job.summary || {};
    if (!this.losses || loss === undefined || step === this.lastStep) return;
    this.lastStep = step;
    this.losses.push(Number(loss));
    if (this.losses.length > 2 * SPARK_POINTS) this.losses = this.losses.filter((value, i) => i % 2 === 1);
    this.spark.set(this.losses);
  }

  /** What a filter is compared with. */
  words() {
    const {job} = this;
    const labels = Object.entries((job.spec && job.spec.labels) || {}).map(([key, value]) => `${key}=${value}`);
    return [nameOf(job), job.id, job.state, job.user, modeOf(job), job.queue_reason, ...labels].join(' ').toLowerCase();
  }

  /** Times that are told from now on. */
  tick() {
    if (this.job.estimated_start_time && relative(this.job.estimated_start_time)) this.showProgress(this.job);
  }
}
