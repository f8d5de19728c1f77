"use strict";
// Before anything is drawn: as it was left, or as the system has it; then as the button "theme" says. Pages from a disk
// may have no storage.
(() => {
  let kept = null;
  try { kept = localStorage.getItem("howsmooth-theme"); } catch { /* then it is not remembered */ }
  const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const root = document.documentElement;
  root.dataset.theme = kept === "dark" || kept === "light" ? kept : system;
  document.addEventListener("click", ({ target }) => {
    if (target.id !== "theme") return;
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("howsmooth-theme", root.dataset.theme); } catch { /* then it is not remembered */ }
  });
})();
