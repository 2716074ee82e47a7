// Bets that open, and cards for glossary terms. Without it nothing is covered, and a page can be read as it is.
"use strict";

// It stands in the page's head, so that what is to be covered does not flash up.
document.documentElement.classList.add("scripted");

document.addEventListener("DOMContentLoaded", () => {
  const root = document.documentElement;

  // ------------------------------------------------------------------------------------------ cards for terms

  // The first sentence of a term's definition, beside the term, for pointer and keyboard.
  const card = document.createElement("div");
  card.id = "term-card";
  card.setAttribute("aria-hidden", "true"); // who hears the page hears each link's own description
  card.hidden = true;
  document.body.append(card);
  let leaving;
  let asked; // the link that was touched last
  const hide = () => { card.hidden = true; };
  const hideSoon = () => { leaving = setTimeout(hide, 200); }; // time to move the pointer onto the card
  const stay = () => clearTimeout(leaving);
  const show = (link) => {
    stay();
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
    link.setAttribute("aria-description", link.title);
    link.removeAttribute("title");
    for (const event of ["mouseenter", "focus"]) link.addEventListener(event, () => show(link));
    for (const event of ["mouseleave", "blur"]) link.addEventListener(event, hideSoon);
    link.addEventListener("click", (event) => {
      // Where nothing hovers, the first touch shows the card, and the second follows the link.
      if (!matchMedia("(hover: none)").matches || (!card.hidden && card.textContent === link.dataset.term && asked === link)) return;
      event.preventDefault();
      asked = link;
      show(link);
    });
  }
  card.addEventListener("mouseenter", stay);
  card.addEventListener("mouseleave", hideSoon);
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // ------------------------------------------------------------------------------------------ bets

  // A block is seen once all the bets that lie over it are open. They stay so while the tab is there.
  const KEPT = "course-bets";
  const kept = () => {
    try {
      return JSON.parse(sessionStorage.getItem(KEPT)) ?? [];
    } catch {
      return []; // a browser may keep nothing for a page from a folder
    }
  };
  const opened = new Set();
  const open = (names) => {
    names.forEach((name) => opened.add(name));
    try {
      sessionStorage.setItem(KEPT, JSON.stringify([...new Set([...kept(), ...names])]));
    } catch { /* as above */ }
    for (const block of document.querySelectorAll("[data-under]")) {
      block.classList.toggle("open", block.dataset.under.split(" ").every((name) => opened.has(name)));
    }
    for (const cover of document.querySelectorAll(".bet-cover")) {
      if (cover.dataset.bets.split(" ").every((name) => opened.has(name))) cover.remove();
    }
    dispatchEvent(new Event("resize")); // the theme looks anew which blocks of code must be within reach of the keyboard
  };
  for (const cover of document.querySelectorAll(".bet-cover")) {
    cover.querySelector("button").addEventListener("click", () => {
      const next = cover.nextElementSibling;
      open(cover.dataset.bets.split(" "));
      next.setAttribute("tabindex", "-1");
      next.focus({ preventScroll: true });
    });
  }
  // Whoever follows a link to a covered heading has asked for it, or came back to it.
  const uncoverTarget = () => {
    const target = document.querySelector(":target");
    const covered = target?.closest("[data-under]") ?? target?.querySelector(":scope > :is(h1, h2, h3, h4)[data-under]");
    if (!covered) return;
    open(covered.dataset.under.split(" "));
    target.scrollIntoView();
  };
  open(kept());
  addEventListener("hashchange", uncoverTarget);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
  uncoverTarget();
});
