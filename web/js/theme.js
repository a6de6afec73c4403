// Light, dark, or as the system has it. Charts are drawn anew on the event 'themechange' of the document.

import {save} from './storage.js';

const ORDER = ['auto', 'light', 'dark'];

export function currentTheme() {
  return document.documentElement.dataset.theme || 'auto';
}

export function nextTheme() {
  const theme = ORDER[(ORDER.indexOf(currentTheme()) + 1) % ORDER.length];
  if (theme === 'auto') {
    delete document.documentElement.dataset.theme;
  } else {
    document.documentElement.dataset.theme = theme;
  }
  save('localStorage', 'ampd.theme', theme === 'auto' ? null : theme);
  document.dispatchEvent(new Event('themechange'));
  return theme;
}

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  document.dispatchEvent(new Event('themechange'));
});

// Asking for a style has the whole page laid out; charts ask for each line they draw.
const colours = new Map();
document.addEventListener('themechange', () => colours.clear());

/** The colour that a CSS custom property stands for now. */
export function colour(name) {
  if (!colours.has(name)) colours.set(name, resolve(name));
  return colours.get(name);
}

function resolve(name) {
  const probe = document.getElementById('skip');
  probe.style.setProperty('outline-color', `var(${name})`);
  const value = getComputedStyle(probe).outlineColor;
  probe.style.removeProperty('outline-color');
  return value;
}
