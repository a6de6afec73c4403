// What is said of a job, the same on every page.

import {number, relative} from './format.js';

const PAUSED = {
  REQUESTED: 'paused on request',
  NO_DISK_SPACE: 'paused: the server has no room on its disk; it goes on by itself',
};

/** Why a job waits, with its place and when it may start; '' for one that does not. */
export function waitingText(job) {
  if (job.state === 'PAUSED') return PAUSED[job.pause_reason] || 'paused';
  if (job.state === 'RETRYING')
    return `failed, will be tried again${job.failure ? ': ' + failureText(job.failure) : ''}`;
  if (job.state !== 'QUEUED') return '';
  const reason = job.queue_reason && job.queue_reason !== 'QUEUE_REASON_UNSPECIFIED' ? job.queue_reason : '';
  const parts = [[reason, job.queue_message].filter(Boolean).join(': ')];
  if (job.queue_position > 0) parts.unshift(`#${job.queue_position}`);
  if (job.estimated_start_time) parts.push(`starts ${relative(job.estimated_start_time)}`);
  return parts.filter(Boolean).join(' · ');
}

export function failureText(failure) {
  if (!failure) return '';
  return [failure.class !== 'CLASS_UNSPECIFIED' ? failure.class : '', failure.message].filter(Boolean).join(': ');
}

/** 0 to 1, or undefined. */
export function progressOf(job) {
  const {step, total_steps: total} = job.summary || {};
  return Number(total) > 0 ? Math.min(1, Number(step) / Number(total)) : undefined;
}

/** Seconds until the last step at the pace of now; undefined where that cannot be told. */
export function secondsLeft(job) {
  const {step, total_steps: total, step_seconds: each} = job.summary || {};
  if (job.state !== 'RUNNING' || !(Number(each) > 0) || !(Number(total) > 0)) return undefined;
  return (Number(total) - Number(step)) * Number(each);
}

/** "FP16"; of AUTO the mode that it took, too. */
export function modeOf(job) {
  const mode = job.spec && job.spec.precision && job.spec.precision.mode;
  const taken = job.summary && job.summary.mode;
  if (!mode || mode === 'MODE_UNSPECIFIED') return '';
  return mode === 'AUTO' && taken && taken !== 'MODE_UNSPECIFIED' ? `AUTO (${taken})` : mode;
}

/** '' where nothing is scaled. */
export function scaleOf({summary = {}}) {
  return Number(summary.loss_scale) > 0 && Number(summary.loss_scale) !== 1 ? number(summary.loss_scale) : '';
}

export function nameOf(job) {
  return (job.spec && job.spec.name) || 'job';
}

/** Whether a phase, which runs in every N-th step, ran in those of a report; where it did not, its loss there is NaN. */
export function phaseRan({phases = []} = {}, name, {first_step: first, last_step: last}) {
  const phase = phases.find((one) => one.name === name);
  const every = Math.max(1, Number((phase && phase.every) || 1));
  return Math.floor(Number(last) / every) > Math.floor((Number(first) - 1) / every);
}

export function lossOf(job) {
  return job.summary && job.summary.loss !== undefined ? number(job.summary.loss) : '';
}
