// All sweeps, newest first, with the states of their jobs.

import {fleetUrl, listSweeps} from './api.js';
import {fill, h, setText} from './dom.js';
import {EventStream} from './events_stream.js';
import {count, day, time} from './format.js';

// Milliseconds between two looks while jobs change.
const REST = 1000;

function statesOf({states}) {
  return states.map(({state, jobs}) => h('span', {class: 'state', data: {state}}, `${count(jobs)} ${state}`));
}

export class SweepsPage {
  constructor(main) {
    document.title = 'Sweeps · ampd';
    this.shown = new Map();
    this.problem = h('p', {class: 'notice error', role: 'alert', hidden: true});
    this.rows = h('tbody');
    this.empty = h('p', {class: 'empty', hidden: true}, 'No sweeps yet. A job file with “sweep” makes one.');
    this.more = h('button', {type: 'button', hidden: true, onclick: () => this.load(this.token)}, 'Show older sweeps');
    const heads = [['Name'], ['Jobs', 'n'], ['States'], ['User', 'wide'], ['Created', 'wide']];
    main.append(
        h('div', {class: 'heading'}, h('h1', {}, 'Sweeps')), this.problem,
        h('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Sweeps'},
          h('table', {class: 'sweeps'}, h('caption', {class: 'hidden'}, 'Sweeps'),
            h('thead', {}, h('tr', {}, heads.map(([name, kind]) => h('th', {scope: 'col', class: kind}, name)))),
            this.rows),
          this.empty),
        h('p', {class: 'more'}, this.more));
    this.load('');
    this.stream = new EventStream({
      url: fleetUrl(),
      receive: (event, data) => this.receive(event, data),
      failed: (error) => this.fail(error),
    });
  }

  receive(event, data) {
    const matters = event === 'reset' || (event === 'job' && data.sweep);
    if (!matters || this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = undefined;
      this.load('');
    }, REST);
  }

  /** A page; the first one, again and again, has what is new and most of what changes. */
  async load(token) {
    try {
      const {sweeps, next_page_token: next} = await listSweeps({token});
      if (this.closed) return;
      this.problem.hidden = true;
      if (token || this.token === undefined) this.token = next;
      for (const sweep of sweeps) this.shown.set(sweep.id, sweep);
      this.show();
    } catch (error) {
      // The stream tells of a lost connection.
      if (!this.closed && error.status !== 0) this.fail(error);
    }
  }

  show() {
    this.more.hidden = !this.token;
    this.empty.hidden = this.shown.size > 0;
    const focused = document.activeElement && document.activeElement.dataset.sweep;
    const newest = [...this.shown.values()].sort((a, b) => (a.id < b.id ? 1 : -1));
    fill(this.rows, newest.map((sweep) => this.row(sweep)));
    const link = [...this.rows.querySelectorAll('a')].find(({dataset}) => focused && dataset.sweep === focused);
    if (link) link.focus();
  }

  row(sweep) {
    return h(
        'tr', {data: {sweep: sweep.id}},
        h('td', {},
          h('a', {href: `#/sweeps/${sweep.id}`, class: 'name', data: {sweep: sweep.id}}, sweep.name || 'sweep'),
          h('span', {class: 'id'}, sweep.id)),
        h('td', {class: 'n'}, count(sweep.count)), h('td', {}, h('div', {class: 'states'}, statesOf(sweep))),
        h('td', {class: 'wide'}, sweep.user),
        h('td', {class: 'wide', title: time(sweep.create_time)}, day(sweep.create_time)));
  }

  fail(error) {
    this.problem.hidden = false;
    setText(this.problem, error.message);
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.stream.close();
  }
}
