"use strict";
// Make the grid one stop of the Tab key, in which arrow keys move from slice to slice.
const cells = Array.from(document.querySelectorAll("#grid a"));
const select = (cell) => {
  cells.forEach((other) => { other.tabIndex = other === cell ? 0 : -1; });
  cell.focus();
};
const findInRow = (cell, step) => {
  const rows = Array.from(document.querySelectorAll("#grid .row:not(.head)"));
  const row = rows[rows.indexOf(cell.closest(".row")) + step];
  return row && (row.querySelector("." + cell.parentElement.className) || row).querySelector("a");
};
document.getElementById("grid")?.addEventListener("keydown", (event) => {
  const cell = event.target.closest("a");
  const at = cells.indexOf(cell);
  const target = {
    ArrowRight: () => cells[at + 1],
    ArrowLeft: () => cells[at - 1],
    ArrowDown: () => findInRow(cell, 1),
    ArrowUp: () => findInRow(cell, -1),
    Home: () => cells[0],
    End: () => cells[cells.length - 1],
  }[event.key]?.();
  if (target) {
    event.preventDefault();
    select(target);
  }
});
cells.forEach((cell, at) => { cell.tabIndex = at === cells.length - 1 ? 0 : -1; });
