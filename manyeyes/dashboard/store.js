/* The state of the page: the runs, their settings, which are selected, and how they are shown. */

export const STATUSES = ["running", "stale", "finished", "stopped", "diverged", "failed", "empty"];
const NO_SETTINGS = {common: {}, values: {}, rows: {}};
export const MAX_SELECTED = 24; // runs

export const view = {
  runs: new Map(), version: "", folder: "", clockOffset: 0, // seconds that this clock is behind the server's
  settings: NO_SETTINGS, names: [], columns: new Map(),
  selected: new Map(), // id -> color index
  text: "", statuses: new Set(), filters: [], folds: new Map(), smoothing: "none", sort: "newest", isDescending: true, axis: "round", log: false, drawn: null,
};

/* Apply a response of the server; returns the ids of the runs that have changed. */
export function applyChanges(changes) {
  const changedIds = new Set();
  if (changes.is_full) view.runs.clear();
  for (const run of changes.runs) {
    view.runs.set(run.id, run);
    changedIds.add(run.id);
  }
  for (const id of changes.removed) {
    view.runs.delete(id);
    view.selected.delete(id);
    changedIds.add(id);
  }
  if (changes.is_full) for (const id of view.selected.keys()) if (!view.runs.has(id)) view.selected.delete(id);
  if (changes.settings) {
    view.settings = changes.settings;
    view.names = Object.keys(changes.settings.values);
    view.columns = new Map(view.names.map((name, i) => [name, i]));
    haystacks.clear();
    summaryNames.clear();
    sweeps.clear();
  }
  if (changes.runs.length || changes.removed.length) sweeps.clear();
  view.version = changes.version;
  view.folder = changes.folder;
  view.clockOffset = changes.now - Date.now() / 1000;
  return changedIds;
}

/* The value of a setting in a run; undefined if it has none. */
export function setting(id, name) {
  if (name in view.settings.common) return view.settings.common[name];
  const column = view.columns.get(name), row = view.settings.rows[id];
  return column === undefined || !row ? undefined : view.settings.values[name][row[column]] ?? undefined;
}

/* "algorithm.lr" as lr, and "algorithm.name" as algorithm. */
export const brief = (name) => name.replace(/\.name$/, "").split(".").pop();
const assignment = (name, value) => (name.endsWith(".name") ? value : `${brief(name)} ${value}`);

/* The settings that distinguish runs: the algorithm, then each time the setting that divides them into the most groups. */
const MACHINE_SETTINGS = /^(engine|trackers|sources)\b|^checkpoint|^client_state/;
function distinguishing(ids, names, maxNames) {
  const chosen = [], left = new Set(names.filter((name) => !MACHINE_SETTINGS.test(name)));
  let keys = ids.map(() => ""), numGroups = 1;
  while (chosen.length < maxNames && numGroups < ids.length) {
    let best = null;
    for (const name of left) {
      const next = ids.map((id, i) => keys[i] + "\n" + setting(id, name)), count = new Set(next).size;
      if (count > (best ? best.count : numGroups)) best = {name, next, count};
      if (name === "algorithm.name" && !chosen.length && count > numGroups) { best = {name, next, count}; break; }
    }
    if (!best) break;
    chosen.push(best.name);
    left.delete(best.name);
    [keys, numGroups] = [best.next, best.count];
  }
  const rank = (name) => (name === "algorithm.name" ? 0 : name === "seed" ? 2 : 1);
  return chosen.sort((a, b) => rank(a) - rank(b) || view.columns.get(a) - view.columns.get(b));
}

/* The settings that distinguish a run from the others, or from the others of its sweep, as text: `fedavg · seed 0`. */
const summaryNames = new Map(); // by the folder of a sweep; "" of all runs
const sweeps = new Map(); // the ids of the runs of each sweep, by its folder
const folderOf = (id) => view.runs.get(id).name.match(/^(.+)\/\d+$/)?.[1] || ""; // a sweep numbers its runs
export function summary(id) {
  const folder = sweepOf(id);
  if (!summaryNames.has(folder)) {
    const ids = folder ? sweeps.get(folder) : [...view.runs.keys()], names = distinguishing(ids, differing(ids), 4);
    summaryNames.set(folder, names.length || !folder ? names : ["algorithm.name"]);
  }
  return describe(id, summaryNames.get(folder));
}

/* The folder of the sweep that a run is of; empty for a run of its own. */
export function sweepOf(id) {
  for (const other of sweeps.size ? [] : view.runs.keys()) {
    if (!sweeps.has(folderOf(other))) sweeps.set(folderOf(other), []);
    sweeps.get(folderOf(other)).push(other);
  }
  return sweeps.get(folderOf(id))?.length > 1 ? folderOf(id) : "";
}
const describe = (id, names) => names.filter((name) => setting(id, name)).map((name) => assignment(name, setting(id, name))).join(" · ");

/* The texts that are searched. A term with "=" matches the end of a name and the beginning of a value. */
const haystacks = new Map();
const searchable = (pairs) => pairs.filter(([, value]) => value !== undefined).map(([name, value]) => [`.${name}`.toLowerCase(), `=${value}`.toLowerCase()]);
function haystack(run) {
  if (!haystacks.has(run.id)) haystacks.set(run.id, searchable(view.names.map((name) => [name, setting(run.id, name)])));
  return haystacks.get(run.id);
}

function finder(term) {
  const index = term.indexOf("="), left = "." + term.slice(0, index).replace(/^\./, ""), right = term.slice(index);
  const matches = ([name, value]) => (index < 0 ? (name + value).includes(term) : name.endsWith(left) && value.startsWith(right));
  const all = searchable(Object.entries(view.settings.common)).some(matches); // searched once for all runs
  return (run) => all || run.name.toLowerCase().includes(term) || haystack(run).some(matches);
}

/* The runs that match the text and the settings, whatever their status. */
export function matching() {
  const finders = view.text.toLowerCase().split(/\s+/).filter(Boolean).map(finder);
  const allowed = new Map(); // by setting; several values: any of them
  for (const [name, value] of view.filters) allowed.set(name, [...(allowed.get(name) || []), value]);
  return [...view.runs.values()].filter((run) =>
    [...allowed].every(([name, values]) => values.includes(setting(run.id, name))) && finders.every((find) => find(run)));
}

const last = (value) => (value === null || value === undefined ? -Infinity : value);
export const ORDERS = {
  newest: ["Newest", (a, b) => (b.status === "running") - (a.status === "running") || (a.status === "running" ? 0 : b.updated - a.updated)],
  name: ["Name", (a, b) => 0],
  status: ["Status", (a, b) => STATUSES.indexOf(a.status) - STATUSES.indexOf(b.status)],
  progress: ["Progress", (a, b) => last(b.rounds ? b.round / b.rounds : null) - last(a.rounds ? a.round / a.rounds : null)],
  left: ["Time left", (a, b) => last(b.seconds_left) - last(a.seconds_left)],
  score: ["Score", (a, b) => last(b.score) - last(a.score)],
  loss: ["Training loss", (a, b) => last(b.loss) - last(a.loss)],
  speed: ["Images/s", (a, b) => last(b.images_per_second) - last(a.images_per_second)],
  epsilon: ["Epsilon", (a, b) => last(b.epsilon) - last(a.epsilon)],
};

const natural = new Intl.Collator("en", {numeric: true});
export function sorted(runs) {
  const order = ORDERS[view.sort][1], sign = view.isDescending ? 1 : -1;
  return runs.sort((a, b) => sign * order(a, b) || (view.sort === "name" ? sign : 1) * natural.compare(a.name, b.name));
}

export function select(id, isSelected) {
  if (!isSelected) return view.selected.delete(id);
  if (view.selected.size >= MAX_SELECTED) return false;
  view.selected.set(id, newColor(id));
  return true;
}

/* Runs that differ only by their seed have the same color, as in reports. */
function newColor(id) {
  const key = withoutSeed(id), taken = new Set(view.selected.values());
  for (const [other, color] of view.selected) if (key && withoutSeed(other) === key) return color;
  let color = 0;
  while (taken.has(color)) color++;
  return color;
}
function withoutSeed(id) {
  const row = view.settings.rows[id];
  return row && JSON.stringify(row.filter((_, i) => view.names[i] !== "seed"));
}

/* Choose the colors again, once the settings of runs that the address names are known. */
export function recolor() {
  const ids = [...view.selected.keys()];
  view.selected.clear();
  for (const id of ids) select(id, true);
}

/* The settings in which the selected runs differ; an option of the algorithm is also one of a component: shown once. */
export function differing(ids) {
  const names = new Map();
  for (const name of view.names) {
    const values = ids.map((id) => setting(id, name)), key = JSON.stringify([brief(name), values]);
    if (new Set(values).size > 1 && !names.has(key)) names.set(key, name);
  }
  return [...names.values()];
}

/* A name, and the caveats of its run's data. */
export const withCaveats = (name, run) => run.caveats ? `${name} (${run.caveats})` : name;

/* The names of the selected runs without the folders that they share; to a mere number, what distinguishes the run is added. */
export function labels(ids) {
  const paths = ids.map((id) => view.runs.get(id).name.split("/"));
  let shared = 0;
  while (ids.length > 1 && paths.every((path) => path.length > shared + 1 && path[shared] === paths[0][shared])) shared++;
  const names = distinguishing(ids, differing(ids), 4);
  return new Map(ids.map((id, i) => {
    const name = paths[i].slice(shared).join("/"), text = describe(id, names) || summary(id);
    const label = /^\d+$/.test(name) && text ? text : /\/\d+$/.test(name) && text ? `${name}: ${text}` : name;
    return [id, withCaveats(label, view.runs.get(id))];
  }));
}

/* The URL stores the view: it can be reloaded and shared. */
export function address() {
  const query = new URLSearchParams();
  for (const id of view.selected.keys()) query.append("run", id);
  if (view.text) query.set("text", view.text);
  for (const status of view.statuses) query.append("status", status);
  for (const [name, value] of view.filters) query.append("set", `${name}=${value}`);
  if (view.sort !== "newest") query.set("sort", view.sort);
  if (!view.isDescending) query.set("up", "1");
  if (view.axis !== "round") query.set("over", view.axis);
  if (view.log) query.set("log", "1");
  if (view.logX) query.set("logx", "1");
  if (view.smoothing !== "none") query.set("smooth", view.smoothing);
  if (view.drawn) for (const name of view.drawn) query.append("draw", name);
  return query.toString();
}

/* Restore a view from the URL; returns whether it names runs. */
export function restore(text) {
  const query = new URLSearchParams(text);
  for (const id of query.getAll("run")) select(id, true);
  view.text = query.get("text") || "";
  view.statuses = new Set(query.getAll("status").filter((status) => STATUSES.includes(status)));
  view.filters = query.getAll("set").map((pair) => [pair.slice(0, pair.indexOf("=")), pair.slice(pair.indexOf("=") + 1)]);
  if (query.get("sort") in ORDERS) view.sort = query.get("sort");
  view.isDescending = !query.has("up");
  view.axis = query.get("over") || "round";
  view.log = query.has("log");
  view.logX = query.has("logx");
  view.smoothing = query.get("smooth") || "none";
  if (query.has("draw")) view.drawn = new Set(query.getAll("draw"));
  return query.has("run");
}
