// One job: what it is and does on top, the rest on tabs. One stream of its events feeds all of them.

import {getJob, jobEventsUrl} from './api.js';
import {BenchTab, isMeasured} from './bench_tab.js';
import {ChartsTab} from './charts_tab.js';
import {CheckpointsTab} from './checkpoints_tab.js';
import {fill, h} from './dom.js';
import {EventStream} from './events_stream.js';
import {EventsTab} from './events_tab.js';
import {JobHeader} from './job_header.js';
import {bind} from './keys.js';
import {LogsTab} from './logs_tab.js';
import {PlanTab} from './plan_tab.js';
import {ProfileTab} from './profile_tab.js';
import {SamplesTab} from './samples_tab.js';
import {SpecTab} from './spec_tab.js';
import {hasEnded} from './states.js';

const TABS = [
  ['charts', 'Charts', ChartsTab],
  ['samples', 'Samples', SamplesTab],
  ['plan', 'Plan', PlanTab],
  ['spec', 'Spec', SpecTab],
  ['logs', 'Logs', LogsTab],
  ['events', 'Events', EventsTab],
  ['checkpoints', 'Checkpoints', CheckpointsTab],
  ['profile', 'Profile', ProfileTab],
];
const BENCH = ['bench', 'Bench', BenchTab];
const KEYS = ['1', '2', '3', '4', '5', '6', '7', '8', '9'];

/** A job with `bench` does nothing but measure; AUTO measures before it trains. */
function tabsOf(job) {
  if (!isMeasured(job)) return TABS;
  return job.spec.bench ? [BENCH, ...TABS] : [TABS[0], BENCH, ...TABS.slice(1)];
}

// Events that change what the head shows of a job, other than step reports.
const CHANGES = ['state_change', 'evaluation', 'checkpoint', 'mode_chosen', 'rewound'];
const QUEUE_POLL = 3000;
const ENDED_POLL = 15000;

export class JobPage {
  constructor(main, id, tab) {
    this.id = id;
    this.main = main;
    this.name = tab;
    this.keys = [
      bind(KEYS, 'show one of a job’s tabs', (event) => this.goTo(Number(event.key) - 1)),
      bind(['r'], 'show all steps of the charts again', () => this.tab && this.tab.showAll && this.tab.showAll()),
    ];
    // What was asked for meanwhile is missing, and is asked for again by a new page.
    this.onUnauthorized = () => (this.refused = true);
    addEventListener('unauthorized', this.onUnauthorized);
    this.begin();
  }

  async begin() {
    try {
      this.job = await getJob(this.id, 'FULL');
    } catch (error) {
      if (this.closed) return;
      if (error.status === 0) {
        this.timer = setTimeout(() => this.begin(), 2000);
        return;
      }
      fill(
          this.main, h('p', {class: 'notice error', role: 'alert'}, error.message),
          h('p', {}, h('a', {href: '#/'}, 'All jobs')));
      return;
    }
    if (this.closed) return;
    this.id = this.job.id;
    this.build();
    this.open(this.name);
    this.listen();
    this.pollQueue();
  }

  build() {
    this.header = new JobHeader(this.job, (job) => this.show(job));
    this.parts = tabsOf(this.job);
    this.tabs = this.parts.map(
        ([name, title]) =>
            h('a', {
              id: `tab-${name}`,
              href: `#/jobs/${this.id}/${name}`,
              role: 'tab',
              'aria-controls': 'panel',
              onkeydown: (event) => this.onTabKey(event)
            },
              title));
    this.panel = h('div', {id: 'panel', role: 'tabpanel', tabindex: '-1'});
    fill(
        this.main, this.header.element,
        h('div', {class: 'tabs', role: 'tablist', 'aria-label': 'Parts of the job'}, this.tabs), this.panel);
  }

  onTabKey(event) {
    const by = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!by) return;
    event.preventDefault();
    const next = (this.tabs.indexOf(event.target) + by + this.tabs.length) % this.tabs.length;
    this.tabs[next].focus();
    this.goTo(next);
  }

  /** By its place; false where there is none. */
  goTo(place) {
    if (!this.parts || !this.parts[place]) return false;
    this.go(this.parts[place][0]);
    return true;
  }

  go(name) {
    location.hash = `#/jobs/${this.id}/${name}`;
  }

  /** Another address: true where it is a tab of this job, which is still followed. */
  follow(name, id, tab) {
    if (name !== 'jobs' || id !== this.id || !this.panel || this.refused) return false;
    this.open(tab);
    return true;
  }

  open(name) {
    const [chosen, , Tab] = this.parts.find(([other]) => other === name) || this.parts[0];
    if (this.tab && this.tabName === chosen) return;
    if (this.tab) this.tab.close();
    this.tabName = chosen;
    this.parts.forEach(([other], i) => {
      this.tabs[i].setAttribute('aria-selected', other === chosen);
      this.tabs[i].tabIndex = other === chosen ? 0 : -1;
    });
    this.panel.setAttribute('aria-labelledby', `tab-${chosen}`);
    document.getElementById(`tab-${chosen}`).scrollIntoView({block: 'nearest', inline: 'nearest'});
    this.panel.replaceChildren();
    this.tab = new Tab(this.panel, this.job);
  }

  /** From where the job was read on: tabs read what was before themselves. */
  listen() {
    this.stream = new EventStream({
      url: jobEventsUrl(this.id, this.job.last_sequence),
      receive: (event, data) => this.receive(data),
      failed: (error) => {
        this.refused = true;
        this.header.tell(error.message);
      },
      ended: () => this.refresh(),
    });
  }

  receive(event) {
    if (event.step) this.header.step(event.step);
    if (CHANGES.some((kind) => event[kind])) this.refresh();
    if (this.tab.receive) this.tab.receive(event);
  }

  /** Reads the job's head again; changes that come meanwhile are read once more. */
  async refresh() {
    if (this.refreshing || this.closed) {
      this.again = true;
      return;
    }
    this.refreshing = true;
    try {
      const {spec, plan, ...head} = await getJob(this.id);
      // Of the spec these may change.
      const {labels, resources} = spec;
      if (!this.closed) this.show({...this.job, ...head, spec: {...this.job.spec, labels, resources}});
    } catch (error) {
      if (!this.closed && error.status !== 0) this.header.tell(error.message);
    }
    this.refreshing = false;
    if (!this.again) return;
    this.again = false;
    setTimeout(() => this.refresh(), 500);
  }

  show(job) {
    const began = hasEnded(this.job) && !hasEnded(job);
    this.job = {...this.job, ...job};
    this.header.update(this.job);
    if (this.tab.update) this.tab.update(this.job);
    // A job that is queued again goes on with events of its own, after a stream that has ended.
    if (began && this.stream.ended) this.listen();
  }

  /** A place in the queue shifts without an event, and the stream of a job that has ended does not tell that it was retried. */
  pollQueue() {
    let looked = Date.now();
    const look = (since) => {
      if (document.hidden || Date.now() - looked < since) return;
      looked = Date.now();
      this.refresh();
    };
    this.onVisible = () => hasEnded(this.job) && look(0);
    document.addEventListener('visibilitychange', this.onVisible);
    this.timer = setInterval(() => {
      this.header.tick();
      if (this.job.state === 'QUEUED') look(0);
      if (hasEnded(this.job)) look(ENDED_POLL);
    }, QUEUE_POLL);
  }

  close() {
    this.closed = true;
    removeEventListener('unauthorized', this.onUnauthorized);
    if (this.onVisible) document.removeEventListener('visibilitychange', this.onVisible);
    clearInterval(this.timer);
    clearTimeout(this.timer);
    if (this.stream) this.stream.close();
    if (this.header) this.header.close();
    if (this.tab) this.tab.close();
    this.keys.forEach((end) => end());
  }
}
