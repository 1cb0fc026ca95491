/* The chosen runs side by side: their curves over each other, and the settings in which they differ. */
import {board, brief, choose, differing, labels, setting} from "./store.js";
import {by, isShare, make, score, title} from "./words.js";

const AXES = {round: "rounds", seconds: "time", images: "images", batches: "local batches", epsilon: "privacy spent"};
const LABELS = {round: "round", seconds: "seconds of training", images: "images trained on", batches: "batches of the largest client", epsilon: "epsilon"};
const charts = new Map(), found = new Map(); // by the name of a metric; by the id of a run, what the server said
let asked = 0, changed = () => {};

export function start(whenChanged) {
  changed = whenChanged;
  by("axis").append(...Object.entries(AXES).map(([key, name]) => make("option", {value: key}, name)));
  by("axis").value = board.axis = board.axis in AXES ? board.axis : "round";
  by("axis").addEventListener("change", (event) => { board.axis = event.target.value; found.clear(); changed(); });
  by("log").checked = board.log;
  by("log").addEventListener("change", (event) => { board.log = event.target.checked; changed(); });
  by("clear").addEventListener("click", () => { board.chosen.clear(); changed(); by("text").focus(); });
  document.addEventListener("click", (event) => { if (!by("metrics").contains(event.target)) by("metrics").open = false; });
  by("metrics").addEventListener("keydown", (event) => {
    if (event.key === "Escape") { by("metrics").open = false; by("metrics").firstElementChild.focus(); }
  });
}

const chosen = () => [...board.chosen.keys()].filter((id) => board.runs.has(id));

/* The curves that are drawn: those asked for, else the score of each run and its training loss. */
function wanted() {
  if (board.drawn) return [...board.drawn];
  return [...new Set(chosen().map((id) => board.runs.get(id).metric).filter(Boolean)), "train_loss"];
}

/* Fetch the curves of runs that have changed or were not there, and draw. */
export async function refresh(changedIds) {
  const ids = chosen(), names = wanted(), mine = ++asked;
  for (const id of found.keys()) if (!board.chosen.has(id)) found.delete(id);
  show();
  const missing = ids.filter((id) => changedIds.has(id) || !found.has(id) || names.some((name) => !found.get(id).asked.includes(name)));
  if (!missing.length) return;
  const words = new URLSearchParams([["x", board.axis], ...missing.map((id) => ["run", id]), ...names.map((name) => ["y", name])]);
  const answer = await fetch("api/curves?" + words);
  if (!answer.ok) throw new Error("the board answered " + answer.status);
  const curves = await answer.json();
  if (mine !== asked) return; // the choice is another by now
  for (const id of missing) found.set(id, {names: [], curves: {}, ...curves[id], asked: names});
  show();
}

function show() {
  const ids = chosen();
  by("hint").hidden = ids.length > 0;
  for (const part of ["charts", "differences"]) by(part).hidden = !ids.length;
  by("compare").classList.toggle("empty", !ids.length);
  by("report").href = "report?" + new URLSearchParams(ids.map((id) => ["run", id]));
  by("report").textContent = ids.length > 1 ? `Report of ${ids.length} runs` : "Report";
  by("jump").hidden = !ids.length;
  by("jump").textContent = `Curves of ${ids.length} ${ids.length === 1 ? "run" : "runs"} ↓`;
  draw(ids);
  menu(ids);
  table(ids);
}

function draw(ids) {
  const names = wanted(), named = labels(ids);
  for (const [name, {box, chart}] of charts) {
    if (names.includes(name)) continue;
    chart.destroy();
    box.remove();
    charts.delete(name);
  }
  for (const name of names) {
    const series = ids.filter((id) => found.get(id)?.curves[name]).map((id) => {
      const [x, y] = found.get(id).curves[name];
      return {name: named.get(id), x, y, color: board.chosen.get(id)};
    });
    const share = isShare(name);
    const spec = {title: title(name), height: 280, x: {label: LABELS[board.axis]}, y: {log: board.log && !share, percent: share}, series};
    if (charts.has(name)) charts.get(name).chart.update(spec);
    else {
      const box = make("div", {class: "chart", "data-metric": name});
      by("charts").append(box);
      charts.set(name, {box, chart: window.manyeyes.chart(box, spec)});
    }
    charts.get(name).box.hidden = !series.length;
  }
  const boxes = names.map((name) => charts.get(name).box);
  if (boxes.some((box, i) => by("charts").children[i] !== box)) by("charts").append(...boxes);
}

/* Every curve that the chosen runs have, to draw or not. */
function menu(ids) {
  const names = [...new Set(ids.flatMap((id) => found.get(id)?.names || []))], drawn = wanted();
  const key = JSON.stringify([names, drawn]);
  if (by("names").dataset.key === key) return;
  by("names").dataset.key = key;
  const focused = document.activeElement?.value;
  by("names").replaceChildren(...names.map((name) => make("label", {}, make("input", {type: "checkbox", value: name, checked: drawn.includes(name), onchange: (event) => {
    board.drawn = new Set(wanted());
    if (event.target.checked) board.drawn.add(name); else board.drawn.delete(name);
    changed();
  }}), title(name))));
  [...by("names").querySelectorAll("input")].find((box) => box.value === focused)?.focus();
}

let tabled = "";
function table(ids) {
  const names = differing(ids), named = labels(ids);
  const rows = ids.map((id) => [id, board.chosen.get(id), board.runs.get(id).state, score(board.runs.get(id).metric, board.runs.get(id).value), ...names.map((name) => setting(id, name) ?? "–")]);
  const key = JSON.stringify([names, rows]);
  if (key === tabled) return;
  tabled = key;
  const open = new Set([...by("differences").querySelectorAll("details[open]")].map((each) => each.dataset.run));
  const head = ["Run", "Score", ...names].map((name) => make("th", {scope: "col", title: name}, brief(name).replaceAll("_", " ")));
  const line = ([id, colour, state, value, ...cells]) => make("tr", {}, make("th", {scope: "row"},
    make("i", {class: `swatch me-c${colour % 8}`, "aria-hidden": "true"}), named.get(id),
    make("span", {class: "acts"}, make("a", {href: "report?run=" + id, target: "_blank", rel: "noopener", "aria-label": "Report of " + named.get(id)}, "report"),
      make("button", {type: "button", "aria-label": "Choose no longer " + named.get(id), onclick: () => { choose(id, false); changed(); }}, "×"))),
  ...[value, ...cells].map((cell) => make("td", {}, cell)));
  const caption = names.length ? "Where the chosen runs differ" : ids.length > 1 ? "The chosen runs have the same settings" : "The chosen run";
  by("differences").replaceChildren(
    make("div", {class: "wide", role: "region", tabindex: "0", "aria-label": caption}, make("table", {}, make("caption", {}, caption),
      make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows.map(line)))),
    ...ids.map((id) => details(id, named.get(id), open.has(id))));
}

/* All settings of a run, its command and versions, when somebody opens them. */
function details(id, name, open) {
  const body = make("div", {class: "wide"});
  const made = make("details", {"data-run": id}, make("summary", {}, "All of " + name), body);
  made.addEventListener("toggle", async () => {
    if (!made.open || body.firstChild) return;
    const answer = await fetch("api/run?run=" + id).catch(() => null);
    if (!answer || !answer.ok) return;
    const {settings, environment} = await answer.json();
    const pairs = [...Object.entries(environment), ...Object.entries(settings)];
    body.replaceChildren(make("table", {class: "all"}, make("tbody", {}, ...pairs.map(([key, value]) => make("tr", {}, make("th", {scope: "row"}, key), make("td", {}, value))))));
  });
  made.open = open;
  return made;
}
