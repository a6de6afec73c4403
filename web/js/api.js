// The JSON API of docs/json_api.md. Events of the window: 'connection' (reached or not), 'identity', 'unauthorized'.

const ROOT = '/api/v1';

/** What the server refused, in its words. `status` is HTTP's; 0: it was not reached. */
export class ApiError extends Error {
  /** `violations`: {field, description, line} each; without a line where there is none. */
  constructor(status, code, message, violations = []) {
    super(message);
    Object.assign(this, {status, code, violations});
  }

  static async of(response) {
    let body = {};
    try {
      body = await response.json();
    } catch (error) {
      // Of a proxy, perhaps: the status has to do.
    }
    const violations = body.violations || [];
    const message = [
      body.message || `HTTP ${response.status} ${response.statusText}`,
      ...violations.map(({field, description}) => (field ? `${field}: ${description}` : description))
    ].join('; ');
    return new ApiError(response.status, body.code || '', message, violations);
  }
}

/** Whether trying again does not mend what an ApiError tells of: a refusal, other than for want of room. */
export function isFinal(error) {
  return error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429;
}

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(ROOT + path, {cache: 'no-store', ...options});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, 'UNAVAILABLE', 'The server cannot be reached.');
  }
  if (response.ok) return response;
  const error = await ApiError.of(response);
  if (error.status === 401 && path !== '/session') dispatchEvent(new Event('unauthorized'));
  throw error;
}

export async function get(path, options) {
  return (await request(path, options)).json();
}

async function change(method, path, body) {
  const options = {method, headers: {'Content-Type': 'application/json'}, body: JSON.stringify(body)};
  return (await request(path, options)).json();
}

// Who one is

let session = {tokens: false, signed_in: false, user: '', role: '', may_change: false};

/** As GET /session, and `version` and `draining` of the server. */
export function identity() {
  return session;
}

function setSession(found) {
  session = {...session, ...found};
  dispatchEvent(new Event('identity'));
}

/** Gives whether anything but the form to sign in can be shown. */
export async function loadIdentity() {
  setSession(await get('/session'));
  if (session.signed_in) loadServer();
  return session.signed_in;
}

/** Version and draining, for which nothing else waits. */
async function loadServer() {
  try {
    setSession(await get('/server'));
  } catch (error) {
    if (error.status !== 401) setTimeout(loadServer, 5000);
  }
}

export async function signIn(token) {
  setSession(await change('POST', '/session', {token}));
}

export async function signOut() {
  setSession(await change('DELETE', '/session', {}));
}

// Jobs

const ACTIVE = 'QUEUED,STARTING,RUNNING,PREEMPTING,PAUSED,RETRYING,RECOVERING,CANCELLING';

function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== '');
  return given.length > 0 ? '?' + new URLSearchParams(given) : '';
}

/** A page of all jobs, newest first; `filter` as ListJobsRequest's. */
export function listJobs({token, filter} = {}) {
  return get('/jobs' + query({view: 'SUMMARY', page_size: 50, page_token: token, filter}));
}

/** Jobs that have not ended, at most about 500. */
export async function activeJobs() {
  const found = [];
  let token;
  do {
    const page = await get('/jobs' + query({view: 'SUMMARY', page_size: 250, states: ACTIVE, page_token: token}));
    found.push(...page.jobs);
    token = page.next_page_token;
  } while (token && found.length < 500);
  return found;
}

export function getJob(id, view = 'SUMMARY') {
  return get(`/jobs/${encodeURIComponent(id)}` + query({view}));
}

/** A part of a job: 'plan', 'checkpoints', 'histograms', 'artifacts', 'events', 'logs', 'series'. */
export function part(id, name, parameters = {}, options) {
  return get(`/jobs/${encodeURIComponent(id)}/${name}` + query(parameters), options);
}

/** The spec as YAML. */
export async function specText(id) {
  return (await request(`/jobs/${encodeURIComponent(id)}/spec?format=yaml`)).text();
}

export function artifactUrl(id, name) {
  return `${ROOT}/jobs/${encodeURIComponent(id)}/artifacts/${encodeURIComponent(name)}`;
}

export function checkpointFileUrl(id, checkpoint, file) {
  return [ROOT, 'jobs', ...[id, 'checkpoints', checkpoint, file].map(encodeURIComponent)].join('/');
}

/** Of all the files of a checkpoint together. */
export function checkpointArchiveUrl(id, checkpoint) {
  return [ROOT, 'jobs', ...[id, 'checkpoints', checkpoint].map(encodeURIComponent)].join('/') + '?format=tar';
}

/**
 * A checkpoint's model in another form: {name, blob}. `form`: 'onnx' or 'safetensors'; `dtype`: 'fp32', 'fp16' or
 * 'bf16'; `network`: of several; `ema`: the running average of the weights. `signal` ends it.
 */
export async function exportModel(id, checkpoint, {form, dtype, network, ema}, signal) {
  const path = ['', 'jobs', ...[id, 'checkpoints', checkpoint].map(encodeURIComponent), 'export'].join('/');
  const response = await request(path + query({form, dtype, network, ema: ema || undefined}), {signal});
  // Something in between may have dropped the name.
  const named = /filename="([^"]+)"/.exec(response.headers.get('Content-Disposition') || '');
  return {name: named ? named[1] : `model.${form}`, blob: await response.blob()};
}

/** Submits a job file: {job} or {sweep}. With `validateOnly` nothing is queued; requests of one id make one job. */
export async function submitFile(text, {requestId, validateOnly} = {}) {
  const options = {method: 'POST', headers: {'Content-Type': 'application/yaml'}, body: text};
  const path = '/submit' + query({request_id: requestId, validate_only: validateOnly});
  return (await request(path, options)).json();
}

/** A page of all sweeps, newest first. */
export function listSweeps({token} = {}) {
  return get('/sweeps' + query({page_size: 50, page_token: token}));
}

export function getSweep(id) {
  return get(`/sweeps/${encodeURIComponent(id)}`);
}

/** A verb as in 'cancel', with what it takes: the answer's body. */
export function act(id, verb, body = {}) {
  return change('POST', `/jobs/${encodeURIComponent(id)}/${verb}`, body);
}

/** 'drain' or 'undrain'. */
export function actOnDevice(id, verb, body = {}) {
  return change('POST', `/devices/${encodeURIComponent(id)}/${verb}`, body);
}

export function fleetUrl() {
  return `${ROOT}/events`;
}

export function jobEventsUrl(id, after) {
  return `${ROOT}/jobs/${encodeURIComponent(id)}/events` + query({after});
}

// The connection

const lost = new Map();

/** null, or {wait, why}: milliseconds until the next try, and what the server said. */
export function offline() {
  return lost.size > 0 ? [...lost.values()][0] : null;
}

export function reportOffline(who, wait, why = '') {
  lost.set(who, {wait, why});
  dispatchEvent(new Event('connection'));
}

export function reportOnline(who) {
  if (lost.delete(who)) dispatchEvent(new Event('connection'));
}
