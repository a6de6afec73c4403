// Builds elements. Strings become text nodes; nothing here takes HTML, so that what jobs say stays text.

const SVG = 'http://www.w3.org/2000/svg';

function setProperty(element, name, value) {
  if (value === undefined || value === null || value === false) return;
  if (name.startsWith('on')) {
    element.addEventListener(name.slice(2), value);
  } else if (name === 'vars') {
    // The style attribute is forbidden by the content security policy; single properties are not.
    for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
  } else if (name === 'data') {
    for (const [key, text] of Object.entries(value)) element.dataset[key] = text;
  } else if (value === true) {
    element.setAttribute(name, '');
  } else {
    element.setAttribute(name, value);
  }
}

function build(element, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) setProperty(element, name, value);
  add(element, children);
  return element;
}

/** Appends nodes, strings, numbers and (nested) arrays of them; null, undefined and false are left out. */
export function add(parent, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : String(child));
  }
  return parent;
}

/** An HTML element; `on...` properties are listeners, `vars` single style properties, `data` the dataset. */
export function h(tag, properties, ...children) {
  return build(document.createElement(tag), properties, children);
}

/** An SVG element. */
export function svg(tag, properties, ...children) {
  return build(document.createElementNS(SVG, tag), properties, children);
}

/** Puts `children` in place of what is there. */
export function fill(parent, ...children) {
  parent.replaceChildren();
  return add(parent, children);
}

/** Sets an element's text, and touches nothing where it is the same already. */
export function setText(element, text) {
  const value = text === undefined || text === null ? '' : String(text);
  if (element.textContent !== value) element.textContent = value;
}

/** A list of [name, value, class of the pair]; those without a value are left out. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== '');
  return h(
      'dl', {class: 'facts'},
      shown.map(([name, value, kind]) => h('div', {class: kind}, h('dt', {}, name), h('dd', {}, value))));
}

/** A real table; `columns` are names or {name, class}. */
export function table(caption, columns, rows) {
  const head = columns.map((column) => {
    const {name, class: kind} = typeof column === 'string' ? {name: column} : column;
    return h('th', {scope: 'col', class: kind}, name);
  });
  const body = rows.map((cells) => h('tr', {}, cells.map((cell, i) => h('td', {class: columns[i].class}, cell))));
  return h(
      'div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption},
      h('table', {}, h('caption', {class: 'hidden'}, caption), h('thead', {}, h('tr', {}, head)),
        h('tbody', {}, body)));
}
