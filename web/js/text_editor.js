// A text to edit, with the numbers of its lines, some of which may be marked. Tab goes on to the next control, as
// everywhere: nobody is caught in it.

import {fill, h} from './dom.js';

const STEP = '  ';

/** What a line after this one begins with: its indentation, deeper behind a key without a value. */
function indentAfter(line) {
  const [spaces] = line.match(/^ */);
  return /:\s*(#.*)?$/.test(line.trimEnd()) && !line.trimStart().startsWith('#') ? spaces + STEP : spaces;
}

export class TextEditor {
  /** `changed()` after each change; `enter()` when Ctrl+Enter is pressed. */
  constructor({label, describedBy, changed, enter}) {
    this.changed = changed;
    this.enter = enter;
    this.marks = new Set();
    this.numbers = h('div', {class: 'numbers', 'aria-hidden': 'true'});
    this.area = h('textarea', {
      id: 'job-file',
      'aria-label': label,
      'aria-describedby': describedBy,
      wrap: 'off',
      rows: '30',
      spellcheck: 'false',
      autocomplete: 'off',
      autocapitalize: 'off',
      oninput: () => this.onInput(),
      onscroll: () => (this.numbers.scrollTop = this.area.scrollTop),
      onkeydown: (event) => this.onKey(event)
    });
    this.element = h('div', {class: 'editor'}, this.numbers, this.area);
  }

  get text() {
    return this.area.value;
  }

  /** Begins with `text`; nothing of before comes back. */
  start(text) {
    this.area.value = text;
    this.showNumbers();
    this.toTop();
  }

  /** Puts `text` in place of all there is, which the browser's undo brings back. */
  replace(text) {
    this.area.focus();
    this.area.select();
    this.insert(text);
    this.toTop();
  }

  toTop() {
    this.area.setSelectionRange(0, 0);
    this.area.scrollTop = 0;
  }

  insert(text) {
    // The only way that undo knows of.
    if (document.execCommand('insertText', false, text)) return;
    this.area.setRangeText(text, this.area.selectionStart, this.area.selectionEnd, 'end');
    this.onInput();
  }

  onInput() {
    this.marks.clear();
    this.showNumbers();
    this.changed();
  }

  onKey(event) {
    if (event.key !== 'Enter' || event.isComposing || event.shiftKey || event.altKey) return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) {
      this.enter();
      return;
    }
    const before = this.text.slice(0, this.area.selectionStart);
    this.insert('\n' + indentAfter(before.slice(before.lastIndexOf('\n') + 1)));
  }

  /** Marks lines, by their numbers. */
  mark(lines) {
    this.marks = new Set(lines);
    this.showNumbers();
  }

  showNumbers() {
    const count = this.text.split('\n').length;
    if (this.numbers.children.length !== count)
      fill(this.numbers, Array.from({length: count}, (_, i) => h('span', {}, i + 1)));
    [...this.numbers.children].forEach((line, i) => line.classList.toggle('wrong', this.marks.has(i + 1)));
    this.numbers.scrollTop = this.area.scrollTop;
  }

  /** Selects a line and brings it into view. */
  goTo(line) {
    const lines = this.text.split('\n');
    const begin = lines.slice(0, line - 1).reduce((sum, text) => sum + text.length + 1, 0);
    this.area.focus();
    this.area.setSelectionRange(begin, begin + (lines[line - 1] || '').length);
    const height = this.area.scrollHeight / lines.length;
    this.area.scrollTop = Math.max(0, (line - 1) * height - this.area.clientHeight / 3);
  }
}
