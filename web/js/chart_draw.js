// How the parts of a chart are drawn. What falls on one column of pixels is drawn once, so that the time it takes is
// bound by the chart's width and not by the number of points.

/** The first index whose value is not below `value`. */
export function lowerBound(values, value) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/** The index of the value next to `value`; `values` ascend and are not empty. */
export function nearest(values, value) {
  const i = Math.min(lowerBound(values, value), values.length - 1);
  return i > 0 && value - values[i - 1] < values[i] - value ? i - 1 : i;
}

/** Indices of the points within a range, with one on either side of it, so that lines leave the frame. */
function within(x, low, high) {
  return {begin: Math.max(0, lowerBound(x, low) - 1), end: Math.min(x.length, lowerBound(x, high) + 1)};
}

function usable(value, log) {
  return Number.isFinite(value) && (!log || value > 0);
}

/** The least and most of what is to be drawn. */
export function valuesWithin(series, low, high, log) {
  let least = Infinity;
  let most = -Infinity;
  for (const {x, y, low: lows, high: highs} of series) {
    const {begin, end} = within(x, low, high);
    for (let i = begin; i < end; ++i) {
      for (const value of [lows ? lows[i] : y[i], highs ? highs[i] : y[i]]) {
        if (!usable(value, log)) continue;
        if (value < least) least = value;
        if (value > most) most = value;
      }
    }
  }
  return {least, most};
}

function clip(context, x, y) {
  context.save();
  context.beginPath();
  const left = x.pixel(x.low);
  const right = x.pixel(x.high);
  const top = Math.min(y.pixel(y.low), y.pixel(y.high));
  const bottom = Math.max(y.pixel(y.low), y.pixel(y.high));
  context.rect(left - 2, top - 2, right - left + 4, bottom - top + 4);
  context.clip();
}

/** Gives how many points it stands for. */
export function drawLine(context, {x, y, stairs, dash}, xAxis, yAxis, ink) {
  clip(context, xAxis, yAxis);
  context.setLineDash(dash || []);
  context.strokeStyle = ink;
  context.lineWidth = 1.5;
  // Round joins take as long as all the rest.
  context.lineJoin = 'bevel';
  context.beginPath();
  const {begin, end} = within(x, xAxis.low, xAxis.high);
  let drawn = 0;
  let pen = false;
  let column = NaN;
  let lastY = 0;
  let least = 0;
  let most = 0;
  const endColumn = () => {
    if (most > least) {
      context.moveTo(column, least);
      context.lineTo(column, most);
      context.moveTo(column, lastY);
    }
  };
  for (let i = begin; i < end; ++i) {
    if (!usable(y[i], yAxis.log)) {
      endColumn();
      pen = false;
      column = NaN;
      continue;
    }
    const px = xAxis.pixel(x[i]);
    const py = yAxis.pixel(y[i]);
    ++drawn;
    if (pen && px - column < 1) {
      least = Math.min(least, py);
      most = Math.max(most, py);
      lastY = py;
      continue;
    }
    endColumn();
    if (!pen) {
      context.moveTo(px, py);
    } else if (stairs) {
      context.lineTo(px, lastY);
      context.lineTo(px, py);
    } else {
      context.lineTo(px, py);
    }
    pen = true;
    column = px;
    lastY = least = most = py;
  }
  endColumn();
  context.stroke();
  context.restore();
  // A single point has no line.
  if (drawn === 1) drawDots(context, {x, y}, xAxis, yAxis, ink);
  return drawn;
}

/** From the least to the most that each point stands for; one shape for each run of points without a gap. */
export function drawBand(context, {x, low, high}, xAxis, yAxis, ink) {
  clip(context, xAxis, yAxis);
  context.fillStyle = ink;
  context.globalAlpha = 0.18;
  const {begin, end} = within(x, xAxis.low, xAxis.high);
  const there = (i) => usable(low[i], yAxis.log) && usable(high[i], yAxis.log);
  for (let i = begin; i < end; ++i) {
    const first = i;
    let wide = false;
    for (; i < end && there(i); ++i) wide = wide || high[i] > low[i];
    // Where points stand for single steps there is nothing to fill.
    if (wide) fillRun(context, {x, low, high, first, last: i - 1}, xAxis, yAxis);
  }
  context.restore();
}

function fillRun(context, {x, low, high, first, last}, xAxis, yAxis) {
  context.beginPath();
  for (let i = first; i <= last; ++i) context.lineTo(xAxis.pixel(x[i]), yAxis.pixel(high[i]));
  for (let i = last; i >= first; --i) context.lineTo(xAxis.pixel(x[i]), yAxis.pixel(low[i]));
  context.fill();
}

/** None where they would be so close that they hide the line. */
export function drawDots(context, {x, y}, xAxis, yAxis, ink) {
  context.fillStyle = ink;
  const begin = lowerBound(x, xAxis.low);
  const end = lowerBound(x, xAxis.high + 1e-9);
  if ((end - begin) * 6 > xAxis.pixel(xAxis.high) - xAxis.pixel(xAxis.low)) return;
  for (let i = begin; i < end; ++i) {
    if (!usable(y[i], yAxis.log)) continue;
    context.beginPath();
    context.arc(xAxis.pixel(x[i]), yAxis.pixel(y[i]), 3, 0, 2 * Math.PI);
    context.fill();
  }
}

/** Triangles on the upper edge; gives how many steps they stand for. */
export function drawMarks(context, steps, xAxis, top, bottom, ink) {
  context.fillStyle = ink;
  let drawn = 0;
  let column = -Infinity;
  for (let i = lowerBound(steps, xAxis.low); i < steps.length && steps[i] <= xAxis.high; ++i) {
    ++drawn;
    const px = xAxis.pixel(steps[i]);
    if (px - column < 1) continue;
    column = px;
    context.beginPath();
    context.moveTo(px - 4, top - 11);
    context.lineTo(px + 4, top - 11);
    context.lineTo(px, top - 3);
    context.closePath();
    context.fill();
  }
  return drawn;
}
