// Where the time of some steps went: profiles of the job, and one more on request.

import {act, identity, part} from './api.js';
import {fill, h, table} from './dom.js';
import {count, number} from './format.js';

const STEPS = 20;
// Profiles to choose from, and rows at first.
const KEPT = 20;
const ROWS = 25;
const TIMING = {
  HOST_CLOCK: 'timed by the host’s clock',
  DEVICE_EVENTS: 'timed by events on the device: a part holds the gap before it',
  KERNEL_ACTIVITY: 'timed by the device’s record of each kernel',
};
const BY = [['node', 'node'], ['layer', 'layer'], ['op', 'operation'], ['stage', 'stage'], ['kernel', 'GPU kernel']];

/** E.g. "12.5 ms". */
function shortTime(seconds) {
  if (seconds >= 1) return `${number(seconds, 3)} s`;
  return seconds >= 1e-3 ? `${number(seconds * 1e3, 3)} ms` : `${number(seconds * 1e6, 3)} µs`;
}

function stageWord({stage}) {
  return stage === 'STAGE_UNSPECIFIED' ? '' : stage.toLowerCase();
}

function keyOf(one, by) {
  const own = one.phase ? `${one.phase}: ${one.name}` : one.name;
  if (by === 'layer') return one.layer || own;
  if (by === 'op') return one.op || one.name;
  return by === 'stage' ? stageWord(one) || own : own;
}

/** The longest first; sums over the profiled steps. */
export function rowsOf(profile, by) {
  const rows = new Map();
  for (const one of by === 'kernel' ? profile.kernels : profile.parts) {
    const name = by === 'kernel' ? `${one.name}${one.layer ? ` (${one.layer})` : ''}` : keyOf(one, by);
    const row = rows.get(name) || {name, stages: new Set(), dtypes: new Set(), calls: 0, seconds: 0, flops: 0, bytes: 0};
    if (one.stage) row.stages.add(stageWord(one));
    if (one.dtype) row.dtypes.add(one.dtype);
    for (const field of ['calls', 'seconds', 'flops', 'bytes']) row[field] += Number(one[field] || 0);
    rows.set(name, row);
  }
  return [...rows.values()].sort((a, b) => b.seconds - a.seconds);
}

export class ProfileTab {
  constructor(panel, job) {
    this.job = job;
    this.profiles = [];
    this.button = h('button', {type: 'button', onclick: () => this.ask()}, `Profile ${STEPS} steps`);
    this.which = h('select', {id: 'profile-steps', onchange: () => this.draw()});
    this.by = h(
        'select', {id: 'profile-by', onchange: () => this.draw()}, BY.map(([value, word]) => h('option', {value}, word)));
    this.problem = h('p', {class: 'notice error', role: 'alert', hidden: true});
    this.summary = h('p', {class: 'note'});
    this.body = h('div', {class: 'profile'});
    this.more = h('button', {type: 'button', hidden: true, onclick: () => this.showAllRows()}, 'Show all rows');
    this.choice =
        h('span', {class: 'toolbar', hidden: true}, h('label', {for: 'profile-steps'}, 'Steps'), this.which,
          h('label', {for: 'profile-by'}, 'By'), this.by);
    panel.append(
        h('div', {class: 'toolbar'}, this.button, this.choice), this.problem, this.summary, this.body,
        h('p', {class: 'more'}, this.more));
    this.onIdentity = () => this.showButton();
    addEventListener('identity', this.onIdentity);
    this.showButton();
    this.load();
  }

  update(job) {
    this.job = job;
    this.showButton();
  }

  receive(event) {
    if (!event.step_profile) return;
    // What was asked for took longer than the answer waits.
    this.problem.hidden = true;
    this.loadSoon();
  }

  showButton() {
    this.button.hidden = !identity().may_change || this.job.state !== 'RUNNING' || Boolean(this.job.spec.bench);
    this.button.disabled = Boolean(this.asking);
    this.button.textContent = this.asking ? `Timing ${STEPS} steps…` : `Profile ${STEPS} steps`;
    if (this.profiles.length > 0) return;
    const how = this.button.hidden ? 'A running job can be profiled, by whoever may change it.' : '';
    fill(this.summary, this.asking ? `Timing the next ${STEPS} steps…` : `No profile yet. ${how}`);
  }

  async ask() {
    this.asking = true;
    this.problem.hidden = true;
    this.showButton();
    try {
      await act(this.job.id, 'profile', {steps: STEPS});
    } catch (error) {
      this.tell(error);
    }
    this.asking = false;
    if (this.closed) return;
    this.showButton();
    // The event may be here before the answer, or not at all where the stream is away.
    this.loadSoon();
  }

  loadSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), 100);
  }

  async load() {
    try {
      const {events} = await part(this.job.id, 'events', {kinds: 'step_profile', tail: KEPT});
      if (!this.closed) this.showChoices(events);
    } catch (error) {
      this.tell(error);
    }
  }

  tell(error) {
    if (this.closed || error.status === 0) return;
    this.problem.hidden = false;
    fill(this.problem, error.message);
  }

  showChoices(events) {
    // Whoever looks at an older one goes on with it.
    const chosen = this.which.selectedIndex > 0 ? this.which.value : '';
    this.profiles = [...events].reverse();
    fill(
        this.which,
        this.profiles.map(
            ({sequence, step_profile: {first_step: first, last_step: last}}) =>
                h('option', {value: sequence, selected: String(sequence) === chosen}, `${count(first)} to ${count(last)}`)));
    this.choice.hidden = this.profiles.length === 0;
    this.showButton();
    this.draw();
  }

  showAllRows() {
    this.all = true;
    this.draw();
    // The button that had the focus is gone.
    this.body.querySelector('[tabindex]').focus();
  }

  draw() {
    const chosen = this.profiles[Math.max(0, this.which.selectedIndex)];
    if (!chosen) return;
    const profile = chosen.step_profile;
    const steps = Number(profile.last_step) - Number(profile.first_step) + 1;
    const usual = profile.usual_step_seconds === undefined ?
        '' :
        `, ${shortTime(Number(profile.usual_step_seconds))} when not profiled`;
    fill(
        this.summary,
        `${shortTime(Number(profile.step_seconds))} a step${usual}; ${TIMING[profile.timing] || profile.timing}. `,
        profile.note);
    const rows = rowsOf(profile, this.by.value);
    this.more.hidden = this.all || rows.length <= ROWS;
    const shown = this.all ? rows : rows.slice(0, ROWS);
    if (rows.length === 0 && this.by.value === 'kernel') {
      fill(this.body, h('p', {class: 'hint'}, 'Kernels by name are there on GPUs, where the worker finds NVIDIA’s CUPTI.'));
      return;
    }
    const known = rows.reduce((sum, {seconds}) => sum + seconds, 0) / steps;
    const waiting = Number(profile.input_wait_seconds);
    const rest = [
      {name: '(waiting for input)', seconds: waiting * steps},
      {name: '(between: the host’s own work)', seconds: Math.max(0, Number(profile.step_seconds) - known - waiting) * steps},
    ];
    this.drawTable([...shown, ...rest], steps, Number(profile.step_seconds));
  }

  drawTable(rows, steps, stepSeconds) {
    const title = BY.find(([value]) => value === this.by.value)[1];
    const columns = [
      {name: title[0].toUpperCase() + title.slice(1), class: 'name'}, {name: 'Time', class: 'n'}, {name: 'Share', class: 'share'},
      {name: 'Calls', class: 'n wide'}, {name: 'GFLOP/s', class: 'n'}, {name: 'GB/s', class: 'n wide'},
      {name: 'Stage', class: 'wide'}, {name: 'Computes in', class: 'wide'}
    ];
    fill(this.body, table('Where the time of a step goes', columns, rows.map((row) => this.cells(row, steps, stepSeconds))));
  }

  cells({name, seconds, calls, flops, bytes, stages = [], dtypes = []}, steps, stepSeconds) {
    const share = stepSeconds > 0 ? seconds / steps / stepSeconds : 0;
    const bar = h('span', {class: 'bar', 'aria-hidden': 'true'}, h('i', {vars: {'--value': share}}));
    const perSecond = (amount) => amount > 0 && seconds > 0 ? number(amount / seconds / 1e9, 3) : '';
    return [
      name, shortTime(seconds / steps), [bar, ` ${(100 * share).toFixed(1)}%`], calls ? number(calls / steps, 3) : '',
      perSecond(flops), perSecond(bytes), [...stages].join(', '), [...dtypes].join(', ')
    ];
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    removeEventListener('identity', this.onIdentity);
  }
}
