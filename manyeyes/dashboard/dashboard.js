/* The dashboard: requests what has changed, and shows it. */
import * as compare from "./compare.js";
import * as list from "./list.js";
import {address, applyChanges, recolor, restore, select, sorted, view} from "./store.js";
import {byId, write} from "./format.js";

const RUNNING_DELAY = 1000, IDLE_DELAY = 4000, MAX_DELAY = 15000; // milliseconds between requests: while runs train, else, after failures
const NUM_SELECTED_FIRST = 5; // running runs that are selected if the address names none
let failures = 0, timer = 0, isFirst = true, isRequesting = false;

const hasSelection = restore(location.hash.slice(1));
if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", "./" + location.hash); // the cookie has it

function changed() {
  history.replaceState(null, "", "#" + address());
  list.draw();
  compare.refresh(new Set()).catch(showError);
}

/* Select the running runs, or the newest. */
function selectFirst() {
  const all = sorted([...view.runs.values()]), running = all.filter((run) => run.status === "running");
  for (const run of (running.length ? running.slice(0, NUM_SELECTED_FIRST) : all.slice(0, 1))) select(run.id, true);
}

async function update() {
  clearTimeout(timer);
  if (isRequesting) return;
  isRequesting = true;
  let delay = IDLE_DELAY;
  try {
    const response = await fetch("api/runs?since=" + encodeURIComponent(view.version), {signal: AbortSignal.timeout(60000)});
    if (!response.ok) throw new Error((await response.text()).trim());
    const changes = await response.json(), ids = applyChanges(changes);
    failures = 0;
    if (changes.settings) list.settings();
    if (isFirst && !hasSelection) selectFirst();
    if (isFirst) recolor();
    list.refresh(ids);
    await compare.refresh(ids);
    const running = [...view.runs.values()].filter((run) => run.status === "running").length;
    write(byId("folder"), "in " + view.folder);
    write(byId("live"), running ? `Live: ${running} running` : "Live: no run is running");
    byId("live").className = running ? "live on" : "live";
    document.title = (running ? `(${running}) ` : "") + "Runs in " + view.folder;
    document.body.dataset.ready = "1";
    if (running) delay = RUNNING_DELAY;
    isFirst = false;
  } catch (error) {
    showError(error);
    delay = Math.min(MAX_DELAY, RUNNING_DELAY * 2 ** ++failures);
  }
  isRequesting = false;
  if (!document.hidden) timer = setTimeout(update, delay);
}

function showError(error) {
  byId("live").className = "live off";
  write(byId("live"), error instanceof TypeError || error.name === "TimeoutError" ? "The dashboard does not respond; trying again" : error.message);
}

document.addEventListener("visibilitychange", () => { if (document.hidden) clearTimeout(timer); else update(); });
list.start(changed);
compare.start(changed);
update();
