"use strict";
// One step at a time in the class's window, and in the presenter's, which this page opens and writes. Steps come in one after the
// other while their cells run.
(() => {
  const sizes = [3, 2.6, 2.3, 2, 1.8, 1.6, 1.4, 1.2, 1.1, 1, 0.9, 0.8, 0.7]; // of letters
  const parts = { show: ".shown[data-covered]", explain: ".answer", code: ".source", controls: ".controls" };
  const keys = { s: "show", e: "explain", c: "code", f: "controls", m: "move", p: "present", ArrowRight: "next", PageDown: "next", ArrowLeft: "previous", PageUp: "previous" };
  const typed = "textarea, [contenteditable=true], input:not([type=checkbox], [type=radio], [type=range], [type=button])";
  const moved = "select, [type=range], [type=radio], [role=slider]";
  const find = (selector, within = document) => within.querySelector(selector);
  const main = find("main"), steps = document.getElementsByClassName("step"), total = document.body.dataset.steps;
  const state = { step: 1, began: Date.now(), opened: {}, ...JSON.parse(sessionStorage.demo || "{}") };
  let presenter;

  const number = () => Math.min(state.step, steps.length);
  const opened = () => (state.opened[number()] ||= {});
  const clicker = () => find(".of-click button", steps[number() - 1]);

  const actions = {
    previous: () => { state.step = Math.max(1, number() - 1); },
    next: () => { state.step = Math.min(steps.length, number() + 1); },
    move: () => { opened().show = true; clicker().click(); },
    present,
    clock: () => { state.began = Date.now(); },
  };
  // What a bet is about stays covered until it is made; then it cannot be covered again, and whatever else is opened uncovers it.
  for (const id in parts) actions[id] = () => Object.assign(opened(), { [id]: id === "show" || !opened()[id], show: true });

  function render() {
    const step = steps[number() - 1];
    if (!step) return;
    for (const each of steps) each.hidden = each !== step;
    for (const id in parts) step.classList.toggle(`with-${id}`, Boolean(opened()[id]));
    for (const cell of document.querySelectorAll(".output td")) {
      if (/^-?\d{4,}$/.test(cell.textContent)) cell.textContent = Number(cell.textContent).toLocaleString("en");
    }
    const isWaiting = [...document.querySelectorAll(".live")].some((each) => !find(".jupyter-widgets", each));
    for (const page of [document, ...(presenter?.closed === false ? [presenter.document] : [])]) {
      find("#where", page).textContent = `Step ${number()} of ${total}`;
      find("#preparing", page).hidden = document.readyState !== "loading" && !isWaiting;
      find("#previous", page).disabled = number() === 1;
      find("#next", page).disabled = number() === steps.length;
      for (const id in parts) {
        find(`#${id}`, page).hidden = !find(parts[id], step);
        find(`#${id}`, page).setAttribute("aria-pressed", Boolean(opened()[id]));
      }
      find("#move", page).hidden = !clicker();
      find("#move", page).setAttribute("aria-pressed", Boolean(clicker()?.matches(".mod-active")));
      find("#to", page).textContent = clicker()?.textContent;
      if (page !== document) find("main", page).innerHTML = find("template", step).innerHTML;
    }
    tick();
    fit(step);
  }

  // The largest letters that fit, and that leave a figure more than half of the window.
  function fit(step) {
    const isWide = (each) => each.scrollWidth > each.clientWidth + 1;
    const area = ({ naturalWidth: wide, naturalHeight: high, clientWidth, clientHeight }) => wide * high * Math.min(clientWidth / wide, clientHeight / high) ** 2 || 0;
    sizes.some((size) => {
      step.style.fontSize = `${size}em`;
      const drawn = [...step.querySelectorAll(".shown img")].reduce((sum, each) => sum + area(each), 0);
      const fits = main.scrollHeight <= main.clientHeight && ![...step.querySelectorAll(".output")].some(isWide);
      return fits && (!drawn || drawn >= 0.58 * innerWidth * innerHeight);
    });
  }

  function present() {
    presenter = window.open("", "presenter", "popup,width=1000,height=720");
    if (!presenter) return; // the browser allows no window that nobody has asked for
    const { head, body } = presenter.document;
    head.innerHTML = `<title>Presenter: ${document.title}</title>${find("#look").outerHTML}`;
    body.className = "presenter";
    body.innerHTML = `<button id="clock" type="button" title="Start the clock again"></button><main></main>${find("nav").outerHTML}`;
    listen(presenter);
    presenter.focus();
  }

  function tick() {
    if (presenter?.closed !== false) return;
    const past = Math.floor((Date.now() - state.began) / 1000), clock = find("#clock", presenter.document);
    clock.textContent = `${Math.floor(past / 60)}:${String(past % 60).padStart(2, "0")}`;
    clock.classList.toggle("late", past > 60 * find("template", steps[number() - 1]).dataset.until);
  }

  // A key presses its button. A field that is typed in keeps all keys, and a slider or list that is held its arrows.
  function press(event) {
    const { key, target } = event, id = keys[key] || keys[key.toLowerCase()];
    if (target.matches(typed)) {
      if (["Enter", "Escape"].includes(key)) setTimeout(() => target.blur()); // when the field itself has taken it
    } else if (id && !event.altKey && !event.ctrlKey && !event.metaKey && !(key.startsWith("Arrow") && target.closest(moved))) {
      event.preventDefault();
      event.stopPropagation();
      const button = find(`#${id}`, target.ownerDocument);
      if (!button.hidden) button.click();
    }
  }

  function act({ target }) {
    const action = actions[target.closest("nav button, #clock")?.id];
    if (!action) return;
    action();
    window.dispatchEvent(new Event("resize")); // sliders that were hidden must learn their width, too
  }

  function listen(page) {
    page.addEventListener("click", act);
    page.addEventListener("keydown", press, true); // before a slider hears of it, which would move with Page Down
  }

  listen(window);
  window.addEventListener("resize", render);
  document.addEventListener("load", render, true); // a picture's
  new MutationObserver(render).observe(main, { childList: true, subtree: true });
  document.addEventListener("DOMContentLoaded", () => {
    document.body.dataset.ready = "yes";
    if (state.presenting) present();
    render();
  });
  window.addEventListener("pagehide", () => {
    state.presenting = presenter?.closed === false;
    if (state.presenting) presenter.document.body.textContent = "The class's window is closed, or is being loaded again.";
    sessionStorage.demo = JSON.stringify(state);
  });
  setInterval(tick, 1000);
})();
