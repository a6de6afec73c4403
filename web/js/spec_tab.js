// The spec as the server resolved it, as a job file that can be submitted again.

import {identity, specText} from './api.js';
import {fill, h, setText} from './dom.js';

export class SpecTab {
  constructor(panel, job) {
    this.panel = panel;
    this.job = job;
    this.load();
  }

  async load() {
    let text;
    try {
      text = await specText(this.job.id);
    } catch (error) {
      if (!this.closed) fill(this.panel, h('p', {class: 'notice error', role: 'alert'}, error.message));
      return;
    }
    if (this.closed) return;
    const copy = h('button', {type: 'button', onclick: () => this.copy(copy, text)}, 'Copy');
    const name = `${this.job.id}.yaml`;
    // A blob of the text that is shown; freed with the tab.
    this.url = URL.createObjectURL(new Blob([text], {type: 'application/yaml'}));
    fill(
        this.panel,
        h('div', {class: 'toolbar'}, copy, h('a', {class: 'button', href: this.url, download: name}, 'Download'),
          identity().may_change && h('a', {class: 'button', href: `#/new?from=${this.job.id}`}, 'Edit & resubmit'),
          h('span', {class: 'note'}, 'Resolved: every default filled in.')),
        h('pre', {class: 'code', tabindex: '0', id: 'spec', 'aria-label': 'Spec'}, text));
  }

  async copy(button, text) {
    try {
      await navigator.clipboard.writeText(text);
      setText(button, 'Copied');
    } catch (error) {
      // Without TLS a browser may refuse; the text is selected then.
      getSelection().selectAllChildren(document.getElementById('spec'));
      setText(button, 'Selected');
    }
  }

  close() {
    this.closed = true;
    if (this.url) URL.revokeObjectURL(this.url);
  }
}
