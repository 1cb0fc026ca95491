/* Charts in SVG, drawn from plain data, for the report and the board; no library, no request, nothing evaluated.

   manyeyes.chart(element, {
     title, height,
     x: {label, log, min, max, names: [...]},    names: x counts from 0 and each number has a name
     y: {label, log, min, max, percent},
     series: [{name, x, y, low, high, kind: "line" | "points" | "bars", dashed, colour, labels: [...]}],
     marks: [{y | x, label}],
   }) -> {update(seriesOrSpec), destroy()}

   A series is drawn in the colour of its index, or of `colour`; null values are gaps; `labels` name points; dashed
   points are hollow.
   Hover reads values, dragging zooms, a double click resets; with the keyboard: arrows, Home, End, +, -, 0. */
"use strict";
var manyeyes = window.manyeyes || {};

(function () {
  const COLOURS = 8, DASHES = ["", "7 3", "2 3", "9 3 2 3"], SHOWN = 10, TOP = 26, BOTTOM = 42, RIGHT = 14, PAPER = 680, LONGEST = 32;
  const SVG = "http://www.w3.org/2000/svg";
  let charts = 0;

  function make(kind, attributes, ...children) {
    const made = document.createElement(kind);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function draw(parent, kind, attributes, text) {
    const made = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  /* Numbers in words. */
  function number(value, digits = 4) {
    if (value === null || value === undefined || !isFinite(value)) return "–";
    if (value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e9)) return value.toExponential(2);
    if (Number.isInteger(value)) return value.toLocaleString("en");
    return Number(value.toPrecision(digits)).toLocaleString("en", {maximumFractionDigits: 8});
  }
  const said = (words) => String(words || "").toLowerCase();
  const percent = (value, digits) => (isFinite(value) ? number(100 * value, digits) + " %" : "–");

  /* From values to pixels, and the ticks between. */
  function scale(low, high, from, to, log) {
    const [a, b] = log ? [Math.log10(low), Math.log10(high)] : [low, high];
    const at = (value) => from + ((log ? Math.log10(value) : value) - a) * ((to - from) / (b - a));
    at.back = (pixel) => {
      const value = a + (pixel - from) * ((b - a) / (to - from));
      return log ? 10 ** value : value;
    };
    return at;
  }

  function ticks(low, high, count, log) {
    if (log && high / low >= 8) {
      const decades = Math.log10(high / low), steps = decades < 2.5 ? [1, 2, 5] : [1];
      const jump = Math.max(1, Math.ceil(decades / count)), found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += jump)
        for (const step of steps) found.push(step * 10 ** power);
      return found.filter((value) => value >= low * 0.9999 && value <= high * 1.0001);
    }
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * ([1, 2, 5].find((each) => each * power >= rough) || 10), found = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(Number((n * step).toPrecision(12)));
    return found;
  }

  /* The index of the x that is nearest, in a sorted list. */
  function nearest(xs, value) {
    let low = 0, high = xs.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < value) low = middle + 1; else high = middle;
    }
    return low > 0 && value - xs[low - 1] < xs[low] - value ? low - 1 : low;
  }

  /* A series whose points can be drawn, sorted by x. */
  function clean(series, index, logX, logY) {
    const y = series.y || [], x = series.x || y.map((_, i) => i), keep = [];
    for (let i = 0; i < y.length; i++) if (typeof x[i] === "number" && isFinite(x[i]) && !(logX && x[i] <= 0)) keep.push(i);
    if (keep.some((i, n) => n && x[i] < x[keep[n - 1]])) keep.sort((i, j) => x[i] - x[j]);
    const value = (list) => list && keep.map((i) => {
      const one = list[i];
      return typeof one === "number" && isFinite(one) && !(logY && one <= 0) ? one : null;
    });
    return {
      name: String(series.name === undefined ? "series " + (index + 1) : series.name), kind: series.kind || "line",
      colour: series.colour === undefined ? index : series.colour, dashed: series.dashed,
      x: keep.map((i) => x[i]), y: value(y), low: value(series.low), high: value(series.high),
      labels: series.labels && keep.map((i) => series.labels[i]),
    };
  }

  /* The path of a line; where points are denser than pixels, each column keeps its first, least, largest and last. */
  function line(series, values, atX, atY, first, last) {
    let path = "", pen = false, column = null, kept = [];
    const to = (i) => {
      path += (pen ? "L" : "M") + atX(series.x[i]).toFixed(1) + "," + atY(values[i]).toFixed(1);
      pen = true;
    };
    const flush = () => {
      for (const i of [...new Set(kept)].sort((i, j) => i - j)) to(i);
      kept = [];
    };
    for (let i = first; i <= last; i++) {
      if (values[i] === null) { flush(); pen = false; column = null; continue; }
      const now = Math.floor(atX(series.x[i]));
      if (now !== column) { flush(); column = now; kept = [i, i, i, i]; }
      else {
        if (values[i] < values[kept[1]]) kept[1] = i;
        if (values[i] > values[kept[2]]) kept[2] = i;
        kept[3] = i;
      }
    }
    flush();
    return path;
  }

  function band(series, atX, atY, first, last) {
    const up = [], down = [];
    let column = null;
    for (let i = first; i <= last; i++) {
      if (series.low[i] === null || series.high[i] === null) continue;
      const x = atX(series.x[i]), high = atY(series.high[i]), low = atY(series.low[i]), end = up.length - 1;
      if (Math.floor(x) === column) { up[end][1] = Math.min(up[end][1], high); down[end][1] = Math.max(down[end][1], low); }
      else { column = Math.floor(x); up.push([x, high]); down.push([x, low]); }
    }
    return up.length ? "M" + [...up, ...down.reverse()].map(([x, y]) => x.toFixed(1) + "," + y.toFixed(1)).join("L") + "Z" : "";
  }

  function chart(element, given) {
    const id = "me-" + ++charts, hidden = new Set();
    let shrunk = 1, spec, series, view = null, reading = null, at = {}, drag = null;

    const title = make("span", {class: "me-title"}), legend = make("div", {class: "me-legend", role: "group", "aria-label": "Series"});
    const reset = button("Reset zoom", "Show everything again (0)", () => zoom(null));
    const tools = make("span", {class: "me-tools"}, reset,
      button("SVG", "Download the picture", () => save(picture(), "image/svg+xml", "svg")),
      button("CSV", "Download the numbers", () => save(table(), "text/csv", "csv")));
    const svg = document.createElementNS(SVG, "svg"), tip = make("div", {class: "me-tip", "aria-hidden": "true"});
    const plot = make("div", {class: "me-plot", tabindex: "0", role: "application", "aria-roledescription": "chart"}, svg, tip);
    const live = make("div", {class: "me-live", "aria-live": "polite"});
    const root = make("div", {class: "me-chart"}, make("div", {class: "me-head"}, title, tools), legend, plot, live);
    svg.setAttribute("aria-hidden", "true");
    element.replaceChildren(root);

    function button(text, hint, action) {
      const made = make("button", {type: "button", title: hint}, text);
      made.addEventListener("click", action);
      return made;
    }

    const visible = () => series.filter((one) => !hidden.has(one.name));
    const scattered = () => series.length > 0 && series.every((one) => one.kind === "points");
    const wordsX = (value) => (spec.x.names ? spec.x.names[Math.round(value)] ?? "" : number(value, 6));
    const wordsY = (value, digits) => (value === null ? "–" : spec.y.percent ? percent(value, digits) : number(value, digits));

    function update(next) {
      spec = Array.isArray(next) ? {...spec, series: next} : {...spec, ...next};
      spec.x = spec.x || {}; spec.y = spec.y || {}; spec.marks = spec.marks || [];
      series = (spec.series || []).map((one, index) => clean(one, index, spec.x.log, spec.y.log));
      title.textContent = spec.title || "";
      for (const tool of tools.children) tool.setAttribute("aria-label", tool.textContent + (spec.title ? ": " + spec.title : ""));
      plot.setAttribute("aria-label", (spec.title || spec.y.label || "Chart") + ": arrow keys read values, + and - zoom, 0 resets.");
      key();
      render();
    }

    function key() {
      const focused = document.activeElement && document.activeElement.dataset.series;
      legend.replaceChildren(...series.map((one) => {
        const made = make("button", {type: "button", "aria-pressed": String(!hidden.has(one.name)), "data-series": one.name,
          title: "Show or hide; with Shift, this one alone"}, make("i", {class: colour(one) + (one.colour >= COLOURS ? " me-dashed" : "") + " me-" + (hollow(one) ? "hollow" : one.kind)}), one.name);
        made.addEventListener("click", (event) => {
          const others = series.filter((other) => other.name !== one.name).map((other) => other.name);
          if (event.shiftKey && others.some((name) => !hidden.has(name))) { others.forEach((name) => hidden.add(name)); hidden.delete(one.name); }
          else if (event.shiftKey) hidden.clear();
          else if (!hidden.delete(one.name)) hidden.add(one.name);
          key();
          render();
        });
        return made;
      }));
      legend.hidden = series.length < 2;
      if (focused) [...legend.children].find((each) => each.dataset.series === focused && each.focus());
    }

    const hollow = (one) => one.kind === "points" && one.dashed;
    const colour = (one) => "me-c" + (one.colour % COLOURS) + (one.dashed ? " me-dashed" : "");

    /* What is to be seen: the ranges of x, then of the y within it. */
    function ranges(seen) {
      const xs = seen.flatMap((one) => (one.x.length ? [one.x[0], one.x[one.x.length - 1]] : []));
      for (const mark of spec.marks) if (mark.x !== undefined && !view) xs.push(mark.x);
      let [x0, x1] = view || [Math.min(...xs), Math.max(...xs)];
      const bars = seen.filter((one) => one.kind === "bars");
      const gap = Math.min(...bars.flatMap((one) => one.x.slice(1).map((x, i) => x - one.x[i])), Infinity);
      if (bars.length && !view) [x0, x1] = [x0 - (isFinite(gap) ? gap : 1) / 2, x1 + (isFinite(gap) ? gap : 1) / 2];
      if (!view) { x0 = spec.x.min ?? x0; x1 = spec.x.max ?? x1; }
      if (!isFinite(x0)) [x0, x1] = spec.x.log ? [1, 10] : [0, 1];
      if (x0 === x1) [x0, x1] = spec.x.log ? [x0 / 2, x1 * 2] : [x0 - 0.5, x1 + 0.5];
      let y0 = Infinity, y1 = -Infinity;
      const take = (value) => { if (value !== null && value < y0) y0 = value; if (value !== null && value > y1) y1 = value; };
      for (const one of seen)
        for (let i = 0; i < one.x.length; i++)
          if (one.x[i] >= x0 && one.x[i] <= x1) [one.y, one.low, one.high].forEach((list) => list && take(list[i]));
      if (bars.length) take(0);
      if (!view) spec.marks.forEach((mark) => mark.y !== undefined && take(mark.y));
      if (!isFinite(y0)) [y0, y1] = spec.y.log ? [1, 10] : [0, 1];
      const spare = (y1 - y0) * 0.05 || Math.abs(y0) * 0.1 || 0.5;
      if (spec.y.log) [y0, y1] = y0 === y1 ? [y0 / 2, y1 * 2] : [y0 / 1.1, y1 * 1.1];
      else [y0, y1] = [y0 === 0 || (y0 > 0 && y0 < spare) ? 0 : y0 - spare, y1 + spare];
      if (!view) { y0 = spec.y.min ?? y0; y1 = spec.y.max ?? y1; }
      if (scattered() && !view) [x0, x1] = spec.x.log ? [x0 / (x1 / x0) ** 0.04, x1 * (x1 / x0) ** 0.04] : [x0 - (x1 - x0) * 0.04, x1 + (x1 - x0) * 0.04];
      return [x0, x1, y0, y1 > y0 ? y1 : y0 + 1, gap];
    }

    function render() {
      const width = Math.max(220, Math.round(plot.clientWidth * shrunk) || 640), tall = spec.height || 300, seen = visible();
      const [x0, x1, y0, y1, gap] = ranges(seen);
      const levels = ticks(y0, y1, Math.max(3, tall / 55), spec.y.log), digits = 3;
      const left = 16 + Math.max(2, ...levels.map((value) => wordsY(value, digits).length)) * 6.6;
      const foot = below(width - left), height = tall + foot - BOTTOM;
      const x = scale(x0, x1, left, width - RIGHT, spec.x.log), y = scale(y0, y1, height - foot, TOP, spec.y.log);
      at = {x, y, left, width, height, foot, x0, x1, y0, y1};
      svg.replaceChildren();
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.setAttribute("height", height);
      draw(draw(draw(svg, "defs", {}), "clipPath", {id}), "rect", {x: left, y: TOP - 6, width: width - RIGHT - left + 6, height: height - foot - TOP + 10});
      for (const value of levels) {
        draw(svg, "line", {class: "me-grid", x1: left, x2: width - RIGHT, y1: y(value), y2: y(value)});
        draw(svg, "text", {class: "me-tick", x: left - 8, y: y(value) + 4, "text-anchor": "end"}, wordsY(value, digits));
      }
      axis(x, x0, x1, width, height, left);
      draw(svg, "text", {class: "me-label", x: 0, y: 12}, said(spec.y.label) === said(spec.title) ? "" : spec.y.label || "");
      draw(svg, "text", {class: "me-label", x: width - RIGHT, y: height - 4, "text-anchor": "end"}, (spec.x.label || "") + (spec.x.log ? " (logarithmic)" : ""));
      const area = draw(svg, "g", {"clip-path": `url(#${id})`}), bars = seen.filter((one) => one.kind === "bars");
      for (const one of seen) one.kind === "bars" ? columns(area, one, bars, gap) : curve(area, one);
      for (const mark of spec.marks) rule(mark);
      draw(svg, "g", {class: "me-reading"});
      reset.hidden = !view;
      root.classList.toggle("me-zoomed", Boolean(view));
      if (reading) read(reading.x, reading.point, false);
    }

    /* The room below the axis; names that are too long to stand side by side are written upwards. */
    const brief = (name) => (name.length > LONGEST ? name.slice(0, LONGEST - 1) + "…" : name);
    function below(room) {
      const longest = Math.max(0, ...(spec.x.names || []).map((name) => brief(String(name)).length)) * 6.6;
      return spec.x.names && longest > room / spec.x.names.length - 6 ? longest + 28 : BOTTOM;
    }

    function axis(x, x0, x1, width, height, left) {
      const names = spec.x.names, base = height - at.foot;
      const every = names ? Math.max(1, Math.ceil((13 * (x1 - x0)) / (width - left))) : 1;
      const found = names ? names.map((_, i) => i).filter((i) => i % every === 0 && i >= x0 && i <= x1) : ticks(x0, x1, Math.max(2, (width - left) / 80), spec.x.log);
      draw(svg, "line", {class: "me-axis", x1: left, x2: width - RIGHT, y1: base, y2: base});
      for (const value of found) {
        const words = names ? brief(String(names[value])) : number(value), upwards = at.foot !== BOTTOM;
        draw(svg, "line", {class: "me-axis", x1: x(value), x2: x(value), y1: base, y2: base + 4});
        draw(svg, "text", upwards ? {class: "me-tick", "text-anchor": "end", transform: `translate(${x(value) + 4} ${base + 8}) rotate(-90)`}
          : {class: "me-tick", x: Math.min(x(value), width - words.length * 3), y: base + 17, "text-anchor": "middle"}, words);
      }
    }

    function curve(area, one) {
      const first = Math.max(0, nearest(one.x, at.x0) - 1), last = Math.min(one.x.length - 1, nearest(one.x, at.x1) + 1);
      if (one.low && one.high) draw(area, "path", {class: "me-band " + colour(one), d: band(one, at.x, at.y, first, last)});
      if (one.kind === "points") {
        let path = "";
        const dot = hollow(one) ? "m-3.5,0a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0 -7,0" : "h0"; // a ring, or a round stroke
        for (let i = first; i <= last; i++) if (one.y[i] !== null) path += `M${at.x(one.x[i]).toFixed(1)},${at.y(one.y[i]).toFixed(1)}${dot}`;
        draw(area, "path", {class: (hollow(one) ? "me-hollow " : "me-points ") + colour(one), d: path});
        return;
      }
      const dash = one.dashed ? "5 4" : DASHES[Math.floor(one.colour / COLOURS) % DASHES.length];
      draw(area, "path", {class: "me-line " + colour(one), d: line(one, one.y, at.x, at.y, first, last), "stroke-dasharray": dash || "none"});
      if (one.y.filter((value) => value !== null).length === 1) {
        const i = one.y.findIndex((value) => value !== null);
        draw(area, "path", {class: "me-points " + colour(one), d: `M${at.x(one.x[i])},${at.y(one.y[i])}h0`});
      }
    }

    function columns(area, one, all, gap) {
      const middle = (at.x0 + at.x1) / 2, room = isFinite(gap) ? Math.abs(at.x(middle + gap) - at.x(middle)) : 40;
      const wide = Math.max(1, (room * 0.8) / all.length), shift = (all.indexOf(one) - all.length / 2) * wide, zero = at.y(Math.max(0, at.y0));
      let path = "";
      one.x.forEach((value, i) => {
        if (one.y[i] !== null) path += `M${(at.x(value) + shift).toFixed(1)},${zero.toFixed(1)}V${at.y(one.y[i]).toFixed(1)}h${wide.toFixed(1)}V${zero.toFixed(1)}Z`;
      });
      draw(area, "path", {class: "me-bars " + colour(one), d: path});
      if (!one.low || !one.high) return;
      const spread = one.x.map((value, i) => (one.y[i] === null ? "" : `M${(at.x(value) + shift + wide / 2).toFixed(1)},${at.y(one.low[i]).toFixed(1)}V${at.y(one.high[i]).toFixed(1)}`));
      draw(area, "path", {class: "me-spread", d: spread.join("")});
    }

    /* As much of a text as there is room for. */
    function fit(text, room) {
      const whole = text.textContent;
      for (let left = whole.length - 1; left > 0 && text.getComputedTextLength() > room; left--) text.textContent = whole.slice(0, left) + "…";
    }

    function rule(mark) {
      if (mark.y !== undefined && mark.y >= at.y0 && mark.y <= at.y1) {
        draw(svg, "line", {class: "me-mark", x1: at.left, x2: at.width - RIGHT, y1: at.y(mark.y), y2: at.y(mark.y)});
        fit(draw(svg, "text", {class: "me-tick", x: at.left + 6, y: at.y(mark.y) - 5}, mark.label || ""), at.width - RIGHT - at.left - 6);
      } else if (mark.x !== undefined && mark.x >= at.x0 && mark.x <= at.x1) {
        draw(svg, "line", {class: "me-mark", x1: at.x(mark.x), x2: at.x(mark.x), y1: TOP, y2: at.height - at.foot});
        fit(draw(svg, "text", {class: "me-tick", x: at.x(mark.x) + 5, y: TOP + 10}, mark.label || ""), at.width - at.x(mark.x) - 5);
      }
    }

    /* Reading: a line at an x with every series' value there; among points, the nearest one. */
    function values(x) {
      return visible().flatMap((one) => {
        if (!one.x.length) return [];
        const i = nearest(one.x, x), inside = x >= one.x[0] && x <= one.x[one.x.length - 1];
        const close = inside || Math.abs(at.x(one.x[i]) - at.x(x)) < 8;
        return close && one.y[i] !== null ? [{one, i, x: one.x[i], y: one.y[i]}] : [];
      });
    }

    function read(x, point, aloud, pointerY) {
      const marks = svg.querySelector(".me-reading"), found = point ? [point] : values(x);
      marks.replaceChildren();
      tip.replaceChildren();
      tip.classList.toggle("me-on", found.length > 0);
      reading = found.length ? {x, point} : null;
      if (!reading || at.x(x) < at.left - 1 || at.x(x) > at.width) return tip.classList.remove("me-on");
      if (!point) draw(marks, "line", {class: "me-hair", x1: at.x(x), x2: at.x(x), y1: TOP, y2: at.height - at.foot});
      for (const each of found) draw(marks, "circle", {class: "me-dot " + colour(each.one), cx: at.x(each.x), cy: at.y(each.y), r: 4});
      found.sort((a, b) => b.y - a.y);
      let listed = found;
      if (found.length > SHOWN) {
        const middle = pointerY === undefined ? 0 : found.reduce((best, each, n) => (Math.abs(at.y(each.y) - pointerY) < Math.abs(at.y(found[best].y) - pointerY) ? n : best), 0);
        const start = Math.max(0, Math.min(middle - SHOWN / 2, found.length - SHOWN));
        listed = found.slice(start, start + SHOWN);
      }
      const head = point && point.one.labels ? String(point.one.labels[point.i]) : [spec.x.label, wordsX(x)].filter(Boolean).join(" ");
      const said = listed.map((each) => each.one.name + " " + wordsY(each.y, 4) + (each.one.low ? ` (${wordsY(each.one.low[each.i], 3)} to ${wordsY(each.one.high[each.i], 3)})` : ""));
      tip.append(make("b", {}, head));
      listed.forEach((each) => {
        const spread = each.one.low ? make("small", {}, ` ${wordsY(each.one.low[each.i], 3)} – ${wordsY(each.one.high[each.i], 3)}`) : "";
        tip.append(make("span", {}, make("i", {class: colour(each.one) + " me-" + each.one.kind}), make("em", {}, each.one.name), make("strong", {}, wordsY(each.y, 4)), spread));
      });
      if (point) tip.append(make("small", {}, [spec.x.label, wordsX(point.x)].filter(Boolean).join(" ")));
      if (listed.length < found.length) tip.append(make("small", {}, `and ${found.length - listed.length} more`));
      const side = at.x(x) + 14 + tip.offsetWidth > at.width ? at.x(x) - 14 - tip.offsetWidth : at.x(x) + 14;
      tip.style.left = Math.max(0, Math.min(side, at.width - tip.offsetWidth)) + "px";
      tip.style.top = TOP + "px";
      if (aloud) live.textContent = [head, ...said].join("; ");
    }

    function near(pixelX, pixelY) {
      let best = null, least = 900;
      for (const one of visible()) one.x.forEach((x, i) => {
        if (one.y[i] === null) return;
        const away = (at.x(x) - pixelX) ** 2 + (at.y(one.y[i]) - pixelY) ** 2;
        if (away < least) { least = away; best = {one, i, x, y: one.y[i]}; }
      });
      return best;
    }

    function forget() {
      reading = null;
      tip.classList.remove("me-on");
      svg.querySelector(".me-reading")?.replaceChildren();
    }

    function hover(pixelX, pixelY) {
      if (scattered()) {
        const point = near(pixelX, pixelY);
        return point ? read(point.x, point, false) : forget();
      }
      const wanted = at.x.back(Math.max(at.left, Math.min(pixelX, at.width - RIGHT)));
      const found = visible().filter((one) => one.x.length).map((one) => one.x[nearest(one.x, wanted)]);
      if (!found.length) return forget();
      read(found.reduce((best, x) => (Math.abs(at.x(x) - pixelX) < Math.abs(at.x(best) - pixelX) ? x : best)), null, false, pixelY);
    }

    /* The next value of x to the right or left of the reading, and so many further. */
    function step(by) {
      const points = scattered() ? visible().flatMap((one) => one.x.map((x, i) => ({one, i, x, y: one.y[i]}))).filter((each) => each.y !== null && each.x >= at.x0 && each.x <= at.x1) : null;
      if (points) {
        points.sort((a, b) => a.x - b.x || a.y - b.y);
        const now = reading && reading.point ? points.findIndex((each) => each.one === reading.point.one && each.i === reading.point.i) : -1;
        const next = points[Math.max(0, Math.min(points.length - 1, now + by))];
        return next && read(next.x, next, true);
      }
      const xs = [...new Set(visible().flatMap((one) => one.x.filter((x) => x >= at.x0 && x <= at.x1)))].sort((a, b) => a - b);
      if (!xs.length) return;
      const now = reading ? nearest(xs, reading.x) : by > 0 ? -1 : xs.length;
      read(xs[Math.max(0, Math.min(xs.length - 1, now + by))], null, true);
    }

    function zoom(next) {
      view = next;
      render();
    }

    function closer(factor) {
      const whole = at, middle = reading ? at.x(reading.x) : (at.left + at.width - RIGHT) / 2;
      zoom([whole.x.back(middle - (middle - at.left) * factor), whole.x.back(middle + (at.width - RIGHT - middle) * factor)]);
    }

    plot.addEventListener("keydown", (event) => {
      const keys = {ArrowRight: () => step(event.shiftKey ? 10 : 1), ArrowLeft: () => step(event.shiftKey ? -10 : -1), Home: () => step(-1e9), End: () => step(1e9),
        "+": () => closer(0.5), "=": () => closer(0.5), "-": () => view && closer(2), 0: () => zoom(null), Escape: () => (view ? zoom(null) : forget())};
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
      event.preventDefault();
      keys[event.key]();
    });
    plot.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch" || event.button) return;
      drag = {from: event.offsetX};
      plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), ratio = at.width / box.width;
      const px = (event.clientX - box.left) * ratio, py = (event.clientY - box.top) * ratio;
      if (drag && drag.x === undefined) drag.x = px;
      if (drag && Math.abs(px - drag.x) > 4) {
        forget();
        const [a, b] = [drag.x, px].sort((p, q) => p - q).map((p) => Math.max(at.left, Math.min(p, at.width - RIGHT)));
        drag.range = [a, b];
        draw(svg.querySelector(".me-reading"), "rect", {class: "me-select", x: a, y: TOP, width: b - a, height: at.height - at.foot - TOP});
      } else hover(px, py);
    });
    plot.addEventListener("pointerup", () => {
      const range = drag && drag.range;
      drag = null;
      if (range && range[1] - range[0] > 4) { forget(); zoom(range.map(at.x.back)); }
    });
    plot.addEventListener("pointercancel", () => { drag = null; forget(); });
    plot.addEventListener("pointerleave", () => { if (!drag) forget(); });
    plot.addEventListener("dblclick", () => zoom(null));
    plot.addEventListener("blur", forget);

    /* What is downloaded: the picture in light colours with its styles written out, and the numbers, a row a point. */
    function picture() {
      root.classList.add("me-light");
      const copy = svg.cloneNode(true), from = [...svg.querySelectorAll("*")], to = [...copy.querySelectorAll("*")];
      const wanted = ["fill", "stroke", "stroke-width", "stroke-linecap", "stroke-linejoin", "fill-opacity", "font-size", "font-family", "font-weight"];
      from.forEach((each, n) => {
        const style = getComputedStyle(each);
        for (const name of wanted) to[n].setAttribute(name, style.getPropertyValue(name));
        to[n].removeAttribute("class");
      });
      const rows = series.length > 1 ? visible() : [], head = 26 + 18 * rows.length, box = make("div", {});
      const sheet = document.createElementNS(SVG, "svg"), font = {"font-family": "system-ui, sans-serif", "font-size": 12, fill: "#1b1f24"};
      draw(sheet, "rect", {width: at.width, height: at.height + head, fill: "#ffffff"});
      draw(sheet, "text", {...font, x: 0, y: 16, "font-weight": 600, "font-size": 14}, spec.title || "");
      rows.forEach((one, n) => {
        box.className = colour(one);
        root.append(box);
        const own = getComputedStyle(box).color;
        if (hollow(one)) draw(sheet, "circle", {cx: 7, cy: 32 + 18 * n, r: 3.5, fill: "none", stroke: own, "stroke-width": 1.75});
        else draw(sheet, "rect", {x: 0, y: 30 + 18 * n, width: 14, height: 4, fill: own});
        draw(sheet, "text", {...font, x: 22, y: 36 + 18 * n}, one.name);
      });
      box.remove();
      root.classList.remove("me-light");
      copy.querySelectorAll("[id]").forEach((each) => each.setAttribute("id", id + "-saved"));
      copy.querySelectorAll("[clip-path]").forEach((each) => each.setAttribute("clip-path", `url(#${id}-saved)`));
      draw(sheet, "g", {transform: `translate(0 ${head})`}).append(...copy.childNodes);
      sheet.setAttribute("viewBox", `0 0 ${at.width} ${at.height + head}`);
      sheet.setAttribute("width", at.width);
      sheet.setAttribute("height", at.height + head);
      return new XMLSerializer().serializeToString(sheet);
    }

    function table() {
      const named = series.some((one) => one.labels) || spec.x.names, bands = series.some((one) => one.low);
      const quote = (value) => (/[",\n\r]/.test(value) ? '"' + String(value).replaceAll('"', '""') + '"' : String(value ?? ""));
      const head = ["series", ...(named ? ["name"] : []), spec.x.label || "x", spec.y.label || "y", ...(bands ? ["low", "high"] : [])];
      const rows = series.flatMap((one) => one.x.map((x, i) => [one.name, ...(named ? [one.labels ? one.labels[i] : spec.x.names ? spec.x.names[x] : ""] : []),
        x, one.y[i], ...(bands ? [one.low?.[i], one.high?.[i]] : [])]));
      return [head, ...rows].map((row) => row.map(quote).join(",")).join("\n") + "\n";
    }

    function save(text, type, ending) {
      const address = URL.createObjectURL(new Blob([text], {type}));
      const name = (spec.title || "chart").toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "chart";
      make("a", {href: address, download: name + "." + ending}).click();
      setTimeout(() => URL.revokeObjectURL(address), 1000);
    }

    let width = 0;
    const watcher = new ResizeObserver(() => {
      if (plot.clientWidth && plot.clientWidth !== width) { width = plot.clientWidth; render(); }
    });
    /* On paper a chart is as much narrower as the page is, and its words stay as large. */
    const prints = () => { shrunk = Math.min(1, PAPER / document.body.clientWidth); forget(); render(); };
    const printed = () => { shrunk = 1; render(); };
    window.addEventListener("beforeprint", prints);
    window.addEventListener("afterprint", printed);
    update(given);
    width = plot.clientWidth;
    watcher.observe(plot);
    return {update, destroy() {
      watcher.disconnect();
      window.removeEventListener("beforeprint", prints);
      window.removeEventListener("afterprint", printed);
      root.remove();
    }};
  }

  manyeyes.chart = chart;
  window.manyeyes = manyeyes;
})();
