/* The board: asks what has changed, and shows it. */
import * as compare from "./compare.js";
import * as list from "./list.js";
import {address, board, choose, restore, sorted, take} from "./store.js";
import {by, write} from "./words.js";

const OFTEN = 1000, SELDOM = 4000, LONGEST = 15000; // milliseconds between questions: while runs go on, else, and at most
const AT_FIRST = 5; // runs that are chosen when nobody has chosen
let failures = 0, timer = 0, first = true, asking = false;

const told = restore(location.hash.slice(1));
if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", "./" + location.hash); // the cookie has it now

function changed() {
  history.replaceState(null, "", "#" + address());
  list.draw();
  compare.refresh(new Set()).catch(trouble);
}

/* Nothing was chosen: the runs that go on, or else the newest. */
function chooseSome() {
  const all = sorted([...board.runs.values()]), running = all.filter((run) => run.state === "running");
  for (const run of (running.length ? running.slice(0, AT_FIRST) : all.slice(0, 1))) choose(run.id, true);
}

async function ask() {
  clearTimeout(timer);
  if (asking) return;
  asking = true;
  let wait = SELDOM;
  try {
    const answer = await fetch("api/runs?since=" + encodeURIComponent(board.version), {signal: AbortSignal.timeout(60000)});
    if (!answer.ok) throw new Error((await answer.text()).trim());
    const news = await answer.json(), ids = take(news);
    failures = 0;
    if (news.settings) list.settings();
    if (first && !told) chooseSome();
    list.refresh(ids);
    await compare.refresh(ids);
    const running = [...board.runs.values()].filter((run) => run.state === "running").length;
    write(by("place"), "in " + board.folder);
    write(by("live"), running ? `Live: ${running} running` : "Live: nothing is running");
    by("live").className = running ? "live on" : "live";
    document.title = (running ? `(${running}) ` : "") + "Runs in " + board.folder;
    document.body.dataset.ready = "1";
    if (running) wait = OFTEN;
    first = false;
  } catch (error) {
    trouble(error);
    wait = Math.min(LONGEST, OFTEN * 2 ** ++failures);
  }
  asking = false;
  if (!document.hidden) timer = setTimeout(ask, wait);
}

function trouble(error) {
  by("live").className = "live off";
  write(by("live"), error instanceof TypeError || error.name === "TimeoutError" ? "The board does not answer; trying again" : error.message);
}

document.addEventListener("visibilitychange", () => { if (document.hidden) clearTimeout(timer); else ask(); });
list.start(changed);
compare.start(changed);
ask();
