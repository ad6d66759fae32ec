// Before the first paint, so that a dark page does not flash in white.
(() => {
  let wanted = null;
  try { wanted = localStorage.getItem("npufix-theme"); } catch { /* a page from file:// may have none */ }
  const dark = wanted ? wanted === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
