// The checkpoints that are there, and their files to fetch.

import {checkpointArchiveUrl, checkpointFileUrl, part} from './api.js';
import {fill, h, setText, table} from './dom.js';
import {askForModel} from './export_dialog.js';
import {bytes, count, number, time} from './format.js';

export class CheckpointsTab {
  constructor(panel, job) {
    this.job = job;
    this.body = h('div');
    this.problem = h('p', {class: 'notice error', role: 'alert', hidden: true});
    // Names of those whose files are shown.
    this.opened = new Set();
    panel.append(this.body);
    this.load();
  }

  receive(event) {
    if (event.checkpoint || event.rewound) this.load();
  }

  async load() {
    let checkpoints;
    try {
      ({checkpoints} = await part(this.job.id, 'checkpoints'));
    } catch (error) {
      if (!this.closed && error.status !== 0)
        fill(this.body, h('p', {class: 'notice error', role: 'alert'}, error.message));
      return;
    }
    if (!this.closed) this.show(checkpoints);
  }

  show(checkpoints) {
    if (checkpoints.length === 0) {
      fill(this.body, h('p', {class: 'empty'}, 'No checkpoints yet.'));
      return;
    }
    const had = {...document.activeElement.dataset};
    const columns =
        ['Name', {name: 'Step', class: 'n'}, {name: 'Size', class: 'n'}, 'Written', '', {name: '', class: 'n'}];
    const rows = checkpoints.map(
        (one) =>
            [one.name, count(one.step), bytes(one.size_bytes), time(one.time),
             [
               one.best ? h('span', {class: 'badge'}, this.bestText(one)) : null,
               one.damage ? h('span', {class: 'badge bad'}, `damaged: ${one.damage}`) : null,
               one.in_mirror ? h('span', {class: 'badge'}, 'in the mirror') : null
             ],
             h('div', {class: 'fetch'}, this.button(one.name), this.archive(one), this.exporter(one))]);
    fill(
        this.body, this.problem, table('Checkpoints', columns, rows),
        h('p', {class: 'hint'}, 'Fetch one with all its files, and check them, by ',
          h('code', {}, `ampctl download ${this.job.id} DIR`)));
    for (const {name} of checkpoints) {
      if (this.opened.has(name)) this.open(this.buttonOf(name));
    }
    this.focus(had);
  }

  /** "best: accuracy 0.97" */
  bestText({best_metric: value}) {
    const {keep_best: metric} = this.job.spec.checkpoint || {};
    return value === undefined ? 'best' : ['best:', metric, number(value)].filter(Boolean).join(' ');
  }

  /** The button of a row: `files` or `exports` is the name of its checkpoint. */
  focus({files, exports}) {
    if (this.closed || !(files || exports)) return;
    const is = ({dataset}) => (files ? dataset.files === files : dataset.exports === exports);
    const button = [...this.body.querySelectorAll('button')].find(is);
    if (button) button.focus();
  }

  /** All of it as one file; nothing of one that is damaged and has no copy. */
  archive({name, damage, in_mirror: mirrored}) {
    if (damage && !mirrored) return null;
    const properties = {
      class: 'button',
      href: checkpointArchiveUrl(this.job.id, name),
      download: `${this.job.id}-${name}.tar`
    };
    return h('a', properties, '.tar', h('span', {class: 'hidden'}, ` of ${name}`));
  }

  /** The model alone, in a form of one's choice. */
  exporter({name, damage}) {
    if (damage) return null;
    const ask = async () => {
      this.tell('');
      if (this.asking) return;
      this.asking = true;
      try {
        const dialog = await askForModel(this.job.id, name, () => !this.closed);
        // The table may have been filled anew meanwhile.
        if (dialog) dialog.addEventListener('close', () => this.focus({exports: name}));
      } catch (error) {
        this.tell(error.message);
      }
      this.asking = false;
    };
    return h(
        'button', {type: 'button', data: {verb: 'export', exports: name}, onclick: ask}, 'Export',
        h('span', {class: 'hidden'}, ` the model of ${name}`));
  }

  tell(message) {
    this.problem.hidden = message === '';
    setText(this.problem, message);
  }

  button(name) {
    return h(
        'button',
        {type: 'button', data: {files: name}, 'aria-expanded': 'false', onclick: (event) => this.toggle(event.target)},
        'Files', h('span', {class: 'hidden'}, ` of ${name}`));
  }

  buttonOf(name) {
    return [...this.body.querySelectorAll('button[data-files]')].find(({dataset}) => dataset.files === name);
  }

  toggle(button) {
    const {files: name} = button.dataset;
    if (!this.opened.has(name)) {
      this.open(button);
      return;
    }
    this.opened.delete(name);
    button.setAttribute('aria-expanded', 'false');
    button.closest('tr').nextElementSibling.remove();
  }

  async open(button) {
    const {files: name} = button.dataset;
    this.opened.add(name);
    button.setAttribute('aria-expanded', 'true');
    const row = button.closest('tr');
    const cell = h('td', {colspan: row.children.length}, h('p', {class: 'note'}, 'Reading …'));
    row.after(h('tr', {class: 'files'}, cell));
    try {
      const {files} = await part(this.job.id, `checkpoints/${encodeURIComponent(name)}`);
      fill(cell, h('ul', {'aria-label': `Files of ${name}`}, files.map((file) => this.file(name, file))));
    } catch (error) {
      fill(cell, h('p', {class: 'problem', role: 'alert'}, error.message));
    }
  }

  file(checkpoint, {name, size_bytes: size, sha256}) {
    return h(
        'li', {},
        h('a',
          {href: checkpointFileUrl(this.job.id, checkpoint, name), download: `${this.job.id}-${checkpoint}-${name}`},
          name),
        h('span', {class: 'figure'}, bytes(size)), h('span', {class: 'id'}, `SHA-256 ${sha256}`));
  }

  close() {
    this.closed = true;
  }
}
