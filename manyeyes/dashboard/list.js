/* The list of runs: filters, order, and a row for each. */
import {MOST, ORDERS, STATES, board, choose, matching, setting, sorted, telling} from "./store.js";
import {ago, by, duration, make, number, score, write} from "./words.js";

const PAGE = 200; // rows that are added at a time
const SIGNS = {running: "●", stale: "◌", finished: "✓", stopped: "■", diverged: "▲", failed: "✕"};
const HEADS = [["name", "Run"], ["progress", "Progress"], ["score", "Score"], ["loss", "Loss"], ["speed", "Images/s"], ["epsilon", "Privacy"]];
const rows = new Map();
let shown = PAGE, order = [], changed = () => {};

export function start(whenChanged) {
  changed = whenChanged;
  const again = () => { shown = PAGE; draw(); changed(); };
  by("text").addEventListener("input", (event) => { board.text = event.target.value; again(); });
  by("sort").append(...Object.entries(ORDERS).map(([key, [name]]) => make("option", {value: key}, "Sort: " + name)));
  by("sort").addEventListener("change", (event) => { board.sort = event.target.value; again(); });
  by("direction").addEventListener("click", () => { board.down = !board.down; again(); });
  by("setting").addEventListener("change", values);
  by("value").addEventListener("change", (event) => {
    const filter = [by("setting").value, event.target.value];
    if (!board.filters.some(([name, value]) => name === filter[0] && value === filter[1])) board.filters.push(filter);
    by("setting").value = "";
    values();
    again();
    by("setting").focus();
  });
  by("more").addEventListener("click", () => { shown += PAGE; draw(); });
  by("states").append(...STATES.map((state) => make("button", {type: "button", "data-state": state, onclick: () => {
    if (!board.states.delete(state)) board.states.add(state);
    again();
  }}, make("i", {"aria-hidden": "true"}, SIGNS[state]), make("span"), make("b"))));
  by("head").append(make("th", {role: "columnheader", scope: "col"}, make("span", {class: "unseen"}, "Choose")), ...HEADS.map(([key, name]) =>
    make("th", {role: "columnheader", scope: "col", "data-key": key, class: "c-" + key}, make("button", {type: "button", onclick: () => {
      [board.sort, board.down] = [key, board.sort === key ? !board.down : true];
      again();
    }}, name))));
  by("text").value = board.text;
}

/* The values of the setting that is to be filtered by, each with how many runs have it. */
function values() {
  const name = by("setting").value, counts = new Map();
  for (const id of name ? board.runs.keys() : []) {
    const value = setting(id, name);
    if (value !== undefined) counts.set(value, (counts.get(value) || 0) + 1);
  }
  const found = [...counts].sort(([a], [b]) => Number(a) - Number(b) || a.localeCompare(b, "en", {numeric: true}));
  by("value").hidden = !name;
  by("value").replaceChildren(make("option", {value: "", disabled: true, selected: true}, "is…"),
    ...found.map(([value, count]) => make("option", {value}, `${value || "(empty)"}  (${count})`)));
  if (name) by("value").focus();
}

/* When settings have come or gone. */
export function settings() {
  const now = by("setting").value;
  by("setting").replaceChildren(make("option", {value: ""}, "Setting…"), ...board.names.map((name) => make("option", {value: name}, name)));
  by("setting").value = board.names.includes(now) ? now : "";
  if (!by("setting").value) by("value").hidden = true;
  rows.forEach((row, id) => board.runs.has(id) && fill(row, board.runs.get(id)));
}

function chips() {
  by("chips").replaceChildren(...board.filters.map((filter) => make("button", {type: "button", title: "Remove this filter", onclick: () => {
    board.filters = board.filters.filter((other) => other !== filter);
    draw();
    changed();
    by("setting").focus();
  }}, `${filter[0]}=${filter[1]}`, make("i", {"aria-hidden": "true"}, " ×"))));
  by("chips").hidden = !board.filters.length;
}

/* Which runs are shown, in their order. */
export function draw() {
  const found = matching(), counts = {};
  for (const run of found) counts[run.state] = (counts[run.state] || 0) + 1;
  for (const button of by("states").children) {
    const state = button.dataset.state, pressed = board.states.has(state);
    button.hidden = !counts[state] && !pressed;
    button.setAttribute("aria-pressed", String(pressed));
    write(button.children[1], ` ${state} `);
    write(button.children[2], String(counts[state] || 0));
  }
  chips();
  by("sort").value = board.sort;
  write(by("direction"), board.down ? "↓" : "↑");
  by("direction").setAttribute("aria-label", board.down ? "In this order; turn it round" : "Turned round; turn it back");
  for (const head of by("head").querySelectorAll("[data-key]")) {
    const sort = head.dataset.key !== board.sort ? "none" : (board.sort === "name") === board.down ? "ascending" : "descending";
    head.setAttribute("aria-sort", sort);
  }
  const all = [...board.runs.values()];
  by("list").classList.toggle("private", all.some((run) => run.epsilon !== null));
  const wanted = sorted(board.states.size ? found.filter((run) => board.states.has(run.state)) : found);
  const full = board.chosen.size >= MOST ? `; ${MOST} are chosen, the most at once` : "";
  write(by("count"), (wanted.length === all.length ? `${number(all.length, 9)} ${all.length === 1 ? "run" : "runs"}`
    : `${number(wanted.length, 9)} of ${number(all.length, 9)} runs`) + full);
  by("more").hidden = wanted.length <= shown;
  write(by("more"), `Show ${Math.min(PAGE, wanted.length - shown)} more of ${number(wanted.length - shown, 9)}`);
  place(wanted.slice(0, shown));
}

function place(runs) {
  for (const id of rows.keys()) if (!board.runs.has(id)) rows.delete(id);
  const next = runs.map((run) => run.id);
  for (const run of runs) {
    if (!rows.has(run.id)) rows.set(run.id, row(run));
    mark(rows.get(run.id), run.id);
  }
  if (next.length !== order.length || next.some((id, i) => id !== order[i])) {
    const focused = document.activeElement;
    by("rows").replaceChildren(...next.map((id) => rows.get(id).row));
    if (by("rows").contains(focused)) focused.focus({preventScroll: true});
    order = next;
  }
}

function row(run) {
  const cell = (kind, ...children) => make("td", {role: "cell", class: "c-" + kind}, ...children);
  const parts = {
    box: make("input", {type: "checkbox", id: "run-" + run.id, onchange: (event) => {
      if (!choose(run.id, event.target.checked)) event.target.checked = board.chosen.has(run.id);
      draw();
      changed();
    }}),
    folder: make("span", {class: "soft"}), leaf: make("b"), telling: make("small"), note: make("small", {class: "note"}),
    sign: make("i", {"aria-hidden": "true"}), state: make("span"), bar: make("progress", {"aria-label": "Rounds"}), left: make("small"),
    score: make("span"), metric: make("small"), loss: make("span"), speed: make("span"), epsilon: make("span"), budget: make("small"),
  };
  const name = make("label", {for: "run-" + run.id}, parts.folder, parts.leaf);
  parts.badge = make("span", {class: "badge"}, parts.sign, parts.state);
  parts.row = make("tr", {role: "row"}, cell("box", parts.box), cell("name", name, parts.telling, parts.note),
    cell("progress", make("div", {class: "line"}, parts.badge, parts.left), parts.bar), cell("score", parts.score, parts.metric),
    cell("loss", parts.loss), cell("speed", parts.speed), cell("epsilon", parts.epsilon, parts.budget));
  fill(parts, run);
  return parts;
}

function mark(parts, id) {
  const colour = board.chosen.get(id);
  parts.box.checked = colour !== undefined;
  parts.row.className = colour === undefined ? "" : `chosen me-c${colour % 8}`;
}

function fill(parts, run) {
  const cut = run.name.search(/[^/]+(\/\d+)?$/);  // a number alone, of a seed or of a sweep, says little
  write(parts.folder, run.name.slice(0, cut));
  write(parts.leaf, run.name.slice(cut));
  write(parts.telling, telling(run.id));
  const left_out = run.left_out ? `${run.left_out} updates left out lately: they were not finite` : "";
  write(parts.note, [run.note, left_out].filter(Boolean).join("; "));
  parts.note.title = parts.note.textContent; // of which the list shows the beginning
  write(parts.sign, SIGNS[run.state]);
  write(parts.state, run.state);
  parts.badge.className = "badge s-" + run.state;
  parts.note.className = "note n-" + run.state;
  parts.bar.max = run.rounds || Math.max(1, run.round);
  parts.bar.value = run.round;
  parts.bar.className = "s-" + run.state;
  write(parts.left, progress(run));
  write(parts.score, score(run.metric, run.value));
  write(parts.metric, run.metric ? run.metric.replaceAll("_", " ") : "");
  write(parts.loss, number(run.loss, 3));
  write(parts.speed, run.speed === null ? "" : number(run.speed, 3));
  write(parts.epsilon, run.epsilon === null ? "" : "ε " + number(run.epsilon, 3));
  write(parts.budget, run.epsilon !== null && run.budget ? "of " + number(run.budget, 3) : "");
}

function progress(run) {
  const rounds = run.rounds && run.rounds !== run.round ? `${number(run.round, 9)} / ${number(run.rounds, 9)}` : number(run.round, 9);
  const quiet = Date.now() / 1000 + board.late - run.changed;
  if (run.state === "running") return rounds + (run.left === null ? "" : ` · ${duration(run.left)} left`);
  return `${rounds} · ${ago(quiet)}`;
}

/* After an answer: the rows of runs that have changed, and the ages of all. */
export function refresh(changedIds) {
  for (const [id, parts] of rows) {
    const run = board.runs.get(id);
    if (run && changedIds.has(id)) fill(parts, run);
    else if (run && parts.row.isConnected && run.state !== "running") write(parts.left, progress(run));
  }
  draw();
}
