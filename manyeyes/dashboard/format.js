/* Elements, and numbers and times as text. Everything that comes from a run is text, never markup. */

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

/* Write text only if it changes: a selection stays, and nothing is announced twice. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "";
  if (value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e7)) return value.toExponential(2);
  return Number(value.toPrecision(digits)).toLocaleString("en", {maximumFractionDigits: 6});
}

const FRACTIONS = /(^|_)(accuracy|ap|f1|precision|recall|ece)$|^(personalized_)?user_(mean|weighted_mean|q\d+|worst_decile)$/;
export const isFraction = (metric) => FRACTIONS.test(metric || "");

export function score(metric, value) {
  if (value === null || value === undefined) return "";
  return isFraction(metric) ? (100 * value).toFixed(1) + " %" : number(value);
}

/* The score of a run, and that of its shared model next to a personalized one. */
export function scores(run) {
  const text = score(run.metric, run.score);
  return run.shared ? `${text} personalized, ${score(run.metric, run.shared.score)} ${run.shared.model}` : text;
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

/* Return "train_loss" as a heading. */
export function title(name) {
  const text = name.replaceAll("_", " ").replace(/\bap\b/, "AP").replace(/\bf1\b/, "F1");
  return text.charAt(0).toUpperCase() + text.slice(1);
}
