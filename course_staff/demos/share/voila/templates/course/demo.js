// Paging, keys, the clock, and room for the figure. Steps come in one after the other while their cells run.
const demo = (() => {
  const wanted = Number(location.hash.slice(1)) || 1; // where a page that is loaded again was
  const smallest = 160; // a picture that is lower, in pixels, says nothing: then the page is scrolled
  const sizes = [1.6, 1.4, 1.2, 1, 0.85]; // of words that have a page for themselves
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
    find("main").scrollTo(0, 0);
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
    find("#previous").disabled = shown <= 1;
    find("#next").disabled = shown >= here;
    for (const [name, toggled] of Object.entries(toggles)) {
      find(`#${name}`).disabled = !shown || !step(shown).querySelector(toggled.of);
      find(`#${name}`).setAttribute("aria-pressed", Boolean(shown) && step(shown).classList.contains(toggled.by));
    }
  }

  // The figures of a step take what its words and controls leave of the window; where there is none, the words grow.
  function fit() {
    const section = shown && step(shown);
    if (!section) return;
    const room = () => find("main").clientHeight - section.getBoundingClientRect().height;
    section.style.fontSize = "";
    if (section.querySelector(".shown img")) {
      const take = (height) => section.style.setProperty("--room", `${height}px`);
      let low = smallest, high = find("main").clientHeight;
      while (high - low > 2) {
        const middle = (low + high) / 2;
        take(middle);
        if (room() >= 0) low = middle; else high = middle;
      }
      take(low);
    } else {
      for (const pre of section.querySelectorAll(".output pre")) {
        pre.classList.toggle("sentences", pre.textContent.split("\n").some((line) => line.length > 80)); // may be broken
      }
      section.classList.add("measured"); // with all that it covers, so that nothing moves when that is shown
      const fits = (size) => { section.style.fontSize = `${size}em`; return room() >= 0; };
      const wide = (output) => output.scrollWidth > output.clientWidth + 1;
      const unbroken = (size) => fits(size) && ![...section.querySelectorAll(".output")].some(wide);
      if (!sizes.some(unbroken)) sizes.some(fits);
      section.classList.remove("measured");
    }
  }

  // A table's whole numbers as people write them.
  function separateThousands() {
    for (const cell of document.querySelectorAll(".output td")) {
      if (/^-?\d{4,}$/.test(cell.textContent)) cell.textContent = Number(cell.textContent).toLocaleString("en");
    }
  }

  // What a bet is about stays covered until it is made; the explanation takes the place of the question, and comes with what it explains.
  const toggles = {
    uncover: { key: "s", by: "revealed", of: ".reveal" },
    explain: { key: "e", by: "answered", of: ".explained" },
    code: { key: "c", by: "coded", of: ".code" },
  };

  function toggle(name) {
    const section = shown && step(shown);
    if (!section || find(`#${name}`).disabled) return;
    const on = section.classList.toggle(toggles[name].by, name === "uncover" ? true : undefined);
    if (on) section.classList.add("revealed");
    window.dispatchEvent(new Event("resize"));
    if (on && name === "code") section.querySelector(".code").scrollIntoView({ block: "nearest" });
    update();
  }

  // A control that is held has its own use for the keys.
  const ownKeys = "input, select, textarea, [contenteditable], [role=slider], .noUi-handle, .widget-readout";

  function key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest(ownKeys)) return;
    const turn = { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 }[event.key];
    const name = Object.keys(toggles).find((each) => toggles[each].key === event.key.toLowerCase());
    if (turn) {
      event.preventDefault();
      show(shown + turn);
    } else if (name) {
      toggle(name);
    }
  }

  function start() {
    find("#previous").addEventListener("click", () => show(shown - 1));
    find("#next").addEventListener("click", () => show(shown + 1));
    find("#clock").addEventListener("click", () => { began = Date.now(); update(); });
    for (const name of Object.keys(toggles)) find(`#${name}`).addEventListener("click", () => toggle(name));
    document.addEventListener("click", (event) => event.target.matches(".reveal") && toggle("uncover"));
    document.addEventListener("keydown", key);
    window.addEventListener("resize", fit);
    new MutationObserver(() => { separateThousands(); fit(); }).observe(document.documentElement, { childList: true, subtree: true });
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
