// What charts of the same steps share: the range of steps that is shown, and the step that is pointed at.

const SMALLEST_SPAN = 4;

/** Events: 'view' (another range), 'hover' (another step pointed at), 'extent' (more steps). */
export class ChartGroup extends EventTarget {
  constructor() {
    super();
    // All steps there are.
    this.extent = {low: 0, high: 1};
    // null: all of them, and those to come.
    this.view = null;
    this.hover = null;
  }

  range() {
    return this.view || this.extent;
  }

  setExtent(low, high) {
    if (!(high > low)) high = low + 1;
    if (low === this.extent.low && high === this.extent.high) return;
    this.extent = {low, high};
    this.dispatchEvent(new Event('extent'));
  }

  setView(low, high) {
    const {low: first, high: last} = this.extent;
    const span = Math.min(Math.max(high - low, SMALLEST_SPAN), last - first);
    const start = Math.min(Math.max(low + (high - low - span) / 2, first), last - span);
    const all = start <= first && start + span >= last;
    this.view = all ? null : {low: start, high: start + span};
    this.dispatchEvent(new Event('view'));
  }

  showAll() {
    if (this.view === null) return false;
    this.view = null;
    this.dispatchEvent(new Event('view'));
    return true;
  }

  /** By `factor` (< 1: closer) around `center`, a step; default: the middle. */
  zoom(factor, center) {
    const {low, high} = this.range();
    const middle = center === undefined ? (low + high) / 2 : center;
    this.setView(middle - (middle - low) * factor, middle + (high - middle) * factor);
  }

  /** By a share of the range that is shown. */
  move(share) {
    if (this.view === null) return;
    const span = this.view.high - this.view.low;
    const low = Math.min(Math.max(this.view.low + share * span, this.extent.low), this.extent.high - span);
    this.setView(low, low + span);
  }

  setHover(step) {
    if (step === this.hover) return;
    this.hover = step;
    this.dispatchEvent(new Event('hover'));
  }
}
