/* The page: what each chart shows, and the controls around them. */
"use strict";

(() => {
  const { Chart, colours, number, withAlpha } = relboCharts;
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);
  const charts = [];

  // Numbers packed as base64.
  const bytes = (text) => Uint8Array.from(atob(text || ""), (character) => character.charCodeAt(0));
  const floats = (text) => new Float32Array(bytes(text).buffer);
  const { names, numDraws, numPoints, ranges } = data.parameters;
  const draws = floats(data.parameters.draws);
  const labels = bytes(data.parameters.labels);
  const totals = floats(data.parameters.total);
  const parts = floats(data.parameters.parts);
  const row = (table, index, length) => Array.from(table.subarray(index * length, (index + 1) * length));

  // Colours
  const media = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (media.matches ? "dark" : "light")) === "dark";
  const palette = () => data.palette[isDark() ? "dark" : "light"];
  const colourOf = (component) => palette()[Math.min(component, palette().length - 1)];

  function setTheme(theme) {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const said = { auto: "as the system", light: "light", dark: "dark" }[theme];
    find("theme").textContent = `Colours: ${theme}`;
    find("theme").setAttribute("aria-label", `Colours: ${said}. Press to change.`);
    for (const chart of charts) chart.draw();
  }
  const themes = ["auto", "light", "dark"];
  let theme = 0;
  find("theme").addEventListener("click", () => setTheme(themes[(theme = (theme + 1) % 3)]));
  media.addEventListener("change", () => charts.forEach((chart) => chart.draw()));

  // The nearest of points along x, for charts of lines.
  function nearest(values, wanted) {
    let best = -1;
    values.forEach((value, index) => {
      if (value === null) return;
      if (best < 0 || Math.abs(value - wanted) < Math.abs(values[best] - wanted)) best = index;
    });
    return best;
  }

  // Iterations
  const trace = data.trace;
  const meanings = {
    elbo: "The evidence lower bound after every iteration: larger is better. The band is two standard errors wide on " +
      "either side; hollow points are iterations that were tried and rejected.",
    gap: "What the best further component found could still gain. Near zero, or below it by noise, more would not pay.",
    components: "How many components the mixture had after every iteration.",
  };

  function describeTrace() {
    const what = find("trace-what").value;
    const against = find("trace-against").value;
    const xs = against === "iteration" ? trace.elbo.map((_, index) => index) : trace[against];
    const paint = colours();
    const line = colourOf(what === "gap" ? 1 : what === "elbo" ? 0 : 2);
    const pairs = what === "components" ? trace.components.map((count) => [count, 0]) : trace[what];
    const middle = pairs.map((pair) => (pair ? pair[0] : null));
    const edge = (side) => pairs.map((pair) => (pair && pair[1] !== null ? pair[0] + side * 2 * pair[1] : null));
    const kept = middle.map((value, index) => (trace.accepted[index] ? value : null));
    const tried = middle.map((value, index) => (trace.accepted[index] ? null : value));
    const dot = (fill) => ({ show: true, size: 8, width: 2, fill, stroke: line });
    const mark = (fill) => ({ paths: () => null, points: dot(fill), stroke: line });
    const logZ = what === "elbo" && data.logZ && data.logZ[0] !== null ? data.logZ[0] : null;
    const words = (index) => {
      const pair = pairs[index];
      const verdict = trace.accepted[index] ? "kept" : "rejected";
      const error = pair && what !== "components" ? ` ± ${number(pair[1])}` : "";
      const value = pair ? `${number(pair[0])}${error}` : "not measured";
      const name = { elbo: "ELBO", gap: "gap", components: "components" }[what];
      return `Iteration ${index} (${trace.kind[index]}, ${verdict}): ${name} ${value}; ` +
        `${number(trace.evaluations[index])} evaluations, ${number(trace.seconds[index])} s`;
    };
    const point = (index) => ({ index, x: xs[index], y: middle[index], words: words(index) });
    find("trace-words").textContent = meanings[what];
    const legend = [{ name: { elbo: "ELBO", gap: "duality gap", components: "components" }[what], colour: line }];
    if (what !== "components") legend.push({ name: "± 2 standard errors", colour: withAlpha(line, 0.3), shape: "area" });
    if (logZ !== null) legend.push({ name: "log Z", colour: paint.quiet });
    const noise = Math.max(1e-3, ...pairs.map((pair) => (pair && pair[1] ? pair[1] : 0)).slice(-1));
    return {
      data: [xs, edge(1), edge(-1), middle, kept, tried, xs.map(() => logZ)],
      series: [
        { stroke: "transparent", points: { show: false } },
        { stroke: "transparent", points: { show: false } },
        { stroke: line, width: 2, points: { show: false } },
        mark(line),
        mark(paint.ground),
        { stroke: paint.quiet, width: 1.5, dash: [6, 4], points: { show: false } },
      ],
      bands: [{ series: [1, 2], fill: withAlpha(line, 0.3) }],
      yScale: what === "gap" ? { distr: 4, asinh: 10 ** Math.ceil(Math.log10(noise)) } : { range: visible },
      xScale: { range: (self, low, high) => (xs.length > 1 ? padded(low, high) : [xs[0] - 1, xs[0] + 1]) },
      xLabel: { iteration: "iteration", evaluations: "evaluations of the log density", seconds: "seconds" }[against],
      yLabel: { elbo: "ELBO (nats)", gap: "duality gap (nats)", components: "components" }[what],
      wholeX: against === "iteration",
      legend,
      words: xs.length === 1 ? "1 iteration" : `${xs.length} iterations`,
      length: xs.length,
      at: (self, left) => point(nearest(xs, self.posToVal(left, "x"))),
      step: point,
    };
  }

  /** A range that shows all, and no less than a thousandth: smaller differences are not worth looking at. */
  function visible(self, low, high) {
    const margin = Math.max(0.06 * (high - low), 5e-4);
    return [low - margin, high + margin];
  }

  function padded(low, high) {
    const margin = 0.03 * (high - low || 1);
    return [low - margin, high + margin];
  }

  // Marginals
  const smooth = uPlot.paths.spline();
  const single = (id) => (find(id).value === "all" ? -1 : Number(find(id).value));

  function describeMarginal() {
    const parameter = Number(find("marginal-parameter").value);
    const chosen = single("marginal-component");
    const paint = colours();
    const [low, high] = ranges[parameter];
    const xs = Array.from({ length: numPoints }, (_, index) => low + ((high - low) * index) / (numPoints - 1));
    const total = row(totals, parameter, numPoints);
    const count = data.components.length;
    const named = Math.min(count, palette().length - 1);
    const shown = chosen >= 0 ? [chosen] : Array.from({ length: named }, (_, index) => index);
    const part = (component) => row(parts, parameter * count + component, numPoints);
    const curves = shown.map(part);
    const area = (component) => {
      const colour = chosen >= 0 ? colourOf(Math.min(component, named)) : colourOf(component);
      return { stroke: colour, width: 1.5, fill: withAlpha(colour, 0.25), paths: smooth, points: { show: false } };
    };
    const legend = [{ name: "mixture", colour: paint.text }];
    shown.forEach((component) => legend.push({ name: title(component), colour: colourOf(component), shape: "area" }));
    if (chosen < 0 && count > named) {
      curves.push(sumOf(Array.from({ length: count - named }, (_, index) => part(named + index))));
      legend.push({ name: `the lighter ${lighter(named)} together`, colour: colourOf(named), shape: "area" });
      shown.push(named);
    }
    const words = (index) => `${names[parameter]} = ${number(xs[index])}: density ${number(total[index])}` +
      (chosen >= 0 ? `, of which ${number(curves[0][index])} by ${title(chosen).toLowerCase()}` : "");
    const point = (index) => ({ index, x: xs[index], y: total[index], words: words(index) });
    return {
      data: [xs, ...curves, total],
      series: [...shown.map(area), { stroke: paint.text, width: 2.2, paths: smooth, points: { show: false } }],
      yScale: { range: (self, least, most) => [Math.min(0, least), most * 1.05 || 1] },
      xLabel: names[parameter],
      yLabel: "density",
      hideY: true,
      crossed: false,
      legend,
      words: names[parameter],
      length: numPoints,
      at: (self, left) => point(nearest(xs, self.posToVal(left, "x"))),
      step: point,
    };
  }

  const sumOf = (rows) => rows.reduce((sum, each) => sum.map((value, index) => value + each[index]));
  const share = (weight) => (weight < 0.001 ? "< 0.1%" : `${(100 * weight).toFixed(1)}%`);
  const title = (component) => `${data.components[component].name}, ${share(data.components[component].weight)}`;

  /** How many components are behind the colours, those that the page holds as one included. */
  function lighter(named) {
    const last = data.components[data.components.length - 1].name.match(/^The other (\d+)$/);
    return data.components.length - named - (last ? 1 : 0) + (last ? Number(last[1]) : 0);
  }

  // Pairs
  function describePair() {
    const across = Number(find("pair-across").value);
    const up = Number(find("pair-up").value);
    const chosen = single("pair-component");
    const paint = colours();
    const [left, top] = [row(draws, across, numDraws), row(draws, up, numDraws)];
    const order = left.map((_, index) => index).filter((index) => Number.isFinite(left[index]) && Number.isFinite(top[index]));
    order.sort((one, other) => left[one] - left[other]);
    const xs = order.map((index) => left[index]);
    const ys = order.map((index) => top[index]);
    const owner = order.map((index) => labels[index]);
    const named = Math.min(data.components.length, palette().length - 1);
    const groups = [];
    const belongs = (test) => ys.map((value, index) => (test(owner[index]) ? value : null));
    if (chosen >= 0) {
      groups.push({ values: belongs((label) => label !== chosen), colour: withAlpha(palette()[6], 0.3), name: "all others" });
      groups.push({ values: belongs((label) => label === chosen), colour: colourOf(chosen), name: title(chosen) });
    } else {
      if (data.components.length > named) {
        const name = `the lighter ${lighter(named)} together`;
        groups.push({ values: belongs((label) => label >= named), colour: withAlpha(colourOf(named), 0.6), name });
      }
      for (let component = named - 1; component >= 0; component -= 1) {
        const colour = withAlpha(colourOf(component), 0.75);
        groups.push({ values: belongs((label) => label === component), colour, name: title(component) });
      }
    }
    const words = (index) => `${names[across]} = ${number(xs[index])}, ${names[up]} = ${number(ys[index])}; ` +
      title(Math.min(owner[index], data.components.length - 1));
    const point = (index) => ({ index, x: xs[index], y: ys[index], words: words(index) });
    const shownIndices = chosen >= 0 ? xs.map((_, i) => i).filter((i) => owner[i] === chosen) : null;
    return {
      data: [xs, ...groups.map((group) => group.values)],
      series: groups.map((group) => ({
        paths: () => null,
        stroke: group.colour,
        points: { show: true, size: 5, width: 0, fill: group.colour, stroke: "transparent" },
      })),
      xScale: { range: (self, low, high) => padded(low, high) },
      yScale: { range: (self, low, high) => padded(low, high) },
      xLabel: names[across],
      yLabel: names[up],
      legend: groups.slice().reverse().map(({ name, colour }) => ({ name, colour, shape: "dot" })),
      words: `${xs.length} draws` + (chosen >= 0 ? `, ${shownIndices.length} of them of ${title(chosen).toLowerCase()}` : ""),
      length: xs.length,
      at: (self, pixelLeft, pixelTop) => {
        let [best, least] = [-1, 400];
        for (let index = 0; index < xs.length; index += 1) {
          if (chosen >= 0 && owner[index] !== chosen) continue;
          const distance = (self.valToPos(xs[index], "x") - pixelLeft) ** 2 + (self.valToPos(ys[index], "y") - pixelTop) ** 2;
          if (distance < least) [best, least] = [index, distance];
        }
        return best < 0 ? null : point(best);
      },
      step: point,
    };
  }

  // Importance ratios
  function describeRatios() {
    const { counts, edges } = data.ratios;
    const centres = counts.map((_, index) => (edges[index] + edges[index + 1]) / 2);
    const total = counts.reduce((sum, count) => sum + count, 0);
    const words = (index) => `${number(edges[index])} to ${number(edges[index + 1])} nats: ` +
      `${counts[index]} of ${total} draws`;
    const point = (index) => ({ index, x: centres[index], y: counts[index], words: words(index) });
    return {
      data: [centres, counts],
      series: [{
        stroke: colourOf(0),
        width: 1,
        fill: withAlpha(colourOf(0), 0.5),
        paths: uPlot.paths.bars({ size: [1, 100], gap: 1 }),
        points: { show: false },
      }],
      xScale: { range: (self, low, high) => padded(low, high) },
      yScale: { range: (self, low, high) => [0, high * 1.05 || 1] },
      xLabel: "log p − log q − log Z (nats)",
      yLabel: "draws",
      crossed: false,
      words: `${total} draws`,
      length: counts.length,
      at: (self, left) => point(nearest(centres, self.posToVal(left, "x"))),
      step: point,
    };
  }

  // Controls
  function option(text, value) {
    const made = document.createElement("option");
    made.textContent = text;
    made.value = value;
    return made;
  }

  function add(id, describe, controls) {
    const chart = new Chart(id, describe);
    charts.push(chart);
    for (const control of controls) find(control).addEventListener("change", () => chart.draw());
    return chart;
  }

  if (trace.elbo.length) add("trace", describeTrace, ["trace-what", "trace-against"]);
  else find("trace-readout").textContent = "This posterior has no record of its iterations.";
  if (names.length) {
    for (const select of document.querySelectorAll("select.parameters")) {
      select.append(...names.map((name, index) => option(name, index)));
    }
    for (const select of document.querySelectorAll("select.components")) {
      select.append(option("all", "all"), ...data.components.map((_, index) => option(title(index), index)));
    }
    find("pair-up").value = String(Math.min(1, names.length - 1));
    const marginal = add("marginal", describeMarginal, ["marginal-parameter", "marginal-component"]);
    const show = (parameter) => {
      find("marginal-parameter").value = String((parameter + names.length) % names.length);
      marginal.draw();
    };
    const now = () => Number(find("marginal-parameter").value);
    find("marginal-previous").addEventListener("click", () => show(now() - 1));
    find("marginal-next").addEventListener("click", () => show(now() + 1));
    for (const button of document.querySelectorAll("[data-parameter]")) {
      button.addEventListener("click", () => {
        show(Number(button.dataset.parameter));
        find("marginals").scrollIntoView();
        find("marginal-parameter").focus({ preventScroll: true });
      });
    }
    add("pair", describePair, ["pair-across", "pair-up", "pair-component"]);
  }
  if (find("ratios-plot")) {
    if (data.ratios) add("ratios", describeRatios, []);
    else find("ratios-readout").textContent = "There are no draws with their log density to show.";
  }

  // The table
  const table = find("table");
  if (table) {
    const rows = Array.from(table.tBodies[0].rows);
    const key = (tableRow, column) => Number(tableRow.cells[column].dataset.key);
    const compare = (column, order) => (one, other) => {
      const [a, b] = [key(one, column), key(other, column)];
      return order * (Number.isNaN(a) || Number.isNaN(b) ? 0 : a - b);
    };
    for (const button of table.tHead.querySelectorAll("button")) {
      button.addEventListener("click", () => {
        const head = button.parentElement;
        const order = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        for (const each of table.tHead.rows[0].cells) each.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", order > 0 ? "ascending" : "descending");
        table.tBodies[0].append(...rows.sort(compare(Number(button.dataset.column), order)));
      });
    }
    find("find").addEventListener("input", () => {
      const wanted = find("find").value.toLowerCase();
      for (const each of rows) each.hidden = !each.cells[0].textContent.toLowerCase().includes(wanted);
      const left = rows.filter((each) => !each.hidden).length;
      find("found").textContent = wanted ? `${left} of ${rows.length}` : "";
    });
  }
  document.documentElement.dataset.ready = "yes";
})();
