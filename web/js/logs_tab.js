// What a job says, as `ampctl logs` has it.

import {add, h} from './dom.js';
import {EventFeed} from './event_feed.js';
import {wordsOf} from './event_words.js';
import {clock, time} from './format.js';

// Of /logs.
const KINDS = [
  'state_change', 'checkpoint', 'rewound', 'log', 'precision_change', 'artifact', 'mode_chosen', 'corrupt_sample',
  'environment'
];

function line(event) {
  const {text, severity, kind} = wordsOf(event);
  return h(
      'li', {class: `line ${(severity || '').toLowerCase()}`, data: {kind}},
      h('time', {datetime: event.time, title: time(event.time)}, clock(event.time)), ' ', h('span', {}, text));
}

export class LogsTab {
  constructor(panel, job) {
    const list = h('ol', {class: 'log', role: 'log', tabindex: '0', 'aria-label': 'Logs'});
    const filter = h('input', {
      type: 'search',
      id: 'log-filter',
      placeholder: 'Filter lines',
      'aria-label': 'Filter lines',
      oninput: () => this.filterLines(filter.value)
    });
    this.filter = '';
    this.list = list;
    this.feed = new EventFeed(job.id, {
      source: 'logs',
      wanted: (event) => KINDS.some((kind) => event[kind]),
      line: (event) => this.hide(line(event)),
      list,
    });
    add(panel, [h('div', {class: 'toolbar'}, filter, this.feed.older), this.feed.problem, list]);
  }

  filterLines(text) {
    this.filter = text.trim().toLowerCase();
    for (const element of this.list.children) this.hide(element);
  }

  hide(element) {
    element.hidden = !element.textContent.toLowerCase().includes(this.filter);
    return element;
  }

  receive(event) {
    this.feed.receive(event);
  }

  close() {
    this.feed.close();
  }
}
