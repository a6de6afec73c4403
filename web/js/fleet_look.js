// What a page reads again while jobs change: at most once a second, however many do, until the page is closed.

import {fleetUrl} from './api.js';
import {setText} from './dom.js';
import {EventStream} from './events_stream.js';

// Milliseconds between two looks.
const REST = 1000;

export class FleetLook {
  /**
   * `load(missed)`: reads what is shown, at first and after each change; `missed`: changes went by unseen, so that all
   * of it may be old. `matters(job)`: whether a job that changed is among it. `problem`: an element for what goes
   * wrong.
   */
  constructor({load, matters, problem}) {
    Object.assign(this, {load, matters, problem});
    this.attempt(() => load(false));
    this.stream = new EventStream({
      url: fleetUrl(),
      receive: (event, data) => this.receive(event, data),
      failed: (error) => this.fail(error),
    });
  }

  receive(event, data) {
    if (event === 'reset') this.missed = true;
    if ((event !== 'reset' && !(event === 'job' && this.matters(data))) || this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = undefined;
      this.attempt(() => this.catchUp());
    }, REST);
  }

  async catchUp() {
    const {missed} = this;
    this.missed = false;
    try {
      await this.load(missed);
    } catch (error) {
      this.missed = this.missed || missed;
      throw error;
    }
  }

  /** Does something for the page; what goes wrong is told on it, until something goes well. */
  async attempt(action) {
    try {
      await action();
      if (!this.closed) this.problem.hidden = true;
    } catch (error) {
      // The stream tells of a lost connection.
      if (!this.closed && error.status !== 0) this.fail(error);
    }
  }

  fail(error) {
    this.problem.hidden = false;
    setText(this.problem, error.message);
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.stream.close();
  }
}
