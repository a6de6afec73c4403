// The form for a token.

import {identity, signIn, signOut} from './api.js';
import {h, setText} from './dom.js';
import {saveDraft} from './draft.js';
import {openDialog} from './keys.js';

async function submit(event, dialog, input, problem) {
  event.preventDefault();
  setText(problem, '');
  try {
    await signIn(input.value.trim());
  } catch (error) {
    setText(problem, error.status === 401 ? 'The server does not know this token, or it has expired.' : error.message);
    input.select();
    return;
  }
  dialog.close();
  dispatchEvent(new Event('signedin'));
}

/** `reason`: why the form is shown, where nobody asked for it. */
export function openSignIn(reason) {
  if (document.querySelector('dialog[open]')) return;
  const input = h(
      'input', {id: 'token', type: 'password', autocomplete: 'current-password', spellcheck: 'false', required: true});
  const problem = h('p', {class: 'problem', role: 'alert'});
  const form =
      h('form', {class: 'sign-in', onsubmit: (event) => submit(event, dialog, input, problem)},
        reason ? h('p', {}, reason) : null,
        h('label',
          {for: 'token'
          },
          'Token'),
        input,
        h('p', {class: 'hint'},
          'As “ampctl tokens create” told it. It holds for 12 hours after its last use, or until you sign out.'),
        problem, h('p', {class: 'buttons'}, h('button', {type: 'submit', class: 'primary'}, 'Sign in')));
  const dialog = openDialog('Sign in', form);
  input.focus();
}

async function change() {
  if (!identity().signed_in) {
    openSignIn();
    return;
  }
  await signOut();
  saveDraft(null);
  location.reload();
}

/** Signs in, or out. */
export function signInButton() {
  return h('button', {type: 'button', class: 'quiet', id: 'sign-in', onclick: change});
}
