// Numbers, times and sizes in few characters. "–" is what is not known.

export const UNKNOWN = "–";
const THIN = "\u202f";

const isKnown = (value) => value !== null && value !== undefined && !Number.isNaN(value);

/** A whole number with its digits in groups: 20 000. */
export function count(value) {
  return isKnown(value) ? Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, THIN) : UNKNOWN;
}

/** A figure in about three digits: 0.123, 12.3, 1 234, 1.2e-5. */
export function number(value) {
  if (!isKnown(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e7 || size < 1e-4) return value.toExponential(1).replace("e+", "e");
  if (size >= 999.5) return count(value);
  if (size < 0.1) return value.toFixed(4);
  return value.toPrecision(3);
}

/** A round number, as axes have them, without zeros at its end. */
export function plain(value) {
  return Math.abs(value) >= 1000 ? count(value) : String(Number(value.toPrecision(6)));
}

/** A mean of whole numbers: 3.0, 12.4, 310. */
export function mean(value) {
  return isKnown(value) ? (value < 99.95 ? value.toFixed(1) : count(value)) : UNKNOWN;
}

export function percent(fraction) {
  return isKnown(fraction) ? `${(100 * fraction).toFixed(1)}${THIN}%` : UNKNOWN;
}

export function bytes(value) {
  if (!isKnown(value)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1023.5 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toPrecision(3)}${THIN}${units[unit]}`;
}

/** Seconds as people say them: 12 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  if (seconds < 9.95) return `${seconds.toFixed(1)}${THIN}s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole}${THIN}s`;
  if (whole < 3600) return pair(whole, 60, "min", "s");
  if (whole < 86400) return pair(Math.round(whole / 60), 60, "h", "min");
  return pair(Math.round(whole / 3600), 24, "d", "h");
}

function pair(amount, size, large, small) {
  const rest = amount % size;
  return `${Math.floor(amount / size)}${THIN}${large}${rest ? ` ${rest}${THIN}${small}` : ""}`;
}

/** A short time: 0.3 ms, 12 ms, 1.2 s. */
export function shortTime(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  if (seconds >= 0.9995) return duration(seconds);
  const milliseconds = 1000 * seconds;
  return `${milliseconds >= 99.5 ? Math.round(milliseconds) : milliseconds >= 0.01 ? Number(milliseconds.toPrecision(2)) : 0}${THIN}ms`;
}

/** Names of a proto's enum in plain words: RUN_STATE_TRAINING -> training. */
export function word(value, prefix) {
  return String(value ?? "").replace(prefix, "").toLowerCase().replaceAll("_", "-");
}
