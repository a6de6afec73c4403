// Keys of the whole page, and the list of them. A page adds its own and takes them away when it is left.

import {fill, h} from './dom.js';

const bindings = [];

/** Binds keys (as KeyboardEvent.key has them) to `action`; gives a function that ends it. */
export function bind(keys, text, action) {
  const binding = {keys, text, action};
  bindings.push(binding);
  return () => bindings.splice(bindings.indexOf(binding), 1);
}

function typing(target) {
  return target.closest('input, textarea, select, [contenteditable]') !== null;
}

function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === 'Escape' && typing(event.target)) {
    event.target.blur();
    return;
  }
  if (typing(event.target) || document.querySelector('dialog[open]')) return;
  // The newest first: a page's own keys before those of all pages.
  for (let i = bindings.length - 1; i >= 0; --i) {
    if (!bindings[i].keys.includes(event.key)) continue;
    if (bindings[i].action(event) === false) continue;
    event.preventDefault();
    return;
  }
}
document.addEventListener('keydown', onKey);

const NAMES = {
  ArrowDown: '↓',
  ArrowUp: '↑',
  ArrowLeft: '←',
  ArrowRight: '→',
  Escape: 'Esc',
  ' ': 'Space'
};

function row({keys, text}) {
  return h('div', {}, h('dt', {}, keys.map((key) => h('kbd', {}, NAMES[key] || key))), h('dd', {}, text));
}

/** Opens a modal dialog with `children`; it is gone once it is closed. */
export function openDialog(title, ...children) {
  const close =
      h('button', {type: 'button', class: 'quiet', 'aria-label': 'Close', onclick: () => dialog.close()}, '✕');
  const heading = h('h2', {id: 'dialog-title'}, title);
  const dialog = h('dialog', {'aria-labelledby': 'dialog-title'}, h('header', {}, heading, close));
  for (const child of children) dialog.append(child);
  dialog.addEventListener('close', () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

const EVERYWHERE = [
  {keys: ['Tab'], text: 'go on to the next control'},
  {keys: ['Escape'], text: 'close, leave a field, or go back'},
];
const ON_CHARTS = [
  {keys: ['+', '-'], text: 'on a chart: zoom in and out'},
  {keys: ['ArrowLeft', 'ArrowRight'], text: 'on a chart: move along the steps'},
  {keys: ['0'], text: 'on a chart: show all steps'},
];
const ON_JOB_FILES = [
  {keys: ['Ctrl+Enter'], text: 'in a job file: check it'},
];

export function showHelp() {
  const list = h('dl', {class: 'keys'});
  fill(list, [...bindings.filter((binding) => binding.text), ...EVERYWHERE, ...ON_CHARTS, ...ON_JOB_FILES].map(row));
  openDialog('Keys', list);
}
