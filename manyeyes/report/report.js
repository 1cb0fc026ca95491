/* The page of a report: draws its charts, and lets a person choose what the first one shows. */
"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent), first = document.querySelector("#explorer figure");
  for (const figure of document.querySelectorAll("figure[data-chart]"))
    if (figure !== first) manyeyes.chart(figure.firstElementChild, data.charts[figure.dataset.chart]);
  if (first) explore(data.explorer, first, data.charts[first.dataset.chart]);

  function explore(all, figure, spec) {
    const metric = choice("metric", "Metric", all.metrics), over = choice("over", "over", all.over), controls = document.createElement("div");
    const seeds = document.createElement("input"), each = document.createElement("label");
    controls.className = "controls";
    seeds.type = "checkbox";
    seeds.id = "each-seed";
    each.append(seeds, " each seed by itself");
    controls.append(metric.label, over.label, ...(all.seeds ? [each] : []));
    figure.before(controls);
    const chart = manyeyes.chart(figure.firstElementChild, {...spec, ...wanted()});
    for (const control of [metric.select, over.select, seeds]) control.addEventListener("change", () => chart.update(wanted()));

    function wanted() {
      const of = all.metrics.find((one) => one.key === metric.select.value), x = over.select.value;
      const series = (seeds.checked ? all.runs : all.groups).map((run) => {
        const [at, y, low, high] = run.metrics[of.key] || [[], []];
        return {name: run.name, colour: run.colour, x: at.map((i) => run.over[x][i]), y, low, high};
      });
      const words = of.label[0].toUpperCase() + of.label.slice(1);
      return {title: words, x: {label: all.over.find((one) => one.key === x).label}, y: {label: of.label, percent: of.percent}, series, marks: all.marks[of.key] || [], height: 380};
    }
  }

  function choice(id, words, options) {
    const select = document.createElement("select"), label = document.createElement("label");
    for (const one of options) select.append(new Option(one.label, one.key));
    select.id = id;
    label.append(words + " ", select);
    return {select, label};
  }
})();
