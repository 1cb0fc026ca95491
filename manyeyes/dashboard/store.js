/* What the board knows: the runs, their settings, which of them are looked at, and how. */

export const STATES = ["running", "stale", "finished", "stopped", "diverged", "failed"];
const NOTHING = {common: {}, values: {}, rows: {}};
export const MOST = 24; // runs chosen at once

export const board = {
  runs: new Map(), version: "", folder: "", late: 0, // seconds that this clock is behind the server's
  settings: NOTHING, names: [], columns: new Map(),
  chosen: new Map(), // id -> number of its colour
  text: "", states: new Set(), filters: [], sort: "newest", down: true, axis: "round", log: false, drawn: null,
};

/* Take in an answer of the server; returns the ids of the runs that are others now. */
export function take(answer) {
  const changed = new Set();
  if (answer.whole) board.runs.clear();
  for (const row of answer.runs) {
    const run = Object.fromEntries(answer.fields.map((name, i) => [name, row[i]]));
    board.runs.set(run.id, run);
    changed.add(run.id);
  }
  for (const id of answer.gone) {
    board.runs.delete(id);
    board.chosen.delete(id);
    changed.add(id);
  }
  if (answer.whole) for (const id of board.chosen.keys()) if (!board.runs.has(id)) board.chosen.delete(id);
  if (answer.settings) {
    board.settings = answer.settings;
    board.names = Object.keys(answer.settings.values);
    board.columns = new Map(board.names.map((name, i) => [name, i]));
    haystacks.clear();
    summary = null;
  }
  board.version = answer.version;
  board.folder = answer.folder;
  board.late = answer.now - Date.now() / 1000;
  return changed;
}

/* The value of a setting in a run; undefined where it has none. */
export function setting(id, name) {
  if (name in board.settings.common) return board.settings.common[name];
  const column = board.columns.get(name), row = board.settings.rows[id];
  return column === undefined || !row || row[column] < 0 ? undefined : board.settings.values[name][row[column]];
}

/* "algorithm.lr" as lr, and "algorithm.name" as algorithm. */
export const brief = (name) => name.replace(/\.name$/, "").split(".").pop();
const inShort = (name, value) => (name.endsWith(".name") ? value : `${brief(name)}=${value}`);

/* The settings that tell some runs apart: the algorithm, then each time the one that tells most of them from the others. */
const MACHINE = /^(engine|track)\.|^checkpoint|^client_memory/;
function apart(ids, names, most) {
  const found = [], left = new Set(names.filter((name) => !MACHINE.test(name)));
  let words = ids.map(() => ""), parts = 1;
  while (found.length < most && parts < ids.length) {
    let best = null;
    for (const name of left) {
      const next = ids.map((id, i) => words[i] + "\n" + setting(id, name)), count = new Set(next).size;
      if (count > (best ? best.count : parts)) best = {name, next, count};
      if (name === "algorithm.name" && !found.length && count > parts) { best = {name, next, count}; break; }
    }
    if (!best) break;
    found.push(best.name);
    left.delete(best.name);
    [words, parts] = [best.next, best.count];
  }
  return found;
}

/* What tells a run from the others, for the list. */
let summary = null;
export function telling(id) {
  summary = summary || apart([...board.runs.keys()], board.names, 4);
  const has = summary.filter((name) => setting(id, name));
  return has.map((name) => inShort(name, setting(id, name))).join(" · ");
}

/* Everything that a text may be found in; of a term with "=" the left must be the end of a name, the right of a value the beginning. */
const haystacks = new Map();
const written = (pairs) => pairs.filter(([, value]) => value !== undefined).map(([name, value]) => [`.${name}`.toLowerCase(), `=${value}`.toLowerCase()]);
function haystack(run) {
  if (!haystacks.has(run.id)) haystacks.set(run.id, written(board.names.map((name) => [name, setting(run.id, name)])));
  return haystacks.get(run.id);
}

function finder(term) {
  const place = term.indexOf("="), left = "." + term.slice(0, place).replace(/^\./, ""), right = term.slice(place);
  const fits = ([name, value]) => (place < 0 ? (name + value).includes(term) : name.endsWith(left) && value.startsWith(right));
  const all = written(Object.entries(board.settings.common)).some(fits); // what every run has is looked at once
  return (run) => all || run.name.toLowerCase().includes(term) || haystack(run).some(fits);
}

/* The runs that pass the text and the settings, whatever state they are in. */
export function matching() {
  const finders = board.text.toLowerCase().split(/\s+/).filter(Boolean).map(finder);
  const wanted = new Map(); // several values of one setting: any of them
  for (const [name, value] of board.filters) wanted.set(name, [...(wanted.get(name) || []), value]);
  return [...board.runs.values()].filter((run) =>
    [...wanted].every(([name, values]) => values.includes(setting(run.id, name))) && finders.every((finds) => finds(run)));
}

const last = (value) => (value === null || value === undefined ? -Infinity : value);
export const ORDERS = {
  newest: ["Newest", (a, b) => (b.state === "running") - (a.state === "running") || (a.state === "running" ? 0 : b.changed - a.changed)],
  name: ["Name", (a, b) => 0],
  state: ["State", (a, b) => STATES.indexOf(a.state) - STATES.indexOf(b.state)],
  progress: ["Progress", (a, b) => last(b.rounds ? b.round / b.rounds : null) - last(a.rounds ? a.round / a.rounds : null)],
  left: ["Time left", (a, b) => last(b.left) - last(a.left)],
  score: ["Score", (a, b) => last(b.value) - last(a.value)],
  loss: ["Training loss", (a, b) => last(b.loss) - last(a.loss)],
  speed: ["Images/s", (a, b) => last(b.speed) - last(a.speed)],
  epsilon: ["Privacy spent", (a, b) => last(b.epsilon) - last(a.epsilon)],
};

const natural = new Intl.Collator("en", {numeric: true});
export function sorted(runs) {
  const order = ORDERS[board.sort][1], sign = board.down ? 1 : -1;
  return runs.sort((a, b) => sign * order(a, b) || (board.sort === "name" ? sign : 1) * natural.compare(a.name, b.name));
}

export function choose(id, wanted) {
  if (!wanted) return board.chosen.delete(id);
  if (board.chosen.size >= MOST) return false;
  const taken = new Set(board.chosen.values());
  let colour = 0;
  while (taken.has(colour)) colour++;
  board.chosen.set(id, colour);
  return true;
}

/* The settings in which the chosen runs differ. */
export function differing(ids) {
  return board.names.filter((name) => new Set(ids.map((id) => setting(id, name))).size > 1);
}

/* The names of the chosen runs without the folders that all of them are in; a mere number is told what it stands for. */
export function labels(ids) {
  const paths = ids.map((id) => board.runs.get(id).name.split("/"));
  let shared = 0;
  while (ids.length > 1 && paths.every((path) => path.length > shared + 1 && path[shared] === paths[0][shared])) shared++;
  const told = apart(ids, differing(ids), 3);
  return new Map(ids.map((id, i) => {
    const name = paths[i].slice(shared).join("/"), means = told.filter((each) => setting(id, each) !== undefined);
    return [id, /(^|\/)\d+$/.test(name) && means.length ? `${name}: ${means.map((each) => inShort(each, setting(id, each))).join(", ")}` : name];
  }));
}

/* The view is kept in the address: it can be reloaded, and sent to somebody. */
export function address() {
  const words = new URLSearchParams();
  for (const id of board.chosen.keys()) words.append("run", id);
  if (board.text) words.set("text", board.text);
  for (const state of board.states) words.append("state", state);
  for (const [name, value] of board.filters) words.append("set", `${name}=${value}`);
  if (board.sort !== "newest") words.set("sort", board.sort);
  if (!board.down) words.set("up", "1");
  if (board.axis !== "round") words.set("over", board.axis);
  if (board.log) words.set("log", "1");
  if (board.drawn) for (const name of board.drawn) words.append("draw", name);
  return words.toString();
}

/* Returns whether the address says which runs are chosen. */
export function restore(text) {
  const words = new URLSearchParams(text);
  for (const id of words.getAll("run")) choose(id, true);
  board.text = words.get("text") || "";
  board.states = new Set(words.getAll("state").filter((state) => STATES.includes(state)));
  board.filters = words.getAll("set").map((pair) => [pair.slice(0, pair.indexOf("=")), pair.slice(pair.indexOf("=") + 1)]);
  if (words.get("sort") in ORDERS) board.sort = words.get("sort");
  board.down = !words.has("up");
  board.axis = words.get("over") || "round";
  board.log = words.has("log");
  if (words.has("draw")) board.drawn = new Set(words.getAll("draw"));
  return words.has("run");
}
