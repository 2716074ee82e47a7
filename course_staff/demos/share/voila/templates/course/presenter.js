// The presenter's window: notes, the answer, what comes next, the clock. It shows nothing that it has not brought along itself.
(() => {
  const find = (selector) => document.querySelector(selector);
  const sections = [...document.querySelectorAll("section")];
  const patience = 3000; // ms; a window that is loaded again is away for a moment
  let missing;

  function render() {
    const number = Math.min(link.state.step, sections.length), section = sections[number - 1];
    for (const each of sections) each.hidden = each !== section;
    find("#where").textContent = `Step ${number} of ${sections.length}`;
    find("#previous").disabled = number <= 1;
    find("#next").disabled = number >= sections.length;
    const { held, then, code, click } = section.dataset;
    const controls = link.state.controls.includes(number);
    keys.offer({ uncover: held, explain: then, code, controls, move: click && controls });
    find("#to").textContent = link.state.to ? `: ${link.state.to}` : ""; // as the class's button says it
    tick();
  }

  function tick() {
    const past = Math.floor((Date.now() - link.state.began) / 1000);
    const { until, minutes } = sections[Math.min(link.state.step, sections.length) - 1].dataset;
    const clock = find("#clock");
    clock.textContent = `${Math.floor(past / 60)}:${String(past % 60).padStart(2, "0")}`;
    clock.classList.toggle("late", past > 60 * until);
    find("#plan").textContent = `this step: ${minutes} min, to end at ${until}:00 of ${document.body.dataset.minutes}:00`;
  }

  function classIs(here) {
    clearTimeout(missing);
    if (here) find("#gone").hidden = true;
    else missing = setTimeout(() => { find("#gone").hidden = false; }, patience);
  }

  keys.start({
    previous: () => link.turn(-1, sections.length),
    next: () => link.turn(1, sections.length),
    move: () => link.move(),
    clock: () => link.change({ began: Date.now() }),
    other: () => { window.open("./", "class"); },
  });
  link.on("state", render);
  link.on("here", (from) => from === "class" && classIs(true));
  link.on("gone", (from) => from === "class" && classIs(false));
  setInterval(tick, 1000);
  classIs(false);
  render();
})();
