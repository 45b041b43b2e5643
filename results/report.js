"use strict";
// Sorts, filters and explains what is on the page already. Without it the page shows everything, in the order of ranks.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const make = (name, properties) => Object.assign(document.createElement(name), properties);

  // Filters: a row is shown where it has one of the checked values of each facet; no value checked is all of them.
  const rows = JSON.parse(document.getElementById("rows").textContent);
  const controls = document.getElementById("controls");
  const boxes = all("input[type=checkbox]", controls);
  const parts = all("[data-rows]").map((part) => [part, part.dataset.rows.split(" ").map(Number)]);

  function filter() {
    const checked = {};
    for (const box of boxes) if (box.checked) (checked[box.name] ??= new Set()).add(box.value);
    const shown = rows.map((row) => Object.entries(checked).every(([facet, of]) => row[facet].some((each) => of.has(each))));
    for (const [part, numbers] of parts) part.toggleAttribute("data-off", !numbers.some((number) => shown[number]));
    const count = shown.filter(Boolean).length;
    document.getElementById("count").textContent = count === rows.length ? "" : `${count} of ${rows.length} rows`;
    document.getElementById("none").hidden = count > 0;
  }

  if (controls) {
    controls.hidden = false;
    controls.addEventListener("change", (event) => (event.target.id === "sort" ? sortAll(event.target.value) : filter()));
    controls.addEventListener("reset", () => setTimeout(() => { sortAll(""); filter(); }));
    controls.addEventListener("submit", (event) => event.preventDefault());
  }

  // Sorting: by the number of a cell, or by its text; cells without a value come last either way.
  const orders = new Map(all("table").map((table) => [table, all("tbody tr", table)]));

  function sort(table, column, descending) {
    const headings = all("th", table.tHead);
    headings.forEach((heading, i) =>
      i === column ? heading.setAttribute("aria-sort", descending ? "descending" : "ascending") : heading.removeAttribute("aria-sort"));
    if (column < 0) return table.tBodies[0].append(...orders.get(table));
    const numeric = orders.get(table).some((line) => "value" in line.cells[column].dataset);
    const key = (line) => {
      const cell = line.cells[column];
      const text = cell.firstElementChild.textContent.trim();
      if (numeric) return "value" in cell.dataset ? Number(cell.dataset.value) : null;
      return text === "–" ? null : text;
    };
    const keyed = orders.get(table).map((line) => [key(line), line]);
    keyed.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      const order = numeric ? a - b : a.localeCompare(b, "en", { numeric: true });
      return descending ? -order : order;
    });
    table.tBodies[0].append(...keyed.map(([, line]) => line));
  }

  for (const table of orders.keys())
    all("th", table.tHead).forEach((heading, i) => {
      const button = make("button", { type: "button" });
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const first = "high" in heading.dataset ? "descending" : "ascending";
        const now = heading.getAttribute("aria-sort");
        sort(table, i, now === null ? first === "descending" : now === "ascending");
      });
    });

  function sortAll(name) {
    for (const table of all("table.methods")) {
      const headings = all("th", table.tHead);
      const column = headings.findIndex((heading) => heading.textContent.trim() === name);
      sort(table, column, column >= 0 && "high" in headings[column].dataset);
    }
  }

  // What is pointed at, tapped or reached by keyboard says what it is.
  const tip = document.getElementById("tip");
  for (const title of all("svg title")) {
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  }
  for (const part of all("main [title]")) {
    part.dataset.tip = part.title;
    part.removeAttribute("title");
    if (part.matches("a")) part.setAttribute("aria-description", part.dataset.tip);
  }

  function show(part, x, y) {
    tip.hidden = false;
    tip.textContent = part.dataset.tip;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(x + 12, document.documentElement.clientWidth - width - 8))}px`;
    tip.style.top = `${y + 16 + height > window.innerHeight ? Math.max(8, y - height - 12) : y + 16}px`;
  }

  function showFocused() {
    const part = document.activeElement.closest("[data-tip]");
    if (!part) return void (tip.hidden = true);
    const box = part.getBoundingClientRect();
    show(part, box.left, box.bottom);
  }

  for (const kind of ["pointerover", "pointermove", "pointerdown"])
    document.addEventListener(kind, (event) => {
      const part = event.target.closest?.("[data-tip]");
      if (part) show(part, event.clientX, event.clientY);
      else tip.hidden = true;
    });
  document.addEventListener("focusin", showFocused);
  document.addEventListener("focusout", () => (tip.hidden = true));
  document.addEventListener("scroll", showFocused, { passive: true });  // what takes the focus may scroll the page first
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
})();
