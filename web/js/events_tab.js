// All that happened to a job, by kind.

import {add, h} from './dom.js';
import {EventFeed} from './event_feed.js';
import {KINDS, wordsOf} from './event_words.js';
import {time} from './format.js';

// Too many to read, and drawn as charts.
const HIDDEN_AT_FIRST = ['step'];

function line(event, spec) {
  const {kind, text, severity} = wordsOf(event, spec);
  return h(
      'tr', {class: `line ${(severity || '').toLowerCase()}`, data: {kind}}, h('td', {class: 'n'}, event.sequence),
      h('td', {class: 'when'}, h('time', {datetime: event.time}, time(event.time))),
      h('td', {class: 'n wide'}, event.attempt || ''), h('td', {}, kind.replace(/_/g, ' ')),
      h('td', {class: 'words'}, text));
}

export class EventsTab {
  constructor(panel, job) {
    this.job = job;
    this.chosen = new Set(KINDS.filter((kind) => !HIDDEN_AT_FIRST.includes(kind)));
    this.place = h('div');
    add(panel, [
      h('fieldset', {class: 'kinds'}, h('legend', {class: 'hidden'}, 'Kinds of events'),
        KINDS.map((kind) => this.box(kind))),
      this.place
    ]);
    this.begin();
  }

  box(kind) {
    const input = h('input', {
      type: 'checkbox',
      checked: this.chosen.has(kind),
      onchange: () => {
        if (input.checked) {
          this.chosen.add(kind);
        } else {
          this.chosen.delete(kind);
        }
        this.begin();
      }
    });
    return h('label', {class: 'tick'}, input, kind.replace(/_/g, ' '));
  }

  begin() {
    if (this.feed) this.feed.close();
    this.feed = undefined;
    const list = h('tbody');
    const heads = [['#', 'n'], ['Time', 'when'], ['Attempt', 'n wide'], ['Kind', ''], ['What', 'words']];
    const scroll = h(
        'div', {class: 'scroll tall', tabindex: '0', role: 'region', 'aria-label': 'Events'},
        h('table', {class: 'events'}, h('caption', {class: 'hidden'}, 'Events'),
          h('thead', {}, h('tr', {}, heads.map(([name, kind]) => h('th', {scope: 'col', class: kind}, name)))), list));
    this.place.replaceChildren();
    if (this.chosen.size === 0) return;
    this.feed = new EventFeed(this.job.id, {
      source: 'events',
      parameters: {kinds: [...this.chosen].join()},
      wanted: (event) => this.chosen.has(wordsOf(event).kind),
      line: (event) => line(event, this.job.spec),
      list,
      frame: scroll,
    });
    add(this.place, [h('div', {class: 'toolbar'}, this.feed.older), this.feed.problem, scroll]);
  }

  receive(event) {
    if (this.feed) this.feed.receive(event);
  }

  close() {
    if (this.feed) this.feed.close();
  }
}
