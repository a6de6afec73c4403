// The table of jobs: what runs, what waits in its order, what has ended. Rows stay the same elements while their jobs
// change.

import {h, setText} from './dom.js';
import {COLUMNS, JobRow} from './job_row.js';
import {nameOf} from './job_words.js';
import {chosen, MOST, toggle} from './selection.js';
import {SparkLoader} from './spark_loader.js';
import {groupOf, hasEnded} from './states.js';

const GROUPS = [['running', 'Running'], ['waiting', 'Waiting'], ['ended', 'Ended']];
const FAR = 1e9;

/** Below 0 when `a` stands before `b`: the queue by its places, all else newest first. */
function compare(a, b) {
  const places = (a.job.queue_position || FAR) - (b.job.queue_position || FAR);
  if (places !== 0) return places;
  return a.id < b.id ? 1 : -1;
}

export class JobsTable {
  constructor() {
    this.rows = new Map();
    this.filter = '';
    // No older jobs are left on the server.
    this.complete = false;
    this.body = {};
    this.sparks = new SparkLoader();
    this.build();
    this.onChoice = () => this.showChosen();
    addEventListener('choice', this.onChoice);
    this.timer = setInterval(() => this.rows.forEach((row) => row.tick()), 1000);
  }

  close() {
    removeEventListener('choice', this.onChoice);
    clearInterval(this.timer);
    this.sparks.close();
  }

  build() {
    const heads = COLUMNS.map(
        (column) =>
            h('th', {scope: 'col', class: column.class},
              column.hide ? h('span', {class: 'hidden'}, column.name) : column.name));
    const bodies = GROUPS.map(([group, title]) => {
      const head = h('th', {scope: 'rowgroup', colspan: COLUMNS.length});
      this.body[group] =
          {title, head, element: h('tbody', {data: {group}, hidden: true}, h('tr', {class: 'group'}, head)), rows: []};
      return this.body[group].element;
    });
    this.empty = h('p', {class: 'empty', hidden: true});
    this.status = h('p', {class: 'hidden', role: 'status'});
    const table = h(
        'table', {class: 'jobs'}, h('caption', {class: 'hidden'}, 'Jobs'), h('thead', {}, h('tr', {}, heads)), bodies);
    this.element = h('div', {class: 'scroll'}, table, this.empty, this.status);
  }

  /** The first jobs have come, or there are none. */
  ready() {
    this.loaded = true;
    this.arrange();
  }

  update(jobs) {
    for (const job of jobs) {
      let row = this.rows.get(job.id);
      if (!row) {
        row = new JobRow(job.id, () => this.chooseRow(row));
        this.rows.set(job.id, row);
        row.update(job);
        this.sparks.watch(row);
        continue;
      }
      row.update(job);
    }
    this.showChosen();
    this.arrange();
  }

  nameOf(id) {
    const row = this.rows.get(id);
    return row && nameOf(row.job);
  }

  stateOf(id) {
    const row = this.rows.get(id);
    return row && row.job.state;
  }

  /** Jobs that are shown as not ended and are not among `ids`. */
  activeBut(ids) {
    return [...this.rows.values()].filter(({id, job}) => !hasEnded(job) && !ids.has(id)).map(({id}) => id);
  }

  setFilter(text) {
    this.filter = text.trim().toLowerCase();
    this.arrange();
  }

  arrange() {
    const focused = document.activeElement;
    const words = this.filter.split(/\s+/).filter(Boolean);
    for (const [group] of GROUPS) this.body[group].rows = [];
    for (const row of this.rows.values()) {
      const text = row.words();
      if (words.every((word) => text.includes(word))) this.body[groupOf(row.job)].rows.push(row);
    }
    for (const [group] of GROUPS) this.place(this.body[group]);
    const shown = this.shown().length;
    this.empty.hidden = shown > 0 || !this.loaded;
    setText(this.empty, this.emptyText());
    if (this.filter) setText(this.status, `${shown} jobs`);
    this.keepOneStop();
    if (focused && focused !== document.activeElement && document.contains(focused)) focused.focus();
  }

  emptyText() {
    if (this.rows.size === 0) return 'No jobs yet. Submit one: New job (n), or ampctl submit job.yaml';
    return this.complete ? 'No job fits the filter.' : 'None among the jobs loaded so far fits the filter.';
  }

  place({element, head, title, rows}) {
    rows.sort(compare);
    element.hidden = rows.length === 0;
    setText(head, `${title} (${rows.length})`);
    const wanted = new Set(rows.map((row) => row.element));
    for (const child of [...element.children].slice(1)) {
      if (!wanted.has(child)) child.remove();
    }
    rows.forEach((row, i) => {
      const there = element.children[i + 1];
      if (there !== row.element) element.insertBefore(row.element, there || null);
    });
  }

  shown() {
    return GROUPS.flatMap(([group]) => this.body[group].rows);
  }

  current() {
    const element = document.activeElement && document.activeElement.closest('tr[data-job]');
    return element ? this.rows.get(element.dataset.job) : undefined;
  }

  /** One row after or before the one that has the focus. */
  move(by) {
    const rows = this.shown();
    const at = rows.indexOf(this.current());
    const row = rows[at < 0 ? 0 : Math.min(Math.max(at + by, 0), rows.length - 1)];
    if (!row) return;
    row.link.focus();
    row.element.scrollIntoView({block: 'nearest'});
  }

  open() {
    const row = this.current();
    if (!row) return false;
    location.hash = `#/jobs/${row.id}`;
    return true;
  }

  choose() {
    const row = this.current();
    if (!row) return false;
    this.chooseRow(row);
    return true;
  }

  chooseRow(row) {
    if (!toggle(row.id)) setText(this.status, `No more than ${MOST} jobs can be compared.`);
    this.showChosen();
  }

  showChosen() {
    for (const row of this.rows.values()) {
      row.check.checked = chosen().includes(row.id);
      row.element.classList.toggle('chosen', row.check.checked);
    }
  }

  /** Tab goes through every row's link and box. */
  keepOneStop() {
    for (const row of this.rows.values()) row.check.tabIndex = 0;
  }
}
