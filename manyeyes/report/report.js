/* The page of a report: brings its charts to life, and lets the reader choose what the explorer shows. */
"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const start = figure.closest("#explorer") ? explore : manyeyes.chart;
    start(figure.firstElementChild, data.charts[figure.dataset.chart]);
  }

  function explore(element, spec) {
    const {metrics, axes, runs, groups, reference_lines, has_seeds, caveat} = data.explorer;
    const metric = choice("metric", "Metric", metrics), axis = choice("axis", "over", axes);
    const seeds = Object.assign(document.createElement("input"), {type: "checkbox", id: "each-seed"});
    const label = document.createElement("label"), controls = document.createElement("div");
    label.append(seeds, " show each seed");
    controls.className = "controls";
    controls.append(metric.label, axis.label, ...(has_seeds ? [label] : []));
    element.parentElement.before(controls);
    const chart = manyeyes.chart(element, {...spec, ...selected()});
    for (const control of [metric.select, axis.select, seeds]) control.addEventListener("change", () => chart.update(selected()));

    function selected() {
      const {name, label, percent} = metrics[metric.select.value], over = axes[axis.select.value];
      const series = (seeds.checked ? runs : groups).map((curve) => {
        const [indices, y, low, high] = curve.metrics[name] || [[], []];
        return {name: name === "(score)" ? curve.score_name : curve.name, color: curve.color, x: indices.map((i) => curve.axes[over.name][i]), y, low: low || [], high: high || []};
      });
      return {title: label[0].toUpperCase() + label.slice(1) + (caveat ? ` (${caveat})` : ""), x: {label: over.label}, y: {label, percent}, series, reference_lines: reference_lines[name] || [], height: 380};
    }
  }

  function choice(id, text, options) {
    const select = Object.assign(document.createElement("select"), {id}), label = document.createElement("label");
    options.forEach((option, i) => select.append(new Option(option.label, i)));
    label.append(text + " ", select);
    return {select, label};
  }
})();
