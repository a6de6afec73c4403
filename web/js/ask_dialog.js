// A form in a dialog, for what is changed with a word or a number. What the server refuses is told in it.

import {h, setText} from './dom.js';
import {openDialog} from './keys.js';

/**
 * `fields`: {name, label, input, hint} each, `input` an element with a `value` or `checked`. `action(values)` is waited
 * for; the dialog closes once it is through. Its second argument, a signal, tells that the dialog was left before.
 * `verb`: on the button. Returns the dialog.
 */
export function askFor({title, fields, verb, danger, action}) {
  const problem = h('p', {class: 'problem', role: 'alert'});
  const left = new AbortController();
  const button = h('button', {type: 'submit', class: danger ? 'danger' : 'primary'}, verb);
  const submit = async (event) => {
    event.preventDefault();
    setText(problem, '');
    button.disabled = true;
    const valueOf = ({input}) => (input.type === 'checkbox' ? input.checked : input.value);
    try {
      await action(Object.fromEntries(fields.map((field) => [field.name, valueOf(field)])), left.signal);
      dialog.close();
    } catch (error) {
      setText(problem, error.message);
    }
    button.disabled = false;
  };
  const rows = fields.map(({name, label, input, hint}) => {
    input.id = `ask-${name}`;
    const named = h('label', {for: input.id
    }, label);
    return [
      input.type === 'checkbox' ? h('p', {class: 'check'}, input, named) : [named, input],
      hint && h('p', {class: 'hint'}, hint)
    ];
  });
  const dialog = openDialog(
      title,
      h('form', {class: 'ask', onsubmit: submit}, rows, problem,
        h('p', {class: 'buttons'}, h('button', {type: 'button', onclick: () => dialog.close()}, 'Leave it'), button)));
  dialog.addEventListener('close', () => left.abort());
  fields[0].input.focus();
  // A text's; lists have none.
  if (fields[0].input.select) fields[0].input.select();
  return dialog;
}
