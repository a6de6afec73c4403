// Pointer, wheel and keys on a chart: all of it moves the range that its group shows.

const CLICK = 4;

function within(chart, event) {
  const box = chart.canvas.getBoundingClientRect();
  return event.clientX - box.left;
}

function stepAt(chart, pixel) {
  const {low, high} = chart.group.range();
  return Math.min(Math.max(chart.x.value(pixel), low), high);
}

function showSelection(chart, from, to) {
  chart.selection.hidden = false;
  chart.selection.style.setProperty('left', `${Math.min(from, to)}px`);
  chart.selection.style.setProperty('width', `${Math.abs(to - from)}px`);
}

function attachPointer(chart) {
  const {canvas, group} = chart;
  let start = null;
  canvas.addEventListener('pointerdown', (event) => {
    if (event.button !== 0 || !chart.x) return;
    start = within(chart, event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener('pointermove', (event) => {
    if (!chart.x) return;
    const pixel = within(chart, event);
    group.setHover(Math.round(stepAt(chart, pixel)));
    if (start !== null && Math.abs(pixel - start) > CLICK) showSelection(chart, start, pixel);
  });
  const end = (event, zoom) => {
    chart.selection.hidden = true;
    const from = start;
    start = null;
    const to = within(chart, event);
    if (!zoom || from === null || Math.abs(to - from) <= CLICK) return;
    group.setView(stepAt(chart, Math.min(from, to)), stepAt(chart, Math.max(from, to)));
  };
  canvas.addEventListener('pointerup', (event) => end(event, true));
  canvas.addEventListener('pointercancel', (event) => end(event, false));
  canvas.addEventListener('pointerleave', () => group.setHover(null));
  canvas.addEventListener('dblclick', () => group.showAll());
}

// The plain wheel scrolls the page.
function attachWheel(chart) {
  chart.canvas.addEventListener('wheel', (event) => {
    if (!(event.ctrlKey || event.shiftKey) || !chart.x) return;
    event.preventDefault();
    const turn = event.deltaY || event.deltaX;
    chart.group.zoom(Math.exp(Math.max(-0.5, Math.min(0.5, turn / 300))), stepAt(chart, within(chart, event)));
  }, {passive: false});
}

function attachKeys(chart) {
  const {group} = chart;
  const actions = {
    '+': () => group.zoom(0.5),
    '=': () => group.zoom(0.5),
    '-': () => group.zoom(2),
    '0': () => group.showAll(),
    'ArrowLeft': () => group.move(-0.2),
    'ArrowRight': () => group.move(0.2),
  };
  chart.canvas.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !actions[event.key]) return;
    actions[event.key]();
    event.preventDefault();
  });
}

export function attachInput(chart) {
  attachPointer(chart);
  attachWheel(chart);
  attachKeys(chart);
}
