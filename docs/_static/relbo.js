// What the theme leaves out for readers who use a keyboard or a screen reader: the level of the captions in the
// sidebar, and code that can be scrolled with the arrow keys.
document.addEventListener("DOMContentLoaded", () => {
  for (const caption of document.querySelectorAll('p.caption[role="heading"]')) caption.setAttribute("aria-level", "2");
  for (const box of document.querySelectorAll("pre, div.table-wrapper")) {
    if (box.scrollWidth > box.clientWidth) box.setAttribute("tabindex", "0");
  }
});
