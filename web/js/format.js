// Values as text for people. All of these take undefined and give ''.

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/** The JSON of protos has 64-bit numbers as strings, and "NaN", "Infinity" and "-Infinity". undefined stays so. */
export function toNumber(value) {
  return value === undefined || value === null ? undefined : Number(value);
}

/** `digits` significant digits, without needless zeros. */
export function number(value, digits = 4) {
  const v = toNumber(value);
  if (v === undefined) return '';
  if (!Number.isFinite(v)) return Number.isNaN(v) ? 'NaN' : v > 0 ? 'Inf' : '-Inf';
  const size = Math.abs(v);
  if (v !== 0 && (size < 1e-4 || size >= 1e9))
    return v.toExponential(digits - 1).replace(/\.?0+e/, 'e').replace('e+', 'e');
  return String(Number(v.toPrecision(Math.max(digits, size >= 1 ? Math.ceil(Math.log10(size + 1)) : digits))));
}

/** Whole numbers, with thin spaces between thousands. */
export function count(value) {
  const v = toNumber(value);
  if (v === undefined) return '';
  return Math.round(v).toString().replace(/\B(?=(\d{3})+$)/g, '\u202f');
}

/** E.g. "9.7k". */
export function rate(value) {
  const v = toNumber(value);
  if (v === undefined || !Number.isFinite(v)) return '';
  if (v >= 1e6) return number(v / 1e6, 3) + 'M';
  return v >= 1e4 ? number(v / 1e3, 3) + 'k' : number(v, 3);
}

export function bytes(value) {
  let v = toNumber(value);
  if (v === undefined) return '';
  let unit = 0;
  while (Math.abs(v) >= 1024 && unit < UNITS.length - 1) {
    v /= 1024;
    ++unit;
  }
  return `${unit === 0 ? v : v.toFixed(v < 10 ? 1 : 0)} ${UNITS[unit]}`;
}

export function percent(share, digits = 0) {
  const v = toNumber(share);
  return v === undefined ? '' : `${(100 * v).toFixed(digits)}%`;
}

/** E.g. "1 h 05 min". */
export function duration(seconds) {
  if (seconds === undefined || !Number.isFinite(seconds)) return '';
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  const two = (value) => String(value).padStart(2, '0');
  if (s < 3600) return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor(s / 60) % 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

/** Of an RFC 3339 time: the local one, to the second. */
export function time(text) {
  if (!text) return '';
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return String(text);
  const two = (value) => String(value).padStart(2, '0');
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
      `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** The time of day of today's times, else the day. */
export function day(text) {
  const whole = time(text);
  return whole.slice(0, 10) === time(new Date().toISOString()).slice(0, 10) ? whole.slice(11) : whole.slice(0, 10);
}

/** Only the time of day. */
export function clock(text) {
  return time(text).slice(11);
}

/** "in 3 min 10 s", "2 h 05 min ago"; of a time in RFC 3339. */
export function relative(text, now = Date.now()) {
  if (!text) return '';
  const seconds = (new Date(text).getTime() - now) / 1000;
  return seconds >= 0 ? `in ${duration(seconds)}` : `${duration(-seconds)} ago`;
}

/** Seconds between two times in RFC 3339; the second one defaults to now. */
export function secondsBetween(from, to) {
  if (!from) return undefined;
  return ((to ? new Date(to).getTime() : Date.now()) - new Date(from).getTime()) / 1000;
}
