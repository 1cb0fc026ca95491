/* The page of a report: brings its charts to life, and lets the reader choose what the explorer shows. */
"use strict";
(function () {
  /* The weight of the past in the moving average of a curve. */
  const SMOOTHING = [{label: "none", weight: 0}, {label: "light", weight: 0.6}, {label: "medium", weight: 0.9}, {label: "strong", weight: 0.97}];
  const data = JSON.parse(document.getElementById("data").textContent);
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const start = figure.closest("#explorer") ? explore : manyeyes.chart;
    start(figure.firstElementChild, withCurves(data.charts[figure.dataset.chart]));
  }

  for (const block of document.querySelectorAll("figure.code")) {
    const button = Object.assign(document.createElement("button"), {type: "button", textContent: "Copy"});
    button.addEventListener("click", () => copy(block.querySelector("pre"), button));
    block.append(button);
  }

  /* Copy a text; where the browser does not allow it, select the text, so that Ctrl-C copies it. */
  async function copy(pre, button) {
    getSelection().selectAllChildren(pre);
    try {
      if (!document.execCommand("copy")) await navigator.clipboard.writeText(pre.textContent);
      button.textContent = "Copied";
      getSelection().removeAllRanges();
    } catch {
      button.textContent = "Press Ctrl-C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }

  /* A chart of a metric, with the curves of its series. */
  function withCurves(chart) {
    if (!chart.metric) return chart;
    const find = ({name}) => data.explorer.groups.find((group) => group.name === name || group.score_name === name);
    return {...chart, series: chart.series.map((series) => ({...series, ...curve(find(series), chart.metric, "round")}))};
  }

  /* The values of a metric of a run or a group, over an axis. */
  function curve(run, metric, axis) {
    const [number, ...columns] = run.metrics[metric] || [0], positions = columns.length ? run.positions[number] : [];
    const [y = [], low = [], high = []] = columns.map((values) => (values.length === 1 ? positions.map(() => values[0]) : values));
    return {x: positions.map((i) => run.axes[axis][i]), y, low, high};
  }

  function explore(element, spec) {
    const {metrics, axes, runs, groups, reference_lines, has_seeds, caveat} = data.explorer;
    const metric = choice("metric", "Metric", metrics), axis = choice("axis", "over", axes);
    const smoothing = choice("smoothing", "Smoothing", SMOOTHING), seeds = checkbox("each-seed", "show each seed");
    const logX = checkbox("log-x", "log x"), logY = checkbox("log-y", "log y"), controls = document.createElement("div");
    controls.className = "controls";
    controls.append(metric.label, axis.label, smoothing.label, logX.label, logY.label, ...(has_seeds ? [seeds.label] : []));
    element.parentElement.before(controls);
    const chart = manyeyes.chart(element, {...spec, ...selected()});
    for (const control of [metric.select, axis.select, smoothing.select, seeds.box, logX.box, logY.box]) control.addEventListener("change", () => chart.update(selected()));

    function selected() {
      const {name, label, percent} = metrics[metric.select.value], over = axes[axis.select.value];
      const series = (seeds.box.checked ? runs : groups).map((run) =>
        ({name: name === "(score)" ? run.score_name : run.name, color: run.color, ...curve(run, name, over.name)}));
      const notes = [caveat, SMOOTHING[smoothing.select.value].weight ? "smoothed" : ""].filter(Boolean).join(", ");
      return {
        title: label[0].toUpperCase() + label.slice(1) + (notes ? ` (${notes})` : ""), height: 380, smoothing: SMOOTHING[smoothing.select.value].weight,
        x: {label: over.label, log: logX.box.checked, integer: over.name !== "seconds"}, y: {label, percent, log: logY.box.checked}, series, reference_lines: reference_lines[name] || [],
      };
    }
  }

  function checkbox(id, text) {
    const box = Object.assign(document.createElement("input"), {type: "checkbox", id}), label = document.createElement("label");
    label.append(box, " " + text);
    return {box, label};
  }

  function choice(id, text, options) {
    const select = Object.assign(document.createElement("select"), {id}), label = document.createElement("label");
    options.forEach((option, i) => select.append(new Option(option.label, i)));
    label.append(text + " ", select);
    return {select, label};
  }
})();
