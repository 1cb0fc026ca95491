/* The list of runs: filters, order, and a row for each. */
import {FAILED_KEY, groups, isOpen} from "./groups.js";
import {MAX_SELECTED, ORDERS, STATUSES, matching, select, setting, sorted, summary, sweepOf, view, withCaveats} from "./store.js";
import {ago, byId, duration, make, number, score, write} from "./format.js";

const PAGE_ROWS = 200; // that are added at a time
const SYMBOLS = {running: "●", stale: "◌", finished: "✓", stopped: "■", diverged: "▲", failed: "✕", empty: "○"};
const COLUMNS = [["name", "Run"], ["progress", "Progress"], ["score", "Score"], ["loss", "Loss"], ["speed", "Images/s"], ["epsilon", "Privacy"]];
const rows = new Map(), heads = new Map(); // by the id of a run; by the key of a group
let numShown = PAGE_ROWS, order = [], changed = () => {};

export function start(whenChanged) {
  changed = whenChanged;
  const redraw = () => { numShown = PAGE_ROWS; view.folds.delete(FAILED_KEY); draw(); changed(); };
  byId("text").addEventListener("input", (event) => { view.text = event.target.value; redraw(); });
  byId("sort").append(...Object.entries(ORDERS).map(([key, [name]]) => make("option", {value: key}, "Sort: " + name)));
  byId("sort").addEventListener("change", (event) => { view.sort = event.target.value; redraw(); });
  byId("direction").addEventListener("click", () => { view.isDescending = !view.isDescending; redraw(); });
  byId("setting").addEventListener("change", values);
  byId("value").addEventListener("change", (event) => {
    const filter = [byId("setting").value, event.target.value];
    if (!view.filters.some(([name, value]) => name === filter[0] && value === filter[1])) view.filters.push(filter);
    byId("setting").value = "";
    values();
    redraw();
    byId("setting").focus();
  });
  byId("more").addEventListener("click", () => { numShown += PAGE_ROWS; draw(); });
  byId("statuses").append(...STATUSES.map((status) => make("button", {type: "button", "data-status": status, onclick: () => {
    if (!view.statuses.delete(status)) view.statuses.add(status);
    redraw();
  }}, make("i", {"aria-hidden": "true"}, SYMBOLS[status]), make("span"), make("b"))));
  byId("head").append(make("th", {role: "columnheader", scope: "col"}, make("span", {class: "visually-hidden"}, "Select")), ...COLUMNS.map(([key, name]) =>
    make("th", {role: "columnheader", scope: "col", "data-key": key, class: "c-" + key}, make("button", {type: "button", onclick: () => {
      [view.sort, view.isDescending] = [key, view.sort === key ? !view.isDescending : true];
      redraw();
    }}, name))));
  byId("text").value = view.text;
}

/* List the values of the selected setting, and how many runs have each. */
function values() {
  const name = byId("setting").value, counts = new Map();
  for (const id of name ? view.runs.keys() : []) {
    const value = setting(id, name);
    if (value !== undefined) counts.set(value, (counts.get(value) || 0) + 1);
  }
  const sortedCounts = [...counts].sort(([a], [b]) => Number(a) - Number(b) || a.localeCompare(b, "en", {numeric: true}));
  byId("value").hidden = !name;
  byId("value").replaceChildren(make("option", {value: "", disabled: true, selected: true}, "is…"),
    ...sortedCounts.map(([value, count]) => make("option", {value}, `${value || "(empty)"}  (${count})`)));
  if (name) byId("value").focus();
}

/* List the settings, after they have changed. */
export function settings() {
  const current = byId("setting").value;
  byId("setting").replaceChildren(make("option", {value: ""}, "Setting…"), ...view.names.map((name) => make("option", {value: name}, name)));
  byId("setting").value = view.names.includes(current) ? current : "";
  if (!byId("setting").value) byId("value").hidden = true;
  rows.forEach((row, id) => view.runs.has(id) && fill(row, view.runs.get(id)));
}

function chips() {
  byId("chips").replaceChildren(...view.filters.map((filter) => make("button", {type: "button", title: "Remove this filter", onclick: () => {
    view.filters = view.filters.filter((other) => other !== filter);
    draw();
    changed();
    byId("setting").focus();
  }}, `${filter[0]}=${filter[1]}`, make("i", {"aria-hidden": "true"}, " ×"))));
  byId("chips").hidden = !view.filters.length;
}

/* Show the matching runs in their order. */
export function draw() {
  const matches = matching(), counts = {};
  for (const run of matches) counts[run.status] = (counts[run.status] || 0) + 1;
  for (const button of byId("statuses").children) {
    const status = button.dataset.status, pressed = view.statuses.has(status);
    button.hidden = !counts[status] && !pressed;
    button.setAttribute("aria-pressed", String(pressed));
    write(button.children[1], ` ${status} `);
    write(button.children[2], String(counts[status] || 0));
  }
  chips();
  byId("sort").value = view.sort;
  write(byId("direction"), view.isDescending ? "↓" : "↑");
  byId("direction").setAttribute("aria-label", view.isDescending ? "Descending; reverse the order" : "Ascending; reverse the order");
  for (const head of byId("head").querySelectorAll("[data-key]")) {
    const sort = head.dataset.key !== view.sort ? "none" : (view.sort === "name") === view.isDescending ? "ascending" : "descending";
    head.setAttribute("aria-sort", sort);
  }
  const all = [...view.runs.values()];
  byId("list").classList.toggle("private", all.some((run) => run.epsilon !== null));
  const runs = sorted(view.statuses.size ? matches.filter((run) => view.statuses.has(run.status)) : matches);
  const full = view.selected.size >= MAX_SELECTED ? `; ${MAX_SELECTED} are selected, which is the maximum` : "";
  write(byId("count"), (runs.length === all.length ? `${number(all.length, 9)} ${all.length === 1 ? "run" : "runs"}`
    : `${number(runs.length, 9)} of ${number(all.length, 9)} runs`) + full);
  byId("more").hidden = runs.length <= numShown;
  write(byId("more"), `Show ${Math.min(PAGE_ROWS, runs.length - numShown)} more of ${number(runs.length - numShown, 9)}`);
  showFirstCommands();
  byId("none").hidden = all.length > 0 || !view.version;
  byId("list").hidden = !byId("none").hidden;
  showRows(runs.slice(0, numShown));
}

/* Commands that fill an empty folder. */
function showFirstCommands() {
  const folder = view.folder, value = (setting, text) => (/^[\w./-]+$/.test(text) ? `${setting}=${text}` : `'${setting}="${text}"'`);
  const isDefault = folder === "runs", size = "rounds=50 data.users=200";
  write(byId("first-run"), `manyeyes run ${size}` + (isDefault ? "" : " " + value("folder", folder + "/first")));
  write(byId("first-sweep"), `manyeyes run --multirun algorithm=fedavg,fedavgm,fedvc seed=0,1,2 ${size}` + (isDefault ? "" : " " + value("hydra.sweep.dir", folder + "/sweep")));
}

function showRows(runs) {
  for (const id of rows.keys()) if (!view.runs.has(id)) rows.delete(id);
  const next = [];
  for (const group of groups(runs)) {
    if (group.key) next.push(head(group));
    for (const run of isOpen(group) ? group.runs : []) next.push(runRow(run));
  }
  if (next.length !== order.length || next.some((element, i) => element !== order[i])) {
    const focused = document.activeElement;
    byId("rows").replaceChildren(...next);
    if (byId("rows").contains(focused)) focused.focus({preventScroll: true});
    order = next;
  }
}

function runRow(run) {
  if (!rows.has(run.id)) rows.set(run.id, row(run));
  showSelection(rows.get(run.id), run.id);
  return rows.get(run.id).row;
}

/* The heading of a group: its name, how many of its runs have which status, its best score, and a box for all its runs. */
function head(group) {
  if (!heads.has(group.key)) heads.set(group.key, makeHead(group.key));
  const parts = heads.get(group.key), counts = new Map(), scored = group.runs.filter((run) => run.score !== null && run.round > 0);
  for (const run of group.runs) counts.set(run.status, (counts.get(run.status) || 0) + 1);
  const best = scored.length > 1 && scored.reduce((a, b) => (b.score > a.score ? b : a));
  const notes = [...counts].map(([status, count]) => `${count} ${status}`);
  if (best && group.key !== FAILED_KEY) notes.push(`best ${summary(best.id)} ${score(best.metric, best.score)}`);
  write(parts.button, group.title);
  write(parts.notes, notes.join(" · "));
  parts.button.setAttribute("aria-expanded", String(isOpen(group)));
  parts.group = group;
  const numSelected = group.runs.filter((run) => view.selected.has(run.id)).length;
  parts.box.checked = numSelected === group.runs.length;
  parts.box.indeterminate = numSelected > 0 && !parts.box.checked;
  return parts.row;
}

function makeHead(key) {
  const parts = {notes: make("small"), box: make("input", {type: "checkbox"})};
  parts.button = make("button", {type: "button", onclick: () => { view.folds.set(key, !isOpen(parts.group)); draw(); parts.button.focus(); }});
  parts.box.addEventListener("change", () => {
    for (const run of parts.group.runs) if (parts.box.checked !== view.selected.has(run.id)) select(run.id, parts.box.checked);
    draw();
    changed();
  });
  const all = make("label", {}, parts.box, " all");
  parts.row = make("tr", {role: "row", class: "group"}, make("td", {role: "cell", colspan: "7"}, make("div", {}, parts.button, parts.notes, all)));
  return parts;
}

function row(run) {
  const cell = (column, ...children) => make("td", {role: "cell", class: "c-" + column}, ...children);
  const parts = {
    box: make("input", {type: "checkbox", id: "run-" + run.id, onchange: (event) => {
      if (!select(run.id, event.target.checked)) event.target.checked = view.selected.has(run.id);
      draw();
      changed();
    }}),
    folder: make("span", {class: "soft"}), leaf: make("b"), caveats: make("small", {class: "caveats"}), summary: make("small"), note: make("small", {class: "note"}),
    symbol: make("i", {"aria-hidden": "true"}), status: make("span"), bar: make("progress", {"aria-label": "Rounds"}), left: make("small"),
    score: make("span"), metric: make("small"), shared: make("small"), loss: make("span"), speed: make("span"), epsilon: make("span"), budget: make("small"),
  };
  const name = make("label", {for: "run-" + run.id}, parts.folder, parts.leaf, " ", parts.caveats);
  parts.badge = make("span", {class: "badge"}, parts.symbol, parts.status);
  parts.row = make("tr", {role: "row"}, cell("box", parts.box), cell("name", name, parts.summary, parts.note),
    cell("progress", make("div", {class: "line"}, parts.badge, parts.left), parts.bar), cell("score", parts.score, parts.metric, parts.shared),
    cell("loss", parts.loss), cell("speed", parts.speed), cell("epsilon", parts.epsilon, parts.budget));
  fill(parts, run);
  return parts;
}

function showSelection(parts, id) {
  const color = view.selected.get(id);
  parts.box.checked = color !== undefined;
  parts.row.className = color === undefined ? "" : `selected me-c${color % 8}`;
}

function fill(parts, run) {
  const cut = run.name.search(/[^/]+(\/\d+)?$/);  // a number alone, such as a seed, says little
  const text = summary(run.id), isInSweep = sweepOf(run.id) && text;
  write(parts.folder, isInSweep ? "" : run.name.slice(0, cut));
  write(parts.leaf, isInSweep ? text : run.name.slice(cut));
  write(parts.caveats, run.caveats);
  write(parts.summary, isInSweep ? "run " + run.name.split("/").pop() : text);
  parts.box.setAttribute("aria-label", isInSweep ? `${text}, run ${run.name}` : withCaveats(run.name, run));
  const rejected = run.num_rejected ? `${run.num_rejected} updates rejected recently` : "";
  write(parts.note, [run.note, rejected].filter(Boolean).join("; "));
  parts.note.title = parts.note.textContent; // the list shows its beginning
  write(parts.symbol, SYMBOLS[run.status]);
  write(parts.status, run.status);
  parts.badge.className = "badge s-" + run.status;
  parts.note.className = "note n-" + run.status;
  parts.bar.max = run.rounds || Math.max(1, run.round);
  parts.bar.value = run.round;
  parts.bar.className = "s-" + run.status;
  write(parts.left, progress(run));
  write(parts.score, score(run.metric, run.score));
  write(parts.metric, run.metric ? run.metric.replaceAll("_", " ") : "");
  write(parts.shared, run.shared ? `${run.shared.model} ${score(run.metric, run.shared.score)}` : "");
  write(parts.loss, number(run.loss, 3));
  write(parts.speed, run.images_per_second === null ? "" : number(run.images_per_second, 3));
  write(parts.epsilon, run.epsilon === null ? "" : "ε " + number(run.epsilon, 3));
  write(parts.budget, run.epsilon !== null && run.epsilon_budget ? "of " + number(run.epsilon_budget, 3) : "");
}

function progress(run) {
  const rounds = run.rounds && run.rounds !== run.round ? `${number(run.round, 9)} / ${number(run.rounds, 9)}` : number(run.round, 9);
  const age = Date.now() / 1000 + view.clockOffset - run.updated;
  if (run.status === "running") return rounds + (run.seconds_left === null ? "" : ` · ${duration(run.seconds_left)} left`);
  return `${rounds} · ${ago(age)}`;
}

/* Update the rows of runs that have changed, and the ages of all. */
export function refresh(changedIds) {
  for (const [id, parts] of rows) {
    const run = view.runs.get(id);
    if (run && changedIds.has(id)) fill(parts, run);
    else if (run && parts.row.isConnected && run.status !== "running") write(parts.left, progress(run));
  }
  draw();
}
