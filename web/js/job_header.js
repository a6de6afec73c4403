// The head of a job's page: its name, state and figures, why it waits or failed, and what can be done to it.

import {act, identity} from './api.js';
import {askFor} from './ask_dialog.js';
import {facts, fill, h, setText} from './dom.js';
import {bytes, count, duration, number, percent, rate, secondsBetween, time} from './format.js';
import {failureText, modeOf, nameOf, progressOf, scaleOf, secondsLeft, waitingText} from './job_words.js';
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
    this.facts = h('div');
    this.element =
        h('header', {class: 'job-head'},
          h('div', {class: 'heading'}, this.title, this.state, h('span', {class: 'fill'}), this.actions), this.problem,
          this.notice, this.bar, this.facts);
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
    const why = waitingText(job) || failureText(job.failure);
    this.notice.hidden = why === '';
    this.notice.classList.toggle('error', job.state === 'FAILED');
    setText(this.notice, why);
    this.showFacts();
    this.showActions();
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
    if (phase)
      Object.assign(summary, {loss: phase.loss, loss_scale: phase.loss_scale, steps_applied: phase.steps_applied});
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
    const {job} = this;
    const {summary = {}} = job;
    const total = Number(summary.total_steps) > 0;
    const running =
        job.start_time ? secondsBetween(job.start_time, hasEnded(job) ? job.end_time : undefined) : undefined;
    const plan = job.plan || {};
    fill(this.facts, facts([
           ['Step', total ? `${count(summary.step)} / ${count(summary.total_steps)}` : ''],
           ['Epoch', Number(summary.epoch) > 0 ? count(summary.epoch) : ''],
           ['Loss', summary.loss === undefined ? '' : number(summary.loss)],
           ['Evaluation loss', summary.eval_loss === undefined ? '' : number(summary.eval_loss)],
           ['Accuracy', summary.accuracy === undefined ? '' : number(summary.accuracy, 3)],
           ['Mode', modeOf(job)],
           ['Loss scale', scaleOf(job)],
           ['Skipped', total ? count(summary.steps_skipped) : ''],
           ['Samples/s', Number(summary.samples_per_second) > 0 ? rate(summary.samples_per_second) : ''],
           [
             'Peak FLOPs used',
             summary.model_flops_utilization === undefined ? '' : percent(summary.model_flops_utilization, 1)
           ],
           ['Time left', duration(secondsLeft(job))],
           ['Running for', duration(running)],
           ['Devices', (job.devices || []).join(', ')],
           ['Parameters', Number(plan.parameters) > 0 ? count(plan.parameters) : ''],
           [
             'Planned memory',
             Number(plan.parameter_bytes) > 0 ? bytes(Number(plan.parameter_bytes) + Number(plan.activation_bytes)) : ''
           ],
           ['Priority', priorityOf(job) !== 0 ? count(priorityOf(job)) : ''],
           ['Attempt', job.attempt > 1 ? count(job.attempt) : ''],
           [
             'Cost',
             job.cost_usd === undefined ? '' : `$${number(job.cost_usd, 3)} (${number(job.wasted_usd, 2)} wasted)`
           ],
           ['User', job.user],
           [
             'Sweep',
             job.sweep && h('a', {href: `#/sweeps/${job.sweep.sweep_id}`}, `${job.sweep.index} of ${job.sweep.count}`)
           ],
           [
             'Labels',
             Object.entries((job.spec && job.spec.labels) || {}).map(([key, value]) => `${key}=${value}`).join(', '),
             'wide'
           ],
           ['Created', time(job.create_time), 'wide'],
           ['Id', h('code', {class: 'id'}, job.id), 'wide'],
         ]));
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
