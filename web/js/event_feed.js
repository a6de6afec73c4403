// The newest events of some kinds, going on live; older ones on demand. Logs and Events are two faces of it.

import {part} from './api.js';
import {fill, h} from './dom.js';

const TAIL = 300;
// Sequence numbers that one look back goes through, and how many looks at most until something is found.
const WINDOW = 5000;
const LOOKS = 20;
const PAGE = 1000;
// Lines kept on the page.
const MOST_LINES = 4000;

export class EventFeed {
  /**
   * `source`: 'events' or 'logs'; `parameters`: of the request; `wanted(event)`: whether a live one belongs here;
   * `line(event)`: its element; `list`: where these go, the newest last; `frame`: what scrolls, by default the list.
   */
  constructor(id, {source, parameters, wanted, line, list, frame = list}) {
    Object.assign(this, {id, source, parameters, wanted, line, list, box: frame});
    this.last = 0;
    this.following = true;
    this.problem = h('p', {class: 'notice error', role: 'alert', hidden: true});
    this.older = h('button', {type: 'button', hidden: true, onclick: () => this.loadOlder()}, 'Show older ones');
    frame.addEventListener('scroll', () => {
      this.following = frame.scrollTop + frame.clientHeight >= frame.scrollHeight - 24;
    });
    this.load();
  }

  async loadOlder() {
    this.older.disabled = true;
    this.following = false;
    try {
      let found = [];
      for (let look = 0; look < LOOKS && found.length === 0 && this.first > 1; ++look) {
        const after = Math.max(0, this.first - 1 - WINDOW);
        found = await this.between(after, this.first);
        this.first = after + 1;
      }
      if (this.closed) return;
      const height = this.box.scrollHeight;
      this.list.prepend(...found.map(this.line));
      this.box.scrollTop += this.box.scrollHeight - height;
      this.older.hidden = this.first <= 1;
    } catch (error) {
      this.fail(error);
    }
    this.older.disabled = false;
  }

  /** Those after the number `after` and before `end`. */
  async between(after, end) {
    const found = [];
    while (after < end - 1) {
      const {events, next_after: next, last_sequence: last} =
          await part(this.id, this.source, {...this.parameters, after, limit: PAGE});
      found.push(...events.filter(({sequence}) => Number(sequence) < end));
      if (Number(next) <= after || Number(next) >= Number(last)) break;
      after = Number(next);
    }
    return found;
  }

  fail(error) {
    if (this.closed) return;
    this.problem.hidden = error.status === 0;
    fill(this.problem, error.message);
  }

  async load() {
    this.pending = [];
    this.loading = true;
    try {
      const {events, last_sequence: last} = await part(this.id, this.source, {...this.parameters, tail: TAIL});
      if (this.closed) return;
      this.last = Number(last);
      this.first = events.length > 0 ? Number(events[0].first_sequence) : 0;
      this.older.hidden = events.length < TAIL || this.first <= 1;
      fill(this.list, events.map(this.line));
      this.loading = false;
      this.pending.forEach((event) => this.receive(event));
      this.scroll();
    } catch (error) {
      this.loading = false;
      this.fail(error);
      if (error.status === 0 && !this.closed) this.timer = setTimeout(() => this.load(), 2000);
    }
  }

  receive(event) {
    if (!this.wanted(event)) return;
    if (this.loading) {
      this.pending.push(event);
      return;
    }
    if (Number(event.sequence) <= this.last) return;
    this.last = Number(event.sequence);
    this.list.append(this.line(event));
    if (this.list.children.length > MOST_LINES) this.list.firstElementChild.remove();
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = undefined;
      this.scroll();
    });
  }

  /** To the newest, unless somebody has scrolled away from it. */
  scroll() {
    if (this.following) this.box.scrollTop = this.box.scrollHeight;
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }
}
