// Server-sent events over fetch() which, unlike EventSource, tells why a server refuses. Reconnects by itself; rests
// while the page is hidden, because a browser has few connections for a server, and a server few streams.

import {ApiError, isFinal, reportOffline, reportOnline} from './api.js';

const FIRST_DELAY = 500;
const LONGEST_DELAY = 15000;
// The server says something at least every 10 s.
const SILENCE = 35000;

/** Splits text that arrives in pieces into events {id, event, data}. */
export class EventParser {
  constructor(receive) {
    this.receive = receive;
    this.rest = '';
    this.clear();
  }

  clear() {
    this.event = 'message';
    this.data = [];
  }

  push(text) {
    const lines = (this.rest + text).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop();
    for (const line of lines) this.line(line);
  }

  line(line) {
    if (line === '') {
      if (this.data.length > 0) this.receive({id: this.id, event: this.event, data: this.data.join('\n')});
      this.clear();
      return;
    }
    const colon = line.indexOf(':');
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (name === 'data') this.data.push(value);
    if (name === 'event') this.event = value;
    if (name === 'id') this.id = value;
  }
}

/**
 * Follows the stream at `url` until close() or its end. `receive(event, data)` gets each event with its JSON read,
 * `failed` an ApiError that trying again does not mend, `ended` nothing, after the server's event "end".
 */
export class EventStream {
  constructor({url, receive, failed, ended}) {
    Object.assign(this, {url, receive, failed, onEnd: ended});
    this.delay = FIRST_DELAY;
    this.ended = false;
    this.onVisibility = () => (document.hidden ? this.rest() : this.wake());
    document.addEventListener('visibilitychange', this.onVisibility);
    this.wake();
  }

  close() {
    this.ended = true;
    this.rest();
    document.removeEventListener('visibilitychange', this.onVisibility);
    reportOnline(this);
  }

  rest() {
    clearTimeout(this.timer);
    clearTimeout(this.silence);
    this.timer = undefined;
    if (this.abort) this.abort.abort();
    this.abort = undefined;
  }

  wake() {
    if (this.ended || this.abort || this.timer || document.hidden) return;
    this.follow();
  }

  async follow() {
    const abort = new AbortController();
    this.abort = abort;
    let error;
    try {
      await this.read(abort);
    } catch (caught) {
      error = caught;
    }
    clearTimeout(this.silence);
    if (this.abort !== abort || this.ended) return;
    this.abort = undefined;
    if (isFinal(error)) {
      this.close();
      if (error.status === 401) dispatchEvent(new Event('unauthorized'));
      this.failed(error);
      return;
    }
    this.retry(error !== undefined);
  }

  /** A stream that the server ended in good order is begun again before anybody is told. */
  retry(failed) {
    const wait = this.delay * (0.75 + Math.random() / 2);
    this.delay = Math.min(2 * this.delay, LONGEST_DELAY);
    if (failed || this.problem) reportOffline(this, wait, this.problem);
    this.problem = undefined;
    this.timer = setTimeout(() => {
      this.timer = undefined;
      this.wake();
    }, wait);
  }

  listen(abort) {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => abort.abort(), SILENCE);
  }

  async read(abort) {
    this.listen(abort);
    const headers = {Accept: 'text/event-stream'};
    if (this.lastId !== undefined) headers['Last-Event-ID'] = this.lastId;
    const response = await fetch(this.url, {headers, signal: abort.signal, cache: 'no-store'});
    if (!response.ok) throw await ApiError.of(response);
    if (response.status === 204) {
      this.close();
      return;
    }
    const parser = new EventParser((event) => this.take(event));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    reportOnline(this);
    for (;;) {
      const {done, value} = await reader.read();
      if (done || this.ended) return;
      this.delay = FIRST_DELAY;
      this.listen(abort);
      parser.push(value);
    }
  }

  take({id, event, data}) {
    if (this.ended) return;
    if (id !== undefined) this.lastId = id;
    if (event === 'end') {
      this.close();
      if (this.onEnd) this.onEnd();
    } else if (event === 'failure') {
      this.problem = JSON.parse(data).message;
    } else {
      this.receive(event, JSON.parse(data));
    }
  }
}
