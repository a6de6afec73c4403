// What the model makes: pictures and texts, the newest first.

import {artifactUrl, part} from './api.js';
import {fill, h} from './dom.js';
import {bytes, count} from './format.js';
import {openDialog} from './keys.js';

const SHOWN = 12;

export class SamplesTab {
  constructor(panel, job) {
    this.job = job;
    this.limit = SHOWN;
    this.problem = h('p', {class: 'notice error', role: 'alert', hidden: true});
    this.pictures = h('div', {class: 'pictures'});
    this.texts = h('div');
    this.empty =
        h('p', {class: 'empty', hidden: true}, 'No samples: the job has no report.samples, or has not come that far.');
    this.more = h('button', {type: 'button', hidden: true, onclick: () => this.showMore()}, 'Show older ones');
    panel.append(this.problem, this.pictures, h('p', {class: 'more'}, this.more), this.texts, this.empty);
    this.load();
  }

  receive(event) {
    if (!event.artifact && !event.text_sample) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), 300);
  }

  showMore() {
    this.limit *= 2;
    this.load();
  }

  async load() {
    try {
      const [{artifacts}, {events}] = await Promise.all([
        part(this.job.id, 'artifacts', {limit: Math.min(1000, this.limit + 1)}),
        part(this.job.id, 'events', {kinds: 'text_sample', tail: SHOWN}),
      ]);
      if (!this.closed) this.show(artifacts, events);
    } catch (error) {
      if (this.closed || error.status === 0) return;
      this.problem.hidden = false;
      fill(this.problem, error.message);
    }
  }

  show(artifacts, events) {
    this.more.hidden = artifacts.length <= this.limit;
    fill(this.pictures, artifacts.slice(0, this.limit).map((artifact) => this.picture(artifact)));
    fill(
        this.texts,
        [...events].reverse().map(
            ({text_sample: sample}) =>
                h('figure', {class: 'text-sample'}, h('figcaption', {}, `Step ${count(sample.step)}`),
                  h('pre', {}, h('b', {}, sample.prompt), sample.text))));
    this.empty.hidden = artifacts.length + events.length > 0;
  }

  picture({name, step, sequence, content_type: type, size_bytes: size}) {
    // The sequence number tells one of the same name from an earlier one.
    const url = `${artifactUrl(this.job.id, name)}`;
    const caption = h('figcaption', {}, `Step ${count(step)} · ${name} · ${bytes(size)}`);
    if (!type.startsWith('image/'))
      return h('figure', {class: 'picture'}, h('a', {href: url, download: name}, name), caption);
    const image = h('img', {src: url, alt: `${name}, made at step ${step}`, loading: 'lazy', data: {sequence}});
    const enlarge = h(
        'button', {
          type: 'button',
          'aria-label': `Enlarge ${name}`,
          onclick: () => openDialog(name, h('img', {class: 'large', src: url, alt: image.alt}))
        },
        image);
    image.addEventListener(
        'error', () => enlarge.replaceWith(h('p', {class: 'empty'}, 'The server keeps it no longer, or did not give it.')));
    return h('figure', {class: 'picture'}, enlarge, caption);
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }
}
