/* Elements, and numbers and times in words. Whatever comes from a run is text, and never markup. */

export function make(kind, attributes = {}, ...children) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

export const by = (id) => document.getElementById(id);

/* Text is written only where it is another: a selection in the page stays, and nothing is announced twice. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "";
  if (value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e7)) return value.toExponential(2);
  return Number(value.toPrecision(digits)).toLocaleString("en", {maximumFractionDigits: 6});
}

const SHARES = /(^|_)(accuracy|ap|f1|precision|recall)$|^(adapted_)?user_(mean|weighted_mean|q\d+|worst_decile)$/;
export const isShare = (metric) => SHARES.test(metric || "");

export function score(metric, value) {
  if (value === null || value === undefined) return "";
  return isShare(metric) ? (100 * value).toFixed(1) + " %" : number(value);
}

export function duration(seconds) {
  if (seconds < 1) return "1 s";
  if (seconds < 90) return Math.round(seconds) + " s";
  if (seconds < 90 * 60) return Math.round(seconds / 60) + " min";
  if (seconds < 48 * 3600) {
    const hours = Math.floor(seconds / 3600), minutes = Math.round((seconds % 3600) / 60);
    return hours < 10 && minutes && minutes < 60 ? `${hours} h ${minutes} min` : `${Math.round(seconds / 3600)} h`;
  }
  return Math.round(seconds / 86400) + " days";
}

export const ago = (seconds) => (seconds < 5 ? "just now" : duration(seconds) + " ago");

/* "train_loss" as a heading. */
export function title(name) {
  const words = name.replaceAll("_", " ").replace(/\bap\b/, "AP").replace(/\bf1\b/, "F1");
  return words.charAt(0).toUpperCase() + words.slice(1);
}
