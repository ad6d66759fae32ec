"use strict";
// The switches for the theme and the language, and what printing needs.
(() => {
  const { root, byId, t, dark, redraws, repaints } = page;
  const keep = (name, value) => { try { localStorage.setItem(name, value); } catch { /* not kept */ } };
  const kept = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
  const repaint = () => { for (const draw of repaints) draw(); };

  const theme = byId("theme");
  const say = () => { theme.setAttribute("aria-pressed", String(dark())); theme.textContent = dark() ? t("light") : t("dark"); };
  redraws.push(say);
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    keep("npufix-theme", root.dataset.theme);
    say();
    repaint();
  });
  say();

  const chosen = byId("language");
  const speak = (language) => {
    root.lang = language;
    page.speak(document);
    chosen.lang = language === "zh" ? "en" : "zh";
    chosen.textContent = language === "zh" ? "English" : "中文";
    for (const draw of redraws) draw();
    repaint();
  };
  chosen.addEventListener("click", () => { speak(chosen.lang); keep("npufix-language", root.lang); });
  const wanted = kept("npufix-language");
  if ((wanted === "zh" || wanted === "en") && wanted !== root.lang) speak(wanted);

  // Where a link leads is unfolded; what is copied is the text before the button.
  const reach = () => {
    const aim = location.hash.length > 1 && byId(decodeURIComponent(location.hash.slice(1)));
    if (!aim) return;
    for (let fold = aim.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    aim.scrollIntoView();
  };
  addEventListener("hashchange", reach);
  reach();
  addEventListener("click", async (event) => {
    const pressed = event.target.closest?.("button.copy");
    if (!pressed) return;
    const shown = pressed.previousElementSibling;
    try { await navigator.clipboard.writeText(shown.textContent); } catch { getSelection().selectAllChildren(shown); document.execCommand("copy"); }
    pressed.textContent = t("copied");
    setTimeout(() => { pressed.textContent = t("copy"); }, 2000);
  });

  // Paper is white, and nothing on it unfolds.
  let before = null;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    repaint();
  });
  addEventListener("afterprint", () => {
    if (before === null) return;
    root.dataset.theme = before;
    repaint();
  });
})();
