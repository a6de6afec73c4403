// The head of a job's page: its name, state and figures, why it waits or ended, and what can be done to it.

import {act, identity, part} from './api.js';
import {askFor} from './ask_dialog.js';
import {fill, h, setText} from './dom.js';
import {FactList} from './fact_list.js';
import {bytes, count, duration, number, percent, rate, secondsBetween, time} from './format.js';
import {failureText, modeOf, nameOf, phaseRan, progressOf, scaleOf, secondsLeft, waitingText} from './job_words.js';
import {openDialog} from './keys.js';
import {hasEnded, verbsFor} from './states.js';

const VERBS = {
  cancel: 'Cancel',
  pause: 'Pause',
  resume: 'Resume',
  retry: 'Retry',
  checkpoint: 'Checkpoint now',
  update: 'Priority…'
};

function confirmCancel(job, action) {
  const dialog = openDialog(
      'Cancel the job?', h('p', {}, `${nameOf(job)} writes a checkpoint and ends.`),
      h('p', {class: 'buttons'}, h('button', {type: 'button', onclick: () => dialog.close()}, 'Let it run'),
        h('button', {
          type: 'button',
          class: 'danger',
          onclick: () => {
            dialog.close();
            action();
          }
        },
          'Cancel the job')));
}

const priorityOf = (job) => Number(((job.spec || {}).resources || {}).priority || 0);

const summaryOf = (job) => job.summary || {};
const hasSteps = (job) => Number(summaryOf(job).total_steps) > 0;

function runningText(job) {
  return job.start_time ? duration(secondsBetween(job.start_time, hasEnded(job) ? job.end_time : undefined)) : '';
}

function memoryText({plan = {}}) {
  return Number(plan.parameter_bytes) > 0 ? bytes(Number(plan.parameter_bytes) + Number(plan.activation_bytes)) : '';
}

function costText(job) {
  return job.cost_usd === undefined ? '' : `$${number(job.cost_usd, 3)} (${number(job.wasted_usd, 2)} wasted)`;
}

function labelsText({spec}) {
  return Object.entries((spec && spec.labels) || {}).map(([key, value]) => `${key}=${value}`).join(', ');
}

/** The figures in the head of a job; `sweep`: the link to its sweep. */
function factsOf(sweep) {
  const fact = (name, text, more) => ({name, text, ...more});
  return new FactList([
    fact('Step', (job) => (hasSteps(job) ? `${count(job.summary.step)} / ${count(job.summary.total_steps)}` : '')),
    fact('Epoch', (job) => (Number(summaryOf(job).epoch) > 0 ? count(job.summary.epoch) : '')),
    fact('Loss', (job) => number(summaryOf(job).loss)),
    fact('Evaluation loss', (job) => number(summaryOf(job).eval_loss)),
    fact('Accuracy', (job) => number(summaryOf(job).accuracy, 3)),
    fact('Mode', modeOf),
    fact('Loss scale', scaleOf),
    fact('Skipped', (job) => (hasSteps(job) ? count(job.summary.steps_skipped) : '')),
    fact(
        'Samples/s',
        (job) => (Number(summaryOf(job).samples_per_second) > 0 ? rate(job.summary.samples_per_second) : '')),
    fact(
        'Peak FLOPs used', (job) => summaryOf(job).model_flops_utilization === undefined ?
            '' :
            percent(job.summary.model_flops_utilization, 1)),
    fact('Time left', (job) => duration(secondsLeft(job))),
    fact('Running for', runningText),
    fact('Devices', (job) => (job.devices || []).join(', ')),
    fact('Parameters', ({plan = {}}) => (Number(plan.parameters) > 0 ? count(plan.parameters) : '')),
    fact('Planned memory', memoryText),
    fact('Priority', (job) => (priorityOf(job) !== 0 ? count(priorityOf(job)) : '')),
    fact('Attempt', (job) => (job.attempt > 1 ? count(job.attempt) : '')),
    fact('Cost', costText),
    fact('User', (job) => job.user),
    fact('Sweep', (job) => job.sweep && `${job.sweep.index} of ${job.sweep.count}`, {inner: sweep}),
    fact('Labels', labelsText, {kind: 'wide'}),
    fact('Created', (job) => time(job.create_time), {kind: 'wide'}),
    fact('Id', (job) => job.id, {kind: 'wide', inner: h('code', {class: 'id'})}),
  ]);
}

export class JobHeader {
  /** `changed(job)` gets the job as an action left it. */
  constructor(job, changed) {
    this.changed = changed;
    this.title = h('h1');
    this.state = h('span', {class: 'state', id: 'job-state', role: 'status'});
    this.actions = h('div', {class: 'actions'});
    this.notice = h('p', {class: 'notice', id: 'job-notice', hidden: true});
    this.problem = h('p', {class: 'notice error', role: 'alert', hidden: true});
    this.bar = h('progress', {max: '1', 'aria-label': 'Steps done'});
    this.sweep = h('a');
    this.facts = factsOf(this.sweep);
    // Why the job ended, as the event of that sequence says.
    this.end = {sequence: undefined, reason: ''};
    this.element =
        h('header', {class: 'job-head'},
          h('div', {class: 'heading'}, this.title, this.state, h('span', {class: 'fill'}), this.actions), this.problem,
          this.notice, this.bar, this.facts.element);
    this.onIdentity = () => this.showActions();
    addEventListener('identity', this.onIdentity);
    this.update(job);
  }

  update(job) {
    this.job = job;
    document.title = `${nameOf(job)} · ${job.state} · ampd`;
    setText(this.title, nameOf(job));
    setText(this.state, job.state);
    this.state.dataset.state = job.state;
    const share = progressOf(job);
    this.bar.hidden = share === undefined || job.state === 'SUCCEEDED';
    if (share !== undefined) this.bar.value = share;
    this.showWhy();
    this.readEnd();
    this.showFacts();
    this.showActions();
  }

  showWhy() {
    const {job, end} = this;
    const ended = hasEnded(job) && end.sequence === job.last_sequence;
    const why = waitingText(job) || failureText(job.failure) || (ended ? end.reason : '');
    this.notice.hidden = why === '';
    this.notice.classList.toggle('error', job.state === 'FAILED');
    setText(this.notice, why);
  }

  /** Of a job that has ended, the last event alone has the reason. */
  async readEnd() {
    const {id, state, last_sequence: sequence} = this.job;
    if (!hasEnded(this.job) || this.end.sequence === sequence) return;
    this.end = {sequence, reason: ''};
    try {
      const {events} = await part(id, 'events', {kinds: 'state_change', tail: 1});
      const [{state_change: change}] = events;
      // It may have been retried meanwhile.
      this.end = {sequence, reason: change.to === state ? change.reason : ''};
    } catch (error) {
      // It is read again when the job is.
      this.end = {sequence: undefined, reason: ''};
    }
    this.showWhy();
  }

  /** Figures of a step report, which come more often than the job is read. */
  step(report) {
    const [phase] = report.phases;
    const skipped = report.phases.reduce((sum, {steps_skipped: n}) => sum + Number(n), 0);
    const summary = {
      ...this.job.summary,
      step: report.last_step,
      total_steps: report.total_steps,
      epoch: report.epoch,
      samples_per_second: report.samples_per_second,
      steps_skipped: skipped
    };
    if (phase) Object.assign(summary, {loss_scale: phase.loss_scale, steps_applied: phase.steps_applied});
    if (phase && phaseRan(this.job.spec, phase.name, report)) summary.loss = phase.loss;
    if (report.step_seconds !== undefined) summary.step_seconds = report.step_seconds;
    this.job = {...this.job, summary};
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = undefined;
      const share = progressOf(this.job);
      if (share !== undefined) this.bar.value = share;
      this.bar.hidden = share === undefined;
      this.showFacts();
    });
  }

  tick() {
    this.showFacts();
  }

  showFacts() {
    const {sweep} = this.job;
    if (sweep) this.sweep.href = `#/sweeps/${sweep.sweep_id}`;
    this.facts.update(this.job);
  }

  showActions() {
    const verbs = identity().may_change ? verbsFor(this.job) : [];
    const text = verbs.join();
    if (text === this.verbs) return;
    this.verbs = text;
    fill(
        this.actions,
        verbs.map(
            (verb) => h(
                'button',
                {type: 'button', data: {verb}, class: verb === 'cancel' ? 'danger' : '', onclick: () => this.ask(verb)},
                VERBS[verb])));
  }

  ask(verb) {
    if (verb === 'cancel') {
      confirmCancel(this.job, () => this.act(verb));
    } else if (verb === 'update') {
      this.askPriority();
    } else {
      this.act(verb);
    }
  }

  askPriority() {
    const input = h('input', {type: 'number', min: '-1000', max: '1000', step: '1', required: true});
    input.value = priorityOf(this.job);
    const hint = 'From -1000 to 1000; higher ones run first.';
    askFor({
      title: 'Priority of the job',
      fields: [{name: 'priority', label: 'Priority', input, hint}],
      verb: 'Change it',
      action: async ({priority}) => {
        const {spec, plan, ...head} = await act(this.job.id, 'update', {priority: Number(priority)});
        this.changed({...head, spec: {...this.job.spec, resources: spec.resources}});
      }
    });
  }

  async act(verb) {
    const buttons = [...this.actions.querySelectorAll('button')];
    buttons.forEach((button) => (button.disabled = true));
    this.tell('');
    try {
      const answer = await act(this.job.id, verb);
      if (verb !== 'checkpoint') {
        const {spec, plan, ...head} = answer;
        this.changed(head);
      }
    } catch (error) {
      this.tell(`${VERBS[verb]}: ${error.message}`);
    }
    buttons.forEach((button) => (button.disabled = false));
  }

  tell(message) {
    this.problem.hidden = message === '';
    setText(this.problem, message);
  }

  close() {
    removeEventListener('identity', this.onIdentity);
  }
}
