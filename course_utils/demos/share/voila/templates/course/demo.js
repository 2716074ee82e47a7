// Paging, keys and the clock. Steps come in one after the other while their cells run.
const demo = (() => {
  const wanted = Number(location.hash.slice(1)) || 1; // where a page that is loaded again was
  let shown = 0, here = 0, began = Date.now();
  const find = (selector) => document.querySelector(selector);
  const step = (number) => document.getElementById(`step-${number}`);
  const total = () => Number(document.body.dataset.steps);

  function show(number) {
    if (number < 1 || number > here) return;
    for (const each of document.querySelectorAll(".step")) each.hidden = each !== step(number);
    shown = number;
    history.replaceState(null, "", `#${number}`);
    find("#where").textContent = `Step ${number} of ${total()}`;
    window.scrollTo(0, 0);
    window.dispatchEvent(new Event("resize"));
    update();
  }

  function update() {
    const past = Math.floor((Date.now() - began) / 1000);
    const planned = shown ? Number(step(shown).dataset.until) : 0;
    const clock = find("#clock");
    clock.textContent = `${Math.floor(past / 60)}:${String(past % 60).padStart(2, "0")} of ${planned} min`;
    clock.classList.toggle("late", past > 60 * planned);
    clock.setAttribute("aria-label", `${clock.textContent} planned up to the end of this step; start the clock again`);
    const buttons = [find("#previous"), find("#next")];
    if (buttons[1]) {
      buttons[0].disabled = shown <= 1;
      buttons[1].disabled = shown >= here;
    }
  }

  // A control that is held has its own use for the keys.
  const ownKeys = "input, select, textarea, [contenteditable], [role=slider], .noUi-handle, .widget-readout";

  function key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest(ownKeys)) return;
    const turn = { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 }[event.key];
    if (turn) {
      event.preventDefault();
      show(shown + turn);
    } else if (event.key.toLowerCase() === "s" && shown) {
      reveal(step(shown));
    } else if (event.key.toLowerCase() === "e" && shown) {
      const expected = step(shown).querySelector(".expect");
      if (expected) {
        expected.open = !expected.open;
        expected.scrollIntoView({ block: "nearest" });
      }
    }
  }

  // What a bet is about stays covered until it is made.
  function reveal(section) {
    section.classList.add("revealed");
    window.dispatchEvent(new Event("resize"));
  }

  function start() {
    find("#previous").addEventListener("click", () => show(shown - 1));
    find("#next").addEventListener("click", () => show(shown + 1));
    find("#clock").addEventListener("click", () => { began = Date.now(); update(); });
    document.addEventListener("click", (event) => event.target.matches(".reveal") && reveal(event.target.closest(".step")));
    document.addEventListener("keydown", key);
    setInterval(update, 1000);
  }

  function reached(number) {
    here = number;
    find("#preparing").textContent = `Getting ready: step ${number} of ${total()} …`;
    if (number === 1) show(1);
    update();
  }

  // The button that does the clicks belongs to the words, though it is the output of a cell.
  function moveClicks() {
    for (const output of document.querySelectorAll(".output.of-click")) {
      const place = output.closest(".step").querySelector(".click");
      place.append(output);
      place.hidden = false;
    }
  }

  function ready() {
    moveClicks();
    find("#preparing").remove();
    document.body.dataset.ready = "yes";
    show(shown > 1 ? shown : wanted);
  }

  return { start, reached, ready };
})();
window.voila_heartbeat = () => {};
