"use strict";
// Draws the charts of a page from its data. Names are only ever put where text is: in textContent, and on a canvas.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  // Paul Tol's muted colours, which people who are colour-blind tell apart, the brighter ones first.
  const PALETTE = ["#ddcc77", "#88ccee", "#44aa99", "#cc6677", "#999933", "#aa4499", "#117733", "#882255", "#332288"];
  const FEW_POINTS = 40; // with fewer, a bar each shows more than an area
  const charts = [];
  const hidden = new Set();

  // The colour that the style sheet gives a variable now, light or dark.
  function css(name) {
    root.style.outlineColor = `var(${name})`;
    return getComputedStyle(root).outlineColor;
  }

  const isOther = (phase) => phase === data.phases.length - 1;
  const colour = (phase) => (isOther(phase) ? css("--other") : PALETTE[phase % PALETTE.length]);
  const number = (value, digits) =>
    value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // What a hover shows: a title, and rows of a colour, a name and a figure.
  function tip(title, rows) {
    const made = element("div", "tip");
    made.append(element("b", "", title));
    for (const [shade, name, figure] of rows) {
      const row = element("div");
      const mark = element("i");
      mark.style.background = shade;
      row.append(mark, element("span", "", name), element("b", "", figure));
      made.append(row);
    }
    return made;
  }

  function axis(more) {
    return {
      axisLine: { lineStyle: { color: css("--line") } },
      axisTick: { show: false },
      axisLabel: { color: css("--faint"), hideOverlap: true },
      splitLine: { lineStyle: { color: css("--line") } },
      ...more,
    };
  }

  function base(tooltip) {
    return {
      animation: false,
      textStyle: { fontFamily: getComputedStyle(document.body).fontFamily },
      tooltip: {
        confine: true,
        transitionDuration: 0,
        backgroundColor: css("--page"),
        borderColor: css("--line"),
        textStyle: { color: css("--text") },
        ...tooltip,
      },
    };
  }

  function overSteps(chart, formatter) {
    const many = chart.steps.length > FEW_POINTS;
    return {
      ...base({ trigger: "axis", axisPointer: { type: many ? "line" : "shadow" }, formatter }),
      grid: { left: 8, right: 28, top: 12, bottom: many && chart.slider ? 44 : 4, containLabel: true },
      xAxis: axis({ type: "category", boundaryGap: !many, data: chart.steps.map((step) => number(step, 0)) }),
      yAxis: axis({ type: "value", axisLabel: { color: css("--faint"), formatter: (value) => value.toLocaleString("en-US") } }),
      dataZoom: many ? [{ type: "slider", show: chart.slider, height: 20, bottom: 8, showDetail: false, brushSelect: false }] : [],
    };
  }

  // The phases that are shown, each on top of those before: how high it reaches over each step.
  function tops(chart) {
    const sums = chart.steps.map(() => 0);
    const shown = chart.values.map((_, phase) => phase).filter((phase) => !hidden.has(phase));
    return shown.map((phase) => [phase, chart.values[phase].map((value, index) => (sums[index] += value))]);
  }

  function stack(chart) {
    const many = chart.steps.length > FEW_POINTS;
    const reach = tops(chart).reverse();
    const formatter = ([{ dataIndex: index }]) => {
      const rows = reach.map(([phase]) => [colour(phase), data.phases[phase], number(chart.values[phase][index], data.digits)]);
      const sum = reach[0][1][index];
      return tip(`step ${number(chart.steps[index], 0)}: ${number(sum, data.digits)} ${data.unit}`, rows);
    };
    const option = overSteps(chart, formatter);
    // Two stacks are to be compared: they have one scale, that of what is shown.
    if (data.charts.filter(({ kind }) => kind === "stack").length > 1) option.yAxis.max = scale();
    // The highest is drawn first and down to zero, and the next over it, so that no gap is between two.
    option.series = reach.map(([phase, values]) => ({
      name: `p${phase}`, // not its own name, which may be that of another, or __proto__
      type: many ? "line" : "bar",
      data: values,
      color: colour(phase),
      areaStyle: { opacity: 1 },
      lineStyle: { width: 0 },
      barGap: "-100%",
      barCategoryGap: "10%",
      showSymbol: false,
      emphasis: { disabled: true },
    }));
    return option;
  }

  function scale() {
    const stacks = data.charts.filter(({ kind }) => kind === "stack");
    const most = Math.max(1e-9, ...stacks.flatMap((chart) => tops(chart).at(-1)?.[1] ?? []));
    const unit = 10 ** Math.floor(Math.log10(most)) / 2;
    return Math.ceil(most / unit) * unit;
  }

  function line(chart) {
    const name = `${chart.title}, ${chart.unit}`;
    const shade = css("--less");
    const formatter = ([point]) =>
      tip(`step ${number(chart.steps[point.dataIndex], 0)}`, [[shade, name, number(chart.values[point.dataIndex], chart.digits)]]);
    const option = overSteps(chart, formatter);
    const few = chart.steps.length <= FEW_POINTS;
    option.series = [{ name, type: "line", data: chart.values, color: shade, showSymbol: few, lineStyle: { width: 1.5 } }];
    option.yAxis.min = 0;
    return option;
  }

  function heat(chart) {
    const many = chart.ranks.length > FEW_POINTS;
    const cells = chart.more.flatMap((column, rank) => column.map((more, phase) => [rank, phase, more]));
    cells.sort((one, other) => Math.abs(one[2]) - Math.abs(other[2]));
    const most = cells.reduce((found, [, , more]) => Math.max(found, Math.abs(more)), 1e-9);
    // Of many ranks one is narrower than a pixel: what stands out is drawn last, and with an edge that shows.
    const edge = (more) => ({ borderColor: css(more > 0 ? "--more" : "--less"), borderWidth: 2 });
    const item = (cell) => (many && Math.abs(cell[2]) > most / 2 ? { value: cell, itemStyle: edge(cell[2]) } : cell);
    const formatter = ({ value: [rank, phase, more] }) =>
      tip(`rank ${chart.ranks[rank]}`, [
        [colour(phase), data.phases[phase], `${number(chart.usual[phase] + more, data.digits)} ${data.unit}`],
        ["transparent", "than the median", `${more < 0 ? "−" : "+"}${number(Math.abs(more), data.digits)}`],
      ]);
    return {
      ...base({ trigger: "item", formatter }),
      grid: { left: 8, right: 28, top: 4, bottom: many ? 88 : 52, containLabel: true },
      xAxis: axis({ type: "category", data: chart.ranks, splitLine: { show: false } }),
      yAxis: axis({
        type: "category",
        inverse: true,
        data: data.phases.map((_, phase) => phase),
        axisLabel: { color: css("--faint"), interval: 0, width: 96, overflow: "truncate", formatter: (phase) => data.phases[phase] },
        splitLine: { show: false },
      }),
      dataZoom: many ? [{ type: "slider", height: 20, bottom: 48, showDetail: false, brushSelect: false }] : [],
      visualMap: {
        min: -most,
        max: most,
        calculable: false,
        hoverLink: false,
        orient: "horizontal",
        left: "center",
        bottom: 0,
        itemHeight: 140,
        itemWidth: 12,
        text: [`+${number(most, data.digits)} ${data.unit}`, `−${number(most, data.digits)} ${data.unit}`],
        textStyle: { color: css("--faint") },
        inRange: { color: [css("--less"), css("--raised"), css("--more")] },
      },
      series: [{ type: "heatmap", data: cells.map(item), itemStyle: { borderColor: css("--page"), borderWidth: many ? 0 : 1 } }],
    };
  }

  const KINDS = { stack, line, heat };

  function draw() {
    for (const { about, drawn } of charts) drawn.setOption(KINDS[about.kind](about), true);
    for (const mark of document.querySelectorAll("#legend i")) mark.style.background = colour(Number(mark.dataset.phase));
  }

  function toggle(phase, button) {
    if (!hidden.delete(phase)) hidden.add(phase);
    button.setAttribute("aria-pressed", String(!hidden.has(phase)));
    for (const { about, drawn } of charts) if (about.kind === "stack") drawn.setOption(stack(about), { replaceMerge: "series" });
  }

  function addLegend() {
    data.phases.forEach((name, phase) => {
      const button = element("button");
      const mark = element("i");
      mark.dataset.phase = phase;
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.append(mark, element("span", "", name));
      button.addEventListener("click", () => toggle(phase, button));
      document.getElementById("legend").append(button);
    });
  }

  function addChart(about) {
    const section = element("section", about.wide ? "wide" : "");
    const heading = element("h2", "", `${about.title} `);
    heading.append(element("small", "", about.subtitle));
    const place = element("div");
    place.style.height = `${about.kind === "heat" ? 28 * data.phases.length + 100 : about.kind === "stack" ? 340 : 180}px`;
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `${about.title}; the table has the figures`);
    section.append(heading, place);
    document.getElementById("charts").append(section);
    const drawn = echarts.init(place);
    if (data.linked && about.kind !== "heat") drawn.group = "steps";
    charts.push({ about, drawn });
  }

  function setTheme(theme) {
    root.dataset.theme = theme;
    document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
    draw();
  }

  if (data.charts.length) addLegend();
  data.charts.forEach(addChart);
  if (data.linked) echarts.connect("steps");
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  window.addEventListener("resize", () => charts.forEach(({ drawn }) => drawn.resize()));
  setTheme(dark.matches ? "dark" : "light");
})();
