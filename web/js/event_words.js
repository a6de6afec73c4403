// An event of a job as one line for people: {kind, text, severity}.

import {bytes, count, number} from './format.js';
import {failureText, phaseRan} from './job_words.js';

function stateChange({from, to, reason, failure}) {
  const arrow = from === 'STATE_UNSPECIFIED' ? to : `${from} → ${to}`;
  return {
    text: [arrow, reason, failureText(failure)].filter(Boolean).join(': '),
    severity: to === 'FAILED' ? 'ERROR' : undefined
  };
}

function phaseText({name, loss, loss_scale: scale, learning_rate: rate, gradient_norm: norm}, ran) {
  return `${name === 'main' ? '' : name + ' '}loss ${ran ? number(loss) : '-'} scale ${number(scale)} lr ${
      number(rate)} norm ${ran ? number(norm) : '-'}`;
}

function step(report, spec) {
  const phases = report.phases.map((phase) => phaseText(phase, phaseRan(spec, phase.name, report)));
  const range = report.first_step === report.last_step ? count(report.last_step) :
                                                         `${count(report.first_step)}–${count(report.last_step)}`;
  return {
    text: `step ${range}: ${phases.join('; ')}, ${number(report.samples_per_second, 3)} samples/s`
  };
}

function skip({
  step: at,
  phase,
  stage,
  first_tensor: tensor,
  kind,
  scale_before: before,
  scale_after: after,
  epoch,
  batch,
  calibration
}) {
  const what = kind === 'KIND_NAN' ? 'NaN' : kind === 'KIND_INF' ? 'Inf' : kind;
  return {
    text: `step ${count(at)}${phase === 'main' ? '' : ` of ${phase}`} skipped: ${what} in ${tensor || 'a gradient'} (${
              stage}), ` +
        `epoch ${epoch} batch ${batch}, scale ${number(before)} → ${number(after)}${
              calibration ? ', calibrating' : ''}`,
    severity: calibration ? undefined : 'WARNING',
  };
}

function evaluation({step: at, metrics}) {
  const parts = Object.keys(metrics).sort().map((name) => `${name} ${number(metrics[name])}`);
  return {text: `step ${count(at)}: ${parts.join(', ')}`};
}

function checkpoint({
  checkpoint: name, size_bytes: size, write_seconds: seconds, already_written: before, best, mirror_error: problem,
}) {
  return {
    text: `${name}, ${bytes(size)}${before ? ', written before' : ` in ${number(seconds, 2)} s`}${
        best ? ', the best so far' : ''}${problem ? `; not copied: ${problem}` : ''}`,
    severity: problem ? 'WARNING' : undefined,
  };
}

function benchCell({mode, batch_size: batch, size, step_seconds: seconds, speed_up: factor, failure}) {
  const what = `${mode} ${size || `batch ${batch}`}`;
  if (failure) return {text: `${what}: ${failureText(failure)}`, severity: 'WARNING'};
  return {
    text: `${what}: ${number(Number(seconds) * 1000, 3)} ms${
        factor === undefined ? '' : `, ${number(factor, 3)} times as fast as FP32`}`
  };
}

function stepProfile({first_step: first, last_step: last, step_seconds: seconds, parts}) {
  const all = Number(seconds) * (Number(last) - Number(first) + 1);
  const most = parts.length && all > 0
      ? `; most in ${parts[0].name}, ${number(100 * Number(parts[0].seconds) / all, 3)}%` : '';
  return {text: `steps ${count(first)} to ${count(last)}: ${number(Number(seconds) * 1000, 3)} ms each${most}`};
}

function environment({engine_version: engine, devices, libraries, cpu_threads: threads, instruction_set: isa}) {
  const versions = Object.keys(libraries).sort().map((name) => `${name} ${libraries[name]}`);
  const parts = [`engine ${engine}`, ...devices, ...versions, `${count(threads)} threads`, isa];
  return {text: parts.filter(Boolean).join(', ')};
}

const WORDS = {
  state_change: stateChange,
  step,
  overflow_skip: skip,
  loss_scale_change: ({step: at, scale_before: before, scale_after: after}) =>
      ({text: `step ${count(at)}: ${number(before)} → ${number(after)}`}),
  evaluation,
  checkpoint,
  rewound: ({to_step: to, reason}) => ({text: `back to step ${count(to)}: ${reason}`, severity: 'WARNING'}),
  log: ({text, severity}) => ({text, severity}),
  precision_change: ({step: at, mode_before: before, mode_after: after, reason}) =>
      ({text: `step ${count(at)}: ${before} → ${after}: ${reason}`, severity: 'WARNING'}),
  gradient_diagnostics: ({step: at, tensors, largest_safe_scale: safe}) =>
      ({text: `step ${count(at)}: ${tensors.length} tensors, largest safe scale ${number(safe)}`}),
  step_profile: stepProfile,
  environment,
  artifact: ({name, size_bytes: size}) => ({text: `${name}, ${bytes(size)}`}),
  text_sample: ({step: at, prompt, text}) => ({text: `step ${count(at)}: ${prompt}${text}`}),
  bench_cell: benchCell,
  mode_chosen: ({mode, reason}) => ({text: `${mode}: ${reason}`}),
  corrupt_sample: ({file, reason}) => ({text: `${file}: ${reason}`, severity: 'WARNING'}),
};

/** The kinds there are, as JobEvent's payload names. */
export const KINDS = Object.keys(WORDS);

/** `spec`: the job's. */
export function wordsOf(event, spec) {
  const kind = KINDS.find((name) => event[name]);
  // Of a newer server.
  if (!kind) return {kind: 'other', text: JSON.stringify(event)};
  return {kind, ...WORDS[kind](event[kind], spec)};
}
