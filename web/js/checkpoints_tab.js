// The checkpoints that are there.

import {part} from './api.js';
import {fill, h, table} from './dom.js';
import {bytes, count, time} from './format.js';

export class CheckpointsTab {
  constructor(panel, job) {
    this.job = job;
    this.body = h('div');
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
    fill(
        this.body,
        table(
            'Checkpoints', ['Name', {name: 'Step', class: 'n'}, {name: 'Size', class: 'n'}, 'Written', ''],
            checkpoints.map(
                (one) =>
                    [one.name, count(one.step), bytes(one.size_bytes), time(one.time),
                     [
                       one.best ? h('span', {class: 'badge'}, 'best') : null,
                       one.damage ? h('span', {class: 'badge bad'}, `damaged: ${one.damage}`) : null
                     ]])),
        h('p', {class: 'hint'}, 'Fetch one with ', h('code', {}, `ampctl download ${this.job.id} DIR`)));
  }

  close() {
    this.closed = true;
  }
}
