// Starts the page: the bar on top, the keys that hold everywhere, and which page is shown for which address.

import {identity, isFinal, loadIdentity, offline, reportOffline, reportOnline} from './api.js';
import {fill, h, setText} from './dom.js';
import {bind, showHelp} from './keys.js';
import {OverviewPage} from './overview_page.js';
import {chosen} from './selection.js';
import {openSignIn, signInButton} from './sign_in.js';
import {currentTheme, nextTheme} from './theme.js';

const THEMES = {
  auto: ['◐', 'as the system'],
  light: ['☀', 'light'],
  dark: ['☾', 'dark']
};

const main = document.getElementById('main');
const notices = document.getElementById('notices');
const parts = {};
let page;
// The address that is shown, or will be.
let latest;

/** As it stands where its escapes are none, such as "%". */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch (error) {
    return part;
  }
}

/** "#/jobs/ID/charts?x=1" as {parts, query}. */
function route() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
  return {parts: path.split('/').filter(Boolean).map(decoded), query: new URLSearchParams(query || '')};
}

/** The page of an address. Files of the overview come first; those of the other pages may still be on their way. */
async function pageOf({parts: [name, id, tab], query}) {
  if (name === 'jobs' && id) {
    const {JobPage} = await import('./job_page.js');
    return () => new JobPage(main, id, tab);
  }
  if (name === 'compare') {
    const {ComparePage} = await import('./compare_page.js');
    return () => new ComparePage(main, query);
  }
  if (name === 'new') {
    const {NewPage} = await import('./new_page.js');
    return () => new NewPage(main, query.get('from'));
  }
  if (name === 'sweeps' && !id) {
    const {SweepsPage} = await import('./sweeps_page.js');
    return () => new SweepsPage(main);
  }
  if (name === 'sweeps') {
    const {SweepPage} = await import('./sweep_page.js');
    return () => new SweepPage(main, id);
  }
  return () => new OverviewPage(main);
}

function markPage(name) {
  for (const link of document.querySelectorAll('#bar nav a')) {
    if (link.dataset.page === (name || 'overview')) {
      link.setAttribute('aria-current', 'page');
    } else {
      link.removeAttribute('aria-current');
    }
  }
}

function tellNotLoaded() {
  const again = h('button', {type: 'button', onclick: () => location.reload()}, 'Load the page again');
  fill(
      main, h('p', {class: 'notice error', role: 'alert'}, 'This part of the page could not be read from the server.'),
      h('p', {}, again));
}

async function show() {
  const shown = route();
  const {parts: [name, id, tab], query} = shown;
  if (page && page.follow && page.follow(name, id, tab, query)) return;
  if (page) page.close();
  page = undefined;
  latest = shown;
  main.replaceChildren();
  markPage(name);
  scrollTo(0, 0);
  try {
    const make = await pageOf(shown);
    // Unless another was asked for meanwhile.
    if (latest === shown) page = make();
  } catch (error) {
    if (latest === shown) tellNotLoaded();
  }
}

function showTheme() {
  const [sign, text] = THEMES[currentTheme()];
  setText(parts.theme, sign);
  parts.theme.title = `Colours: ${text}`;
  parts.theme.setAttribute('aria-label', `Colours: ${text}. Change`);
}

function showIdentity() {
  const {draining, signed_in: signedIn, tokens, user, version} = identity();
  setText(parts.signIn, signedIn ? `Sign out ${user}`.trim() : 'Sign in');
  parts.signIn.hidden = !tokens;
  setText(parts.version, version || '');
  parts.draining.hidden = !draining;
}

function showConnection() {
  const state = offline();
  parts.live.classList.toggle('off', state !== null);
  setText(parts.live, state ? 'offline' : 'live');
  parts.lost.hidden = state === null;
  if (state) setText(parts.lost, ['No connection to the server; trying again.', state.why].filter(Boolean).join(' '));
}

function showChosen() {
  setText(parts.compare, chosen().length > 0 ? `Compare (${chosen().length})` : 'Compare');
}

function changeTheme() {
  nextTheme();
  showTheme();
}

function buildBar() {
  const bar = document.getElementById('bar');
  parts.compare = h('a', {href: '#/compare', data: {page: 'compare'}}, 'Compare');
  parts.theme = h('button', {type: 'button', class: 'quiet', onclick: changeTheme});
  parts.signIn = signInButton();
  parts.live = h('span', {class: 'live', id: 'live'}, 'live');
  parts.version = h('span', {class: 'version'});
  parts.lost = h('p', {class: 'notice error', id: 'lost', hidden: true});
  parts.draining = h('p', {class: 'notice', hidden: true}, 'The server is shutting down: nothing starts any more.');
  fill(
      bar,
      h('a', {class: 'brand', href: '#/', 'aria-label': 'ampd, overview'},
        h('img', {src: document.querySelector('link[rel=icon]').href, alt: '', width: 22, height: 22}),
        h('span', {}, 'ampd')),
      h('nav', {'aria-label': 'Pages'}, h('a', {href: '#/', data: {page: 'overview'}}, 'Jobs'),
        h('a', {href: '#/sweeps', data: {page: 'sweeps'}}, 'Sweeps'), parts.compare),
      h('span', {class: 'fill'}), parts.version, parts.live, parts.signIn, parts.theme,
      h('button',
        {type: 'button', class: 'quiet keys-button', 'aria-label': 'Keys', title: 'Keys (?)', onclick: showHelp}, '?'));
  fill(notices, parts.lost, parts.draining);
}

function bindKeys() {
  bind(['?'], 'this list', showHelp);
  bind(['t'], 'light, dark, or as the system', changeTheme);
  bind(['s'], 'all sweeps', () => {
    location.hash = '#/sweeps';
  });
  bind(['c'], 'compare the chosen jobs', () => {
    location.hash = '#/compare';
  });
  bind(['n'], 'new job', () => {
    if (!identity().may_change) return false;
    location.hash = '#/new';
    return true;
  });
  bind(['Escape', 'u'], 'back to all jobs', () => {
    if (location.hash === '' || location.hash === '#/') return false;
    location.hash = '#/';
    return true;
  });
}

/** The server answers and will go on refusing: in its words, for there is nothing to show. */
function tellRefused(error) {
  reportOnline(begin);
  parts.live.hidden = true;
  const again = h('button', {type: 'button', onclick: begin}, 'Try again');
  fill(
      main, h('p', {class: 'notice error', role: 'alert'}, `The server refuses this page: ${error.message}`),
      h('p', {}, again));
}

/** Asks who one is and, where the server wants to know, for a token. */
async function begin() {
  try {
    if (!await loadIdentity()) {
      main.replaceChildren(h('p', {class: 'empty'}, 'Sign in to see jobs and devices.'));
      openSignIn('This server asks for a token.');
      return;
    }
  } catch (error) {
    if (isFinal(error)) {
      tellRefused(error);
      return;
    }
    reportOffline(begin, 2000, error.status === 0 ? '' : error.message);
    setTimeout(begin, 2000);
    return;
  }
  parts.live.hidden = false;
  reportOnline(begin);
  show();
}

buildBar();
bindKeys();
showTheme();
showChosen();
addEventListener('hashchange', show);
addEventListener('choice', showChosen);
addEventListener('connection', showConnection);
addEventListener('identity', showIdentity);
addEventListener('signedin', begin);
addEventListener('unauthorized', () => openSignIn('You are signed in no more.'));
document.getElementById('skip').addEventListener('click', (event) => {
  event.preventDefault();
  main.focus();
});
begin();
