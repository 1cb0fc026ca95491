/* The groups of the list: the runs of a sweep, and those that failed before round 1, which are folded. */
import {sweepOf, view} from "./store.js";

const FAILED = new Set(["failed", "diverged", "empty"]);
export const FAILED_KEY = "(failed)";

/* Return groups of runs in the order of their first run: {key, title, runs}; a run of its own has no key. */
export function groups(runs) {
  const sweeps = new Map(), failed = [], found = [];
  for (const run of runs) {
    const folder = sweepOf(run.id);
    if (FAILED.has(run.status) && run.round === 0) failed.push(run);
    else if (!folder) found.push({key: "", title: "", runs: [run]});
    else if (sweeps.has(folder)) sweeps.get(folder).runs.push(run);
    else {
      sweeps.set(folder, {key: folder, title: folder, runs: [run]});
      found.push(sweeps.get(folder));
    }
  }
  for (const group of found) if (group.runs.length === 1) group.key = "";
  if (failed.length) found.push({key: FAILED_KEY, title: "Failed before round 1", runs: failed});
  return found;
}

/* A group is open, apart from failed runs, until the reader decides otherwise; what a filter finds is not hidden. */
export function isOpen(group) {
  const isFiltered = view.text || view.statuses.size || view.filters.length;
  return !group.key || (view.folds.get(group.key) ?? (group.key !== FAILED_KEY || Boolean(isFiltered)));
}
