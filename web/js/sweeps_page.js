// All sweeps, newest first, with the states of their jobs.

import {listSweeps} from './api.js';
import {fill, h} from './dom.js';
import {FleetLook} from './fleet_look.js';
import {count, day, time} from './format.js';

function statesOf({states}) {
  return states.map(({state, jobs}) => h('span', {class: 'state', data: {state}}, `${count(jobs)} ${state}`));
}

export class SweepsPage {
  constructor(main) {
    document.title = 'Sweeps · ampd';
    this.shown = new Map();
    const problem = h('p', {class: 'notice error', role: 'alert', hidden: true});
    this.rows = h('tbody');
    this.empty = h('p', {class: 'empty', hidden: true}, 'No sweeps yet. A job file with “sweep” makes one.');
    this.more = h('button', {type: 'button', hidden: true, onclick: () => this.loadOlder()}, 'Show older sweeps');
    const heads = [['Name'], ['Jobs', 'n'], ['States'], ['User', 'wide'], ['Created', 'wide']];
    main.append(
        h('div', {class: 'heading'}, h('h1', {}, 'Sweeps')), problem,
        h('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Sweeps'},
          h('table', {class: 'sweeps'}, h('caption', {class: 'hidden'}, 'Sweeps'),
            h('thead', {}, h('tr', {}, heads.map(([name, kind]) => h('th', {scope: 'col', class: kind}, name)))),
            this.rows),
          this.empty),
        h('p', {class: 'more'}, this.more));
    this.look = new FleetLook({load: (missed) => this.load(missed), matters: ({sweep}) => sweep, problem});
  }

  /**
   * From the newest on, page by page, until one goes on to what is shown: its first has what is new and most of what
   * changes. Where changes were missed, to the end of what is shown.
   */
  async load(missed) {
    const known = [...this.shown.keys()].sort();
    const until = missed ? known[0] : known[known.length - 1];
    let page = {};
    do {
      page = await this.take(page.next_page_token);
    } while (page.next_page_token && until !== undefined && page.sweeps.every(({id}) => id > until));
    if (this.token === undefined) this.token = page.next_page_token;
  }

  async loadOlder() {
    this.more.disabled = true;
    await this.look.attempt(async () => {
      this.token = (await this.take(this.token)).next_page_token;
    });
    this.more.disabled = false;
    this.show();
  }

  async take(token) {
    const page = await listSweeps({token});
    for (const sweep of page.sweeps) this.shown.set(sweep.id, sweep);
    if (!this.look.closed) this.show();
    return page;
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

  close() {
    this.look.close();
  }
}
