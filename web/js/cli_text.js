// Figures exactly as ampctl prints them (client/output/text.cc), so that a table here and one there are the same.

const COUNTS = ['', 'k', 'M', 'G', 'T'];
const SIZES = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/** Whether what is behind the kept digits is exactly a half, which C rounds to even and JavaScript rounds up. */
function isHalf(rest) {
  return /^50*$/.test(rest);
}

function isEven(digits) {
  return '02468'.includes(digits[digits.length - 1]);
}

function nonFinite(v) {
  return Number.isNaN(v) ? 'nan' : v > 0 ? 'inf' : '-inf';
}

/** "%.*f". */
export function fixed(value, digits) {
  const v = Number(value);
  if (!Number.isFinite(v)) return nonFinite(v);
  // From there on toFixed() writes powers of ten.
  if (Math.abs(v) >= 1e21) return BigInt(v) + (digits > 0 ? '.' + '0'.repeat(digits) : '');
  const [whole, fraction] = v.toFixed(100).split('.');
  const kept = fraction.slice(0, digits);
  if (isHalf(fraction.slice(digits)) && isEven(whole + kept)) return digits > 0 ? `${whole}.${kept}` : whole;
  return v.toFixed(digits);
}

/** "%.*e", cut into mantissa and exponent. */
function scientific(v, digits) {
  const [all, power] = v.toExponential(100).split('e');
  const kept = digits > 1 ? digits + 1 : 1;
  const sign = v < 0 ? 1 : 0;
  const head = all.slice(0, sign + kept);
  const rest = all.slice(sign + kept).replace('.', '');
  if (isHalf(rest) && isEven(head)) return [head, Number(power)];
  const [mantissa, exponent] = v.toExponential(digits - 1).split('e');
  return [mantissa, Number(exponent)];
}

function withoutZeros(text) {
  return text.includes('.') ? text.replace(/\.?0+$/, '') : text;
}

/** "%.*g" of so many significant digits. */
export function general(value, digits) {
  const v = Number(value);
  if (!Number.isFinite(v)) return nonFinite(v);
  const [mantissa, exponent] = scientific(v, digits);
  if (exponent >= -4 && exponent < digits) return withoutZeros(fixed(v, digits - 1 - exponent));
  const power = String(Math.abs(exponent)).padStart(2, '0');
  return `${withoutZeros(mantissa)}e${exponent < 0 ? '-' : '+'}${power}`;
}

/** Four significant digits: "0.3121", "65536", "1e+30", "nan". */
export function figure(value) {
  const v = Number(value);
  return v === Math.floor(v) && Math.abs(v) < 1e9 ? fixed(v, 0) : general(v, 4);
}

function scaled(value, step, units, gap) {
  let unit = 0;
  // What would round to a full step is shown as one of the next unit.
  while (unit + 1 < units.length && value >= step * 0.9995) {
    value /= step;
    ++unit;
  }
  return fixed(value, unit === 0 || value >= 99.5 ? 0 : 1) + gap + units[unit];
}

/** "950", "9.1k", "12M". */
export function count(value) {
  const v = Number(value);
  return Number.isFinite(v) ? scaled(v, 1000, COUNTS, '') : figure(v);
}

/** "512 B", "1.5 KiB", "139 GiB". */
export function bytes(value) {
  return scaled(Number(value), 1024, SIZES, ' ');
}

/** Of a ratio: "41.2%". */
export function percent(ratio) {
  return `${fixed(100 * Number(ratio), 1)}%`;
}

/** A time in seconds as milliseconds, without the unit: "123", "1.25", "0.0125". */
export function milliseconds(seconds) {
  const ms = 1e3 * Number(seconds);
  return fixed(ms, ms >= 100 ? 0 : ms >= 1 ? 2 : 4);
}
