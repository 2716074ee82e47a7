"use strict";
// What the class's window and the presenter's both know: the step, what is opened on each, when the clock began. Either may
// change it and tells the other; each keeps it for when it is loaded again, and one that is opened later asks the other.
const link = (() => {
  const name = "course-demo"; // the channel ends with the origin, and every demo is served at one of its own
  const channel = new BroadcastChannel(name);
  const kept = sessionStorage.getItem(name);
  const fresh = { step: Number(location.hash.slice(1)) || 1, opened: {}, began: Date.now(), controls: [] };
  const state = Object.assign(fresh, kept && JSON.parse(kept));
  const listeners = { state: [], move: [], here: [], gone: [] };
  const call = (kind, data) => listeners[kind].forEach((listener) => listener(data));
  const keep = () => sessionStorage.setItem(name, JSON.stringify(state));
  const role = document.body.dataset.role;

  channel.onmessage = ({ data }) => {
    if (data.state) { Object.assign(state, data.state); keep(); call("state"); }
    if (data.ask) channel.postMessage({ from: role, state, here: true });
    if (data.move) call("move");
    if (data.here || data.gone) call(data.here ? "here" : "gone", data.from);
  };
  addEventListener("pagehide", () => channel.postMessage({ from: role, gone: true }));
  addEventListener("pageshow", () => channel.postMessage({ from: role, here: true, ask: true }));

  // Change the state here and in the other window.
  function change(part) {
    Object.assign(state, part);
    keep();
    channel.postMessage({ from: role, state });
    call("state");
  }

  const isOpen = (by, step = state.step) => (state.opened[step] || []).includes(by);

  // What a bet is about stays covered until it is made; code and controls fold away; the explanation comes with what it explains.
  function toggle(by) {
    const before = state.opened[state.step] || [];
    let after = before.includes(by) ? before.filter((each) => each !== by) : [...before, by];
    if (by === "revealed" && before.includes(by)) after = before;
    else if (after.length > before.length && !after.includes("revealed")) after.push("revealed");
    change({ opened: { ...state.opened, [state.step]: after } });
  }

  function move() {
    if (!isOpen("revealed")) toggle("revealed");
    channel.postMessage({ from: role, move: true });
    call("move");
  }

  const turn = (by, last) => { if (state.step + by >= 1 && state.step + by <= last) change({ step: state.step + by, wanted: 0 }); };
  const on = (kind, listener) => listeners[kind].push(listener);
  return { state, change, toggle, isOpen, move, turn, on };
})();

// Keys and buttons mean the same in both windows. What is typed in keeps all keys, and a slider or a list that is held its
// arrows; every other key is the page's, wherever the mouse has been.
const keys = (() => {
  const notTyped = ["checkbox", "radio", "range", "button", "submit", "color"];
  const isTyped = (target) => target.isContentEditable || target.matches?.("textarea, input") && !notTyped.includes(target.type);
  const moves = "select, input[type=range], input[type=radio], [role=slider], .noUi-handle";
  const toggles = { uncover: "revealed", explain: "answered", code: "coded", controls: "steered" };
  const of = { s: "uncover", e: "explain", c: "code", f: "controls", m: "move", p: "other", ArrowRight: "next", PageDown: "next", ArrowLeft: "previous", PageUp: "previous" };
  const button = (id) => document.getElementById(id);

  // What a button does is found by its id; one that is absent or cannot be pressed has no key either.
  function start(actions) {
    for (const [id, by] of Object.entries(toggles)) actions[id] ||= () => link.toggle(by);
    for (const [id, act] of Object.entries(actions)) button(id)?.addEventListener("click", act);
    addEventListener("keydown", (event) => {
      const { key, target } = event;
      if (isTyped(target)) {
        if (["Enter", "Escape"].includes(key)) setTimeout(() => target.blur()); // when the field itself has taken it
        return;
      }
      const id = of[key] || of[key.toLowerCase()];
      if (!id || event.altKey || event.ctrlKey || event.metaKey) return;
      if (key.startsWith("Arrow") && target.closest?.(moves)) return;
      event.preventDefault();
      event.stopPropagation();
      if (!button(id)?.hidden && !button(id)?.disabled) actions[id]?.();
    }, true); // before a slider hears of it, which would move with Page Down
  }

  // A button that could do nothing on this page is absent.
  function offer(possible) {
    for (const [id, is] of Object.entries(possible)) button(id).hidden = !is;
    for (const [id, by] of Object.entries(toggles)) button(id).setAttribute("aria-pressed", link.isOpen(by));
  }

  return { start, offer };
})();
