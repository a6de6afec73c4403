// The figures of a job by step, as /series gives them, and as step reports go on with them.

const PHASE_COLUMNS = ['loss', 'loss_scale', 'learning_rate', 'gradient_norm'];
const KINDS = ['min', 'max', 'mean', 'last'];

/** null, a number or "NaN" as a number. */
function value(v) {
  return v === null || v === undefined ? NaN : Number(v);
}

function columnsOf(columns) {
  const found = {};
  for (const [name, column] of Object.entries(columns || {})) {
    found[name] = {};
    for (const kind of KINDS) found[name][kind] = (column[kind] || []).map(value);
  }
  return found;
}

function emptyColumns(names) {
  return columnsOf(Object.fromEntries(names.map((name) => [name, {}])));
}

function push(columns, name, v) {
  if (!columns[name]) columns[name] = Object.fromEntries(KINDS.map((kind) => [kind, []]));
  for (const kind of KINDS) columns[name][kind].push(v);
}

/**
 * Phases {name, x, columns: {loss: {min, max, mean, last}, ...}}, throughput {x, columns}, evaluations {x, metrics},
 * skips {x, counts}.
 */
export class Series {
  constructor(body) {
    this.lastSequence = Number(body.last_sequence);
    this.firstStep = Number(body.first_step);
    this.lastStep = Number(body.last_step);
    this.totalSteps = Number(body.total_steps);
    this.phases = body.phases.map(
        (phase) => ({name: phase.name, x: phase.last_step.map(Number), columns: columnsOf(phase.columns)}));
    this.throughput = {x: body.throughput.last_step.map(Number), columns: columnsOf(body.throughput.columns)};
    const {step, metrics} = body.evaluations;
    this.evaluations = {x: step.map(Number), metrics: {}};
    for (const [name, values] of Object.entries(metrics)) this.evaluations.metrics[name] = values.map(value);
    this.skips = {x: [], counts: []};
    body.phases.forEach((phase) => this.addSkips(phase));
    this.appended = 0;
  }

  addSkips({last_step: steps, skipped}) {
    const counts = new Map(this.skips.x.map((step, i) => [step, this.skips.counts[i]]));
    skipped.forEach((n, i) => {
      if (n > 0) counts.set(Number(steps[i]), (counts.get(Number(steps[i])) || 0) + Number(n));
    });
    const sorted = [...counts].sort(([a], [b]) => a - b);
    this.skips = {x: sorted.map(([step]) => step), counts: sorted.map(([, n]) => n)};
  }

  /**
   * Goes on with an event, which is passed over where it is among the figures already; false where it makes them wrong,
   * so that they are to be read anew.
   */
  append({sequence, step, evaluation, overflow_skip: skip, rewound}) {
    if (Number(sequence) <= this.lastSequence) return true;
    this.lastSequence = Number(sequence);
    if (rewound) return false;
    if (step) this.appendStep(step);
    if (evaluation) this.appendEvaluation(evaluation);
    if (skip) this.appendSkip(Number(skip.step));
    return true;
  }

  appendStep(step) {
    const last = Number(step.last_step);
    if (last <= this.lastStep) return;
    if (this.firstStep === 0) this.firstStep = Number(step.first_step);
    this.lastStep = last;
    this.totalSteps = Number(step.total_steps);
    ++this.appended;
    for (const report of step.phases) {
      let phase = this.phases.find(({name}) => name === report.name);
      if (!phase) {
        phase = {name: report.name, x: [], columns: emptyColumns(PHASE_COLUMNS)};
        this.phases.push(phase);
      }
      phase.x.push(last);
      for (const name of PHASE_COLUMNS) push(phase.columns, name, value(report[name]));
    }
    this.throughput.x.push(last);
    push(this.throughput.columns, 'samples_per_second', value(step.samples_per_second));
  }

  appendEvaluation({step, metrics}) {
    const at = Number(step);
    const {x} = this.evaluations;
    if (x.length > 0 && at <= x[x.length - 1]) return;
    for (const name of Object.keys(metrics)) {
      if (!this.evaluations.metrics[name]) this.evaluations.metrics[name] = x.map(() => NaN);
    }
    x.push(at);
    for (const [name, values] of Object.entries(this.evaluations.metrics)) values.push(value(metrics[name]));
  }

  appendSkip(step) {
    const {x, counts} = this.skips;
    if (x.length > 0 && step <= x[x.length - 1]) return;
    x.push(step);
    counts.push(1);
  }
}

/** An exponential moving average, unbiased at its beginning; gaps stay gaps. */
export function smoothed(values, weight) {
  if (!(weight > 0)) return values;
  let mean = 0;
  let left = 1;
  return values.map((v) => {
    if (!Number.isFinite(v)) return v;
    mean = weight * mean + (1 - weight) * v;
    left *= weight;
    return mean / (1 - left);
  });
}
