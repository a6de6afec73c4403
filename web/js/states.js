// The states of a job, and what may be done in each.

const ACTIVE = ['QUEUED', 'STARTING', 'RUNNING', 'PREEMPTING', 'PAUSED', 'RETRYING', 'RECOVERING', 'CANCELLING'];
export const ENDED = ['SUCCEEDED', 'FAILED', 'CANCELLED'];
const WAITING = ['QUEUED', 'PAUSED', 'RETRYING'];

/** The states whose names have `text` within, in any case. */
export function statesWith(text) {
  return [...ACTIVE, ...ENDED].filter((state) => state.includes(text.toUpperCase()));
}

/** 'running', 'waiting' or 'ended'. */
export function groupOf(job) {
  if (ENDED.includes(job.state)) return 'ended';
  return WAITING.includes(job.state) ? 'waiting' : 'running';
}

export function hasEnded(job) {
  return ENDED.includes(job.state);
}

/** Verbs of the API that make sense for the job now; the server has the last word. */
export function verbsFor(job) {
  switch (job.state) {
    case 'RUNNING':
      return ['update', 'checkpoint', 'pause', 'cancel'];
    case 'QUEUED':
    case 'STARTING':
    case 'RETRYING':
    case 'RECOVERING':
    case 'PREEMPTING':
      return ['update', 'pause', 'cancel'];
    case 'PAUSED':
      return ['update', 'resume', 'cancel'];
    case 'FAILED':
    case 'CANCELLED':
      return ['retry'];
    default:
      return [];
  }
}
