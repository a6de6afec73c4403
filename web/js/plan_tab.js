// What planning found of a job.

import {part} from './api.js';
import {fill, h} from './dom.js';
import {planParts, warningParts} from './plan_view.js';

export class PlanTab {
  constructor(panel, job) {
    this.panel = panel;
    this.load(job.id);
  }

  async load(id) {
    try {
      const plan = await part(id, 'plan');
      if (!this.closed) fill(this.panel, warningParts(plan.warnings), planParts(plan));
    } catch (error) {
      if (!this.closed) fill(this.panel, h('p', {class: 'notice error', role: 'alert'}, error.message));
    }
  }

  close() {
    this.closed = true;
  }
}
