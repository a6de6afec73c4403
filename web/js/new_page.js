// A new job: its file, what is wrong with it or what it would be, and the button that queues it.

import {identity, specText, submitFile} from './api.js';
import {fill, h, setText} from './dom.js';
import {forgetRequest, loadDraft, newRequestId, saveDraft} from './draft.js';
import {bytes} from './format.js';
import {planParts, warningParts} from './plan_view.js';
import {STARTER} from './starter.js';
import {TextEditor} from './text_editor.js';

// What the server takes as a body.
const MOST_BYTES = 64 * 1024;

const sizeOf = (text) => new TextEncoder().encode(text).length;

export class NewPage {
  /** `from`: the job whose spec the file begins with; null: a starter. */
  constructor(main, from) {
    document.title = 'New job · ampd';
    this.from = from || '';
    this.user = identity().user;
    this.build(main);
    this.editor.area.readOnly = true;
    this.onIdentity = () => this.showRights();
    addEventListener('identity', this.onIdentity);
    this.onDrag = (event) => this.drag(event);
    for (const kind of ['dragover', 'dragleave', 'drop']) addEventListener(kind, this.onDrag);
    this.showRights();
    this.begin();
  }

  build(main) {
    this.editor = new TextEditor({
      label: 'Job file, YAML or JSON',
      describedBy: 'editor-hint',
      changed: () => this.onChange(),
      enter: () => this.send(true)
    });
    this.picker =
        h('input',
          {type: 'file', class: 'hidden', tabindex: '-1', accept: '.yaml,.yml,.json', onchange: () => this.pick()});
    const open = h('button', {type: 'button', onclick: () => this.picker.click()}, 'Open file…');
    this.again =
        h('button', {type: 'button', disabled: true, onclick: () => this.editor.replace(this.original)}, 'Start over');
    this.check = h('button', {type: 'button', id: 'check', onclick: () => this.send(true)}, 'Check');
    this.submit =
        h('button', {type: 'button', id: 'submit', class: 'primary', onclick: () => this.send(false)}, 'Submit');
    this.rights = h('p', {class: 'notice', hidden: true});
    this.problem = h('p', {class: 'notice error', role: 'alert', hidden: true});
    this.result = h('div', {id: 'result', role: 'status', tabindex: '-1'});
    main.append(
        h('div', {class: 'heading'}, h('h1', {}, this.from ? 'Edit and resubmit' : 'New job')), this.rights,
        this.problem,
        h('div', {class: 'new-job'},
          h('div', {},
            h('div', {class: 'toolbar'}, open, this.picker, this.again,
              h('span', {class: 'send'}, this.check, this.submit)),
            this.editor.element,
            h('p', {class: 'hint', id: 'editor-hint'},
              'Drop a file here to open it. Ctrl+Enter checks; Tab goes on to the next control.')),
          this.result));
  }

  async begin() {
    const draft = loadDraft();
    try {
      this.original = this.from ? await specText(this.from) : STARTER;
    } catch (error) {
      if (this.closed) return;
      this.tell(error.message);
      if (error.status === 0) this.timer = setTimeout(() => this.begin(), 2000);
      return;
    }
    if (this.closed) return;
    this.tell('');
    const kept = draft && draft.from === this.from && draft.user === this.user ? draft : null;
    this.editor.area.readOnly = false;
    this.request = kept && kept.request;
    this.editor.start(kept ? kept.text : this.original);
    this.again.disabled = this.editor.text === this.original;
    this.showBusy();
    if (!this.rights.hidden) return;
    this.editor.area.focus();
  }

  /** Another address, or somebody signed in: true where it is the same page, of the same user, and has its text. */
  follow(name, id, tab, query) {
    const same = name === 'new' && (query.get('from') || '') === this.from;
    return same && identity().user === this.user && this.original !== undefined;
  }

  showRights() {
    const {may_change: may, role, tokens} = identity();
    this.rights.hidden = may;
    setText(this.rights, may || !tokens ? '' : `You may look at jobs and not submit them (role ${role || 'none'}).`);
    this.showBusy();
  }

  showBusy() {
    const {may_change: may} = identity();
    const idle = may && this.busy !== true && this.original !== undefined;
    for (const button of [this.check, this.submit]) button.disabled = !idle;
  }

  onChange() {
    this.again.disabled = this.editor.text === this.original;
    this.keep();
  }

  keep() {
    const {text} = this.editor;
    if (this.original === undefined) return;
    const draft = {from: this.from, user: this.user, text, request: this.request};
    saveDraft(text === this.original && !this.request ? null : draft);
  }

  tell(message) {
    this.problem.hidden = message === '';
    setText(this.problem, message);
  }

  // Files

  pick() {
    this.openFile(this.picker.files[0]);
    // So that the same file can be picked again.
    this.picker.value = '';
  }

  /** Whatever is dropped beside the editor does not take the page's place. */
  drag(event) {
    if (![...event.dataTransfer.types].includes('Files')) return;
    event.preventDefault();
    this.editor.element.classList.toggle('dropping', event.type === 'dragover');
    if (event.type === 'drop') this.openFile(event.dataTransfer.files[0]);
  }

  async openFile(file) {
    if (!file) return;
    this.tell('');
    if (file.size > MOST_BYTES) {
      this.tell(`${file.name} has ${bytes(file.size)}, a job file here at most ${
          bytes(MOST_BYTES)}: submit it with “ampctl submit”.`);
      return;
    }
    try {
      this.editor.replace(new TextDecoder('utf-8', {fatal: true}).decode(await file.arrayBuffer()));
    } catch (error) {
      this.tell(`${file.name} is no text (UTF-8), or cannot be read.`);
    }
  }

  // The server

  /** The id of the same text's request stays until a job came of it: asked for twice it is one job. */
  requestIdOf(text) {
    if (!this.request || this.request.text !== text) this.request = {id: newRequestId(), text};
    this.keep();
    return this.request.id;
  }

  async send(validateOnly) {
    const {text} = this.editor;
    if (this.busy || this.original === undefined || !identity().may_change) return;
    this.tell('');
    if (sizeOf(text) > MOST_BYTES) {
      this.tell(`The job file has ${bytes(sizeOf(text))}, of which a request holds ${
          bytes(MOST_BYTES)}: submit it with “ampctl submit”.`);
      return;
    }
    this.busy = true;
    this.showBusy();
    fill(this.result, h('p', {class: 'note'}, validateOnly ? 'Checking …' : 'Submitting …'));
    const requestId = validateOnly ? undefined : this.requestIdOf(text);
    try {
      const answer = await submitFile(text, validateOnly ? {validateOnly} : {requestId});
      // Whoever left the page meanwhile has a job all the same: the next submit is another.
      if (requestId) forgetRequest(requestId);
      if (!this.closed) this.answered(answer, validateOnly);
    } catch (error) {
      if (!this.closed) this.refused(error, text, validateOnly);
    }
    this.busy = false;
    this.showBusy();
  }

  answered({job, sweep}, validateOnly) {
    this.editor.mark([]);
    if (validateOnly) {
      this.showValid(job, sweep);
      return;
    }
    location.hash = job ? `#/jobs/${job.id}` : `#/sweeps/${sweep.id}`;
  }

  showValid(job, sweep) {
    const what = sweep ? `a sweep of ${sweep.count} ${sweep.count === 1 ? 'job' : 'jobs'}` : job.spec.name;
    fill(
        this.result, h('p', {class: 'notice good'}, `Valid: ${what}. Nothing was submitted.`),
        warningParts(sweep ? sweep.warnings : job.plan && job.plan.warnings));
    if (!job) return;
    if (job.plan && job.plan.layers.length > 0) {
      this.result.append(...planParts(job.plan));
    } else {
      this.result.append(h('p', {class: 'note'}, 'The data could not be read, so shapes were not checked.'));
    }
  }

  /** `text`: that was sent; in another one its lines say nothing. */
  refused(error, text, validateOnly) {
    const {violations, status} = error;
    this.editor.mark(this.editor.text === text ? violations.map(({line}) => line) : []);
    const again =
        [0, 503, 504].includes(status) && !validateOnly ? ' Submit again once it can: that makes no second job.' : '';
    fill(
        this.result,
        violations.length > 0 ? this.list(violations) : h('p', {class: 'notice error'}, error.message + again));
  }

  list(violations) {
    const items = violations.map(({field, description, line}) => {
      const go = () => this.editor.goTo(line);
      return h(
          'li', {},
          line ? h('button', {type: 'button', class: 'line', data: {line}, onclick: go}, `Line ${line}`) : null,
          h('span', {}, field ? h('code', {}, field) : null, field ? ' ' : null, description));
    });
    // The server counts those that it does not list.
    const left = violations.map(({field, description}) => (field ? null : /^and (\d+) more$/.exec(description)));
    const count = left.reduce((sum, match) => sum + (match ? Number(match[1]) : 1), 0);
    return [
      h('p', {class: 'notice error'},
        count === 1 ? 'Something is wrong with the job:' : `${count} things are wrong with the job:`),
      h('ol', {class: 'violations'}, items)
    ];
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    removeEventListener('identity', this.onIdentity);
    for (const kind of ['dragover', 'dragleave', 'drop']) removeEventListener(kind, this.onDrag);
  }
}
