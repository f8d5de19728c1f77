"use strict";
// Before anything is drawn: as it was left, or as the system has it. Pages from a disk may have no storage.
(() => {
  let kept = null;
  try { kept = localStorage.getItem("howsmooth-theme"); } catch { /* then it is not remembered */ }
  const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = kept === "dark" || kept === "light" ? kept : system;
})();
