// The class's window: one step at a time, and room for its figure. Steps come in one after the other while their cells run.
const demo = (() => {
  const smallest = 160; // a picture that is lower, in pixels, says nothing: then the page is scrolled
  const sizes = [1.6, 1.4, 1.2, 1, 0.85]; // of words that have a page for themselves
  const beside = [1, 0.9, 0.8]; // of words that stand with a figure, until it has half of the window
  const codes = [1.2, 1.1, 1, 0.9, 0.8];
  let here = 0, shown = 0;
  const find = (selector) => document.querySelector(selector);
  const step = (number) => document.getElementById(`step-${number}`);
  const total = () => Number(document.body.dataset.steps);
  const clicker = () => step(shown)?.querySelector(".click button");
  const mayClick = () => Boolean(step(shown)?.querySelector(".of-click"));
  // What stands for widgets until those of the kernel come, which takes seconds where a machine has much else to do.
  const lacking = () => [...document.querySelectorAll(".output:is(.picture, .also, .controls, .of-click)")].some((each) => !each.querySelector(".jupyter-widgets"));
  const marks = ["revealed", "answered", "coded", "steered"];

  function render() {
    const number = Math.min(link.state.step, here);
    if (!number) return;
    const section = step(number), has = (selector) => Boolean(section.querySelector(selector));
    for (const each of document.querySelectorAll(".step")) each.hidden = each !== section;
    for (const by of marks) section.classList.toggle(by, link.isOpen(by, number));
    if (number !== shown) find("main").scrollTo(0, 0);
    shown = number;
    history.replaceState(null, "", `#${number}`);
    find("#where").textContent = `Step ${number} of ${total()}`;
    find("#previous").disabled = number <= 1;
    find("#next").disabled = number >= here;
    keys.offer({ uncover: section.hasAttribute("data-held"), explain: has(".explained"), code: has(".code"), controls: has(".controls") });
    settle();
    window.dispatchEvent(new Event("resize")); // sliders that were hidden must learn their width
  }

  // The figures of a step take what its words leave of the window; where there is none, the words grow.
  function fit() {
    const section = shown && step(shown);
    if (!section) return;
    const room = () => find("main").clientHeight - section.getBoundingClientRect().height;
    const fits = (size) => { section.style.fontSize = `${size}em`; return room() >= 0; };
    section.style.fontSize = "";
    if (section.matches("[data-held]:not(.revealed)")) {
      section.style.setProperty("--words", "1em"); // the question has the window for itself
      sizes.some(fits);
    } else if (section.querySelector(".shown img")) {
      beside.some((size) => {
        section.style.setProperty("--words", `${size}em`);
        fill(section, room);
        return picturesArea(section) >= 0.52 * innerWidth * innerHeight;
      });
    } else {
      for (const pre of section.querySelectorAll(".output pre")) {
        pre.classList.toggle("sentences", pre.textContent.split("\n").some((line) => line.length > 80)); // may be broken
      }
      section.classList.add("measured"); // with all that it covers, so that nothing moves when that is shown
      const wide = (output) => output.scrollWidth > output.clientWidth + 1;
      const unbroken = (size) => fits(size) && ![...section.querySelectorAll(".output")].some(wide);
      if (!sizes.some(unbroken)) sizes.some(fits);
      section.classList.remove("measured");
    }
    if (section.matches(".coded")) placeCode(section);
  }

  // Below the words where all of it has room there, else over them too; in the largest letters that need no scrolling, and that
  // break no line if there are such.
  function placeCode(section) {
    const main = find("main"), code = section.querySelector(".code");
    const words = section.querySelector(".words").getBoundingClientRect().bottom - main.getBoundingClientRect().top;
    const fits = (size) => {
      code.style.fontSize = `${size}rem`;
      return code.scrollHeight <= code.clientHeight && code.scrollWidth <= code.clientWidth;
    };
    const at = (top, whole) => {
      code.style.setProperty("--below", `${top}px`);
      code.classList.toggle("measured", whole);
      return codes.some(fits);
    };
    at(words, true) || at(0, true) || at(words, false) || at(0, false);
    code.classList.remove("measured");
  }

  function fill(section, room) {
    let low = smallest, high = find("main").clientHeight;
    const take = (height) => section.style.setProperty("--room", `${height}px`);
    while (high - low > 2) {
      const middle = (low + high) / 2;
      take(middle);
      if (room() >= 0) low = middle; else high = middle;
    }
    take(low);
  }

  function picturesArea(section) {
    const area = (image) => {
      const box = image.getBoundingClientRect();
      const scale = Math.min(box.width / image.naturalWidth, box.height / image.naturalHeight) || 0;
      return scale ** 2 * image.naturalWidth * image.naturalHeight;
    };
    return [...section.querySelectorAll(".shown img")].reduce((sum, image) => sum + area(image), 0);
  }

  // A table's whole numbers as people write them, and what its rows are called, or the unit, in its empty corner, not in a row.
  function tidyTables() {
    for (const row of document.querySelectorAll(".output thead tr:nth-child(2)")) {
      const corner = row.previousElementSibling.cells[0], [name, ...others] = row.cells;
      if (corner.textContent.trim() || others.some((each) => each.textContent.trim())) continue;
      corner.textContent = name.textContent;
      row.remove();
    }
    for (const cell of document.querySelectorAll(".output td")) {
      if (/^-?\d{4,}$/.test(cell.textContent)) cell.textContent = Number(cell.textContent).toLocaleString("en");
    }
  }

  function openPresenter() {
    window.open("presenter", "presenter", "popup,width=1000,height=720");
  }

  function start() {
    keys.start({
      previous: () => link.turn(-1, here),
      next: () => link.turn(1, here),
      move: () => mayClick() && link.move(),
      other: openPresenter,
    });
    link.on("state", render);
    link.on("move", press);
    document.addEventListener("click", (event) => event.target.matches(".reveal") && link.toggle("revealed"));
    window.addEventListener("resize", fit);
    document.addEventListener("load", (event) => event.target.matches("img") && fit(), true);
    new MutationObserver(() => { tidyTables(); fit(); settle(); }).observe(find("main"), { childList: true, subtree: true });
  }

  function reached(number) {
    here = number;
    find("#preparing").textContent = `Getting ready: step ${number} of ${total()} …`;
    if (number <= Math.max(1, link.state.step)) render();
    find("#next").disabled = shown >= here;
  }

  // The button that does the clicks belongs to the words, though it is the output of a cell.
  function moveClicks() {
    for (const output of document.querySelectorAll(".output.of-click")) {
      const place = output.closest(".step").querySelector(".click");
      place.append(output);
      place.hidden = false;
    }
  }

  // A press that comes before its button is kept until then, or until the step is left.
  function press() {
    if (clicker()) clicker().click();
    else link.change({ wanted: shown });
  }

  function settle() {
    if (!document.body.dataset.ready) return;
    find("#preparing").hidden = !lacking();
    if (!clicker()) return;
    if (link.state.wanted === shown) { link.change({ wanted: 0 }); clicker().click(); }
    const to = clicker().textContent.trim();
    if (link.state.to !== to) link.change({ to });
  }

  function ready() {
    moveClicks();
    find("#preparing").textContent = "Controls are getting ready …";
    document.body.dataset.ready = "yes";
    const played = [...document.querySelectorAll(".step")].filter((section) => section.querySelector(".controls"));
    link.change({ controls: played.map((section) => Number(section.id.slice(5))), step: Math.min(link.state.step, total()) });
    settle();
  }

  // This page shows what is kept of an earlier start. When the kernel is through, the same page comes with figures that move.
  async function recalled() {
    find("#preparing").textContent = "Controls are getting ready …";
    document.body.dataset.recalled = "yes";
    render();
    if ((await fetch("ready")).ok) location.reload();
  }

  return { start, reached, ready, recalled };
})();
window.voila_heartbeat = () => {};
