// Shows the table of the chosen length and batch, the rows that fit on the chosen card, and the command of the row last chosen.
"use strict";

const form = document.querySelector(".cost-form");
const said = document.querySelector(".cost-said");
const asked = new URLSearchParams(location.search);

for (const field of form.elements) {
  if ([...field.options].some((one) => one.value === asked.get(field.name))) field.value = asked.get(field.name);
}

function show() {
  const card = form.elements.card.selectedOptions[0];
  const memory = Number(card.dataset.memory);
  for (const section of document.querySelectorAll("section.cost")) {
    const chosen = section.dataset.length === form.elements.tokens.value && section.dataset.batch === form.elements.batch.value;
    section.hidden = !chosen;
    if (!chosen) continue;
    const rows = [...section.querySelectorAll("tr[data-most]")];
    for (const row of rows) row.hidden = Boolean(card.value) && Number(row.dataset.least) > memory;
    for (const body of section.querySelectorAll("tbody")) body.hidden = !body.querySelector("tr[data-most]:not([hidden])");
    const fitting = rows.filter((row) => Number(row.dataset.most) <= memory);
    const tight = rows.filter((row) => !row.hidden).length - fitting.length;
    said.textContent = card.value
      ? `On ${card.value} ${fitting.length} of ${rows.length} methods fit, ${tight} are tight. The others are hidden.`
      : "";
    choose(fitting[0] ?? rows.find((row) => !row.hidden) ?? rows[0]);
  }
}

function choose(row) {
  const section = row.closest("section");
  const card = form.elements.card.value;
  for (const one of section.querySelectorAll("tr.chosen")) one.classList.remove("chosen");
  row.classList.add("chosen");
  const memory = card ? `--memory "${card}"` : "--memory 24GB";
  section.querySelector(".command").textContent = row.dataset.command.replace("--memory 24GB", memory);
  section.querySelector(".command").previousElementSibling.textContent = `The full answer for ${row.cells[0].textContent}:`;
}

form.hidden = false;
form.addEventListener("change", () => {
  const words = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
  try {
    history.replaceState(null, "", `?${words}`);
  } catch {
    // A browser may allow no page from a folder to change its address.
  }
  show();
});
for (const row of document.querySelectorAll("tr[data-most]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...row.cells[0].childNodes);
  button.addEventListener("click", () => choose(row));
  row.cells[0].append(button);
}
show();
