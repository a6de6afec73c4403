// What a measurement found: the table of `ampctl bench` (client/output/bench_table.cc), with a bar for what modes differ in most.

import * as cli from './cli_text.js';
import {fill, h, table} from './dom.js';
import {failureText} from './job_words.js';

function has(name, text) {
  return (cell) => cell[name] === undefined ? '' : text(cell[name]);
}

function time(name) {
  return (cell) => Number(cell.steps) === 0 ? '' : cli.milliseconds(cell[name]);
}

function gap(value) {
  const percent = 100 * Number(value);
  return `${percent >= 0 ? '+' : ''}${cli.fixed(percent, 2)}%`;
}

// `text`: '' for a cell without that figure. `bar`: the field that one is drawn of. `note`: what the figure is. `wide`: not on a
// phone, where bars are to be seen without a finger.
const COLUMNS = [
  {name: 'ms/step', text: time('step_seconds')},
  {name: 'p10', text: time('step_seconds_p10'), wide: true},
  {name: 'p90', text: time('step_seconds_p90'), wide: true},
  {
    name: 'Samples/s',
    text: ({samples_per_second: rate}) => Number(rate) <= 0 ? '' : cli.count(rate),
  },
  {
    name: 'Speed-up',
    text: has('speed_up', (value) => `${cli.fixed(value, 2)}x`),
    bar: 'speed_up',
    note: 'FP32’s median time over this one’s, at the same size; the line marks FP32'
  },
  {
    name: 'Memory',
    text: has('peak_memory_bytes', cli.bytes),
    bar: 'peak_memory_bytes',
    note: 'what mode and batch take on the device'
  },
  {name: 'Busy', text: has('device_utilization', cli.percent), note: 'share of the CPU’s threads in use'},
  {name: 'GFLOP/s', text: has('flops_per_second', (value) => cli.general(Number(value) / 1e9, 4))},
  {name: 'MFU', text: has('model_flops_utilization', cli.percent), note: 'share of the device’s peak'},
  {name: 'Loss', text: has('loss', cli.figure)},
  {name: 'Gap', text: has('loss_gap', gap), note: 'loss over FP32’s'},
  {
    name: 'Flushed',
    text: has('underflow_share', cli.percent),
    note: 'gradients that FP16 makes zero at the scale reached'
  },
  {name: 'Skips', text: (cell) => cell.loss === undefined ? '' : String(cell.steps_skipped)},
  {name: '$/M samples', text: has('usd_per_million_samples', cli.figure)},
  {name: '$/M steps', text: has('usd_per_million_steps', cli.figure)},
];

function sizeOf(cell) {
  return cell.size || String(cell.batch_size);
}

function drawn(column, cell) {
  if (!column.bar || cell[column.bar] === undefined) return null;
  const value = Number(cell[column.bar]);
  if (!Number.isFinite(value)) return null;
  return h('div', {class: `bar ${column.bar}`, 'aria-hidden': 'true', vars: {'--value': value}}, h('i'));
}

export class BenchTable {
  constructor() {
    this.frame = h('div', {class: 'bench'});
    this.notes = h('p', {class: 'hint'});
    this.element = h('div', {}, this.frame, this.notes);
    this.shown = [];
  }

  /** `cells`: those of before and more, or others; at least one. `chosen`: the mode that AUTO took, if any. */
  show(cells, chosen) {
    const columns = COLUMNS.filter(({text}) => cells.some((cell) => !cell.failure && text(cell) !== ''));
    const failures = cells.some(({failure}) => failure);
    const names = [cells[0].size ? 'Size' : 'Batch', 'Mode', ...columns.map(({name}) => name)];
    if (failures) names.push('Failure');
    const form = [...names, chosen].join();
    const {shown} = this;
    const goesOn = form === this.form && shown.length <= cells.length && shown.every((cell, i) => cell === cells[i]);
    Object.assign(this, {columns, failures, chosen, form});
    if (!goesOn) this.begin(names);
    for (let i = this.shown.length; i < cells.length; ++i) this.rows.append(this.row(cells[i], cells[i - 1]));
    this.shown = [...cells];
    this.scaleBars();
  }

  begin(names) {
    const columns = names.map((name, i) => {
      if (i === 1 || name === 'Failure') return name;
      const {wide} = this.columns[i - 2] || {};
      return {name, class: wide ? 'n wide' : 'n'};
    });
    fill(this.frame, table('Measured', columns, []));
    this.rows = this.frame.querySelector('tbody');
    this.shown = [];
    const noted = this.columns.filter(({note}) => note);
    fill(this.notes, noted.map(({name, note}, i) => [i > 0 ? '; ' : '', h('b', {}, name), ` ${note}`]), '.');
    this.notes.hidden = noted.length === 0;
  }

  row(cell, before) {
    const figures = this.columns.map((column) => {
      const text = cell.failure ? '' : column.text(cell);
      return h('td', {class: column.wide ? 'n wide' : 'n'}, h('span', {}, text || '-'), text ? drawn(column, cell) : null);
    });
    const badge = cell.mode === this.chosen ? h('span', {class: 'badge'}, 'chosen') : null;
    const begins = before && sizeOf(before) !== sizeOf(cell);
    return h(
        'tr', {data: {mode: cell.mode}, class: begins ? 'begins' : undefined}, h('td', {class: 'n'}, sizeOf(cell)),
        h('th', {scope: 'row'}, cell.mode, badge && ' ', badge), figures,
        this.failures ? h('td', {class: 'failure'}, failureText(cell.failure)) : null);
  }

  /** Against the greatest of the table; speed-up against FP32's at the least. */
  scaleBars() {
    for (const {bar} of this.columns.filter((column) => column.bar)) {
      const values = this.shown.map((cell) => Number(cell[bar])).filter(Number.isFinite);
      this.frame.style.setProperty(`--most-${bar}`, values.reduce((most, value) => Math.max(most, value), 1));
    }
  }
}
