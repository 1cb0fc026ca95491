/* Charts that respond to the reader, drawn as report/svg.py draws them, from the data of Chart.to_dict().
   No library, no request, nothing evaluated.

   manyeyes.chart(element, chart) returns {update(chart), destroy()}.

   Hover reads values, a click on a name hides its series, dragging zooms and a double click resets the zoom.
   With the keyboard: arrows, Home and End read values, + and - zoom, 0 resets. */
"use strict";
(function () {
  const RIGHT = 16, TOP = 26, BOTTOM = 44, COLORS = 8, DASHES = ["none", "7 3", "2 3", "9 3 2 3"];
  const MAX_LEGEND = 12, MAX_NAME = 32, MAX_READ = 10, DENSE_POINTS = 500, CHARACTER = 6.6, PRINT_WIDTH = 680;
  const SVG = "http://www.w3.org/2000/svg";
  let numCharts = 0;

  /* Elements. */
  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }
  const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
  const text = (x, y, label, more) => svg("text", {x, y, fill: "var(--soft)", ...more}, label);
  const path = (d, more) => svg("path", {d, fill: "none", ...more});

  /* Numbers. */
  function format(value, digits = 4) {
    if (value === null || value === undefined || !isFinite(value)) return "–";
    if (value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e9)) return value.toExponential(2);
    return Number(value.toPrecision(Number.isInteger(value) ? 15 : digits)).toLocaleString("en", {maximumFractionDigits: 8});
  }
  const shown = (axis, value, digits) => {
    if (axis.names) return axis.names[Math.round(value)] ?? "";
    return axis.percent && value !== null ? percent(value) : format(value, digits);
  };
  /* A fraction as everywhere on a page: with one digit, or two significant ones if it is very small. */
  const percent = (value) => (Math.abs(value) > 1e-8 && Math.abs(value) < 5e-4 ? format(100 * value, 2) : (100 * value).toFixed(1)) + " %";
  const tickText = (axis, value) => (axis.percent && !axis.names ? format(100 * value) + " %" : shown(axis, value, 10));
  const shorten = (name, length) => (name.length > length ? name.slice(0, length - 1) + "…" : name);

  /* The exponential moving average of values, with this weight of the past; gaps stay. */
  function smooth(values, weight) {
    let sum = 0, total = 0;
    return values.map((value) => {
      if (value === null || !isFinite(value)) return value;
      [sum, total] = [weight * sum + (1 - weight) * value, weight * total + (1 - weight)];
      return sum / total;
    });
  }

  function scale(axis, low, high, start, end) {
    const log = axis.log ? Math.log10 : (value) => value, [a, b] = [log(low), log(high)];
    const position = (value) => start + (log(axis.log ? Math.max(value, low) : value) - a) * ((end - start) / (b - a));
    position.invert = (pixel) => {
      const value = a + (pixel - start) * ((b - a) / (end - start));
      return axis.log ? 10 ** value : value;
    };
    position.ticks = (count) => (axis.ticks || ticks(low, high, count, axis.log, axis.integer)).filter((value) => value >= low && value <= high);
    return Object.assign(position, {axis, low, high, start, end});
  }

  function ticks(low, high, count, log, integer) {
    const values = [];
    if (log && high / low >= 8) {
      const decades = Math.log10(high / low), factors = 3 * decades <= 1.5 * count ? [1, 2, 5] : [1], jump = Math.max(1, Math.ceil(decades / count));
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += jump)
        for (const factor of factors) values.push(factor * 10 ** power);
      return values;
    }
    const smallest = (0.75 * (high - low)) / count, power = 10 ** Math.floor(Math.log10(smallest));
    const round = power * ([1, 2, 5].find((factor) => factor * power >= smallest) || 10), step = integer ? Math.max(1, round) : round;
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) values.push(Number((n * step).toPrecision(12)));
    return values;
  }

  /* The ends of an axis: those it was given, or those of the values with a margin. */
  function range(axis, values, margin) {
    let low = Infinity, high = -Infinity;
    for (const value of values) if (canShow(axis, value)) { low = Math.min(low, value); high = Math.max(high, value); }
    if (low > high) [low, high] = axis.log ? [1, 10] : [0, 1];
    if (axis.log) {
      const factor = low === high ? 2 : (high / low) ** margin;
      [low, high] = [low / factor, high * factor];
    } else {
      const room = (high - low) * margin || (low === high ? 0.5 : 0);
      [low, high] = [low === 0 || (low > 0 && low < room) ? 0 : low - room, high + room];
    }
    [low, high] = [axis.low ?? low, axis.high ?? high];
    return high > low ? [low, high] : [low, low + 1];
  }
  const canShow = (axis, value) => typeof value === "number" && isFinite(value) && !(axis.log && value <= 0);

  function chart(element, given) {
    const id = "me-" + ++numCharts, hidden = new Set();
    let spec = {}, plot = null, zoomed = null, reading = null, drag = null, width = 0, shrink = 1;
    const button = (label, hint, action) => {
      const made = html("button", {type: "button", title: hint}, label);
      made.addEventListener("click", action);
      return made;
    };
    const title = html("span", {class: "me-title"}), legend = html("div", {class: "me-legend", role: "group", "aria-label": "Series"});
    const search = html("input", {type: "search", class: "me-search", "aria-label": "Find a series by its name"});
    search.addEventListener("input", () => { drawLegend(); render(); });
    const reset = button("Reset zoom", "Show the whole chart (0)", () => zoom(null));
    const tools = html("span", {class: "me-tools"}, reset,
      button("SVG", "Download the picture", () => save(picture(), "image/svg+xml", "svg")),
      button("CSV", "Download the numbers", () => save(csv(), "text/csv", "csv")));
    const frame = svg("svg", {"aria-hidden": "true"}), tip = html("div", {class: "me-tip", "aria-hidden": "true"});
    const area = html("div", {class: "me-plot", tabindex: "0", role: "application", "aria-roledescription": "chart"}, frame, tip);
    const live = html("div", {class: "me-live", "aria-live": "polite"});
    const root = html("div", {class: "me-chart"}, html("div", {class: "me-head"}, title, tools), search, legend, area, live);
    element.replaceChildren(root);

    const visible = () => spec.series.filter((series) => !hidden.has(series.name));
    const isFound = (series) => search.hidden || series.name.toLowerCase().includes(search.value.trim().toLowerCase());
    const isScatter = () => spec.series.length > 0 && spec.series.every((series) => series.kind === "points");
    const color = (series) => `var(--color-${series.color % COLORS})`;
    const dash = (series) => (series.dashed ? "5 4" : DASHES[Math.floor(series.color / COLORS) % DASHES.length]);

    function update(next) {
      spec = {x: {}, y: {}, reference_lines: [], height: 300, ...spec, ...next};
      spec.series = spec.series.map((series, i) => ({kind: "line", color: i, x: [], y: [], low: [], high: [], labels: [], ...series}));
      for (const series of spec.series) series.drawn = spec.smoothing && series.kind === "line" ? smooth(series.y, spec.smoothing) : series.y;
      title.textContent = spec.title || "";
      for (const tool of tools.children) tool.setAttribute("aria-label", tool.textContent + (spec.title ? ": " + spec.title : ""));
      area.setAttribute("aria-label", (spec.title || spec.y.label || "Chart") + ": arrow keys read values, + and - zoom, 0 resets.");
      drawLegend();
      render();
    }

    function drawLegend() {
      const focused = document.activeElement?.dataset.series;
      legend.hidden = spec.series.length < 2;
      search.hidden = spec.series.length <= MAX_LEGEND;
      search.placeholder = `Find among ${spec.series.length} series`;
      const found = spec.series.filter(isFound), listed = found.slice(0, MAX_LEGEND), numLeft = found.length - listed.length;
      const rest = numLeft ? `and ${numLeft} more: search by name` : found.length ? "" : "no series has this name";
      legend.replaceChildren(...listed.map((series) => {
        const entry = button("", "Show or hide; with Shift, show only this one", (event) => toggle(series.name, event.shiftKey));
        entry.append(key(series), series.name);
        return fill(entry, {"aria-pressed": String(!hidden.has(series.name)), "data-series": series.name}, []);
      }), ...(rest ? [html("small", {}, rest)] : []));
      [...legend.children].find((entry) => entry.dataset.series === focused)?.focus();
    }
    const key = (series) => html("i", {class: `me-c${series.color % COLORS} me-${isHollow(series) ? "hollow" : series.kind}` + (dash(series) !== "none" ? " me-dashed" : "")});
    const isHollow = (series) => series.kind === "points" && series.dashed;

    function toggle(name, isAlone) {
      const others = spec.series.map((series) => series.name).filter((other) => other !== name);
      if (isAlone && others.some((other) => !hidden.has(other))) { others.forEach((other) => hidden.add(other)); hidden.delete(name); }
      else if (isAlone) hidden.clear();
      else if (!hidden.delete(name)) hidden.add(name);
      drawLegend();
      render();
    }

    /* Drawing. */
    function layout(series) {
      const bars = series.filter((one) => one.kind === "bars"), {x: xAxis, y: yAxis} = spec;
      const xs = series.flatMap((one) => one.x).concat(spec.reference_lines.map((reference) => reference.x));
      const gap = Math.min(...bars.flatMap((one) => one.x.slice(1).map((x, i) => x - one.x[i])), bars.length ? Infinity : 1);
      const halfBar = bars.length ? (isFinite(gap) ? gap : 1) / 2 : 0;
      const [x0, x1] = zoomed || range(xAxis, xs, isScatter() ? 0.03 : 0).map((end, i) => end + (i ? halfBar : -halfBar));
      const ys = series.flatMap((one) => one.x.flatMap((x, i) => (x >= x0 && x <= x1 ? [one.y[i], one.drawn[i], one.low[i], one.high[i]] : [])));
      if (bars.length) ys.push(0);
      if (!zoomed) ys.push(...spec.reference_lines.map((reference) => reference.y));
      const [y0, y1] = range(zoomed ? {...yAxis, low: undefined, high: undefined} : yAxis, ys, 0.05);
      const total = Math.max(220, Math.round(area.clientWidth * shrink) || 640);
      const y = scale(yAxis, y0, y1, TOP + spec.height, TOP), levels = y.ticks(spec.height / 60);
      const left = 16 + CHARACTER * Math.max(2, ...levels.map((value) => tickText(yAxis, value).length));
      const longest = CHARACTER * Math.max(0, ...(xAxis.names || []).map((name) => Math.min(name.length, MAX_NAME)));
      const isUpright = xAxis.names && longest > (total - RIGHT - left) / xAxis.names.length - 6;
      const height = TOP + spec.height + (isUpright ? longest + 30 : BOTTOM);
      return {x: scale(xAxis, x0, x1, left, total - RIGHT), y, left, right: total - RIGHT, base: TOP + spec.height, width: total, height, levels, isUpright, bars, gap: isFinite(gap) ? gap : 1};
    }

    function render() {
      const series = visible();
      plot = layout(series);
      const clip = svg("clipPath", {id}, svg("rect", {x: plot.left - 4, y: TOP - 6, width: plot.right - plot.left + 10, height: spec.height + 10}));
      const curves = svg("g", {"clip-path": `url(#${id})`}, ...series.map((one) =>
        svg("g", {opacity: isFound(one) ? 1 : 0.15}, ...(one.kind === "bars" ? drawBars(one) : drawCurve(one)))));
      frame.setAttribute("viewBox", `0 0 ${plot.width} ${plot.height}`);
      const references = spec.reference_lines.map(drawReferenceLine).filter((parts) => parts.length);
      const lines = references.map(([line]) => line), labels = references.map(([, label]) => label);
      frame.replaceChildren(clip, ...drawAxes(), curves, ...lines, ...labels, svg("g", {class: "me-reading"}));
      for (const label of frame.querySelectorAll("[data-room]")) fit(label);
      reset.hidden = !zoomed;
      if (reading) read(reading.x, reading.point, false);
    }

    function drawAxes() {
      const {x, left, right, base, height, levels} = plot, names = spec.x.names, label = spec.y.label || "";
      const parts = [
        text(0, 12, label.toLowerCase() === (spec.title || "").toLowerCase() ? "" : label),
        text(right, height - 5, (spec.x.label || "") + (spec.x.log && spec.x.label ? " (logarithmic)" : ""), {"text-anchor": "end"}),
        path(`M${left},${base}H${right}`, {stroke: "var(--axis)"})];
      for (const value of levels) parts.push(path(`M${left},${plot.y(value)}H${right}`, {stroke: "var(--grid)"}),
        text(left - 8, plot.y(value) + 4, tickText(spec.y, value), {class: "me-tick", "text-anchor": "end"}));
      const step = names ? Math.max(1, Math.ceil((13 * (x.high - x.low)) / (right - left))) : 1;
      const values = names ? names.map((_, i) => i).filter((i) => i % step === 0 && i >= x.low && i <= x.high) : x.ticks(Math.max(2, (right - left) / 80));
      for (const value of values) {
        const name = names ? shorten(names[value], MAX_NAME) : tickText(spec.x, value);
        parts.push(path(`M${x(value)},${base}v4`, {stroke: "var(--axis)"}), plot.isUpright
          ? text(0, 0, name, {class: "me-tick", "text-anchor": "end", transform: `translate(${x(value) + 4} ${base + 8}) rotate(-90)`})
          : text(Math.min(x(value), plot.width - name.length * 3), base + 17, name, {class: "me-tick", "text-anchor": "middle"}));
      }
      return parts;
    }

    /* Dots with an edge in the color of the page: those that overlap stay apart. */
    const drawDots = (d, stroke, size) => [path(d, {stroke: "var(--paper)", "stroke-width": size + 2, "stroke-linecap": "round"}),
      path(d, {class: "me-points", stroke, "stroke-width": size, "stroke-linecap": "round"})];

    function linePath(points, hasSteps) {
      let line = "", isDrawing = false;
      for (const point of points) {
        if (point) line += !isDrawing ? dot(...point) : hasSteps ? `H${point[0].toFixed(1)}V${point[1].toFixed(1)}` : dot(...point).replace("M", "L");
        isDrawing = Boolean(point);
      }
      return line;
    }

    const dot = (x, y) => `M${x.toFixed(1)},${y.toFixed(1)}`;
    function drawCurve(series) {
      const {x, y} = plot, place = (values) => series.x.map((value, i) => (canShow(spec.x, value) && canShow(spec.y, values[i]) ? [x(value), y(values[i])] : null));
      const points = place(series.drawn);
      const known = points.filter(Boolean), stroke = color(series);
      const ring = "m-3.5,0a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0 -7,0";
      if (isHollow(series)) return [path(known.map((point) => dot(...point) + ring).join(""), {class: "me-hollow", stroke, "stroke-width": 1.75})];
      if (series.kind === "points" || known.length === 1)
        return drawDots(known.map((point) => dot(...point) + "h0").join(""), stroke, known.length < DENSE_POINTS ? 7 : 3);
      const line = linePath(points, series.kind === "steps");
      const raw = spec.smoothing ? [path(linePath(place(series.y)), {class: "me-raw", stroke, "stroke-width": 1, "stroke-opacity": 0.35})] : [];
      const edges = intervals(series), outline = [...edges.map(([at, , high]) => dot(at, high)), ...edges.reverse().map(([at, low]) => dot(at, low))];
      const band = edges.length ? [path(outline.join("").replaceAll("M", "L").replace("L", "M") + "Z", {class: "me-band", fill: stroke, "fill-opacity": 0.16})] : [];
      return [...band, ...raw, path(line, {class: "me-line", stroke, "stroke-width": 2, "stroke-linejoin": "round", "stroke-dasharray": dash(series)})];
    }

    function drawBars(series) {
      const {x, y, bars, gap} = plot, room = Math.abs(x(x.low + gap) - x.start);
      const wide = Math.min(60, Math.max(1, (0.8 * room) / bars.length)), offset = (bars.indexOf(series) - bars.length / 2) * wide;
      const zero = y(Math.max(0, y.low)).toFixed(1);
      const shapes = series.x.map((value, i) => (series.y[i] === null ? "" : `M${(x(value) + offset).toFixed(1)},${zero}V${y(series.y[i]).toFixed(1)}h${wide.toFixed(1)}V${zero}Z`));
      const whiskers = intervals(series).map(([at, low, high]) => dot(at + offset + wide / 2, low) + `V${high.toFixed(1)}`).join("");
      return [path(shapes.join(""), {class: "me-bars", fill: color(series)}), ...(whiskers ? [path(whiskers, {class: "me-whiskers", stroke: "var(--ink)", "stroke-width": 1.5})] : [])];
    }

    const intervals = (series) => series.x.flatMap((x, i) => (canShow(spec.y, series.low[i]) && canShow(spec.y, series.high[i]) ? [[plot.x(x), plot.y(series.low[i]), plot.y(series.high[i])]] : []));

    function drawReferenceLine(reference, number) {
      const {x, y, left, right, base} = plot, isLevel = reference.y !== undefined;
      const scaled = isLevel ? y : x, value = isLevel ? reference.y : reference.x;
      if (!(value >= scaled.low && value <= scaled.high)) return [];
      const isLeft = isLevel ? number % 2 === 0 : x(value) < (left + right) / 2;
      const line = isLevel ? `M${left},${y(value)}H${right}` : `M${x(value)},${TOP}V${base}`;
      const labelX = isLevel ? (isLeft ? left + 6 : right) : x(value) + (isLeft ? 5 : -5), labelY = isLevel ? y(value) - 5 : TOP + 10 + 14 * number;
      const room = isLevel ? right - left - 6 : isLeft ? right - labelX : labelX - left;
      const halo = {stroke: "var(--paper)", "stroke-width": 3, "paint-order": "stroke"};
      return [path(line, {stroke: "var(--soft)", "stroke-dasharray": "4 4"}),
        text(labelX, labelY, reference.label || "", {class: "me-tick", "text-anchor": isLeft ? "start" : "end", "data-room": room, ...halo})];
    }

    function fit(label) {
      const full = label.textContent;
      for (let length = full.length; length > 1 && label.getComputedTextLength() > label.dataset.room; length--) label.textContent = shorten(full, length - 1);
    }

    /* Reading values: at an x those of all series, or the nearest point of a scatter. */
    const pointsOf = (series) => series.x.flatMap((x, i) => (canShow(spec.x, x) && canShow(spec.y, series.drawn[i]) ? [{series, i, x, y: series.drawn[i]}] : []));
    const closest = (items, distance) => items.reduce((best, item) => (best && distance(best) <= distance(item) ? best : item), null);

    function valuesAt(x) {
      return visible().flatMap((series) => {
        const points = pointsOf(series), point = closest(points, (one) => Math.abs(one.x - x));
        const isInside = points.length && x >= points[0].x && x <= points[points.length - 1].x;
        return point && (isInside || Math.abs(plot.x(point.x) - plot.x(x)) < 8) ? [point] : [];
      });
    }

    function read(x, point, isSpoken, pointerY = plot.base) {
      const points = (point ? [point] : valuesAt(x)).sort((a, b) => b.y - a.y), dots = frame.querySelector(".me-reading");
      reading = points.length && plot.x(x) >= plot.left - 1 && plot.x(x) <= plot.width ? {x, point} : null;
      tip.classList.toggle("me-on", Boolean(reading));
      dots.replaceChildren();
      if (!reading) return;
      if (!point) dots.append(path(`M${plot.x(x)},${TOP}V${plot.base}`, {stroke: "var(--axis)"}));
      for (const one of points) dots.append(svg("circle", {cx: plot.x(one.x), cy: plot.y(one.y), r: 4, fill: color(one.series), stroke: "var(--paper)", "stroke-width": 2}));
      const middle = points.indexOf(closest(points, (one) => Math.abs(plot.y(one.y) - pointerY)));
      const first = Math.max(0, Math.min(middle - MAX_READ / 2, points.length - MAX_READ)), listed = points.slice(first, first + MAX_READ);
      const position = [spec.x.label, shown(spec.x, x, 6)].filter(Boolean).join(" "), head = point?.series.labels[point.i] ?? position;
      const spread = ({series, i}, joint) => spec.smoothing ? `${shown(spec.y, series.y[i])} unsmoothed` : (canShow(spec.y, series.low[i]) ? `${shown(spec.y, series.low[i], 3)} ${joint} ${shown(spec.y, series.high[i], 3)}` : "");
      tip.replaceChildren(html("b", {}, head), ...listed.map((one) => html("span", {}, key(one.series), html("em", {}, one.series.name),
        html("strong", {}, shown(spec.y, one.y)), ...(spread(one, "–") ? [html("small", {}, spread(one, "–"))] : []))));
      if (head !== position) tip.append(html("small", {}, position));
      if (listed.length < points.length) tip.append(html("small", {}, `and ${points.length - listed.length} more`));
      const right = plot.x(x) + 14, side = right + tip.offsetWidth > plot.width ? right - 28 - tip.offsetWidth : right;
      tip.style.left = Math.max(0, Math.min(side, plot.width - tip.offsetWidth)) + "px";
      tip.style.top = TOP + "px";
      if (isSpoken) live.textContent = [head, ...listed.map((one) => `${one.series.name} ${shown(spec.y, one.y)}${spread(one, "to") && ` (${spread(one, "to")})`}`)].join("; ");
    }

    function stopReading() {
      reading = null;
      tip.classList.remove("me-on");
      frame.querySelector(".me-reading")?.replaceChildren();
    }

    function hover(pixelX, pixelY) {
      const points = visible().flatMap(pointsOf).filter((one) => one.x >= plot.x.low && one.x <= plot.x.high);
      const distance = isScatter() ? (one) => Math.hypot(plot.x(one.x) - pixelX, plot.y(one.y) - pixelY) : (one) => Math.abs(plot.x(one.x) - pixelX);
      const point = closest(points, distance);
      if (!point || (isScatter() && distance(point) > 30)) return stopReading();
      read(point.x, isScatter() ? point : null, false, pixelY);
    }

    /* Go on to the next value of x, or to the next point of a scatter. */
    function step(count) {
      const points = visible().flatMap(pointsOf).filter((one) => one.x >= plot.x.low && one.x <= plot.x.high).sort((a, b) => a.x - b.x || a.y - b.y);
      const stops = isScatter() ? points : points.filter((one, i) => !i || one.x !== points[i - 1].x);
      if (!stops.length) return;
      const is = (one) => (reading.point ? one.series === reading.point.series && one.i === reading.point.i : one.x === reading.x);
      const now = reading ? stops.findIndex(is) : count > 0 ? -1 : stops.length;
      const next = stops[Math.max(0, Math.min(stops.length - 1, now + count))];
      read(next.x, isScatter() ? next : null, true);
    }

    /* Zooming. */
    function zoom(ends) {
      zoomed = ends;
      render();
    }
    function zoomBy(factor) {
      const {x, left, right} = plot, middle = reading ? x(reading.x) : (left + right) / 2;
      zoom([x.invert(middle - (middle - left) * factor), x.invert(middle + (right - middle) * factor)]);
    }
    const pixel = (event) => {
      const box = frame.getBoundingClientRect(), ratio = plot.width / box.width;
      return [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
    };
    const listen = (name, action) => area.addEventListener(name, action);
    listen("keydown", (event) => {
      const keys = {ArrowRight: () => step(event.shiftKey ? 10 : 1), ArrowLeft: () => step(event.shiftKey ? -10 : -1), Home: () => step(-1e9), End: () => step(1e9),
        "+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomed && zoomBy(2), 0: () => zoom(null), Escape: () => (zoomed ? zoom(null) : stopReading())};
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
      event.preventDefault();
      keys[event.key]();
    });
    listen("pointerdown", (event) => {
      if (event.pointerType === "touch" || event.button) return;
      drag = {start: pixel(event)[0]};
      area.setPointerCapture(event.pointerId);
    });
    listen("pointermove", (event) => {
      const [x, y] = pixel(event);
      if (!drag || Math.abs(x - drag.start) <= 4) return drag ? undefined : hover(x, y);
      stopReading();
      drag.ends = [drag.start, x].sort((a, b) => a - b).map((end) => Math.max(plot.left, Math.min(end, plot.right)));
      const size = {x: drag.ends[0], y: TOP, width: drag.ends[1] - drag.ends[0], height: spec.height};
      frame.querySelector(".me-reading").append(svg("rect", {...size, fill: "var(--color-0)", "fill-opacity": 0.12}));
    });
    listen("pointerup", () => {
      const ends = drag?.ends;
      drag = null;
      stopReading();
      if (ends && ends[1] - ends[0] > 4) zoom(ends.map(plot.x.invert));
    });
    listen("pointercancel", () => { drag = null; stopReading(); });
    listen("pointerleave", () => drag || stopReading());
    listen("dblclick", () => zoom(null));
    listen("blur", stopReading);

    /* Downloads: the picture in the light theme with title and names, and the numbers with a row for each point. */
    function picture() {
      const named = spec.series.length > 1 ? visible() : [], head = 26 + 18 * named.length, size = {width: plot.width, height: plot.height + head};
      const sheet = svg("svg", {xmlns: SVG, viewBox: `0 0 ${size.width} ${size.height}`, ...size, "font-family": "system-ui, sans-serif", "font-size": 12},
        svg("rect", {...size, fill: "var(--paper)"}), text(0, 16, spec.title || "", {fill: "var(--ink)", "font-weight": 600, "font-size": 14}),
        ...named.flatMap((series, i) => [svg("rect", {x: 0, y: 30 + 18 * i, width: 14, height: 4, fill: color(series)}), text(22, 36 + 18 * i, series.name)]),
        svg("g", {transform: `translate(0 ${head})`}, ...frame.cloneNode(true).childNodes));
      const light = root.appendChild(html("div", {class: "me-light"})), colors = getComputedStyle(light);
      const markup = new XMLSerializer().serializeToString(sheet).replace(/var\((--[\w-]+)\)/g, (_, name) => colors.getPropertyValue(name).trim());
      light.remove();
      return markup;
    }

    function csv() {
      const hasNames = spec.x.names || spec.series.some((series) => series.labels.length), hasBands = spec.series.some((series) => series.low.length);
      const quote = (value) => (/[",\n\r]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
      const row = (series, name, x, y, low, high) => [series, ...(hasNames ? [name] : []), x, y, ...(hasBands ? [low, high] : [])].map(quote).join(",");
      const rows = spec.series.flatMap((series) => series.x.map((x, i) => row(series.name, series.labels[i] ?? spec.x.names?.[x], x, series.y[i], series.low[i], series.high[i])));
      return [row("series", "name", spec.x.label || "x", spec.y.label || "y", "low", "high"), ...rows].join("\n") + "\n";
    }

    function save(content, type, suffix) {
      const url = URL.createObjectURL(new Blob([content], {type}));
      const name = (spec.title || "").toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "chart";
      html("a", {href: url, download: `${name}.${suffix}`}).click();
      setTimeout(() => URL.revokeObjectURL(url), 1000);
    }

    /* Text keeps its size, whatever the width of the page; on paper the chart is as narrow as the page is. */
    const observer = new ResizeObserver(() => {
      if (area.clientWidth && area.clientWidth !== width) { width = area.clientWidth; render(); }
    });
    const print = () => { shrink = Math.min(1, PRINT_WIDTH / document.body.clientWidth); stopReading(); render(); };
    const afterPrint = () => { shrink = 1; render(); };
    window.addEventListener("beforeprint", print);
    window.addEventListener("afterprint", afterPrint);
    update(given);
    width = area.clientWidth;
    observer.observe(area);
    return {update, destroy() {
      observer.disconnect();
      window.removeEventListener("beforeprint", print);
      window.removeEventListener("afterprint", afterPrint);
      root.remove();
    }};
  }

  window.manyeyes = {...window.manyeyes, chart};
})();
