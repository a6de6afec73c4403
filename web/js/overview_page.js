// All devices and all jobs, live.

import {activeJobs, fleetUrl, getJob, identity, listJobs} from './api.js';
import {DeviceCards} from './device_cards.js';
import {h, setText} from './dom.js';
import {EventStream} from './events_stream.js';
import {JobsTable} from './jobs_table.js';
import {bind} from './keys.js';
import {statesWith} from './states.js';

const MOVE = {
  j: 1,
  ArrowDown: 1,
  k: -1,
  ArrowUp: -1
};

// A filter takes 100 conditions, and a word is at most one for each state, and two.
const MOST_WORDS = 8;

const quoted = (text) => `"${text.replace(/[\\"]/g, '\\$&')}"`;

/** What the server is asked for a word of the filter: a name, a user, a state, or KEY=VALUE of a label. */
function conditionOf(word) {
  const label = /^([\w.\/-]+)=(.+)$/.exec(word);
  if (label) return `labels.${label[1]} = ${quoted(label[2])}`;
  const states = statesWith(word).map((state) => `state = ${state}`);
  return `(${[`name:${quoted(word)}`, `user = ${quoted(word)}`, ...states].join(' OR ')})`;
}

export class OverviewPage {
  constructor(main) {
    document.title = 'ampd';
    this.devices = new DeviceCards();
    this.table = new JobsTable();
    this.filter = h('input', {
      type: 'search',
      id: 'filter',
      placeholder: 'Filter by name, state, user, label…  ( / )',
      'aria-label': 'Filter jobs',
      spellcheck: 'false',
      autocomplete: 'off',
      oninput: () => this.setFilter()
    });
    this.create = h('a', {href: '#/new', class: 'button primary', id: 'new-job'}, 'New job');
    this.onIdentity = () => (this.create.hidden = !identity().may_change);
    addEventListener('identity', this.onIdentity);
    this.onIdentity();
    this.problem = h('p', {class: 'notice error', role: 'alert', hidden: true});
    this.more = h('button', {type: 'button', hidden: true, onclick: () => this.loadMore()}, 'Show older jobs');
    main.append(
        h('section', {'aria-labelledby': 'devices-title'}, h('h2', {id: 'devices-title'}, 'Devices'),
          this.devices.element),
        h('section', {'aria-labelledby': 'jobs-title'},
          h('div', {class: 'heading'}, h('h2', {id: 'jobs-title'}, 'Jobs'), this.create, this.filter), this.problem,
          this.table.element, h('p', {class: 'more'}, this.more)));
    this.keys = [
      bind(['/'], 'filter jobs', () => this.filter.focus()),
      bind(['j', 'ArrowDown', 'k', 'ArrowUp'], 'next and previous job', (event) => this.table.move(MOVE[event.key])),
      bind(['Enter'], 'open the job', (event) => !event.target.closest('a, button') && this.table.open()),
      bind(['x'], 'choose the job for a comparison', () => this.table.choose()),
    ];
    this.begin();
  }

  begin() {
    this.stream = new EventStream({
      url: fleetUrl(),
      receive: (event, data) => this.receive(event, data),
      failed: (error) => this.fail(error),
    });
    this.loadMore();
  }

  receive(event, data) {
    if (event === 'devices') this.devices.update(data.devices, (id) => this.table.nameOf(id));
    if (event === 'reset') this.reset();
    if (event === 'job') {
      const changed = this.table.stateOf(data.id) !== data.state;
      this.table.update([data]);
      // Places and reasons of the others in the queue shift without events of their own.
      if (changed) this.loadActive();
    }
  }

  /** All that has not ended, and what has ended since it was shown; at most once a second. */
  loadActive() {
    if (this.closed || this.timer) return;
    this.timer = setTimeout(async () => {
      await this.attempt(async () => {
        const active = await activeJobs();
        this.table.update(active);
        const ended = this.table.activeBut(new Set(active.map(({id}) => id)));
        await Promise.all(ended.map(async (id) => this.table.update([await getJob(id)])));
      });
      this.timer = undefined;
    }, this.loadedOnce ? 1000 : 0);
    this.loadedOnce = true;
  }

  /** Changes were missed. */
  reset() {
    this.loadActive();
    if (this.table.loaded) this.attempt(async () => this.table.update((await listJobs()).jobs));
  }

  /** The next page of jobs, newest first. */
  async loadMore() {
    this.more.disabled = true;
    await this.attempt(async () => {
      const {jobs, next_page_token: token} = await listJobs({token: this.token});
      this.token = token;
      this.more.hidden = !token;
      this.table.complete = !token;
      this.table.update(jobs);
      this.table.ready();
    });
    this.more.disabled = false;
  }

  setFilter() {
    const text = this.filter.value.trim();
    this.table.setFilter(text);
    clearTimeout(this.search);
    // Jobs that are not here yet are looked for on the server.
    if (text !== '' && this.token) this.search = setTimeout(() => this.find(text), 300);
  }

  find(text) {
    const filter = text.split(/\s+/).slice(0, MOST_WORDS).map(conditionOf).join(' AND ');
    this.attempt(async () => this.table.update((await listJobs({filter})).jobs));
  }

  async attempt(action) {
    try {
      await action();
      if (!this.closed) this.fail(null);
    } catch (error) {
      // The stream tells of a lost connection.
      if (!this.closed && error.status !== 0) this.fail(error);
    }
  }

  fail(error) {
    this.problem.hidden = error === null;
    if (error) setText(this.problem, error.message);
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    clearTimeout(this.search);
    removeEventListener('identity', this.onIdentity);
    this.stream.close();
    this.table.close();
    this.devices.close();
    this.keys.forEach((end) => end());
  }
}
