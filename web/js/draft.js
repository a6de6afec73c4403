// The job file that is being written, for as long as the window is open: it outlives another page and a reload. With it
// goes the id of the request that was made of it, so that one made again makes no second job.

import {load, save} from './storage.js';

const KEY = 'ampd.draft';

/** {from, user, text, request: {id, text}}, or null. `from`: the job that it began with; `user`: who wrote it. */
export function loadDraft() {
  try {
    return JSON.parse(load('sessionStorage', KEY));
  } catch (error) {
    return null;
  }
}

/** null: there is none any more. */
export function saveDraft(draft) {
  save('sessionStorage', KEY, draft && JSON.stringify(draft));
}

/** A job came of the request: its draft is done. One that was begun since stays, and so does what was written since. */
export function forgetRequest(id) {
  const draft = loadDraft();
  if (!draft || !draft.request || draft.request.id !== id) return;
  saveDraft(draft.text === draft.request.text ? null : {...draft, request: undefined});
}

/** Not crypto.randomUUID: without TLS browsers have it for localhost alone. */
export function newRequestId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return 'page-' + Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
