// Bets that open, and cards for glossary terms. Pages can be read without it.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const root = document.documentElement;

  // A block is seen once all the bets that lie over it are open.
  const opened = new Set();
  const open = (names) => {
    names.forEach((name) => opened.add(name));
    for (const block of document.querySelectorAll("[data-under]")) {
      block.classList.toggle("open", block.dataset.under.split(" ").every((name) => opened.has(name)));
    }
    dispatchEvent(new Event("resize")); // the theme looks anew which blocks of code must be within reach of the keyboard
  };
  for (const cover of document.querySelectorAll(".bet-cover")) {
    cover.querySelector("button").addEventListener("click", () => {
      const next = cover.nextElementSibling || cover.parentElement;
      open(cover.dataset.bets.split(" "));
      cover.remove();
      next.setAttribute("tabindex", "-1");
      next.focus({ preventScroll: true });
    });
  }
  // Whoever follows a link to a covered place has asked for it, or came back to it.
  const uncoverTarget = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const covered = target && (target.closest("[data-under]") || target.querySelector(":scope > [data-under]"));
    if (!covered) return;
    const names = covered.dataset.under.split(" ");
    open(names);
    for (const cover of document.querySelectorAll(".bet-cover")) {
      if (cover.dataset.bets.split(" ").every((name) => opened.has(name))) cover.remove();
    }
    target.scrollIntoView();
  };
  addEventListener("hashchange", uncoverTarget);
  uncoverTarget();

  // The first sentence of a term's definition, beside the term, for pointer and keyboard.
  const card = document.createElement("div");
  card.id = "term-card";
  card.setAttribute("role", "tooltip");
  card.hidden = true;
  document.body.append(card);
  const hide = () => { card.hidden = true; };
  const show = (link) => {
    card.textContent = link.dataset.term;
    card.hidden = false;
    const at = link.getBoundingClientRect();
    const left = Math.min(at.left, root.clientWidth - card.offsetWidth - 8);
    const above = at.bottom + card.offsetHeight + 8 > root.clientHeight;
    card.style.left = `${Math.max(8, left) + scrollX}px`;
    card.style.top = `${(above ? at.top - card.offsetHeight - 4 : at.bottom + 4) + scrollY}px`;
  };
  for (const link of document.querySelectorAll("a[title][href*='glossary.html#']")) {
    link.dataset.term = link.title;
    link.removeAttribute("title");
    link.setAttribute("aria-describedby", card.id);
    for (const event of ["mouseenter", "focus"]) link.addEventListener(event, () => show(link));
    for (const event of ["mouseleave", "blur"]) link.addEventListener(event, hide);
  }
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
});
