// Which jobs are chosen to be compared. Event 'choice' of the window when that changes.

import {load, save} from './storage.js';

/** As many as there are colours to tell them apart. */
export const MOST = 8;
const KEY = 'ampd.compare';

let jobs = (load('sessionStorage', KEY) || '').split(',').filter(Boolean);

/** Ids, in the order in which they were chosen. */
export function chosen() {
  return jobs;
}

export function choose(ids) {
  jobs = [...new Set(ids)].slice(0, MOST);
  save('sessionStorage', KEY, jobs.join(','));
  dispatchEvent(new Event('choice'));
}

/** False where there are too many already. */
export function toggle(id) {
  if (jobs.includes(id)) {
    choose(jobs.filter((other) => other !== id));
    return true;
  }
  if (jobs.length >= MOST) return false;
  choose([...jobs, id]);
  return true;
}
