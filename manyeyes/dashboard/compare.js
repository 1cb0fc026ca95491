/* The selected runs: their curves, and the settings in which they differ. */
import {brief, differing, labels, select, setting, view} from "./store.js";
import {byId, isFraction, make, scores, title} from "./format.js";

const AXES = {round: "rounds", seconds: "time", num_images: "images", max_client_batches: "local batches", epsilon: "epsilon"};
const SCORE = "(score)"; // stands for the metric that is shown first, which is not the same for all runs
const LABELS = {round: "round", seconds: "seconds of training", num_images: "images trained on", max_client_batches: "local batches of the largest client", epsilon: "epsilon spent"};
const SMOOTHING = {none: 0, light: 0.6, medium: 0.9, strong: 0.97}; // the weight of the past in the moving average of a curve
const charts = new Map(), responses = new Map(); // by the name of a metric; by the id of a run, with the requested names
let numRequests = 0, changed = () => {};

export function start(whenChanged) {
  changed = whenChanged;
  byId("axis").append(...Object.entries(AXES).map(([key, name]) => make("option", {value: key}, name)));
  byId("axis").value = view.axis = view.axis in AXES ? view.axis : "round";
  byId("axis").addEventListener("change", (event) => { view.axis = event.target.value; responses.clear(); changed(); });
  byId("smoothing").append(...Object.keys(SMOOTHING).map((name) => make("option", {value: name}, name)));
  byId("smoothing").value = view.smoothing = view.smoothing in SMOOTHING ? view.smoothing : "none";
  byId("smoothing").addEventListener("change", (event) => { view.smoothing = event.target.value; changed(); });
  byId("logx").checked = view.logX;
  byId("logx").addEventListener("change", (event) => { view.logX = event.target.checked; changed(); });
  byId("log").checked = view.log;
  byId("log").addEventListener("change", (event) => { view.log = event.target.checked; changed(); });
  byId("clear").addEventListener("click", () => { view.selected.clear(); changed(); byId("text").focus(); });
  document.addEventListener("click", (event) => { if (!byId("metrics").contains(event.target)) byId("metrics").open = false; });
  byId("metrics").addEventListener("keydown", (event) => {
    if (event.key === "Escape") { byId("metrics").open = false; byId("metrics").firstElementChild.focus(); }
  });
}

const selectedIds = () => [...view.selected.keys()].filter((id) => view.runs.has(id));

/* The names of the curves that are drawn: as selected, else the score of each run, that of shared models, and the training loss. */
function drawnNames() {
  if (view.drawn) return [...view.drawn];
  const runs = selectedIds().map((id) => view.runs.get(id)).filter((run) => run.metric);
  const metrics = new Set(runs.map((run) => run.metric)), shared = new Set(runs.map((run) => sharedMetric(run.metric)));
  const first = shared.size === 1 && metrics.size > 1 ? [SCORE] : metrics; // one chart of all scores, whichever model they are of
  return [...new Set([...first, ...runs.filter((run) => run.shared).map((run) => sharedMetric(run.metric)), "train_loss"])];
}

const sharedMetric = (metric) => metric.replace(/^personalized_/, "");

/* The curve of a run that a chart draws: as a score, that of the run's own metric. */
const curveName = (id, name) => name === SCORE ? view.runs.get(id).metric : name;

/* The heading of a chart, which says of which model its curves are if some runs have personalized ones. */
function heading(ids, name) {
  if (name === SCORE) return title(sharedMetric(view.runs.get(ids[0]).metric || "score")) + ": personalized models where a run has them";
  const models = new Set(ids.map((id) => view.runs.get(id)).filter((run) => run.shared && sharedMetric(run.metric) === name).map((run) => run.shared.model));
  return title(name) + (models.size ? ", " + [...models].join(" or ") : "");
}

/* Fetch the curves of runs that have changed or are new, and draw. */
export async function refresh(changedIds) {
  const ids = selectedIds(), names = drawnNames(), request = ++numRequests;
  for (const id of responses.keys()) if (!view.selected.has(id)) responses.delete(id);
  show();
  const missing = ids.filter((id) => changedIds.has(id) || !responses.has(id) || names.some((name) => !responses.get(id).requested.includes(name)));
  if (!missing.length) return;
  const requested = [...new Set(missing.flatMap((id) => names.map((name) => curveName(id, name))).filter(Boolean))];
  const query = new URLSearchParams([["x", view.axis], ...missing.map((id) => ["run", id]), ...requested.map((name) => ["y", name])]);
  const response = await fetch("api/curves?" + query);
  if (!response.ok) throw new Error("The dashboard responded with " + response.status);
  const curves = await response.json();
  if (request !== numRequests) return; // the selection has changed
  for (const id of missing) responses.set(id, {names: [], curves: {}, ...curves[id], requested: names});
  show();
}

function show() {
  const ids = selectedIds();
  byId("hint").hidden = ids.length > 0 || !view.runs.size;
  for (const part of ["charts", "differences"]) byId(part).hidden = !ids.length;
  byId("compare").classList.toggle("empty", !ids.length);
  byId("report").href = "report?" + new URLSearchParams(ids.flatMap((id) => [["run", id], ["color", view.selected.get(id)]]));
  byId("report").textContent = ids.length > 1 ? `Report of ${ids.length} runs` : "Report";
  byId("jump").hidden = !ids.length;
  byId("jump").textContent = `Curves of ${ids.length} ${ids.length === 1 ? "run" : "runs"} ↓`;
  draw(ids);
  menu(ids);
  table(ids);
}

function draw(ids) {
  const names = drawnNames(), labelOf = labels(ids);
  for (const [name, {box, chart}] of charts) {
    if (names.includes(name)) continue;
    chart.destroy();
    box.remove();
    charts.delete(name);
  }
  for (const name of names) {
    const shown = ids.filter((id) => responses.get(id)?.curves[curveName(id, name)]);
    const series = shown.map((id) => {
      const [x, y] = responses.get(id).curves[curveName(id, name)];
      return {name: labelOf.get(id) + (name === SCORE && view.runs.get(id).shared ? ", personalized" : ""), x, y, color: view.selected.get(id)};
    });
    const percent = shown.every((id) => isFraction(curveName(id, name)));
    const weight = SMOOTHING[view.smoothing], note = weight ? " (smoothed)" : "";
    const spec = {title: heading(ids, name) + note, height: 280, smoothing: weight, x: {label: LABELS[view.axis], log: view.logX, integer: view.axis === "round"}, y: {log: view.log && !percent, percent}, series};
    if (charts.has(name)) charts.get(name).chart.update(spec);
    else {
      const box = make("div", {class: "chart", "data-metric": name});
      byId("charts").append(box);
      charts.set(name, {box, chart: window.manyeyes.chart(box, spec)});
    }
    charts.get(name).box.hidden = !series.length;
  }
  const boxes = names.map((name) => charts.get(name).box);
  if (boxes.some((box, i) => byId("charts").children[i] !== box)) byId("charts").append(...boxes);
}

/* A box for each curve that the selected runs have. */
function menu(ids) {
  const drawn = drawnNames(), names = [...new Set([...drawn.filter((name) => name === SCORE), ...ids.flatMap((id) => responses.get(id)?.names || [])])];
  const key = JSON.stringify([names, drawn]);
  if (byId("names").dataset.key === key) return;
  byId("names").dataset.key = key;
  const focused = document.activeElement?.value;
  byId("names").replaceChildren(...names.map((name) => make("label", {}, make("input", {type: "checkbox", value: name, checked: drawn.includes(name), onchange: (event) => {
    view.drawn = new Set(drawnNames());
    if (event.target.checked) view.drawn.add(name); else view.drawn.delete(name);
    changed();
  }}), title(name))));
  [...byId("names").querySelectorAll("input")].find((box) => box.value === focused)?.focus();
}

let tableKey = "";
function table(ids) {
  const names = differing(ids), labelOf = labels(ids);
  const rows = ids.map((id) => [id, view.selected.get(id), scores(view.runs.get(id)), ...names.map((name) => setting(id, name) ?? "–")]);
  const key = JSON.stringify([names, rows, ids.map((id) => view.runs.get(id).pid)]);
  if (key === tableKey) return;
  tableKey = key;
  const open = new Set([...byId("differences").querySelectorAll("details[open]")].map((element) => element.dataset.run));
  const head = ["Run", "Score", ...names].map((name) => make("th", {scope: "col", title: name}, brief(name).replaceAll("_", " ")));
  const line = ([id, color, ...cells]) => make("tr", {}, make("th", {scope: "row"},
    make("i", {class: `swatch me-c${color % 8}`, "aria-hidden": "true"}), labelOf.get(id),
    make("span", {class: "acts"}, make("a", {href: "report?run=" + id, target: "_blank", rel: "noopener", "aria-label": "Report of " + labelOf.get(id)}, "report"),
      make("button", {type: "button", "aria-label": "Deselect " + labelOf.get(id), onclick: () => { select(id, false); changed(); }}, "×"))),
  ...cells.map((cell) => make("td", {}, cell)));
  const caption = names.length ? "Settings that differ" : ids.length > 1 ? "The selected runs have the same settings" : "The selected run";
  byId("differences").replaceChildren(
    make("div", {class: "wide", role: "region", tabindex: "0", "aria-label": caption}, make("table", {}, make("caption", {}, caption),
      make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows.map(line)))),
    ...ids.filter((id) => view.runs.get(id).pid).map((id) => stopCommand(view.runs.get(id), labelOf.get(id))),
    ...ids.map((id) => details(id, labelOf.get(id), open.has(id))));
}

/* How to stop a run that trains on this machine: the page only reads. */
function stopCommand(run, name) {
  const isInSweep = /\/\d+$/.test(run.name);
  const effect = "It ends after its round, with a checkpoint, and prints how to go on" + (isInSweep ? "; its sweep ends too." : ".");
  return make("div", {class: "stop"}, make("p", {}, `Stop ${name} from a terminal of this machine. ${effect}`), make("pre", {tabindex: "0"}, `kill -TERM ${run.pid}`));
}

/* All settings of a run, its command and versions, which are fetched when they are opened. */
function details(id, name, open) {
  const body = make("div", {class: "wide"});
  const element = make("details", {"data-run": id}, make("summary", {}, "All settings of " + name), body);
  element.addEventListener("toggle", async () => {
    if (!element.open || body.firstChild) return;
    const response = await fetch("api/run?run=" + id).catch(() => null);
    if (!response || !response.ok) return;
    const {settings, environment} = await response.json();
    const pairs = [...Object.entries(environment), ...Object.entries(settings)];
    body.replaceChildren(make("table", {class: "all"}, make("tbody", {}, ...pairs.map(([key, value]) => make("tr", {}, make("th", {scope: "row"}, key), make("td", {}, value))))));
  });
  element.open = open;
  return element;
}
