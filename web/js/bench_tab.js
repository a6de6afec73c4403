// What was measured: by a job with `bench`, cell by cell; or before the training of one whose mode is AUTO, at once.

import {part} from './api.js';
import {BenchTable} from './bench_table.js';
import {fill, h, setText} from './dom.js';
import {hasEnded} from './states.js';

const PAGE = 1000;
const RETRY = 2000;
// A whole sweep may come at once.
const DRAW_REST = 100;

/** Whether the page of a job has this tab. */
export function isMeasured({spec}) {
  return Boolean(spec.bench) || (spec.precision || {}).mode === 'AUTO';
}

export class BenchTab {
  constructor(panel, job) {
    this.job = job;
    this.note = h('p', {class: 'note', role: 'status'});
    this.problem = h('p', {class: 'notice error', role: 'alert', hidden: true});
    this.choice = h('section', {class: 'choice', 'aria-labelledby': 'mode-taken', hidden: true});
    this.table = new BenchTable();
    this.table.element.hidden = true;
    panel.append(this.problem, this.choice, this.note, this.table.element);
    this.load();
  }

  /** Reads all that came until now; what comes meanwhile is kept for after it. */
  async load() {
    this.loading = true;
    this.pending = [];
    this.cells = [];
    this.last = 0;
    try {
      for (const event of await this.read()) this.observe(event);
      this.loading = false;
      this.pending.forEach((event) => this.observe(event));
      this.problem.hidden = true;
    } catch (error) {
      this.problem.hidden = error.status === 0;
      fill(this.problem, error.message);
      if ((error.status === 0 || error.status >= 500) && !this.closed)
        this.timer = setTimeout(() => this.load(), RETRY);
    }
    if (!this.closed) this.draw();
  }

  async read() {
    const {id, spec} = this.job;
    // Told again by each attempt of a job that may have millions of other events.
    if (!spec.bench) return (await part(id, 'events', {kinds: 'mode_chosen', tail: 1})).events;
    const found = [];
    for (let after = 0;;) {
      const {events, next_after: next, last_sequence: last} =
          await part(id, 'events', {kinds: 'bench_cell,rewound', after, limit: PAGE});
      found.push(...events);
      if (Number(next) <= after || Number(next) >= Number(last)) return found;
      after = Number(next);
    }
  }

  observe({sequence, bench_cell: cell, mode_chosen: chosen, rewound}) {
    if (Number(sequence) <= this.last) return;
    this.last = Number(sequence);
    if (chosen) Object.assign(this, {chosen, cells: chosen.cells ?? []});
    if (!this.job.spec.bench) return;
    if (cell) this.cells.push(cell);
    // An attempt that began amid the cells of one size measures them anew.
    if (rewound) this.cells = this.cells.filter(({index}) => Number(index) <= Number(rewound.to_step));
  }

  receive(event) {
    if (!event.bench_cell && !event.mode_chosen && !event.rewound) return;
    if (this.loading) {
      this.pending.push(event);
      return;
    }
    this.observe(event);
    if (this.drawing) return;
    this.drawing = setTimeout(() => {
      this.drawing = undefined;
      this.draw();
    }, DRAW_REST);
  }

  update(job) {
    this.job = {...job, spec: this.job.spec};
    this.draw();
  }

  draw() {
    const {cells, chosen} = this;
    setText(this.note, this.loading ? '' : this.progress());
    this.note.hidden = this.note.textContent === '';
    this.table.element.hidden = cells.length === 0;
    this.choice.hidden = !chosen;
    if (cells.length > 0) this.table.show(cells, chosen && chosen.mode);
    if (!chosen || chosen === this.told) return;
    this.told = chosen;
    fill(this.choice, h('h3', {id: 'mode-taken'}, `AUTO takes ${chosen.mode}`), h('p', {}, chosen.reason));
  }

  progress() {
    const {cells, chosen, job} = this;
    if (job.spec.bench)
      return cells.length === 0 ? (hasEnded(job) ? 'Nothing was measured.' : 'Nothing is measured yet.') :
                                  `${cells.length} of ${cells[cells.length - 1].total} measured`;
    if (chosen) return '';
    return hasEnded(job) ? 'No mode was chosen.' : 'The modes are measured before the training begins.';
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    clearTimeout(this.drawing);
  }
}
