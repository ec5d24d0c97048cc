/* A chart that can be read with a mouse, a finger or the keyboard, around uPlot. */
"use strict";

const relboCharts = (() => {
  const HEIGHT = 320;

  /** The colours of the page as they are now, light or dark. */
  function colours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    return { text: read("--text"), quiet: read("--quiet"), line: read("--line"), ground: read("--ground") };
  }

  const minus = (text) => text.replace(/-/g, "−");

  /** A number as people write it: four figures, no exponent where none is needed. */
  function number(value) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return minus(value.toExponential(2));
    return minus(Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 }));
  }

  /** Ticks of an axis: as many decimals as the distance between them needs. */
  function ticks(self, splits) {
    const shown = splits.filter((split) => split !== null);
    const step = shown.length > 1 ? Math.abs(shown[1] - shown[0]) : 1;
    let places = 0;
    while (places < 8 && Math.abs(step * 10 ** places - Math.round(step * 10 ** places)) > 1e-6) places += 1;
    return splits.map((split) => {
      if (split === null) return "";
      if (split !== 0 && (Math.abs(split) >= 1e6 || Math.abs(split) < 1e-4)) return minus(split.toExponential(0));
      return minus(split.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places }));
    });
  }

  /** As wide as the longest tick of the upright axis. */
  function room(self, values) {
    const longest = Math.max(0, ...(values || []).map((value) => String(value).length));
    return Math.max(34, 26 + 7.5 * longest);
  }

  function withAlpha(colour, alpha) {
    const [red, green, blue] = [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
    return `rgba(${red}, ${green}, ${blue}, ${alpha})`;
  }

  class Chart {
    /**
     * `describe()` gives what to draw now: data, series, scales, labels, legend, and `at(chart, left, top)`, which
     * finds the point under the cursor: its index, its place in values, and the words for it.
     */
    constructor(id, describe) {
      this.describe = describe;
      this.plot = document.getElementById(`${id}-plot`);
      this.readout = document.getElementById(`${id}-readout`);
      this.legend = document.getElementById(`${id}-legend`);
      this.index = -1;
      for (const button of document.querySelectorAll(`[data-chart="${id}"]`)) {
        button.addEventListener("click", () => this.zoom(button.dataset.zoom));
      }
      this.plot.addEventListener("keydown", (event) => this.key(event));
      this.draw();
      new ResizeObserver(() => this.fit()).observe(this.plot);
    }

    draw() {
      const what = this.describe();
      const paint = colours();
      if (this.chart) this.chart.destroy();
      this.what = what;
      this.index = -1;
      this.full = null;
      const axis = (label, side) => ({
        label,
        stroke: paint.text,
        font: "13px system-ui, sans-serif",
        labelFont: "13px system-ui, sans-serif",
        labelSize: 22,
        size: side === 3 ? room : 38,
        grid: { stroke: paint.line, width: 1 },
        ticks: { stroke: paint.line, width: 1 },
        values: ticks,
        ...(side === 3 && what.hideY ? { values: () => [], size: 34 } : {}),
        ...(side === 2 && what.wholeX ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500] } : {}),
      });
      this.chart = new uPlot(
        {
          width: this.width(),
          height: HEIGHT,
          series: [{}, ...what.series],
          bands: what.bands || [],
          scales: { x: { time: false, ...(what.xScale || {}) }, y: what.yScale || {} },
          axes: [axis(what.xLabel, 2), axis(what.yLabel, 3)],
          legend: { show: false },
          padding: [10, 14, 0, 0],
          cursor: {
            drag: { x: true, y: true, uni: 24, dist: 4 },
            points: { show: false },
            y: what.crossed !== false,
          },
          hooks: { setCursor: [(self) => this.hover(self)], draw: [(self) => this.drawn(self)] },
        },
        what.data,
        this.plot,
      );
      this.readout.textContent = what.words || "";
      this.entries(what.legend || [], paint);
    }

    width() {
      return Math.max(240, Math.floor(this.plot.clientWidth));
    }

    fit() {
      if (this.chart.width !== this.width()) this.chart.setSize({ width: this.width(), height: HEIGHT });
    }

    range(self = this.chart) {
      const { x, y } = self.scales;
      return { x: [x.min, x.max], y: [y.min, y.max] };
    }

    entries(legend, paint) {
      this.legend.replaceChildren(
        ...legend.map(({ name, colour, shape }) => {
          const item = document.createElement("li");
          item.append(swatch(colour, shape, paint), document.createTextNode(name));
          return item;
        }),
      );
    }

    /** Called by uPlot whenever the cursor moves, and by the keyboard. */
    hover(self) {
      const { left, top } = self.cursor;
      if (left < 0 || !this.what.at) return;
      this.point(this.what.at(self, left, top));
    }

    point(found) {
      if (!found) return;
      this.index = found.index;
      this.readout.textContent = found.words;
      this.marked = found;
      this.chart.redraw(false, false);
    }

    /** uPlot knows its scales only when it has drawn for the first time: those are what "reset" goes back to. */
    drawn(self) {
      if (!this.full) this.full = this.range(self);
      this.ring(self);
    }

    /** A ring around the point that the words are about. */
    ring(self) {
      if (!this.marked || this.index < 0) return;
      const { x, y } = this.marked;
      if (!Number.isFinite(x) || !Number.isFinite(y)) return;
      const [left, top] = [self.valToPos(x, "x", true), self.valToPos(y, "y", true)];
      const { left: l, top: t, width, height } = self.bbox;
      if (left < l || left > l + width || top < t || top > t + height) return;
      const pen = self.ctx;
      pen.save();
      pen.beginPath();
      pen.lineWidth = 2 * devicePixelRatio;
      pen.strokeStyle = colours().text;
      pen.arc(left, top, 6 * devicePixelRatio, 0, 2 * Math.PI);
      pen.stroke();
      pen.restore();
    }

    key(event) {
      const zooms = { "+": "in", "=": "in", "-": "out", 0: "reset" };
      const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: 10, ArrowDown: -10, Home: -Infinity, End: Infinity };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in zooms) this.zoom(zooms[event.key]);
      else if (event.key in steps && this.what.step) {
        const last = this.what.length - 1;
        const wanted = this.index < 0 ? (steps[event.key] === Infinity ? last : 0) : this.index + steps[event.key];
        this.point(this.what.step(Math.min(last, Math.max(0, wanted))));
      } else return;
      event.preventDefault();
    }

    /** Zoom around the point that was last pointed at, or the middle. */
    zoom(how) {
      if (!this.full) return;
      const now = this.range();
      const next = {};
      for (const scale of ["x", "y"]) {
        const [low, high] = now[scale];
        const place = this.index >= 0 && this.marked ? this.marked[scale] : NaN;
        const centre = place > low && place < high ? place : (low + high) / 2;
        const factor = how === "in" ? 0.6 : 1 / 0.6;
        const [least, most] = this.full[scale];
        next[scale] = [Math.max(least, centre - (centre - low) * factor), Math.min(most, centre + (high - centre) * factor)];
        if (how === "reset") next[scale] = this.full[scale];
      }
      this.chart.batch(() => {
        for (const scale of ["x", "y"]) this.chart.setScale(scale, { min: next[scale][0], max: next[scale][1] });
      });
    }
  }

  /** A small picture of a line, an area or a mark for the legend. */
  function swatch(colour, shape, paint) {
    const space = "http://www.w3.org/2000/svg";
    const image = document.createElementNS(space, "svg");
    const drawn = document.createElementNS(space, shape === "dot" ? "circle" : "rect");
    const sizes = { dot: { cx: 9, cy: 7, r: 4.5 }, area: { x: 1, y: 1, width: 16, height: 12 } };
    const line = { x: 0, y: 5.5, width: 18, height: 3 };
    const attributes = { ...(sizes[shape] || line), fill: colour || paint.text };
    for (const [name, value] of Object.entries(attributes)) drawn.setAttribute(name, value);
    for (const [name, value] of Object.entries({ width: 18, height: 14, "aria-hidden": "true" })) {
      image.setAttribute(name, value);
    }
    image.append(drawn);
    return image;
  }

  return { Chart, colours, number, withAlpha };
})();
